// SPDX-License-Identifier: Apache-2.0
#include "layers/key_value_cache.h"

#include "base/memory.h"

#include <stdlib.h>

static enum status create(const struct key_value_cache_config *config, struct key_value_cache *out)
{
    const int64_t rows = config->sequences * config->capacity;
    const size_t each = (size_t)(rows * config->columns) * dtype_bytes(config->dtype);
    size_t held = 0;
    out->keys = memory_zeroed((size_t)config->layers, sizeof *out->keys, "the key/value cache");
    out->values = memory_zeroed((size_t)config->layers, sizeof *out->values, "the key/value cache");
    out->length = memory_zeroed((size_t)config->sequences, sizeof *out->length, "the key/value cache");
    for (int layer = 0; layer < config->layers; layer++)
        held += config->held[layer] ? 1 : 0;
    if (held == 0)
        return OK;
    TRY(buffer_alloc(config->device, PART_ACTIVATIONS, 2 * held * each, &out->memory));
    char *at = out->memory.data;
    for (int layer = 0; layer < config->layers; layer++) {
        if (!config->held[layer])
            continue;
        out->keys[layer] = tensor_2d(at, config->dtype, rows, config->columns);
        out->values[layer] = tensor_2d(at + each, config->dtype, rows, config->columns);
        at += 2 * each;
    }
    return OK;
}

enum status key_value_cache_create(const struct key_value_cache_config *config, struct key_value_cache *out)
{
    struct key_value_cache cache = {
        .layers = config->layers, .sequences = config->sequences, .capacity = config->capacity};
    const enum status status = create(config, &cache);
    if (status == OK)
        *out = cache;
    else
        key_value_cache_destroy(&cache);
    return status;
}

void key_value_cache_destroy(struct key_value_cache *cache)
{
    buffer_free(&cache->memory);
    free(cache->keys);
    free(cache->values);
    free(cache->length);
    *cache = (struct key_value_cache){0};
}

enum status key_value_cache_attend(const struct key_value_cache *cache, int layer, struct stream *stream,
                                   struct attention_forward args)
{
    const int64_t count = args.sequence;
    for (int64_t i = 0; i < args.batch; i++) {
        const int64_t sequence = cache->first + i, length = cache->length[sequence];
        const int64_t row = sequence * cache->capacity, end = row + length + count;
        CHECK(sequence < cache->sequences && length + count <= cache->capacity);
        TRY(copy(stream, (struct copy){.in = tensor_rows(args.k, i * count, (i + 1) * count),
                                       .out = tensor_rows(cache->keys[layer], row + length, end)}));
        TRY(copy(stream, (struct copy){.in = tensor_rows(args.v, i * count, (i + 1) * count),
                                       .out = tensor_rows(cache->values[layer], row + length, end)}));
        struct attention_forward one = args;
        one.batch = 1;
        one.query_begin = length;
        one.q = tensor_rows(args.q, i * count, (i + 1) * count);
        one.k = tensor_rows(cache->keys[layer], row, end);
        one.v = tensor_rows(cache->values[layer], row, end);
        one.out = tensor_rows(args.out, i * count, (i + 1) * count);
        one.lse = tensor_columns(args.lse, i * count, (i + 1) * count);
        TRY(attention_forward(stream, one));
    }
    return OK;
}
