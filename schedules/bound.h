// SPDX-License-Identifier: Apache-2.0
/* How short a schedule can be at best: a time that no list of actions beats, for a placement, a cost table
 * and a memory limit. Of each rank alone, with everything else as if it never waited; the longest rank
 * counts.
 *
 * Let one microbatch be alone in the pipe, messages taking their time. F(s) and I(s) are when its F and its I
 * of stage s begin, and end(s) is how long it takes from I(s) until nothing of it is left to do, neither an I
 * or W at s nor at a stage before. No schedule begins a first F of stage s before F(s), or an I sooner than
 * I(s) - F(s) after the same microbatch's F. A rank holds stages a < ... < z, v of them, each for m
 * microbatches, and at most L chunks at once from their F to their W.
 *
 *   work    It begins at F(a) or later, and all its actions take their time.
 *   fill    Its first I is one of z, no earlier than I(z). Before that it can only run F, L of them at most,
 *           since none is released. So it idles for I(z) - F(a) less what the L longest F take.
 *   drain   Its last F is one of z. From its begin I(z) - F(z) + end(z) must pass; the rank then has that F
 *           left and I and W of the L chunks that it holds. What these do not fill is idle. The same from its
 *           last I, which is one of a: end(a) must pass, and that I and L W are left. Where L < m·v something
 *           was released before the last F, so an I came before it: fill and drain are different times, and
 *           both count. Otherwise the longer one.
 *
 *     bound 1 = F(a) + work + fill + drain
 *
 *   turns   Between its F of a and its W of z a microbatch has not turned round; nothing of it is released.
 *           No more than n = L-v+1 can be that far at once: of more, none could ever hold the v chunks that
 *           it needs to turn. So the k+n-th F of a begins no sooner than I(z) - F(a) + i + w after the k-th,
 *           and F of a are at least f apart.
 *
 *     bound 2 = F(a) + f·((m-1) mod n) + (I(z) - F(a) + i + w)·floor((m-1) / n) + I(a) - F(a) + end(a)
 *
 *   area    Chunk c is held m times, for I(c) - F(c) + i + w or more; A is the sum over the rank's chunks.
 *           j+1 chunks are held at once no earlier than j·(shortest f) after F(a) and no later than
 *           j·(shortest w) before the end, and j < L. With d = (shortest f) + (shortest w), X = (end - F(a)):
 *           A is at most the sum over j of X - j·d where that is positive, which is the largest such sum of
 *           the first n of them:
 *
 *     bound 3 = F(a) + the least over n <= L of A/n + d·(n-1)/2
 *
 *   rest    The first I of chunk c begins at I(c) or later, that of an earlier chunk later still. So all I
 *           and W of a .. c come after I(c):
 *
 *     bound 4 = the largest over c of I(c) + m times the I and W of a .. c
 *
 * Where a B takes less than I and W (cost_table.b), the shorter of both counts where time must pass, and the
 * longer where it can be filled. The bound is for lists without overlapped pairs where pair_overlap is not 0,
 * and blocking transfers only make things longer. */
#pragma once

#include "schedules/simulate.h"

/* `placed` says where the stages are and how many microbatches there are; its lists are not read. `limit` is
 * in chunks, at least v. NOT_SUPPORTED where a stage has two holders. */
MUST_USE enum status schedule_bound(const struct schedule *placed, const struct cost_table *costs, int limit,
                                    double *out);
