// SPDX-License-Identifier: Apache-2.0
/* Lower bound of the makespan for a placement, a cost table and a memory limit: no schedule is shorter. Each
 * rank is bounded separately, as if all others never waited; the result is the maximum over ranks.
 *
 * Consider one microbatch alone in the pipeline, with message latencies. F(s) and I(s) are the start times of
 * its F and I of stage s, and end(s) is the time from I(s) to the end of all its remaining work: every I or W
 * at s and the stages before it. No schedule starts a first F of stage s before F(s), or an I earlier than
 * I(s) - F(s) after the same microbatch's F. A rank holds stages a < ... < z, v of them, each for m
 * microbatches, and at most L chunks at once from their F to their W.
 *
 *   work    The rank starts at F(a) or later and runs all of its actions.
 *   fill    Its first I is one of z, no earlier than I(z). Before it the rank can only run F, at most L of
 *           them, since no memory is released. It idles for I(z) - F(a) minus the time of the L longest F.
 *   drain   Its last F is one of z. At least I(z) - F(z) + end(z) follow its start, in which the rank has
 *           that F and I and W of the L chunks that it holds; the remaining time is idle. Likewise after its
 *           last I, which is one of a: end(a) follows, with that I and L W. If L < m·v, memory was released
 *           before the last F, so an I preceded it: fill and drain are then disjoint, and both count.
 *           Otherwise the longer one.
 *
 *     bound 1 = F(a) + work + fill + drain
 *
 *   round   Between F of a and W of z a microbatch has not returned, and none of its memory is released. At
 *   trips   most n = L-v+1 microbatches can be in this state: with more, none could get the v chunks that it
 *           needs. So the k+n-th F of a starts no earlier than I(z) - F(a) + i + w after the k-th, and F of a
 *           are at least f apart.
 *
 *     bound 2 = F(a) + f·((m-1) mod n) + (I(z) - F(a) + i + w)·floor((m-1) / n) + I(a) - F(a) + end(a)
 *
 *   area    Chunk c is held m times, for at least I(c) - F(c) + i + w; A is the sum over the rank's chunks.
 *           j+1 chunks are held at once no earlier than j·(shortest f) after F(a) and no later than
 *           j·(shortest w) before the end, and j < L. With d = (shortest f) + (shortest w), X = (end - F(a)):
 *           A is at most the sum over j of max(X - j·d, 0), the largest such sum over the first n of them:
 *
 *     bound 3 = F(a) + the least over n <= L of A/n + d·(n-1)/2
 *
 *   rest    The first I of chunk c starts at I(c) or later, that of an earlier chunk later still. So all I
 *           and W of a .. c follow I(c):
 *
 *     bound 4 = the largest over c of I(c) + m times the I and W of a .. c
 *
 * If a B takes less time than I and W (cost_table.b), the smaller of both counts as latency and the larger as
 * work. The bound is not valid for overlapped pairs with pair_overlap other than 0; blocking transfers only
 * increase the makespan. */
#pragma once

#include "schedules/simulate.h"

/* placed: the placement of stages and the number of microbatches; its lists are not read. limit: in chunks,
 * at least v. NOT_SUPPORTED if stages have replicas. */
MUST_USE enum status schedule_bound(const struct schedule *placed, const struct cost_table *costs, int limit,
                                    double *out);
