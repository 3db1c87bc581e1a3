// SPDX-License-Identifier: Apache-2.0
/* Options of a device's kernels: which implementation computes an op. The recipe embeds this struct, and
 * device_options has a copy. To add a recipe key that kernels read, add a field here, a row in
 * trainer/recipe/recipe_table.c, and its use. */
#pragma once

#include <stdbool.h>

/* Kernels that attention uses on a device that has a choice; ignored by the others. */
enum attention_backend {
    ATTENTION_AUTO, // the faster, if nondeterministic; else ATTENTION_OWN
    ATTENTION_OWN,
    ATTENTION_CUDNN,
    ATTENTION_OWN_MMA // own, with mma.sync on every GPU: for comparison; not a recipe value
};

/* Whether GEMM epilogues (struct epilogue, ops.h) are fused. */
enum matmul_epilogues {
    EPILOGUES_APART, // as separate ops
    EPILOGUES_FUSED, // wherever the device supports it
    EPILOGUES_AUTO,  // wherever faster: timed per shape, if nondeterministic or matmul_algorithms is set
};

struct kernel_options {
    enum attention_backend attention;
    // For devices with traits->has_matmul_options:
    bool tf32;                     // fp32 matmuls may round their operands to TF32 (10-bit mantissa)
    const char *matmul_algorithms; // a file that records the fastest algorithms; "auto"; NULL: none
    enum matmul_epilogues epilogues;
};
