// SPDX-License-Identifier: Apache-2.0
/* Activation recomputation: the backward pass recomputes whole layers (1604.06174), or the modules of each
 * layer that use much memory and little time (2205.05198), instead of keeping their activations.
 *
 *   full, uniform, 2     [x . .][x . .]    runs of 2 layers; only the input x of each run is kept
 *   full, block, 2       [x .][x .] - -    the first 2 layers of a stage, each a run of its own
 *   selective            [-][-][-][-]      each layer keeps its input and most activations
 *
 * A run is recomputed once, right before the backward pass of its last layer, with the same kernels in the
 * same order from the same inputs. Dropout masks depend on the position, not on the time of the call. Results
 * are therefore bit-identical with and without recomputation. The last matmul of the run and the ops after it
 * are skipped: no backward pass reads their output.
 *
 * A "stage" is a virtual stage, as in Megatron-LM: with v chunks, a rank has v times as many recomputed
 * layers with method block. */
#pragma once

#include <stdint.h>

enum recompute_granularity { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum recompute_method { RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK };

enum recompute_extent {
    RECOMPUTE_NEEDED, // only what a backward pass reads
    RECOMPUTE_WHOLE, // also the unused output of each run, to plan for programs that do so (assume.recompute)
    RECOMPUTE_MODULES // so; plans also count the recomputed head
};

/* Modules of a layer, as bits. */
enum recompute_module {
    RECOMPUTE_CORE_ATTENTION = 1, // from q, k and v: attention output and log-sum-exp of the softmax
    RECOMPUTE_NORM = 2,           // from the residual stream: outputs of both norms
    RECOMPUTE_ACTIVATION = 4,     // from its input: output of the activation function
    RECOMPUTE_LAYER = 8,          // all but the layer's input
};

struct recompute {
    enum recompute_granularity granularity;
    enum recompute_method method; // with full
    int64_t num_layers;           // with full: layers per run (uniform), or recomputed layers per stage
                                  // (block)
    unsigned modules;             // with selective
    enum recompute_extent extent;
};

/* The run that contains a layer, in layer indices of the stage; modules 0: all activations are kept. */
struct recompute_run {
    int first, count;
    unsigned modules;
};

/* Returns the run of layer i of a stage with `layer_count` layers. */
struct recompute_run recompute_run_of(const struct recompute *recompute, int layer_count, int i);
