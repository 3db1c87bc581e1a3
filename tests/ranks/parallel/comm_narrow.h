// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/ranks/parallel/ranks.h"

/* bf16 adds up in fp32, in rank order, and rounds once: also in the pieces of a reduce-scatter. */
void narrow_sums_round_once(struct env *env);
