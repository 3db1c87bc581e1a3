// SPDX-License-Identifier: Apache-2.0
/* One pass of one microbatch through one stage, and the memory it may use.
 *
 * Every tensor that a layer keeps is declared when the stage is made, as a region with a lifetime; its offset
 * never changes. The schedule decides how many slots a lifetime needs, and the executor hands each action the
 * slots of its microbatch.
 *
 *     KEEP_INPUT                    the stage's input, from its receive to I
 *     KEEP_UNTIL_BACKWARD_INPUT     written by F, read by I    q k v of attention, inputs of norms
 *     KEEP_UNTIL_BACKWARD_WEIGHT    written by F, read by W    inputs of matmuls
 *     KEEP_INPUT_TO_WEIGHT          written by I, read by W    gradients of outputs of matmuls
 *     RECOMPUTE                     within one action          dropped by F and recomputed by I
 *     SCRATCH                       within one action          everything else
 *
 * A shape without a type is of the working type (env.working).
 *
 * The last two have one slot per rank. So a schedule that splits B into I and W needs nothing special, and B
 * is I and W of one layer after the other.
 *
 * A recomputed tensor (layers/recompute.h) is the same tensor with another lifetime: a layer is declared
 * twice, for F (RECOMPUTE) and for the backward pass, where what W reads has KEEP_INPUT_TO_WEIGHT: I
 * recomputes it, and W need not.
 *
 * Caution: KEEP_INPUT_TO_WEIGHT has room for one layer only while no action splits I from W, since then each
 * layer's W follows its I at once (env.split_weight). */
#pragma once

#include "kernels/ops.h"
#include "layers/linear/linear_precision.h"
#include "layers/parameters/weights.h"
#include "layers/recompute.h"
#include "parallel/group.h"

enum lifetime {
    KEEP_INPUT,
    KEEP_UNTIL_BACKWARD_INPUT,
    KEEP_UNTIL_BACKWARD_WEIGHT,
    KEEP_INPUT_TO_WEIGHT,
    RECOMPUTE,
    SCRATCH,
    LIFETIME_COUNT
};

/* Whether it has one slot per rank; the others have one per microbatch. */
static inline bool lifetime_is_shared(enum lifetime lifetime)
{
    return lifetime == RECOMPUTE || lifetime == SCRATCH;
}

struct region {
    enum lifetime lifetime;
    size_t offset; // bytes from the slot's beginning
    int64_t rows, columns;
    enum dtype dtype;
};

/* Bytes declared so far of each lifetime: the size of one slot. */
struct layout {
    size_t bytes[LIFETIME_COUNT];
    enum dtype working;         // of activations: env.working
    unsigned recomputed;        // modules whose declarations have RECOMPUTE for KEEP_UNTIL_BACKWARD_INPUT ...
    enum lifetime until_weight; // ... and this for KEEP_UNTIL_BACKWARD_WEIGHT
};

/* Declares [rows, columns] of the working type. 64-byte aligned. */
struct region layout_add(struct layout *layout, enum lifetime lifetime, int64_t rows, int64_t columns);
/* The same for what can be computed again without the rest of the layer. */
struct region layout_add_of(struct layout *layout, enum recompute_module module, enum lifetime lifetime,
                            int64_t rows, int64_t columns);
/* And f32, whatever activations are: sums and statistics of rows. */
struct region layout_add_f32(struct layout *layout, enum recompute_module module, enum lifetime lifetime,
                             int64_t rows, int64_t columns);

/* One microbatch on the device. T = batch * sequence; ids are whole on every tp rank. */
struct batch {
    const int32_t *token, *label; // [T]
    const int32_t *position;      // [T] for the position embedding; restarts with a document where asked
    const int32_t *document;      // [T], or NULL: one document
    const float *loss_mask;       // [T]
    const int64_t *sample;        // [T] global sample counter
    const int32_t *place;         // [T] index in the sample
    struct tensor sample_loss, sample_tokens; // f64[batch]: where the head writes
};

/* Largest magnitudes of the operands of linear layers, f32[rows of params * OPERAND_COUNT]: what the scales
 * of this step follow from, and those of the step itself so far. {0} without delayed scaling. */
struct delayed_scaling {
    struct tensor used, seen;
};

/* What the layers of a rank share. */
struct env {
    const struct model_config *model;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    struct stream *comm_stream; // of messages between tp ranks beside multiplications; NULL: all on `compute`
    int64_t batch, sequence;    // B and S of a microbatch
    bool sequence_parallel;     // between the matrix multiplications a tp rank holds T/tp tokens
    bool split_weight;          // some action is I or W: KEEP_INPUT_TO_WEIGHT holds all layers of a stage
    struct recompute recompute;
    enum dtype working; // of activations, their gradients and weights: f32, bf16 or f16
    struct linear_precision precision;
    struct delayed_scaling delayed;
    const float *loss_scale; // on the device: the factor that all gradients come with; NULL: none
    uint64_t seed;
};

/* T, and the tokens this rank holds between matrix multiplications: [local_begin, + local_tokens). */
int64_t env_tokens(const struct env *env);
int64_t env_local_tokens(const struct env *env);
int64_t env_local_begin(const struct env *env);

struct pass {
    const struct env *env;
    const struct batch *batch;
    char *base[LIFETIME_COUNT]; // the slots of this microbatch
    bool training;              // dropout is on
};

struct tensor pass_tensor(const struct pass *pass, struct region region);

/* The hidden dropout of one site (a generator named after it), for the tokens this rank holds between
 * matrix multiplications. */
struct dropout pass_hidden_dropout(const struct pass *pass, struct philox site);

/* The index of the row "layers.LAYER.NAME"; -1 when the model has none. */
int param_row(const struct env *env, int layer, const char *name);
