// SPDX-License-Identifier: Apache-2.0
/* What the backward pass computes again instead of keeping it from the forward pass: whole layers
 * (1604.06174), or those parts of each that take much memory and little time (2205.05198).
 *
 *   full, uniform, 2     [x . .][x . .]    runs of 2 layers; only the input x of each run is kept
 *   full, block, 2       [x .][x .] - -    the first 2 layers of a stage, each a run of its own
 *   selective            [-][-][-][-]      each layer keeps its input and most of what it makes
 *
 * A run is computed again right before the backward pass of its last layer, once: with the same kernels in
 * the same order from the same bits, dropout too, which is a function of place and not of time. So nothing in
 * a result tells whether it was kept. What only the last matrix of the run and what comes behind it would
 * make is left out: no backward pass reads it.
 *
 * "Stage" is a virtual one, as in Megatron-LM: with v chunks, a rank has v times as many recomputed layers
 * under block. */
#pragma once

#include <stdint.h>

enum recompute_granularity { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum recompute_method { RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK };

/* Parts of a layer, as bits. */
enum recompute_module {
    RECOMPUTE_CORE_ATTENTION = 1, // from q, k and v: the attention's output and the sums of its softmax
    RECOMPUTE_NORM = 2,           // from the residual stream: what both norms make
    RECOMPUTE_ACTIVATION = 4,     // from its input: what the activation makes
    RECOMPUTE_LAYER = 8,          // everything but the layer's input
};

struct recompute {
    enum recompute_granularity granularity;
    enum recompute_method method; // of full
    int64_t num_layers;           // of full: in a run (uniform), or how many are recomputed at all (block)
    unsigned modules;             // of selective
};

/* The run that a layer belongs to, in layers of its stage; modules 0: it keeps all it makes. */
struct recompute_run {
    int first, count;
    unsigned modules;
};

/* Of layer i of a stage with `layer_count`. */
struct recompute_run recompute_run_of(const struct recompute *recompute, int layer_count, int i);
