// SPDX-License-Identifier: Apache-2.0
/* Overlap of tp communication with matmuls under sequence parallelism. All-gathers and reduce-scatters are
 * split into chunks of one rank's tokens (Wang et al., ASPLOS 2023; tp_comm_overlap of Megatron-LM). On rank
 * 0 of 3, where x1 are the tokens of rank 1:
 *
 *     gathered     compute   x0 w   x1 w   x2 w               forward of a column layer, dx of a row layer
 *                  comm      <- x1  <- x2
 *
 *     scattered    compute   p1     p2     p0     sum          forward of a row layer, dx of a column layer
 *                  comm             p1 ->  p2 ->
 *
 * A rank's own chunk needs no transfer: it is multiplied first after a gather and last before a scatter, so
 * that every transfer overlaps a matmul. In step s a rank sends one chunk to and receives one from the ranks
 * at distance s.
 *
 * Numerics. Output rows of a matmul are independent, and partial sums are added in rank order, as in the
 * transports. Results are therefore bit-identical to one collective and one matmul, provided that an output
 * row does not depend on the number of rows. A BLAS may choose another algorithm for fewer rows; results then
 * differ by its rounding. A weight gradient is a sum over all tokens, which chunks would reorder: it is
 * computed from all tokens at once.
 *
 * Caution: both streams access the same memory. The caller continues on `compute`, which has waited for all
 * work on the communication stream. */
#pragma once

#include "layers/pass.h"

/* args.c[T, N] = whole op(b), where `local` [T/tp, K] is this rank's part of `whole` [T, K], which is
 * gathered; args.a is not read. */
MUST_USE enum status multiply_gathered(const struct layer_context *context, struct tensor local,
                                       struct tensor whole, struct gemm args);

/* sum[T/tp, N] = local tokens of the sum over ranks of a op(b) + addend; addend [T, N], or {0} for none.
 * Partial results are stored in args.c [T, N] and parts [T, N]. */
MUST_USE enum status multiply_scattered(const struct layer_context *context, struct gemm args,
                                        struct tensor addend, struct tensor parts, struct tensor sum);
/* x += addend; {0}: none. */
MUST_USE enum status add_partial(const struct layer_context *context, struct tensor x, struct tensor addend);

/* Gathers `local` into `whole`, concurrently with later work on `compute`. Wait for *done to read `whole`. */
MUST_USE enum status gather_overlapped(const struct layer_context *context, struct tensor local,
                                       struct tensor whole, struct event *done);
