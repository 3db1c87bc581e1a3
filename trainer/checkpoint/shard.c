// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/shard.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const prefixes[] = {
    [STATE_VALUE] = "", [STATE_M] = "optimizer.m.", [STATE_V] = "optimizer.v."};
_Static_assert(sizeof prefixes / sizeof *prefixes == STATE_COUNT, "one prefix for each state");

void state_name(enum state state, const char *param_name, char out[SHARD_NAME_CHARS])
{
    snprintf(out, SHARD_NAME_CHARS, "%s%s", prefixes[state], param_name);
}

void amax_name(const char *param_name, char out[SHARD_NAME_CHARS])
{
    snprintf(out, SHARD_NAME_CHARS, "precision.amax.%s", param_name);
}

struct tensor state_tensor(const struct owned_param *owned, enum state state)
{
    switch (state) {
    case STATE_VALUE:
        return owned->value;
    case STATE_M:
        return owned->m;
    case STATE_V:
        return owned->v;
    case STATE_COUNT:
        break;
    }
    return (struct tensor){0};
}

enum safetensors_dtype shard_dtype(enum state state, enum dtype main)
{
    return state == STATE_VALUE && main == BF16 ? SAFETENSORS_BF16 : SAFETENSORS_F32;
}

/* ---- as text ---- */

const char *hex_text(uint64_t value, char out[HEX_CHARS])
{
    snprintf(out, HEX_CHARS, "%016llx", (unsigned long long)value);
    return out;
}

bool hex_parse(const char *text, uint64_t *out)
{
    if (strlen(text) != HEX_CHARS - 1 || strspn(text, "0123456789abcdef") != HEX_CHARS - 1)
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

const char *shard_text(const struct shard *shard, char out[SHARD_TEXT_CHARS])
{
    const int64_t *begin = shard->slice.begin;
    if (shard->slice.ndim == 1)
        snprintf(out, SHARD_TEXT_CHARS, "%lld %lld", (long long)begin[0], (long long)shard->dim[0]);
    else
        snprintf(out, SHARD_TEXT_CHARS, "%lld,%lld %lld,%lld", (long long)begin[0], (long long)begin[1],
                 (long long)shard->dim[0], (long long)shard->dim[1]);
    return out;
}

/* Parses digits followed by `after`. */
static bool take_number(const char **at, char after, int64_t *out)
{
    char *end = NULL;
    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (errno != 0 || *end != after)
        return false;
    *at = end + 1;
    return true;
}

bool shard_parse(const char *text, int ndim, struct shard *out)
{
    const char *at = text;
    const char after[] = {' ', 0};
    int64_t *lists[] = {out->slice.begin, out->dim};
    for (int l = 0; l < 2; l++)
        for (int d = 0; d < ndim; d++)
            if (!take_number(&at, d + 1 < ndim ? ',' : after[l], &lists[l][d]))
                return false;
    return true;
}

/* ---- slices ---- */

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct slice slice_whole(int ndim, const int64_t *dim)
{
    struct slice slice = {.ndim = ndim};
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        slice.count[d] = slice.padded[d] = dim[d];
    return slice;
}

bool slice_intersect(const struct slice *a, const struct slice *b, struct slice *out)
{
    *out = (struct slice){.ndim = a->ndim};
    for (int d = 0; d < SHARD_MAX_DIMS; d++) {
        const int64_t end = min_of(a->begin[d] + a->count[d], b->begin[d] + b->count[d]);
        out->begin[d] = max_of(a->begin[d], b->begin[d]);
        out->count[d] = out->padded[d] = end - out->begin[d];
        if (out->count[d] <= 0)
            return false;
    }
    return true;
}

bool slice_equal(const struct slice *a, const struct slice *b)
{
    return memcmp(a->begin, b->begin, sizeof a->begin) == 0 &&
           memcmp(a->count, b->count, sizeof a->count) == 0;
}

bool shard_is_sound(const struct shard *shard)
{
    enum { MAX_DTYPE_BYTES = 8 };
    const struct slice *slice = &shard->slice;
    int64_t elements;
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        if (slice->begin[d] < 0 || slice->count[d] < 1 || slice->begin[d] > shard->dim[d] ||
            slice->count[d] > shard->dim[d] - slice->begin[d])
            return false;
    return !__builtin_mul_overflow(shard->dim[0], shard->dim[1], &elements) &&
           elements <= INT64_MAX / MAX_DTYPE_BYTES;
}

void shard_remove_padding(const struct slice *slice, void *local, size_t element_bytes)
{
    size_t columns = (size_t)slice->count[1] * element_bytes,
           padded = (size_t)slice->padded[1] * element_bytes;
    char *bytes = local;
    for (size_t row = 1; row < (size_t)slice->count[0] && columns != padded; row++)
        memmove(bytes + row * columns, bytes + row * padded, columns);
}

int64_t shard_copy(const struct shard *shard, int64_t first, int64_t count, const float *values,
                   const struct slice *want, float *local)
{
    const struct slice *have = &shard->slice;
    int64_t columns = have->count[1], given = 0;
    for (int64_t at = first; at < first + count;) {
        // The part of one row of the shard in this range: columns [from, to).
        int64_t row = at / columns, from = at % columns;
        int64_t to = min_of(columns, from + first + count - at);
        int64_t local_row = have->begin[0] + row - want->begin[0];
        int64_t left = max_of(have->begin[1] + from, want->begin[1]);
        int64_t right = min_of(have->begin[1] + to, want->begin[1] + want->count[1]);
        if (local_row >= 0 && local_row < want->count[0] && left < right) {
            memcpy(local + local_row * want->padded[1] + left - want->begin[1],
                   values + at - first + left - have->begin[1] - from,
                   (size_t)(right - left) * sizeof *local);
            given += right - left;
        }
        at += to - from;
    }
    return given;
}
