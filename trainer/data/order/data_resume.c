// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/order/data_resume.h"

#include "base/memory.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/data/data_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of a run from its beginning ---- */

static void fill_segment(const struct data *data, struct data_segment *segment)
{
    const struct data_mix *mix = &data->mixes[DATA_TRAIN];
    segment->seq_length = data->seq_length;
    segment->seed = data->seed;
    segment->pack_documents = data->marks.pack_documents;
    segment->truncate_documents = data->truncate_documents;
    for (int i = 0; i < mix->count; i++)
        segment->parts[i] = (struct data_order_part){
            .source = i,
            .weight = data->train.weights[i],
            .samples = mix->parts[i].samples,
            .first = mix->parts[i].first,
            .documents = mix->parts[i].documents,
        };
}

static enum status begin_order(const struct data *data, struct data_order *out)
{
    const int count = data->mixes[DATA_TRAIN].count;
    for (int i = 0; i < count; i++) {
        uint64_t content;
        TRY(data_content(data->train.datasets[i], &content));
        data_order_add_source(out, dataset_prefix(data->train.datasets[i]), content);
    }
    fill_segment(data, data_order_add_segment(out, count));
    return OK;
}

enum status data_order_record(struct data *data, const struct text **out)
{
    AUTO(data_order) order = {0};
    *out = &data->order;
    if (data->order.length > 0)
        return OK;
    TRY(begin_order(data, &order));
    data_order_text(&order, &data->order);
    return OK;
}

/* ---- the sources of a recorded order ---- */

struct resume {
    const struct data_part *parts; // of the sources now
    struct data_order *then, now;  // now: as if the run began
    const struct data_segment *last;
    int *numbers;   // [now.source_count] of the sources in `then`; -1: new
    int *positions; // of the sources in the last segment
    int64_t *given; // [then->source_count + now.source_count] samples that were read before
    int64_t samples;
    struct text lost; // what is skipped and repeated
};

/* The position of each source of `then` in its last segment; -1: not in it. */
static int *find_places(const struct resume *r)
{
    int *places = memory_zeroed((size_t)r->then->source_count + 1, sizeof *places, "the order of the data");
    for (int j = 0; j < r->then->source_count; j++)
        places[j] = -1;
    for (int i = 0; i < r->last->count; i++)
        places[r->last->parts[i].source] = i;
    return places;
}

/* How well source i of the recipe fits a recorded one: 0 not at all; 7 at the same place, path and content. A
 * dataset may be moved, and may be replaced under its path. */
static int likeness(const struct resume *r, int i, int j, int place)
{
    const struct data_order_source *a = &r->now.sources[i], *b = &r->then->sources[j];
    const bool content = a->content == b->content, path = strcmp(a->path, b->path) == 0;
    const bool may_have_moved = b->content == 0 && r->last->count == r->now.source_count;
    if (!content && !path && !(may_have_moved && place == i))
        return 0;
    return 4 * content + 2 * path + (place == i);
}

/* Assigns each source of the recipe to a recorded one, the most alike first. */
static void match_sources(struct resume *r)
{
    AUTO_FREE int *places = find_places(r);
    AUTO_FREE bool *taken =
        memory_zeroed((size_t)r->then->source_count + 1, sizeof *taken, "the order of the data");
    for (int i = 0; i < r->now.source_count; i++)
        r->numbers[i] = r->positions[i] = -1;
    for (int least = 7; least > 0; least--)
        for (int i = 0; i < r->now.source_count; i++)
            for (int j = 0; j < r->then->source_count && r->numbers[i] < 0; j++)
                if (!taken[j] && likeness(r, i, j, places[j]) >= least) {
                    r->numbers[i] = j;
                    r->positions[i] = places[j];
                    taken[j] = true;
                }
}

/* ---- borders ---- */

/* Appends the keys that move the samples of an epoch. */
static void add_moved(const struct data_segment *then, const struct data_order_part *from,
                      const struct data_segment *now, const struct data_order_part *to, struct text *out)
{
    if (then->seq_length != now->seq_length)
        text_add(out, ", model.seq_length (%" PRId64 ", now %" PRId64 ")", then->seq_length, now->seq_length);
    if (then->seed != now->seed)
        text_add(out, ", seed (%" PRIu64 ", now %" PRIu64 ")", then->seed, now->seed);
    if (then->pack_documents != now->pack_documents)
        text_add(out, ", data.pack_documents");
    else if (then->pack_documents && then->truncate_documents != now->truncate_documents)
        text_add(out, ", data.truncate_documents");
    if (from->documents > 0 && (from->first != to->first || from->documents != to->documents))
        text_add(out, ", data.split or data.valid");
}

/* Sets the offset of a source whose samples have moved to the same fraction of its epoch, and reports it. */
static void move_offset(struct resume *r, const struct data_segment *then, const struct data_order_part *from,
                        const struct text *why, struct data_order_part *to)
{
    const struct data_segment *now = &r->now.segments[0];
    int64_t samples = from->samples; // unknown in an older checkpoint
    if (samples == 0)
        samples =
            (int64_t)fmax(1.0, (double)to->samples * (double)now->seq_length / (double)then->seq_length);
    const int64_t most = DATA_ORDER_MOST / (to->samples + 1); // far more than any run reads
    const int64_t epoch = to->offset / samples < most ? to->offset / samples : most;
    const double part = (double)(to->offset % samples) / (double)samples;
    to->offset = epoch * to->samples + llround(part * (double)to->samples);
    if (!(part > 0.0))
        return;
    text_add(&r->lost,
             "%sdata.train source %d (%s): another %s moves its samples: it continues after %.3g %% of epoch "
             "%" PRId64 "; about %.0f of the %" PRId64
             " samples of this epoch repeat text, and as much text is skipped",
             r->lost.length > 0 ? "\n" : "", (int)(to - now->parts) + 1, r->now.sources[to - now->parts].path,
             why->chars + strlen(", "), 100.0 * part, epoch + 1,
             fmax(1.0, part * (1.0 - part) * (double)to->samples), to->samples);
}

/* *same: all samples of an epoch are where they were. The text of a dataset that was replaced is reported
 * with its fingerprint; it continues at the same sample. */
static void find_offset(struct resume *r, int i, bool *same)
{
    const struct data_segment *now = &r->now.segments[0], *then;
    struct data_order_part *to = &now->parts[i];
    const struct data_order_part *from = NULL;
    const int number = r->numbers[i];
    AUTO(text) why = {0};
    *same = true;
    then = number >= 0 ? data_order_last(r->then, number, &from) : NULL;
    if (then == NULL)
        return;
    to->offset = r->given[number];
    const uint64_t content = r->then->sources[number].content;
    const bool replaced = content != 0 && content != r->now.sources[i].content;
    add_moved(then, from, now, to, &why);
    if (why.length > 0 && !replaced)
        move_offset(r, then, from, &why, to);
    *same = why.length == 0 && (from->samples == 0 || from->samples == to->samples);
}

/* ---- the continued order ---- */

static void drop_last(struct data_order *order)
{
    free(order->segments[--order->segment_count].parts);
}

/* Appends `now` to `then` as its last segment, with the numbers of the sources there. */
static void append(struct resume *r, bool is_changed)
{
    struct data_segment *now = &r->now.segments[0];
    for (int i = 0; i < now->count; i++)
        now->parts[i].source = r->numbers[i];
    now->from = is_changed ? r->samples : r->last->from;
    // Without a change, values that an older checkpoint does not record are added.
    for (int i = 0; i < now->count && !is_changed; i++)
        now->parts[i].offset = r->last->parts[i].offset;
    if (r->last->from >= now->from)
        drop_last(r->then);
    struct data_order_part *parts = data_order_add_segment(r->then, now->count)->parts;
    struct data_segment *added = &r->then->segments[r->then->segment_count - 1];
    memcpy(parts, now->parts, (size_t)now->count * sizeof *parts);
    *added = *now;
    added->parts = parts;
}

/* Adds new sources to the record, and updates path and content of the others. */
static void number_sources(struct resume *r)
{
    for (int i = 0; i < r->now.source_count; i++) {
        const struct data_order_source *source = &r->now.sources[i];
        if (r->numbers[i] < 0) {
            r->numbers[i] = data_order_add_source(r->then, source->path, source->content);
            continue;
        }
        struct data_order_source *known = &r->then->sources[r->numbers[i]];
        free(known->path);
        *known = (struct data_order_source){.path = text_copy(source->path), .content = source->content};
    }
}

static const char *samples_text(int64_t count, char out[NUMBER_CHARS])
{
    snprintf(out, NUMBER_CHARS, "%" PRId64 " sample%s", count, count == 1 ? "" : "s");
    return out;
}

/* Prints what changes for each source. */
static void report_blend(const struct resume *r, const double *before, const double *after)
{
    const struct data_segment *now = &r->now.segments[0];
    char given[NUMBER_CHARS];
    for (int i = 0; i < now->count; i++) {
        const char *path = r->now.sources[i].path;
        const double then = r->positions[i] >= 0 ? before[r->positions[i]] : 0.0;
        if (then == after[i])
            continue;
        print_line(stdout,
                   "data.train source %d (%s): from sample %" PRId64 " on %.4g %% of the samples, until then "
                   "%.4g %%; it continues after %s",
                   i + 1, path, r->samples, 100.0 * after[i], 100.0 * then,
                   samples_text(now->parts[i].offset, given));
    }
    for (int k = 0; k < r->last->count; k++) {
        bool is_read = false;
        for (int i = 0; i < now->count; i++)
            is_read = is_read || r->positions[i] == k;
        const int number = r->last->parts[k].source;
        if (!is_read)
            print_line(stdout, "data.train: %s is not read from sample %" PRId64 " on; it gave %s",
                       r->then->sources[number].path, r->samples, samples_text(r->given[number], given));
    }
}

static void report_changes(const struct resume *r)
{
    AUTO_FREE double *before =
        memory_zeroed((size_t)r->last->count + 1, sizeof *before, "the order of the data");
    AUTO_FREE double *after =
        memory_zeroed((size_t)r->now.source_count + 1, sizeof *after, "the order of the data");
    data_segment_shares(r->last, before);
    data_segment_shares(&r->now.segments[0], after);
    report_blend(r, before, after);
}

/* Samples that are lost: an error with data.strict, otherwise a warning for each source. */
static enum status report_lost(const struct text *lost, bool strict)
{
    AUTO(text) all = {0};
    for (const char *line = text_chars(lost), *end; *line != 0; line = *end != 0 ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        text_add(&all, "%s%.*s", all.length > 0 ? "; " : "", (int)(end - line), line);
        if (!strict)
            print_line(stderr, "warning: %.*s (data.strict=true makes this an error)", (int)(end - line),
                       line);
    }
    if (strict && all.length > 0)
        return fail(BAD_DATA, "data.strict: %s; restore this, or set data.strict=false", all.chars);
    return OK;
}

static enum status resume(struct resume *r, bool strict)
{
    bool same = true;
    if (r->samples > DATA_ORDER_MOST)
        return fail(BAD_CHECKPOINT, "consumed_samples %" PRId64 " is more than any run reads", r->samples);
    if (r->last->from > r->samples)
        return fail(BAD_CHECKPOINT,
                    "the order of the data changes at sample %" PRId64 ", after sample %" PRId64
                    " of the checkpoint",
                    r->last->from, r->samples);
    data_order_given(r->then, r->samples, r->given);
    match_sources(r);
    for (int i = 0; i < r->now.source_count; i++) {
        bool same_source;
        find_offset(r, i, &same_source);
        same = same && same_source;
    }
    TRY(report_lost(&r->lost, strict));
    for (int i = 0; i < r->now.source_count; i++)
        r->now.segments[0].parts[i].source = r->numbers[i];
    const bool same_blend = data_segment_same_blend(r->last, &r->now.segments[0]);
    if (!same_blend)
        report_changes(r);
    number_sources(r);
    append(r, !same || !same_blend);
    return OK;
}

enum status data_resume(struct data *data, struct data_order *then, int64_t samples, bool strict,
                        int *positions, struct text *out)
{
    struct resume r = {
        .parts = data->mixes[DATA_TRAIN].parts, .then = then, .positions = positions, .samples = samples};
    r.last = &then->segments[then->segment_count - 1];
    const size_t most = (size_t)then->source_count + (size_t)data->mixes[DATA_TRAIN].count + 1;
    r.numbers = memory_zeroed(most, sizeof *r.numbers, "the order of the data");
    r.given = memory_zeroed(most, sizeof *r.given, "the order of the data");
    enum status status = begin_order(data, &r.now);
    if (status == OK)
        status = resume(&r, strict);
    if (status == OK)
        data_order_text(then, out);
    free(r.numbers);
    free(r.given);
    text_free(&r.lost);
    data_order_free(&r.now);
    data_order_free(then);
    return status;
}

/* ---- all ranks ---- */

static enum status set_order(struct data *data, const struct text *text)
{
    struct data_order order;
    struct data_mix *mix = &data->mixes[DATA_TRAIN];
    TRY(data_order_parse(text_chars(text), text->length, &order));
    const struct data_segment *segment = &order.segments[order.segment_count - 1];
    CHECK(segment->count == mix->count);
    mix->from = segment->from;
    for (int i = 0; i < mix->count; i++) {
        AUTO(text) name = {0};
        text_add(&name, "data.train[%d]", segment->parts[i].source);
        data_part_rename(&mix->parts[i], data->seed, name.chars);
        mix->offsets[i] = segment->parts[i].offset;
    }
    data_order_free(&order);
    text_free(&data->order);
    text_add_bytes(&data->order, text->chars, text->length);
    return OK;
}

enum status data_set_order(struct data *data, const struct text *text)
{
    CHECK(pthread_mutex_lock(&data->lock) == 0);
    const bool is_set = data->order.length == text->length &&
                        memcmp(text_chars(&data->order), text_chars(text), text->length) == 0;
    const enum status status = is_set ? OK : set_order(data, text);
    CHECK(pthread_mutex_unlock(&data->lock) == 0);
    return status;
}
