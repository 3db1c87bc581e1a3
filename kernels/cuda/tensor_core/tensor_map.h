// SPDX-License-Identifier: Apache-2.0
/* Tensor maps: what a GPU of compute capability 9.0 copies whole tiles by (wgmma.h). One describes a matrix
 * of heads, seen as [batch][row of a sequence][head][column], from which a box of rows of one head comes, 64
 * columns wide, zeros past the end of the sequence, with its 16-byte chunks swizzled within 128 bytes.
 *
 *     tensor_load(to, &map, &barrier, column, head, row, sequence)
 *
 * The encoder is the driver's, and is asked of the CUDA runtime: nothing links against libcuda. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

#include <cuda.h>

struct cuda_gpu;
/* The encoder, or NULL where `gpu` is not of compute capability 9.0. NOT_SUPPORTED: the driver has none. */
MUST_USE enum status tensor_map_open(const struct cuda_gpu *gpu, cuda_tensor_encoder *out);

/* Whether a map can be made of it: it begins on 16 bytes, and its rows are so many whole heads apart. */
bool tensor_map_suits(const struct tensor *t, int64_t head_dim);

/* t[batch * S, heads * head_dim] of two-byte numbers, head_dim a multiple of 64; `rows` of a box, at most
 * 256.
 */
MUST_USE enum status tensor_map_of(const struct cuda_queue *queue, const struct tensor *t, int64_t batch,
                                   int64_t head_dim, int rows, CUtensorMap *out);
