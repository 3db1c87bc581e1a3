// SPDX-License-Identifier: Apache-2.0
/* A run whose blend changes: the samples that each source gives, in the order of a run without a change. */
#include "base/text.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/data/order/data_resume.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SOURCES = 3, APART = 20000, S = 4 };
#define MARKS ((uint8_t[64]){0})

/* Source k has ids from k * APART on, so that a token identifies source and position. */
struct fixture {
    char folder[32], prefix[SOURCES][64];
};

static void write_counting(const char *prefix, int documents, int length, int32_t id)
{
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create(prefix, 100000, &w), OK, "%s", fail_text());
    for (int i = 0; i < documents; i++) {
        for (int k = 0; k < length; k++, id++)
            cr_assert_eq(dataset_writer_add(w, &id, 1), OK);
        cr_assert_eq(dataset_writer_end_document(w), OK);
    }
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
}

static struct fixture fixture_make(void)
{
    struct fixture f = {.folder = "/tmp/cuboid-resume-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    for (int k = 0; k < SOURCES; k++) {
        snprintf(f.prefix[k], sizeof f.prefix[k], "%s/set%d", f.folder, k);
        write_counting(f.prefix[k], 7 + k, 11, k * APART); // the indices of all sources differ
    }
    return f;
}

static void fixture_free(const struct fixture *f)
{
    for (int k = 0; k < SOURCES; k++)
        for (int ending = 0; ending < 2; ending++) {
            char path[80];
            snprintf(path, sizeof path, "%s%s", f->prefix[k], ending == 0 ? ".bin" : ".idx");
            cr_assert_eq(unlink(path), 0);
        }
    cr_assert_eq(rmdir(f->folder), 0);
}

/* What data.train lists, in this order. */
struct mix {
    int count, source[SOURCES];
    double weight[SOURCES];
    int64_t seq_length;
};

static struct data *open_mix(const struct fixture *f, const struct mix *mix)
{
    struct data *data = NULL;
    struct data_source_config sources[SOURCES];
    for (int i = 0; i < mix->count; i++)
        sources[i] = (struct data_source_config){f->prefix[mix->source[i]], mix->weight[i]};
    const struct data_config config = {.train = sources,
                                       .train_count = mix->count,
                                       .split = "100,0,0",
                                       .seed = 1234,
                                       .seq_length = mix->seq_length > 0 ? mix->seq_length : S,
                                       .vocab_size = 100000,
                                       .end_of_document = -1};
    cr_assert_eq(data_open(&config, &data), OK, "%s", fail_text());
    return data;
}

/* Resumes at `samples` from the order in `record`, and replaces it. */
static enum status resume(struct data *data, int64_t samples, bool strict, struct text *record)
{
    struct data_order then;
    struct text now = {0};
    int positions[SOURCES];
    cr_assert_eq(data_order_parse(record->chars, record->length, &then), OK, "%s", fail_text());
    TRY(data_resume(data, &then, samples, strict, positions, &now));
    cr_assert_eq(data_set_order(data, &now), OK, "%s", fail_text());
    text_free(record);
    *record = now;
    return OK;
}

static struct text record_of(struct data *data)
{
    const struct text *order;
    struct text copy = {0};
    cr_assert_eq(data_order_record(data, &order), OK, "%s", fail_text());
    text_add_bytes(&copy, order->chars, order->length);
    return copy;
}

static int32_t first_token(struct data *data, int64_t sample)
{
    int32_t tokens[64];
    cr_assert_eq(data_sample(data, DATA_TRAIN, (uint64_t)sample, tokens, MARKS), OK, "%s", fail_text());
    return tokens[0];
}

/* The first tokens of the samples of each source, in a run that reads all of them alike. */
enum { MOST = 200 };
static void read_reference(const struct fixture *f, int32_t out[SOURCES][MOST])
{
    struct data *data = open_mix(f, &(struct mix){3, {0, 1, 2}, {1, 1, 1}, 0});
    int given[SOURCES] = {0};
    for (int64_t i = 0; i < SOURCES * MOST; i++) {
        int32_t token = first_token(data, i);
        out[token / APART][given[token / APART]++] = token;
    }
    cr_assert(given[0] == MOST && given[1] == MOST && given[2] == MOST);
    data_close(data);
}

/* Weights, order and sources change several times; without a change, nothing does. */
Test(data_resume, each_source_continues_after_what_it_gave)
{
    const struct mix mixes[] = {
        {2, {0, 1}, {0.5, 0.5}, 0},
        {2, {0, 1}, {0.9, 0.1}, 0},
        {2, {0, 1}, {9, 1}, 0},
        {2, {1, 0}, {0.3, 0.7}, 0},
        {1, {1}, {1}, 0},
        {3, {2, 0, 1}, {0.2, 0.3, 0.5}, 0},
        {3, {2, 0, 1}, {0.7, 0.2, 0.1}, 0},
        {3, {2, 0, 1}, {7, 2, 1}, 0},
        {1, {2}, {3}, 0},
        {3, {0, 1, 2}, {1, 1, 1}, 0},
    };
    struct fixture f = fixture_make();
    int32_t reference[SOURCES][MOST];
    int given[SOURCES] = {0};
    int64_t sample = 0;
    struct text record = {0};
    read_reference(&f, reference);
    for (size_t g = 0; g < sizeof mixes / sizeof *mixes; g++) {
        struct data *data = open_mix(&f, &mixes[g]), *same = open_mix(&f, &mixes[g]);
        if (g == 0)
            record = record_of(data);
        else
            cr_assert_eq(resume(data, sample, true, &record), OK, "%s", fail_text());
        for (const int64_t end = sample + 17 + (int64_t)g; sample < end; sample++) {
            int32_t token = first_token(data, sample);
            int source = token / APART;
            cr_assert_eq(token, reference[source][given[source]], "mix %zu, sample %d: source %d", g,
                         (int)sample, source);
            given[source]++;
            // Resumed without a change: the same record, and the same samples.
            struct text again = {0};
            text_add_bytes(&again, record.chars, record.length);
            cr_assert_eq(resume(same, sample, true, &again), OK, "%s", fail_text());
            cr_assert_str_eq(again.chars, record.chars);
            cr_assert_eq(first_token(same, sample), token);
            text_free(&again);
        }
        data_close(same);
        data_close(data);
    }
    cr_assert(given[0] > 20 && given[1] > 20 && given[2] > 20);
    // Weights 9 and 1 are 0.9 and 0.1: ten lists, and eight segments.
    struct data_order order;
    cr_assert_eq(data_order_parse(record.chars, record.length, &order), OK);
    cr_assert_eq(order.segment_count, 8);
    cr_assert_eq(order.source_count, SOURCES);
    data_order_free(&order);
    text_free(&record);
    fixture_free(&f);
}

/* Two changes between the same samples are one. */
Test(data_resume, a_change_before_any_sample_leaves_no_segment)
{
    struct fixture f = fixture_make();
    struct data *a = open_mix(&f, &(struct mix){2, {0, 1}, {1, 1}, 0});
    struct data *b = open_mix(&f, &(struct mix){2, {0, 1}, {2, 1}, 0});
    struct text record = record_of(a), fresh = record_of(b);
    cr_assert_eq(resume(b, 0, true, &record), OK);
    cr_assert_str_eq(record.chars, fresh.chars);
    data_close(a);
    data_close(b);
    text_free(&record);
    text_free(&fresh);
    fixture_free(&f);
}

/* A checkpoint of an earlier version: its recipe names paths and weights, nothing else is known. */
Test(data_resume, an_order_of_a_recipe_is_completed)
{
    struct fixture f = fixture_make();
    struct data *data = open_mix(&f, &(struct mix){2, {0, 1}, {0.5, 0.5}, 0});
    struct text fresh = record_of(data);
    for (int moved = 0; moved < 2; moved++) {
        struct data_order then = {0};
        struct text now = {0};
        int positions[SOURCES];
        struct data_segment *segment = data_order_add_segment(&then, 2);
        segment->seq_length = S;
        segment->seed = 1234;
        for (int i = 0; i < 2; i++)
            segment->parts[i] = (struct data_order_part){
                .source = data_order_add_source(&then, moved ? "elsewhere" : f.prefix[i], 0), .weight = 1};
        cr_assert_eq(data_resume(data, &then, 10, true, positions, &now), OK, "%s", fail_text());
        cr_assert(positions[0] == 0 && positions[1] == 1);
        cr_assert_str_eq(now.chars, fresh.chars);
        text_free(&now);
    }
    data_close(data);
    text_free(&fresh);
    fixture_free(&f);
}

/* With another sequence length a source continues at the same fraction of its epoch, and about as much text
 * repeats as the warning says. */
Test(data_resume, another_sequence_length)
{
    enum { TOKENS = 1601, LONG = 8, HALF = TOKENS / S / 2, LONG_SAMPLES = TOKENS / LONG };
    struct fixture f = fixture_make();
    write_counting(f.prefix[0], 1, TOKENS, 0);
    struct data *a = open_mix(&f, &(struct mix){1, {0}, {1}, 0});
    struct data *b = open_mix(&f, &(struct mix){1, {0}, {1}, LONG});
    struct text record = record_of(a);
    bool seen[TOKENS] = {false};
    int32_t tokens[64];
    int repeated = 0;
    for (int64_t i = 0; i < HALF; i++) {
        cr_assert_eq(data_sample(a, DATA_TRAIN, (uint64_t)i, tokens, MARKS), OK);
        for (int k = 0; k < S; k++)
            seen[tokens[k]] = true;
    }
    cr_assert_eq(resume(b, HALF, true, &record), BAD_DATA);
    cr_assert_not_null(strstr(fail_text(),
                              "another model.seq_length (4, now 8) moves its samples: it continues after "
                              "50 % of epoch 1; about 50 of the 200 samples of this epoch repeat text, "
                              "and as much text is skipped; restore this, or set data.strict=false"),
                       "%s", fail_text());
    cr_assert_eq(resume(b, HALF, false, &record), OK, "%s", fail_text());
    for (int64_t i = 0; i < LONG_SAMPLES / 2; i++) {
        cr_assert_eq(data_sample(b, DATA_TRAIN, (uint64_t)(HALF + i), tokens, MARKS), OK);
        for (int k = 0; k < LONG; k++)
            repeated += seen[tokens[k]];
    }
    // The next epoch is complete: its samples are those of a run that has always read long ones.
    struct data *c = open_mix(&f, &(struct mix){1, {0}, {1}, LONG});
    for (int64_t i = 0; i < LONG_SAMPLES; i++)
        cr_assert_eq(first_token(b, HALF + LONG_SAMPLES / 2 + i), first_token(c, LONG_SAMPLES + i));
    // Drawing half of 200 samples, of which half are marked: standard deviation sqrt(200 / 16) samples.
    cr_assert(fabs((double)repeated / LONG - 50.0) < 4.0 * sqrt(200.0 / 16.0), "%d tokens repeat", repeated);
    data_close(a);
    data_close(b);
    data_close(c);
    text_free(&record);
    fixture_free(&f);
}

/* A record of one segment, or of two that begin at `from` and `next`. */
static void add_record(const char *sources, const char *from, const char *next, const char *parts,
                       struct text *out)
{
    text_add(out, "{\"sources\": [%s], \"segments\": [", sources);
    for (int i = 0; i < (next != NULL ? 2 : 1); i++)
        text_add(out,
                 "%s{\"from_sample\": %s, \"seq_length\": 4, \"seed\": \"1\", \"pack_documents\": false, "
                 "\"truncate_documents\": false, \"blend\": [%s]}",
                 i > 0 ? ", " : "", i > 0 ? next : from, parts);
    text_add(out, "]}");
}

Test(data_resume, a_record_is_checked)
{
#define SOURCE "{\"path\": \"a\", \"content\": \"ff\"}"
#define PART(source, weight, offset, samples, documents)                                             \
    "{\"source\": " source ", \"weight\": " weight ", \"offset\": " offset ", \"samples\": " samples \
    ", \"documents\": " documents "}"
#define GOOD PART("0", "1", "0", "1", "[0, 1]")
    static const char most[] = "9223372036854775807";
    static const struct {
        const char *sources, *from, *next, *parts;
        bool good;
    } records[] = {
        {SOURCE, "-1", NULL, GOOD, false},
        {SOURCE, "1", NULL, GOOD, false}, // samples before it have no source
        {SOURCE, "0", "0", GOOD, false},
        {SOURCE, "0", most, GOOD, false},
        {SOURCE, "0.0", NULL, GOOD, false},
        {SOURCE, "0", NULL, PART("1", "1", "0", "1", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "0", "0", "1", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "-1", "1", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "9223372036854775807", "1", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "0", "-1", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "0", "9223372036854775807", "[0, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "0", "1", "[2, 1]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "0", "1", "[0, \"1\"]"), false},
        {SOURCE, "0", NULL, PART("0", "1", "0", "1", "[0]"), false},
        {SOURCE, "0", NULL, GOOD ", " GOOD, false}, // a source twice
        {"{\"path\": 1, \"content\": \"0\"}", "0", NULL, "", false},
        {"{\"path\": \"a\", \"content\": \"xyz\"}", "0", NULL, "", false},
        {SOURCE, "0", NULL, GOOD, true},
        {SOURCE, "0", "1", GOOD, true},
        {SOURCE ", " SOURCE, "0", "1", GOOD ", " PART("1", "1", "0", "1", "[0, 1]"), true},
    };
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        struct text text = {0};
        struct data_order order;
        add_record(records[i].sources, records[i].from, records[i].next, records[i].parts, &text);
        enum status status = data_order_parse(text.chars, text.length, &order);
        cr_assert_eq(status, records[i].good ? OK : BAD_DATA, "%s", text.chars);
        if (status == OK)
            data_order_free(&order);
        text_free(&text);
    }
    struct data_order order;
    cr_assert_eq(data_order_parse("{}", 2, &order), BAD_DATA);
}

/* Numbers of a record, or of a checkpoint, that no run reaches: an error, or an offset in range. */
Test(data_resume, the_largest_numbers)
{
    struct fixture f = fixture_make();
    struct data *data = open_mix(&f, &(struct mix){1, {0}, {1}, 2 * S});
    const int64_t large = DATA_ORDER_MOST;
    for (int i = 0; i < 3; i++) {
        struct data_order then = {0};
        struct text now = {0};
        int positions[SOURCES];
        struct data_segment *segment = data_order_add_segment(&then, 1);
        segment->seq_length = S;
        segment->parts[0] = (struct data_order_part){.source = data_order_add_source(&then, f.prefix[0], 0),
                                                     .weight = 1,
                                                     .offset = large,
                                                     .samples = 1};
        segment->from = i == 1 ? 11 : 0;
        const int64_t samples = i == 0 ? INT64_MAX : 10;
        cr_assert_eq(data_resume(data, &then, samples, false, positions, &now), i < 2 ? BAD_CHECKPOINT : OK);
        text_free(&now);
    }
    data_close(data);
    fixture_free(&f);
}
