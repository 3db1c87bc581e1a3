// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"
#include "base/text.h"
#include "trainer/data/data.h"
#include "trainer/data/dataset_writer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A dataset whose ids count up from `first`, so that a token identifies its origin. */
struct fixture {
    char folder[32];
    char prefix[2][64];
};

static void write_counting(const char *prefix, const int *lengths, int documents, int32_t first)
{
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create(prefix, 100000, &w), OK, "%s", fail_text());
    for (int i = 0; i < documents; i++) {
        for (int k = 0; k < lengths[i]; k++, first++)
            cr_assert_eq(dataset_writer_add(w, &first, 1), OK);
        cr_assert_eq(dataset_writer_end_document(w), OK);
    }
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
}

static struct fixture fixture_make(const int *lengths, int documents)
{
    struct fixture f = {.folder = "/tmp/cuboid-data-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    for (int i = 0; i < 2; i++) {
        snprintf(f.prefix[i], sizeof f.prefix[i], "%s/set%d", f.folder, i);
        write_counting(f.prefix[i], lengths, documents, i * 50000);
    }
    return f;
}

static void fixture_free(struct fixture *f)
{
    for (int i = 0; i < 2; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s.bin", f->prefix[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s.idx", f->prefix[i]);
        unlink(path);
    }
    cr_assert_eq(rmdir(f->folder), 0);
}

/* Some documents are empty, some shorter than a sample, some hold many samples. */
enum { DOCUMENTS = 40 };
#define UNUSED_MARKS ((uint8_t[512]){0})
static int total_of(int lengths[DOCUMENTS])
{
    int total = 0;
    for (int i = 0; i < DOCUMENTS; i++) {
        lengths[i] = i % 7 == 3 ? 0 : (i * 37 + 11) % 97;
        total += lengths[i];
    }
    return total;
}

static struct data_config config_of(const struct data_source_config *sources, int count, int64_t seq_length)
{
    return (struct data_config){
        .train = sources,
        .train_count = count,
        .split = "100,0,0",
        .seed = 1234,
        .seq_length = seq_length,
        .vocab_size = 100000,
        .end_of_document = -1,
    };
}

static struct data *open_data(const struct data_config *config)
{
    struct data *data = NULL;
    cr_assert_eq(data_open(config, &data), OK, "%s", fail_text());
    return data;
}

/* One epoch of one source: each token is an input once, but for at most S, and labels are next inputs. */
Test(data, an_epoch_reads_every_token_once)
{
    int lengths[DOCUMENTS], total = total_of(lengths);
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config source = {f.prefix[0], 1.0};
    for (int S = 1; S <= 200; S += S < 12 ? 1 : 47) {
        struct data_config config = config_of(&source, 1, S);
        struct data *data = open_data(&config);
        int64_t samples = data_epoch_samples(data, DATA_TRAIN);
        cr_assert_eq(samples, (total - 1) / S);
        for (int epoch = 0; epoch < 3; epoch++) {
            int *seen = calloc((size_t)total, sizeof *seen), once = 0;
            int32_t tokens[201];
            for (int64_t i = 0; i < samples; i++) {
                cr_assert_eq(
                    data_sample(data, DATA_TRAIN, (uint64_t)(epoch * samples + i), tokens, UNUSED_MARKS), OK);
                for (int s = 0; s < S; s++)
                    seen[tokens[s]]++;
            }
            for (int i = 0; i < total; i++) {
                cr_assert(seen[i] <= 1, "token %d of %d is read %d times (S %d)", i, total, seen[i], S);
                once += seen[i];
            }
            cr_assert(once == samples * S && total - once <= S);
            free(seen);
        }
        data_close(data);
    }
    fixture_free(&f);
}

/* A simple independent implementation: concatenate the documents of an epoch, and cut. */
Test(data, a_sample_is_a_slice_of_the_shuffled_documents)
{
    enum { S = 23 };
    int lengths[DOCUMENTS], total = total_of(lengths);
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, S);
    struct data *data = open_data(&config);
    int64_t samples = (total - 1) / S;
    struct philox documents = philox_named(1234, "data.train[0].documents");
    struct philox order = philox_named(1234, "data.train[0].samples");
    int32_t *line = malloc((size_t)total * sizeof *line), tokens[S + 1];
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        int placed = 0;
        for (int i = 0; i < DOCUMENTS; i++) {
            int document = (int)philox_permute(documents, epoch, DOCUMENTS, i), start = 0;
            for (int k = 0; k < document; k++)
                start += lengths[k];
            for (int k = 0; k < lengths[document]; k++)
                line[placed++] = start + k;
        }
        cr_assert_eq(placed, total);
        for (int64_t i = 0; i < samples; i++) {
            int64_t k = philox_permute(order, epoch, samples, i);
            cr_assert_eq(
                data_sample(data, DATA_TRAIN, epoch * (uint64_t)samples + (uint64_t)i, tokens, UNUSED_MARKS),
                OK);
            cr_assert_eq(memcmp(tokens, line + k * S, sizeof tokens), 0, "epoch %d, sample %d", (int)epoch,
                         (int)i);
        }
    }
    free(line);
    data_close(data);
    fixture_free(&f);
}

static void read_all(struct data *data, enum data_split split, int S, int count, bool backwards, int32_t *out)
{
    for (int i = 0; i < count; i++) {
        int at = backwards ? count - 1 - i : i;
        cr_assert_eq(data_sample(data, split, (uint64_t)at, out + at * (S + 1), UNUSED_MARKS), OK, "%s",
                     fail_text());
    }
}

Test(data, samples_depend_only_on_seed_and_index)
{
    enum { S = 16, COUNT = 600 };
    int lengths[DOCUMENTS];
    total_of(lengths);
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config sources[2] = {{f.prefix[0], 3.0}, {f.prefix[1], 1.5}};
    struct data_config config = config_of(sources, 2, S);
    config.split = "80,20";
    const size_t bytes = COUNT * (S + 1) * sizeof(int32_t);
    int32_t *a = malloc(bytes), *b = malloc(bytes);

    struct data *data = open_data(&config), *again = open_data(&config);
    read_all(data, DATA_TRAIN, S, COUNT, false, a);
    read_all(again, DATA_TRAIN, S, COUNT, true, b); // several epochs, in reverse order
    cr_assert_eq(memcmp(a, b, bytes), 0);
    read_all(data, DATA_VALID, S, COUNT, false, a);
    data_close(data);
    data_close(again);

    // Another seed: other training samples, the same validation samples.
    config.seed = 1235;
    data = open_data(&config);
    read_all(data, DATA_VALID, S, COUNT, false, b);
    cr_assert_eq(memcmp(a, b, bytes), 0);
    read_all(data, DATA_TRAIN, S, COUNT, false, a);
    data_close(data);
    config.seed = 1234;
    data = open_data(&config);
    read_all(data, DATA_TRAIN, S, COUNT, false, b);
    cr_assert_neq(memcmp(a, b, bytes), 0);
    data_close(data);
    free(a);
    free(b);
    fixture_free(&f);
}

struct reader {
    struct data *data;
    int32_t *out;
    int from, step, count, seq_length;
    enum status status;
};

static void *read_some(void *argument)
{
    struct reader *r = argument;
    for (int i = r->from; i < r->count && r->status == OK; i += r->step)
        r->status =
            data_sample(r->data, DATA_TRAIN, (uint64_t)i, r->out + i * (r->seq_length + 1), UNUSED_MARKS);
    return NULL;
}

Test(data, threads_may_share_it)
{
    enum { S = 16, COUNT = 600, THREADS = 4 };
    int lengths[DOCUMENTS];
    total_of(lengths);
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, S);
    const size_t bytes = COUNT * (S + 1) * sizeof(int32_t);
    int32_t *a = malloc(bytes), *b = malloc(bytes);
    struct data *data = open_data(&config);
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        // Blocks and strides, so that threads are in different epochs and compete for the two cache slots.
        readers[t] = (struct reader){data, a, t, THREADS, COUNT, S, OK};
        cr_assert_eq(pthread_create(&threads[t], NULL, read_some, &readers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        cr_assert_eq(readers[t].status, OK);
    }
    data_close(data);
    data = open_data(&config);
    read_all(data, DATA_TRAIN, S, COUNT, false, b);
    cr_assert_eq(memcmp(a, b, bytes), 0);
    data_close(data);
    free(a);
    free(b);
    fixture_free(&f);
}

/* The documents of the three splits are disjoint, in file order, and complete, with Megatron's bounds. */
Test(data, a_split_cuts_documents)
{
    enum { S = 4 };
    int lengths[DOCUMENTS], total = 0;
    for (int i = 0; i < DOCUMENTS; i++)
        total += lengths[i] = 10;
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, S);
    config.split = "949, 50, 1";
    struct data *data = open_data(&config);
    // round(0.949 * 40) = round(37.96) = 38; round(0.999 * 40) = 40: nothing is left for the test.
    const int bounds[4] = {0, 380, 400, 400};
    for (int split = 0; split < 2; split++) {
        int64_t samples = data_epoch_samples(data, (enum data_split)split);
        cr_assert_eq(samples, (bounds[split + 1] - bounds[split] - 1) / S);
        for (int64_t i = 0; i < 2 * samples; i++) {
            int32_t tokens[S + 1];
            cr_assert_eq(data_sample(data, (enum data_split)split, (uint64_t)i, tokens, UNUSED_MARKS), OK);
            for (int s = 0; s <= S; s++)
                cr_assert(tokens[s] >= bounds[split] && tokens[s] < bounds[split + 1]);
        }
    }
    cr_assert_eq(data_require(data, DATA_VALID), OK);
    cr_assert_eq(data_require(data, DATA_TEST), BAD_RECIPE);
    cr_assert(strstr(fail_text(), "gives test 0 of its 40 documents") != NULL, "%s", fail_text());
    data_close(data);

    // Separate lists: all of the first trains, all of the second validates.
    const struct data_source_config other = {f.prefix[1], 1.0};
    config.split = NULL;
    config.valid = &other;
    config.valid_count = 1;
    data = open_data(&config);
    cr_assert_eq(data_epoch_samples(data, DATA_TRAIN), (total - 1) / S);
    cr_assert_eq(data_epoch_samples(data, DATA_VALID), (total - 1) / S);
    int32_t tokens[S + 1];
    cr_assert_eq(data_sample(data, DATA_VALID, 0, tokens, UNUSED_MARKS), OK);
    cr_assert_geq(tokens[0], 50000);
    data_close(data);
    fixture_free(&f);
}

Test(data, splits_are_parsed_or_rejected)
{
    double share[DATA_SPLITS];
    cr_assert_eq(data_split_parse("949,50,1", share), OK);
    cr_assert(share[0] == 0.949 && share[1] == 0.05 && share[2] == 0.001);
    cr_assert_eq(data_split_parse("9, 1", share), OK);
    cr_assert(share[0] == 0.9 && share[1] == 0.1 && share[2] == 0.0);
    cr_assert_eq(data_split_parse("1", share), OK);
    const char *const wrong[] = {"",      "a",     "1,",  "1,2,", "1,2,3,4", "-1,2",
                                 "0,0,0", "nan,1", "1;2", "1,,2", "inf",     "1e308,1e308"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(data_split_parse(wrong[i], share), BAD_RECIPE, "\"%s\" was accepted", wrong[i]);
        cr_assert(strstr(fail_text(), "data.split") != NULL && strstr(fail_text(), "969,30,1") != NULL);
    }
}

/* In any layout, a step has the same samples, and rows are in Megatron's order. */
Test(data, all_layouts_use_the_same_samples)
{
    enum { S = 8, G = 24, STEP = 3 };
    int lengths[DOCUMENTS];
    total_of(lengths);
    struct fixture f = fixture_make(lengths, DOCUMENTS);
    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, S);
    struct data *data = open_data(&config);
    const int layouts[][2] = {{1, 1}, {1, 24}, {2, 3}, {4, 2}, {8, 1}, {3, 4}}; // dp, B
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        int dp = layouts[l][0], B = layouts[l][1];
        bool seen[G] = {false};
        struct batch_tokens batch;
        batch = batch_create(B, S);
        for (int r = 0; r < dp; r++)
            for (int j = 0; j < G / (dp * B); j++) {
                struct batch_coord place = {STEP, G, B, dp, r, j, 0};
                cr_assert_eq(data_batch(data, DATA_TRAIN, &place, &batch), OK, "%s", fail_text());
                for (int row = 0; row < B; row++) {
                    int32_t tokens[S + 1];
                    uint64_t sample = batch.samples[row];
                    cr_assert_eq(sample, (uint64_t)(STEP * G + (j * dp + r) * B + row));
                    cr_assert(!seen[sample - STEP * G]);
                    seen[sample - STEP * G] = true;
                    cr_assert_eq(data_sample(data, DATA_TRAIN, sample, tokens, UNUSED_MARKS), OK);
                    cr_assert_eq(memcmp(batch.tokens + row * S, tokens, S * 4), 0);
                    cr_assert_eq(memcmp(batch.labels + row * S, tokens + 1, S * 4), 0);
                }
            }
        for (int i = 0; i < G; i++)
            cr_assert(seen[i]);
        batch_free(&batch);
    }
    data_close(data);
    fixture_free(&f);
}

/* One document of 12 tokens in which 9 is the end-of-document token, by hand. */
Test(data, packed_documents_are_marked_as_in_megatron)
{
    struct fixture f = fixture_make((const int[]){1}, 1);
    const int32_t text[10] = {1, 2, 9, 3, 9, 9, 4, 5, 9, 6};
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create(f.prefix[0], 10, &w), OK);
    cr_assert_eq(dataset_writer_add(w, text, 10), OK);
    cr_assert_eq(dataset_writer_end_document(w), OK);
    cr_assert_eq(dataset_writer_finish(w), OK);
    dataset_writer_destroy(w);

    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, 9);
    config.vocab_size = 10;
    config.end_of_document = 9;
    const int32_t plain[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, none[9] = {0};
    const int32_t positions[9] = {0, 1, 2, 0, 1, 0, 0, 1, 2}, documents[9] = {0, 0, 0, 1, 1, 2, 3, 3, 3};
    const float ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, mask[9] = {1, 1, 0, 1, 0, 0, 1, 1, 0};
    struct batch_tokens batch;
    batch = batch_create(1, 9);
    for (int options = 0; options < 8; options++) {
        config.reset_position_ids = options & 1;
        config.reset_attention_mask = options & 2;
        config.eod_mask_loss = options & 4;
        struct data *data = open_data(&config);
        cr_assert_eq(data_batch(data, DATA_TRAIN, &(struct batch_coord){0, 1, 1, 1, 0, 0, 0}, &batch), OK);
        cr_assert_eq(memcmp(batch.tokens, text, 36), 0);
        cr_assert_eq(memcmp(batch.labels, text + 1, 36), 0);
        cr_assert_eq(memcmp(batch.positions, options & 1 ? positions : plain, 36), 0);
        cr_assert_eq(memcmp(batch.documents, options & 2 ? documents : none, 36), 0);
        cr_assert_eq(memcmp(batch.loss_mask, options & 4 ? mask : ones, 36), 0);
        data_close(data);
    }
    batch_free(&batch);

    // Without an end-of-document id there is nothing to mask.
    struct data *data = NULL;
    config.end_of_document = -1;
    cr_assert_eq(data_open(&config, &data), BAD_RECIPE);
    cr_assert(strstr(fail_text(), "data.reset_position_ids") != NULL, "%s", fail_text());
    fixture_free(&f);
}

Test(data, invalid_requests_suggest_valid_values)
{
    struct fixture f = fixture_make((const int[]){10, 0, 15}, 3);
    const struct data_source_config source = {f.prefix[0], 1.0};
    struct data_config config = config_of(&source, 1, 25);
    struct data *data = NULL;
    cr_assert_eq(data_open(&config, &data), BAD_RECIPE);
    cr_assert(strstr(fail_text(),
                     "25 tokens; a sample of model.seq_length 25 needs 26; use a seq_length of 24 or less") !=
                  NULL,
              "%s", fail_text());
    config.seq_length = 24;
    cr_assert_eq(data_open(&config, &data), OK, "%s", fail_text());
    data_close(data);

    config.seq_length = 4;
    config.vocab_size = 20;
    cr_assert_eq(data_open(&config, &data), OK);
    enum status status = OK;
    int32_t tokens[5];
    for (uint64_t i = 0; i < 6 && status == OK; i++)
        status = data_sample(data, DATA_TRAIN, i, tokens, UNUSED_MARKS);
    cr_assert_eq(status, BAD_DATA);
    cr_assert(strstr(fail_text(), ".bin: document 2, position ") != NULL, "%s", fail_text());
    data_close(data);

    config = config_of(&source, 0, 4);
    cr_assert_eq(data_open(&config, &data), BAD_RECIPE);
    const double weights[] = {0.0, -1.0, (double)INFINITY, (double)NAN};
    for (int i = 0; i < 4; i++) {
        const struct data_source_config sources[2] = {{f.prefix[0], 1.0}, {f.prefix[1], weights[i]}};
        config = config_of(sources, 2, 4);
        cr_assert_eq(data_open(&config, &data), BAD_RECIPE);
        cr_assert(strstr(fail_text(), "data.train source 2 (") != NULL, "%s", fail_text());
    }
    // All of them at once, in both lists.
    const struct data_source_config missing[3] = {
        {"/nowhere/at/all", 1.0}, {f.prefix[0], 0.0}, {"/nowhere/else", 1.0}};
    config = config_of(missing, 3, 4);
    config.valid = &missing[2];
    config.valid_count = 1;
    config.split = NULL;
    cr_assert_eq(data_open(&config, &data), BAD_RECIPE);
    struct text expected = {0};
    const char *why = "No such file or directory (a dataset is two files, PREFIX.bin and PREFIX.idx, made by "
                      "cuboid data prepare TEXT -o PREFIX)";
    text_add(
        &expected,
        "data.train: /nowhere/at/all.idx: %s; data.train source 2 (%s): weight 0 must be greater than 0; to "
        "use no samples of it, remove the source; data.train: /nowhere/else.idx: %s; data.valid: "
        "/nowhere/else.idx: %s",
        why, f.prefix[0], why, why);
    cr_assert_str_eq(fail_text(), text_chars(&expected));
    text_free(&expected);
    fixture_free(&f);
}

/* ---- mock data ---- */

static struct data *open_mock(uint64_t seed, int64_t vocab_size)
{
    struct data_config config = {
        .mock = true, .seed = seed, .seq_length = 64, .vocab_size = vocab_size, .end_of_document = -1};
    return open_data(&config);
}

/* Samples are functions of seed, split and number, in any order; ids are uniform in the vocabulary. */
Test(data, mock_tokens_are_random_and_repeatable)
{
    enum { VOCABULARY = 10, SAMPLES = 400, TOKENS = 65 };
    struct data *a = open_mock(1, VOCABULARY), *b = open_mock(1, VOCABULARY), *c = open_mock(2, VOCABULARY);
    int32_t x[TOKENS], y[TOKENS], z[TOKENS];
    int seen[VOCABULARY] = {0}, pairs = 0, seeds = 0, splits = 0;
    cr_assert_eq(data_require(a, DATA_TRAIN), OK);
    cr_assert_eq(data_require(a, DATA_VALID), OK);
    for (int i = 0; i < SAMPLES; i++) {
        cr_assert_eq(data_sample(a, DATA_TRAIN, (uint64_t)i, x, UNUSED_MARKS), OK);
        cr_assert_eq(data_sample(b, DATA_TRAIN, (uint64_t)(SAMPLES - 1 - i), y, UNUSED_MARKS), OK);
        cr_assert_eq(data_sample(b, DATA_TRAIN, (uint64_t)i, y, UNUSED_MARKS), OK);
        cr_assert_eq(memcmp(x, y, sizeof x), 0);
        cr_assert_eq(data_sample(c, DATA_TRAIN, (uint64_t)i, z, UNUSED_MARKS), OK);
        cr_assert_eq(data_sample(a, DATA_TRAIN, (uint64_t)i + (1ULL << 40), y, UNUSED_MARKS), OK);
        for (int k = 0; k < TOKENS; k++) {
            cr_assert(x[k] >= 0 && x[k] < VOCABULARY);
            seen[x[k]]++;
            seeds += x[k] == z[k];
            pairs += x[k] == y[k];
        }
        cr_assert_eq(data_sample(a, DATA_VALID, (uint64_t)i, y, UNUSED_MARKS), OK);
        cr_assert_eq(data_sample(c, DATA_VALID, (uint64_t)i, z, UNUSED_MARKS), OK);
        cr_assert_eq(memcmp(y, z, sizeof y), 0); // does not depend on the seed
        for (int k = 0; k < TOKENS; k++)
            splits += x[k] == y[k];
    }
    // 26000 tokens: 2600 of each, and as many by chance in two samples; the standard deviation is 48.
    for (int id = 0; id < VOCABULARY; id++)
        cr_assert(abs(seen[id] - 2600) < 250, "id %d: %d", id, seen[id]);
    cr_assert(abs(seeds - 2600) < 250 && abs(pairs - 2600) < 250 && abs(splits - 2600) < 250, "%d %d %d",
              seeds, pairs, splits);
    data_close(a);
    data_close(b);
    data_close(c);
}

/* A batch of one rank holds the rows that another layout has on several. */
Test(data, mock_batches_do_not_depend_on_the_layout)
{
    struct data *data = open_mock(3, 50000);
    struct batch_tokens whole, part;
    whole = batch_create(8, 64);
    part = batch_create(2, 64);
    const struct batch_coord all = {.step = 5, .global_batch_size = 8, .micro_batch_size = 8, .dp_size = 1};
    cr_assert_eq(data_batch(data, DATA_TRAIN, &all, &whole), OK);
    for (int rank = 0; rank < 2; rank++)
        for (int j = 0; j < 2; j++) {
            const struct batch_coord coord = {.step = 5,
                                              .global_batch_size = 8,
                                              .micro_batch_size = 2,
                                              .dp_size = 2,
                                              .dp_rank = rank,
                                              .microbatch = j};
            cr_assert_eq(data_batch(data, DATA_TRAIN, &coord, &part), OK);
            const size_t at = (size_t)(part.samples[0] - whole.samples[0]) * 64;
            cr_assert_eq(memcmp(part.tokens, whole.tokens + at, 2 * 64 * sizeof(int32_t)), 0);
            cr_assert_eq(memcmp(part.labels, whole.labels + at, 2 * 64 * sizeof(int32_t)), 0);
        }
    batch_free(&whole);
    batch_free(&part);
    data_close(data);
}
