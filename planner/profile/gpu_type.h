// SPDX-License-Identifier: Apache-2.0
/* Kinds of GPUs by their names, as tables, data sheets and CUDA write them:
 *
 *   "H100 (DGX)", "a100-80gb", "8xA100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
 *
 * Words are compared without case. Different boards of a kind (SXM, PCIe) have the same instructions. */
#pragma once

#include "base/text.h"

struct gpu_type {
    const char *name;       // "H100"
    const char *profile;    // shipped cluster profile of its SXM board
    int memory_gb;          // of that board, as in its name; 0: any
    int compute_capability; // 90: 9.0
};

/* The kind that a text names; NULL: none of those known. */
const struct gpu_type *gpu_type_find(const char *text);
/* The shipped profile for the board that a text names; NULL: none, as for a PCIe card or another memory. */
const char *gpu_type_profile(const char *text);
/* Whether a text can mean this device: the same kind and memory as far as both are given. A device of no
 * known kind can be any. */
bool gpu_type_matches(const char *text, const char *device);
/* Appends the known names: "V100, A100, H100". */
void gpu_type_names(struct text *out);
