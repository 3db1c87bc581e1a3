// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/order/data_order.h"

#include "base/memory.h"
#include "trainer/data/data_blend.h"
#include "trainer/files/json_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

int data_order_add_source(struct data_order *order, const char *path, uint64_t content)
{
    order->sources = memory_resized(order->sources, (size_t)order->source_count + 1, sizeof *order->sources,
                                    "the order of the data");
    order->sources[order->source_count] =
        (struct data_order_source){.path = text_copy(path), .content = content};
    return order->source_count++;
}

struct data_segment *data_order_add_segment(struct data_order *order, int count)
{
    order->segments = memory_resized(order->segments, (size_t)order->segment_count + 1,
                                     sizeof *order->segments, "the order of the data");
    struct data_segment *segment = &order->segments[order->segment_count++];
    *segment = (struct data_segment){
        .count = count,
        .parts = memory_zeroed((size_t)count + 1, sizeof *segment->parts, "the order of the data")};
    return segment;
}

void data_order_free(struct data_order *order)
{
    for (int i = 0; i < order->source_count; i++)
        free(order->sources[i].path);
    for (int i = 0; i < order->segment_count; i++)
        free(order->segments[i].parts);
    free(order->sources);
    free(order->segments);
    *order = (struct data_order){0};
}

/* ---- text ---- */

static void add_segment(const struct data_segment *s, struct text *out)
{
    char number[NUMBER_CHARS];
    text_add(out,
             "{\"from_sample\": %" PRId64 ", \"seq_length\": %" PRId64 ", \"seed\": \"%" PRIu64
             "\", \"pack_documents\": %s, \"truncate_documents\": %s, \"blend\": [",
             s->from, s->seq_length, s->seed, s->pack_documents ? "true" : "false",
             s->truncate_documents ? "true" : "false");
    for (int i = 0; i < s->count; i++) {
        const struct data_order_part *part = &s->parts[i];
        text_add(out,
                 "%s\n   {\"source\": %d, \"weight\": %s, \"offset\": %" PRId64 ", \"samples\": %" PRId64
                 ", \"documents\": [%" PRId64 ", %" PRId64 "]}",
                 i > 0 ? "," : "", part->source, number_text(part->weight, number), part->offset,
                 part->samples, part->first, part->first + part->documents);
    }
    text_add(out, "]}");
}

void data_order_text(const struct data_order *order, struct text *out)
{
    text_add(out, "{\"sources\": [");
    for (int i = 0; i < order->source_count; i++) {
        text_add(out, "%s{\"path\": ", i > 0 ? ", " : "");
        text_add_json(out, order->sources[i].path);
        text_add(out, ", \"content\": \"%016" PRIx64 "\"}", order->sources[i].content);
    }
    text_add(out, "],\n \"segments\": [");
    for (int i = 0; i < order->segment_count; i++) {
        text_add(out, "%s\n  ", i > 0 ? "," : "");
        add_segment(&order->segments[i], out);
    }
    text_add(out, "]}");
}

/* ---- parsing ---- */

/* An integer from `least` to DATA_ORDER_MOST, so that sums of two do not overflow. */
static bool is_count(const json_t *value, int64_t least, int64_t *out)
{
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= least && *out <= DATA_ORDER_MOST;
}

static bool take_integer(const json_t *object, const char *key, int64_t least, int64_t *out)
{
    return is_count(json_object_get(object, key), least, out);
}

/* `digits` in base 10 or 16. */
static bool take_unsigned(const json_t *object, const char *key, int base, uint64_t *out)
{
    const char *digits = json_string_value(json_object_get(object, key));
    char *end = NULL;
    if (digits == NULL || strspn(digits, "0123456789abcdef") != strlen(digits) || digits[0] == 0)
        return false;
    *out = strtoull(digits, &end, base);
    return *end == 0;
}

static bool take_bool(const json_t *object, const char *key, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_true(value);
    return json_is_boolean(value);
}

static bool take_part(const json_t *object, int sources, struct data_order_part *out)
{
    const json_t *weight = json_object_get(object, "weight"), *range = json_object_get(object, "documents");
    int64_t source, end;
    if (!take_integer(object, "source", 0, &source) || source >= sources || !json_is_number(weight) ||
        !take_integer(object, "offset", 0, &out->offset) ||
        !take_integer(object, "samples", 0, &out->samples) || json_array_size(range) != 2)
        return false;
    out->source = (int)source;
    out->weight = json_number_value(weight);
    if (!is_count(json_array_get(range, 0), 0, &out->first) ||
        !is_count(json_array_get(range, 1), out->first, &end))
        return false;
    out->documents = end - out->first;
    return isfinite(out->weight) && out->weight > 0.0;
}

/* The parts of a segment; a source has at most one. */
static bool take_parts(const json_t *blend, int sources, struct data_segment *s)
{
    AUTO_FREE bool *listed = memory_zeroed((size_t)sources + 1, sizeof *listed, "the order of the data");
    bool good = true;
    for (int i = 0; i < s->count && good; i++) {
        struct data_order_part *part = &s->parts[i];
        good = take_part(json_array_get(blend, (size_t)i), sources, part) && !listed[part->source];
        listed[part->source] = true;
    }
    return good;
}

/* The first segment begins at sample 0, each other one after that before it. */
static bool take_segment(const json_t *object, struct data_order *order)
{
    const json_t *blend = json_object_get(object, "blend");
    const bool is_first = order->segment_count == 0;
    const int64_t before = is_first ? -1 : order->segments[order->segment_count - 1].from;
    if (!json_is_array(blend) || json_array_size(blend) > UINT16_MAX)
        return false;
    struct data_segment *s = data_order_add_segment(order, (int)json_array_size(blend));
    return take_integer(object, "from_sample", before + 1, &s->from) && (!is_first || s->from == 0) &&
           take_integer(object, "seq_length", 1, &s->seq_length) &&
           take_unsigned(object, "seed", 10, &s->seed) &&
           take_bool(object, "pack_documents", &s->pack_documents) &&
           take_bool(object, "truncate_documents", &s->truncate_documents) &&
           take_parts(blend, order->source_count, s);
}

static bool take_source(const json_t *object, struct data_order *order)
{
    const char *path = json_string_value(json_object_get(object, "path"));
    uint64_t content;
    if (path == NULL || !take_unsigned(object, "content", 16, &content))
        return false;
    data_order_add_source(order, path, content);
    return true;
}

enum status data_order_parse(const char *chars, size_t length, struct data_order *out)
{
    json_error_t error;
    json_t *root = json_read(chars, length, 0, &error);
    const json_t *sources = json_object_get(root, "sources"), *segments = json_object_get(root, "segments");
    struct data_order order = {0};
    bool good = json_is_array(sources) && json_array_size(segments) > 0;
    for (size_t i = 0; i < json_array_size(sources) && good; i++)
        good = take_source(json_array_get(sources, i), &order);
    for (size_t i = 0; i < json_array_size(segments) && good; i++)
        good = take_segment(json_array_get(segments, i), &order);
    json_decref(root);
    if (!good) {
        data_order_free(&order);
        return fail(BAD_DATA, "not a valid record of the order of the data");
    }
    *out = order;
    return OK;
}

/* ---- counting ---- */

static struct blend *blend_of(const struct data_segment *segment)
{
    AUTO_FREE double *weights =
        memory_zeroed((size_t)segment->count + 1, sizeof *weights, "the order of the data");
    for (int i = 0; i < segment->count; i++)
        weights[i] = segment->parts[i].weight;
    return blend_create(weights, segment->count);
}

const struct data_segment *data_order_last(const struct data_order *order, int source,
                                           const struct data_order_part **part)
{
    for (int g = order->segment_count - 1; g >= 0; g--)
        for (int i = 0; i < order->segments[g].count; i++)
            if (order->segments[g].parts[i].source == source) {
                *part = &order->segments[g].parts[i];
                return &order->segments[g];
            }
    return NULL;
}

static void add_given(const struct data_segment *segment, int64_t samples, int64_t *given)
{
    if (segment->count == 0)
        return;
    struct blend *blend = blend_of(segment);
    AUTO_FREE int64_t *counts =
        memory_zeroed((size_t)segment->count, sizeof *counts, "the order of the data");
    blend_counts(blend, samples, counts);
    for (int i = 0; i < segment->count; i++)
        given[segment->parts[i].source] = segment->parts[i].offset + counts[i];
    blend_destroy(blend);
}

void data_order_given(const struct data_order *order, int64_t end, int64_t *given)
{
    memset(given, 0, (size_t)order->source_count * sizeof *given);
    for (int g = 0; g < order->segment_count; g++) {
        const struct data_segment *segment = &order->segments[g];
        const int64_t next = g + 1 < order->segment_count ? segment[1].from : end;
        add_given(segment, next > segment->from ? next - segment->from : 0, given);
    }
}

void data_segment_shares(const struct data_segment *segment, double *shares)
{
    if (segment->count == 0)
        return;
    struct blend *blend = blend_of(segment);
    for (int i = 0; i < segment->count; i++) {
        int64_t period, share = blend_share(blend, i, &period);
        shares[i] = (double)share / (double)period;
    }
    blend_destroy(blend);
}

bool data_segment_same_blend(const struct data_segment *a, const struct data_segment *b)
{
    bool same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++)
        same = a->parts[i].source == b->parts[i].source;
    if (!same || a->count == 0)
        return same;
    struct blend *one = blend_of(a), *other = blend_of(b);
    same = blend_equal(one, other);
    blend_destroy(one);
    blend_destroy(other);
    return same;
}
