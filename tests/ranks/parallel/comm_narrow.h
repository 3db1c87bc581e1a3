// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/ranks/parallel/ranks.h"

/* bf16 sums accumulate in fp32, in rank order, and round once, also for the slices of a reduce-scatter. */
void narrow_sums_round_once(struct rank_test *test);
