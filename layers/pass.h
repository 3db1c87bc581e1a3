// SPDX-License-Identifier: Apache-2.0
/* One pass of one microbatch through one stage, and its memory.
 *
 * Every tensor of a layer is declared when the stage is created, as a region with a lifetime
 * (schedules/lifetime.h); its offset never changes. The schedule determines the number of slots of each
 * lifetime, and the executor passes the slots of the microbatch to each action.
 *
 * RECOMPUTE and SCRATCH have one slot per rank. A schedule that splits B into I and W therefore needs no
 * special handling: B is I and W of one layer after the other.
 *
 * A shape without a type is of the working type (context.working).
 *
 * A recomputed tensor (layers/recompute.h) is the same tensor with another lifetime. A layer is declared
 * twice: for F (RECOMPUTE), and for the backward pass, where tensors read by W have KEEP_INPUT_TO_WEIGHT, so
 * that I recomputes them and W does not.
 *
 * Caution: KEEP_INPUT_TO_WEIGHT holds a single layer while no action splits I from W, because each layer's W
 * then follows its I immediately (context.split_weight). */
#pragma once

#include "kernels/ops.h"
#include "layers/key_value_cache.h"
#include "layers/layer_options.h"
#include "layers/model_config.h"
#include "layers/parameters/weights.h"
#include "parallel/group.h"
#include "schedules/lifetime.h"

struct region {
    enum lifetime lifetime;
    size_t offset; // bytes from the start of the slot
    int64_t rows, columns;
    enum dtype dtype;
};

/* The regions declared so far: for each lifetime their bytes, i.e. the size of one slot. */
struct slot_layout {
    size_t bytes[LIFETIME_COUNT];
    enum dtype working;         // of activations: context.working
    unsigned recomputed;        // recomputed modules: their KEEP_UNTIL_BACKWARD_INPUT becomes RECOMPUTE
    enum lifetime until_weight; // of recomputed modules: what KEEP_UNTIL_BACKWARD_WEIGHT becomes
};

/* Declares a tensor [rows, columns] of the working type, 64-byte aligned. */
struct region slot_layout_add(struct slot_layout *layout, enum lifetime lifetime, int64_t rows,
                              int64_t columns);
/* Same, for a tensor of a module that can be recomputed without the rest of the layer. */
struct region slot_layout_add_of(struct slot_layout *layout, enum recompute_module module,
                                 enum lifetime lifetime, int64_t rows, int64_t columns);
/* Same, f32 for every working type: reductions and row statistics. */
struct region slot_layout_add_f32(struct slot_layout *layout, enum recompute_module module,
                                  enum lifetime lifetime, int64_t rows, int64_t columns);

/* One microbatch on the device: arrays per token. Every tp rank holds all T of them. */
struct batch {
    const int32_t *token, *label; // [T]
    const int32_t *position;      // [T] for the position embedding; the recipe may restart it at documents
    const int32_t *document;      // [T] document index; NULL: one document
    const float *loss_mask;       // [T]
    const int64_t *sample;        // [T] global sample counter
    const int32_t *sample_offset; // [T] token offset in the sample
    struct tensor sample_loss, sample_tokens; // f64[B]: outputs of the head, one per T / B tokens
};

/* Largest magnitudes (amax) of the operands of linear layers, f32[params.count * OPERAND_COUNT]. `used`
 * determines the scales of this step; `recorded` collects the magnitudes of this step. {0} without delayed
 * scaling. */
struct delayed_scaling {
    struct tensor used, recorded;
};

/* State shared by the layers of a rank. */
struct layer_context {
    const struct model_config *model;
    const struct layer_options *options;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    struct stream *comm_stream; // tp collectives concurrent with matmuls; NULL: everything runs on `compute`
    int64_t tokens;             // T: of a microbatch on this rank, before sequence parallelism splits them
    int64_t sequences;          // B: T / B consecutive tokens each. Only attention and quantization, whose
                                // blocks restart at each sequence, read it: for every other layer a
                                // token is a row with a sample and a position
    bool split_weight;          // the schedule has I or W actions: KEEP_INPUT_TO_WEIGHT holds all layers of a
                                // stage
    enum dtype working;         // of activations, their gradients and weights: f32, bf16 or f16
    struct delayed_scaling delayed;
    const struct key_value_cache *cache; // of generation: attention continues sequences; NULL or empty: none
    const float *loss_scale;             // device pointer: factor of all gradients; NULL: none
    uint64_t seed;
};

/* The local tokens outside the matmuls: [local_begin, local_begin + local_tokens) of T. */
int64_t context_local_tokens(const struct layer_context *context);
int64_t context_local_begin(const struct layer_context *context);

struct pass {
    const struct layer_context *context;
    const struct batch *batch;
    char *base[LIFETIME_COUNT]; // the slots of this microbatch
    bool training;              // enables dropout
    bool is_last;               // of the microbatches that add to the gradients of this stage in a step
};

struct tensor pass_tensor(const struct pass *pass, struct region region);

/* Hidden dropout of one site (a generator seeded by name) for the local tokens. */
struct dropout pass_hidden_dropout(const struct pass *pass, struct philox site);
