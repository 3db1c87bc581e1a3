// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "kernels/numbers/narrow.h"
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The comparison of one tensor. */
struct difference {
    const char *name;
    const char *why;  // why the elements were not compared; NULL: they were
    int64_t elements; // number of elements that are not bitwise equal
    double largest;   // |a - b|; NAN if one of the two is not a number
};

struct comparison {
    struct checkpoint_reader source[2];
    char *folder[2];
    char *band[2]; // [capacity]
    size_t capacity;
    struct difference *list;
    int count, equal;
};

static enum status parse(int argc, char **argv, bool *json, const char **rest, int *count)
{
    const struct option options[] = {{"--json", OPTION_FLAG, json, 0, 0}};
    TRY(options_parse(argc, argv, options, 1, rest, count));
    if (*count != 2)
        return fail(BAD_USAGE, "checkpoint diff: %d checkpoint%s given; use cuboid checkpoint diff A B",
                    *count, *count == 1 ? "" : "s");
    return OK;
}

/* The value of element `i`; NAN for types that are not compared as numbers. */
static double value_at(const char *bytes, enum safetensors_dtype dtype, int64_t i)
{
    float narrow = 0.0F, single;
    double wide;
    uint16_t half;
    switch (dtype) {
    case SAFETENSORS_F32:
        memcpy(&single, bytes + (size_t)i * sizeof single, sizeof single);
        return single;
    case SAFETENSORS_F64:
        memcpy(&wide, bytes + (size_t)i * sizeof wide, sizeof wide);
        return wide;
    case SAFETENSORS_BF16:
        memcpy(&half, bytes + (size_t)i * sizeof half, sizeof half);
        widen_floats(BF16, &half, &narrow, 1);
        return narrow;
    default:
        return NAN;
    }
}

static void compare_band(const struct comparison *c, const struct shard *whole, int64_t elements,
                         struct difference *out)
{
    const size_t each = safetensors_dtype_bytes(whole->dtype);
    if (memcmp(c->band[0], c->band[1], (size_t)elements * each) == 0)
        return;
    for (int64_t i = 0; i < elements; i++) {
        const size_t at = (size_t)i * each;
        if (memcmp(c->band[0] + at, c->band[1] + at, each) == 0)
            continue;
        double distance = fabs(value_at(c->band[0], whole->dtype, i) - value_at(c->band[1], whole->dtype, i));
        out->elements++;
        if (isnan(distance) || distance > out->largest)
            out->largest = distance;
    }
}

static enum status grow(struct comparison *c, size_t bytes)
{
    for (int i = 0; i < 2 && bytes > c->capacity; i++) {
        free(c->band[i]);
        c->band[i] = malloc(bytes); // the size is that of a file
        if (c->band[i] == NULL)
            return fail(NO_MEMORY, "no memory for a band of %zu bytes", bytes);
    }
    c->capacity = bytes > c->capacity ? bytes : c->capacity;
    return OK;
}

static enum status compare_tensor(struct comparison *c, const char *name, struct difference *out)
{
    struct shard a, b;
    bool has_a = checkpoint_reader_tensor(&c->source[0], name, &a),
         has_b = checkpoint_reader_tensor(&c->source[1], name, &b);
    *out = (struct difference){.name = name};
    if (!has_a || !has_b)
        out->why = has_a ? "only in A" : "only in B";
    else if (a.slice.ndim != b.slice.ndim || memcmp(a.dim, b.dim, sizeof a.dim) != 0)
        out->why = "other shape";
    else if (a.dtype != b.dtype)
        out->why = "other dtype";
    if (out->why != NULL)
        return OK;
    const int64_t rows = checkpoint_band_rows(&a);
    TRY(grow(c, (size_t)((rows < a.dim[0] ? rows : a.dim[0]) * a.dim[1]) * safetensors_dtype_bytes(a.dtype)));
    for (int64_t row = 0; row < a.dim[0]; row += rows) {
        struct slice band = {.ndim = a.slice.ndim, .begin = {row, 0}, .count = {rows, a.dim[1]}};
        if (a.dim[0] - row < rows)
            band.count[0] = a.dim[0] - row;
        for (int i = 0; i < 2; i++)
            TRY(checkpoint_reader_read_whole(&c->source[i], name, &band, c->band[i]));
        compare_band(c, &a, slice_count(&band), out);
    }
    return OK;
}

/* The names of both checkpoints are sorted. */
static enum status compare_all(struct comparison *c)
{
    const struct manifest *a = &c->source[0].manifest, *b = &c->source[1].manifest;
    c->list = memory_zeroed((size_t)a->tensor_count + (size_t)b->tensor_count + 1, sizeof *c->list,
                            "a list of tensors");
    for (int i = 0, j = 0; i < a->tensor_count || j < b->tensor_count;) {
        int order = i == a->tensor_count   ? 1
                    : j == b->tensor_count ? -1
                                           : strcmp(a->tensors[i].name, b->tensors[j].name);
        struct difference *one = &c->list[c->count];
        TRY(compare_tensor(c, order <= 0 ? a->tensors[i].name : b->tensors[j].name, one));
        if (one->why != NULL || one->elements > 0)
            c->count++;
        else
            c->equal++;
        i += order <= 0;
        j += order >= 0;
    }
    return OK;
}

static void print_text(const struct comparison *c)
{
    char number[NUMBER_CHARS];
    for (int i = 0; i < c->count; i++) {
        const struct difference *d = &c->list[i];
        if (d->why != NULL)
            printf("%-48s %s\n", d->name, d->why);
        else
            printf("%-48s %lld elements differ, by up to %s\n", d->name, (long long)d->elements,
                   number_text(d->largest, number));
    }
    printf("%d tensors are equal, %d differ; steps %lld and %lld\n", c->equal, c->count,
           (long long)c->source[0].manifest.identity.step, (long long)c->source[1].manifest.identity.step);
}

static void print_json(const struct comparison *c)
{
    struct text out = {0};
    char number[NUMBER_CHARS];
    text_add(&out, "{\"equal\": %d, \"steps\": [%lld, %lld], \"differences\": [", c->equal,
             (long long)c->source[0].manifest.identity.step, (long long)c->source[1].manifest.identity.step);
    for (int i = 0; i < c->count; i++) {
        const struct difference *d = &c->list[i];
        text_add(&out, "%s\n{\"name\": \"%s\"", i > 0 ? "," : "", d->name);
        if (d->why != NULL)
            text_add(&out, ", \"why\": \"%s\"}", d->why);
        else
            text_add(&out, ", \"elements\": %lld, \"largest\": %s}", (long long)d->elements,
                     isfinite(d->largest) ? number_text(d->largest, number) : "null");
    }
    text_add(&out, "]}\n");
    fputs(out.chars, stdout);
    text_free(&out);
}

int checkpoint_diff(int argc, char **argv)
{
    struct comparison c = {.count = 0};
    bool json = false;
    int count = 0;
    const char **rest = memory_zeroed((size_t)argc + 1, sizeof *rest, "the arguments");
    enum status status = parse(argc, argv, &json, rest, &count);
    for (int i = 0; i < 2 && status == OK; i++)
        status = checkpoint_argument(rest[i], &c.folder[i], &c.source[i]);
    if (status == OK)
        status = compare_all(&c);
    if (status == OK && json)
        print_json(&c);
    else if (status == OK)
        print_text(&c);
    for (int i = 0; i < 2; i++) {
        checkpoint_reader_close(&c.source[i]);
        free(c.folder[i]);
        free(c.band[i]);
    }
    free(c.list);
    free(rest);
    return status != OK ? checkpoint_exit(status) : c.count > 0;
}
