// SPDX-License-Identifier: Apache-2.0
/* Options of data parallelism: what is sharded, and how gradients are reduced. The recipe embeds this struct,
 * and buckets and weights read it. To add a recipe key for them, add a field here, a row in
 * trainer/recipe/recipe_table.c, and its use. No option changes results, except that zero_stage 2 and 3 sum
 * in another order. */
#pragma once

#include <stdbool.h>

struct data_parallel_options {
    int zero_stage;            // sharded over data ranks: 1 optimizer state, 2 also gradients, 3 also weights
    bool overlap_grad_reduce;  // with the backward pass
    bool overlap_param_gather; // with the computation of the previous layer; only with zero_stage 3
    bool nccl_ub;              // registers gradient buffers with the transport
    double bucket_size_mb;     // MiB; 0: one bucket. With zero_stage 2 and 3: one layer and mesh
};
