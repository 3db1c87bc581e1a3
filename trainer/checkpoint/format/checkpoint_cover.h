// SPDX-License-Identifier: Apache-2.0
/* Checks that rectangles tile a larger one: every element is in exactly one of them. O(n log n). */
#pragma once

#include "trainer/checkpoint/checkpoint_shard.h"

/* Checks the shards of one tensor. The BAD_CHECKPOINT message names `path` and the tensor. */
MUST_USE enum status shards_tile(const struct shard *shards, int count, const char *path);
