// SPDX-License-Identifier: Apache-2.0
/* Checks that rectangles tile a larger one: every element is in exactly one of them. O(n log n). */
#pragma once

#include "trainer/checkpoint/checkpoint_piece.h"

/* Checks the pieces of one tensor. The BAD_CHECKPOINT message names `path` and the tensor. */
MUST_USE enum status pieces_tile(const struct piece *pieces, int count, const char *path);
