// SPDX-License-Identifier: Apache-2.0
/* The temporary memory of the cuda device's kernels, from shapes alone: what an op asks of cuda_scratch(),
 * which holds it to this. In every build, also those without CUDA, for the dry device plans with it. */
#pragma once

#include "kernels/device.h"

#ifndef CUDA_IS_EMULATED // tests/emulator says true: there, device memory is the host's
#define CUDA_IS_EMULATED false
#endif

struct op;

enum {
    GEMM_WORKSPACE_BYTES = CUDA_IS_EMULATED ? 4096 : 32 << 20, // what cuBLASLt may work in
    SUM_ROW_BLOCK = 32,                                        // rows that are added up apart (reduce.h)
    NORM_ROW_BLOCK = 16,                                       // and those of a norm (norm.cu)
    SORTED_TOKEN_BYTES = 8,                                    // of an embedding's gradient (embedding.cu)
    ATTENTION_TILE = 128,                                      // of tokens, at most (attention_wgmma_back.cu)
    MAGNITUDE_BLOCKS = 2048,                                   // partial results of a magnitude, at most
};

/* Of our own kernels, and of cuBLASLt. */
size_t cuda_scratch_bytes(const struct op *op);

/* The same with what cuDNN's attention works in, where the options ask for that. Its workspace is what the
 * library says of a plan that it has made, so this is an estimate from what plans of theirs have wanted. */
size_t cuda_planned_scratch_bytes(const struct op *op, enum attention_backend attention, bool any_order);
