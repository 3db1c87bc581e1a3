// SPDX-License-Identifier: Apache-2.0
/* The messages of sequence parallelism beside the multiplications that need or make what they carry, in
 * pieces: one rank's tokens. (Wang et al., ASPLOS 2023, decompose collectives so; Megatron's
 * tp_comm_overlap.) On rank 0 of 3, x1 being the tokens of rank 1:
 *
 *     gathered     compute   x0 w   x1 w   x2 w               forward of a column layer, dx of a row layer
 *                  beside    <- x1  <- x2
 *
 *     scattered    compute   p1     p2     p0     sum          forward of a row layer, dx of a column layer
 *                  beside           p1 ->  p2 ->
 *
 * A rank's own piece needs no message: it is multiplied first of what is gathered, and last of what is
 * scattered, so that each message has a multiplication beside it. In the step s a rank talks to those s
 * places before and behind it: each sends one piece and receives one.
 *
 * Numbers. A row of a product needs no other row, and parts are added in the order of the ranks, as
 * transports do it: so the bits are those of one collective and one multiplication wherever a product's row
 * does not depend on how many rows there are. A BLAS may take another way for fewer rows; then they differ by
 * its roundings. The gradient of a weight is a sum over all tokens, which pieces would order anew: it is made
 * of all of them at once.
 *
 * The trap: both streams touch the same memory. Whoever calls goes on with `compute`, which has waited for
 * all that was put beside it. */
#pragma once

#include "layers/pass.h"

/* args.c[T, N] = whole op(b), where `local` [T/tp, K] is this rank's part of `whole` [T, K], which is
 * gathered; args.a is not read. */
MUST_USE enum status multiply_gathered(const struct env *env, struct tensor local, struct tensor whole,
                                       struct gemm args);

/* sum[T/tp, N] = this rank's tokens of the sum over the ranks of a op(b), whose parts lie in args.c [T, N]
 * and parts [T, N]. */
MUST_USE enum status multiply_scattered(const struct env *env, struct gemm args, struct tensor parts,
                                        struct tensor sum);

/* Gathers `local` into `whole` beside what is put on `compute` from now on; who reads it waits for *done. */
MUST_USE enum status gather_overlapped(const struct env *env, struct tensor local, struct tensor whole,
                                       struct event *done);
