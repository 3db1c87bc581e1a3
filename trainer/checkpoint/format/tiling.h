// SPDX-License-Identifier: Apache-2.0
/* Checks that rectangles tile a larger one: every element is in exactly one of them.
 *
 *   shards_tile     for a list of the rectangles, in O(n log n)
 *   struct cover    for rectangles that different ranks write: each rank adds its own, 16 bytes travel, and
 *                   the sum over all ranks must equal that of the whole tensors
 *
 * Both use corners. Count for each point the rectangles with a corner there. If these counts are odd at the
 * four corners of the whole and even everywhere else, the number of rectangles over an element (the counts
 * are its second difference) is odd inside the whole, so at least 1; if in addition the areas add up to that
 * of the whole, it is exactly 1. A cover holds the exclusive or of a 64-bit hash of every corner, in which
 * even counts cancel: a wrong tiling is accepted with a probability of 2^-64. */
#pragma once

#include "trainer/checkpoint/shard.h"

/* Checks the shards of one tensor. The BAD_CHECKPOINT message names `path` and the tensor. */
MUST_USE enum status shards_tile(const struct shard *shards, int count, const char *path);

struct cover {
    uint64_t elements, corners;
};

/* Adds a rectangle, or the whole tensor that contains it. */
void cover_add(struct cover *cover, const struct shard *shard);
void cover_add_whole(struct cover *cover, const struct shard *shard);
void cover_join(struct cover *cover, const struct cover *other);
bool cover_equal(const struct cover *a, const struct cover *b);
