// SPDX-License-Identifier: Apache-2.0
/* Keys and values of the tokens so far, for generation: a forward pass computes those of its own tokens, and
 * attends to all.
 *
 *     layer 3, keys [sequences * capacity, G D / t]
 *         sequence 0   k k k k k . . .          length[0] = 5: the next token's key goes to row 5
 *         sequence 1   k k . . . . . .          length[1] = 2
 *
 * A pass has the next T / B tokens of each of its B sequences, from sequence `first` on. The caller adds the
 * tokens that count to `length` after the pass; rows beyond it, such as those of padding, are overwritten
 * later. Caution: length + T / B must not exceed the capacity. */
#pragma once

#include "kernels/ops.h"

struct key_value_cache {
    struct buffer memory;
    int layers;                   // of the model
    struct tensor *keys, *values; // [layers]; no data: not on this rank
    int64_t sequences, capacity;  // sequences 0: there is no cache
    int64_t *length;              // [sequences] cached tokens
    int64_t first;                // sequence of the first row of the current pass
};

struct key_value_cache_config {
    struct device *device;
    enum dtype dtype;
    int layers;
    const bool *held; // [layers] of this rank
    int64_t columns;  // of the keys of a token, and of its values: G D / t
    int64_t sequences, capacity;
};

MUST_USE enum status key_value_cache_create(const struct key_value_cache_config *config,
                                            struct key_value_cache *out);
void key_value_cache_destroy(struct key_value_cache *cache); // accepts {0}

/* Attention of a pass: args has its queries, keys and values. Stores keys and values, and attends to all of
 * each sequence. */
MUST_USE enum status key_value_cache_attend(const struct key_value_cache *cache, int layer,
                                            struct stream *stream, struct attention_forward args);
