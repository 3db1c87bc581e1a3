// SPDX-License-Identifier: Apache-2.0
/* Scratch memory of the cuda device's kernels, computed from shapes alone: the sizes that ops request from
 * cuda_scratch(), which enforces them. Compiled in every build, also without CUDA, because the dry device
 * plans with it. */
#pragma once

#include "kernels/device.h"

#ifndef CUDA_IS_EMULATED // tests/emulator defines true: its device memory is host memory
#define CUDA_IS_EMULATED false
#endif

struct op;

enum {
    GEMM_WORKSPACE_BYTES = CUDA_IS_EMULATED ? 4096 : 32 << 20, // workspace of cuBLASLt
    SUM_ROW_BLOCK = 32,                                        // rows summed per block (reduce.h)
    NORM_ROW_BLOCK = 16,                                       // the same for a norm (norm.cu)
    SORTED_TOKEN_BYTES = 8,                                    // for an embedding gradient (embedding.cu)
    ATTENTION_TILE = 128,                                      // tokens, at most (attention_bwd_sm90.cu)
    MAGNITUDE_BLOCKS = 2048,                                   // partial results of a magnitude, at most
};

/* For our own kernels, and cuBLASLt. */
size_t cuda_scratch_bytes(const struct op *op);

/* The same plus the workspace of cuDNN's attention, if the options request it. cuDNN reports its workspace
 * only for a finished plan, so this is an estimate from observed plans. */
size_t cuda_planned_scratch_bytes(const struct op *op, enum attention_backend attention,
                                  bool nondeterministic);
