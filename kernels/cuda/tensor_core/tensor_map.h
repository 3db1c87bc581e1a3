// SPDX-License-Identifier: Apache-2.0
/* Tensor maps, for TMA tile copies on compute capability 9.0 (wgmma.h). A map describes a matrix of heads,
 * viewed as [batch][row of a sequence][head][column], from which a box of rows of one head is loaded, 64
 * columns wide, zero-filled past the end of the sequence, with a 128-byte swizzle of its 16-byte chunks.
 *
 *     tensor_load(to, &map, &barrier, column, head, row, sequence)
 *
 * The encoder belongs to the driver and is obtained through the CUDA runtime: nothing links against
 * libcuda. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

#include <cuda.h>

struct cuda_gpu;
/* Gets the encoder, or NULL if `gpu` is not of compute capability 9.0. NOT_SUPPORTED: the driver lacks it. */
MUST_USE enum status tensor_map_open(const struct cuda_gpu *gpu, cuda_tensor_encoder *out);

/* Whether a map can describe it: 16-byte aligned, with a row stride of a whole number of heads. */
bool tensor_map_suits(const struct tensor *t, int64_t head_dim);

/* t[batch * S, heads * head_dim] of 16-bit elements, head_dim a multiple of 64; `rows` per box, at most
 * 256. */
MUST_USE enum status tensor_map_of(const struct cuda_queue *queue, const struct tensor *t, int64_t batch,
                                   int64_t head_dim, int rows, CUtensorMap *out);
