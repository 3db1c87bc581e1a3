// SPDX-License-Identifier: Apache-2.0
/* Whether rectangles tile a larger one: every element in exactly one of them, in n log n. */
#pragma once

#include "trainer/checkpoint/checkpoint_piece.h"

/* `pieces` are those of one tensor. BAD_CHECKPOINT names `path` and the tensor. */
MUST_USE enum status pieces_tile(const struct piece *pieces, int count, const char *path);
