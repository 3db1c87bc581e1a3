// SPDX-License-Identifier: Apache-2.0
/* The parameters that one rank holds: for each row (param.h) of its layers the slice, its value and
 * its gradient. They live in flat buffers, and the order in them is the order in which the last gradients of
 * a step become ready: the last layer first, the embedding last, so that a bucket of gradients is one range
 * of one buffer.
 *
 * What a rank updates is another list: all that it holds, or with ZeRO (1910.02054) its slices of it. A
 * bucket is cut into one slice for each data rank (parallel/bucket_plan.h), between rows of a matrix, so that
 * what is left of a tensor is a matrix again:
 *
 *     held    | head          | norm | mlp 5 w | b | ...        what layers compute with
 *     owned   | rows 40..79   |      | rows 0.. |               what AdamW steps, and checkpoints keep
 *
 *                 value       gradient       m, v
 *     stage 0     whole       whole          whole
 *     stage 1     whole       whole          slices
 *     stage 2     whole       slices         slices
 *     stage 3     slices      slices         slices
 *
 * What is kept in slices is whole for as long as a layer needs it (layers/parameters/sharded.h).
 *
 * Where layers compute in bf16 or f16 the whole is of that type, and what is owned has a value of its own in
 * fp32, the master (1710.03740): AdamW steps it and leaves it rounded in the whole. In fp32 it is the whole's
 * own slice. In stage 3 the masters are all there is, and are rounded on their way into what is brought
 * together. Initialised, checkpointed and compared are values; the rounded ones follow from them. Without
 * masters (`main` the working type) the whole's own slice is the value here too, and AdamW rounds
 * stochastically what it leaves in it (kernels/ops.h).
 *
 * A tied weight used twice on one rank (pp 1) has one value and two gradients. Used on two ranks it is
 * held twice, and both copies make the same step. Either way each use's gradient is reduced
 * alone, then embedding + head, so that pipeline degrees agree to the bit.
 *
 * The trap: behind the sum over data ranks a gradient is whole in the owned slices only. */
#pragma once

#include "kernels/ops.h"
#include "layers/parameters/param.h"
#include "parallel/bucket_plan.h"
#include "parallel/group.h"

struct held {
    const struct param *row;
    int index; // of the row
    struct slice slice;
    int64_t value_offset, gradient_offset; // elements in the flat buffers
    struct tensor weight, gradient; // of the working type, and f32; padded local shape; data NULL while
                                    // they are nowhere
    bool second_use;                // its value is another held row's, on this rank
};

/* Rows [begin, begin + count) of a held matrix (elements of a vector), padding among them. Never empty. */
struct owned {
    struct held *held;
    int64_t begin, count;
    struct tensor value, gradient, m, v; // f32[count] or [count, columns], but value of the type `main`; of a
                                         // second use gradient alone, and without training value alone
    struct tensor working;               // the same of held->weight, where that is another
};

struct weights {
    const struct params *params;
    struct device *device;
    struct held *list; // in flat order
    int count;
    int *held_of_row;   // index into list, or -1
    enum dtype working; // of the whole
    enum dtype main;    // of what is updated
    int zero_stage;
    struct bucket_plan plan;
    struct group *data;  // whom it is shared out to; NULL: nobody
    int rank;            // whose slices are this rank's
    struct owned *owned; // in flat order
    int owned_count;
    struct buffer value, gradient, m, v;
    struct buffer master;        // f32; where the whole is kept, and is of another type than `main`
    struct tensor flat_gradient; // f32[all gradients], or all slices of them
    struct event updated;        // the values are those of the last update
    struct sharded *sharded;     // NULL below stage 2
};

struct weights_config {
    struct device *device;
    const struct params *params;
    struct place place;
    /* Those this rank holds, in the order their gradients become ready; LAYER_EMBEDDING and num_layers (norm
     * and head) among them where it holds them. */
    const int *layers;
    int layer_count;
    enum dtype working;
    enum dtype main;      // f32, or the working type: without masters
    bool training;        // false: held->weight only, whole
    bool offload_moments; // into the host's memory (PART_HOST)
    int zero_stage;       // what the data ranks share out; above 0 the next three are read
    const struct groups *groups;
    bool overlap_grad_reduce, overlap_param_gather;
    int64_t bucket_bytes; // 0: one bucket. From stage 2 on a layer is one
};

MUST_USE enum status weights_create(const struct weights_config *config, struct weights *out);
void weights_destroy(struct weights *weights);

/* Values as functions of (seed, name, global index); moments zero. */
MUST_USE enum status weights_initialise(struct weights *weights, struct stream *stream, uint64_t seed);
/* The value of a held row, from f32 numbers of its padded local shape, to where it lies: in held->weight, and
 * in what is owned of it. Waits. */
MUST_USE enum status weights_put(struct weights *weights, struct stream *stream, const struct held *held,
                                 const float *host);
MUST_USE enum status weights_zero_gradients(struct weights *weights, struct stream *stream);
/* Behind an update, everyone's owned values into the whole, where there is one. */
MUST_USE enum status weights_gather(struct weights *weights, struct stream *stream);

/* NULL when this rank does not hold the row. */
struct held *weights_held(const struct weights *weights, int row);

/* What this rank owns of a row; NULL: nothing. */
struct owned *weights_owned(const struct weights *weights, int row);

/* The part of the global tensor that is owned: a rectangle, of which padded[0] is `count`. */
struct slice owned_slice(const struct owned *owned);

/* What a value of two bytes rounds by when it is updated. */
struct stochastic owned_stochastic(const struct weights *weights, const struct owned *owned, uint64_t seed);
/* The generator of that for the parameter of this name. */
struct philox stochastic_named(uint64_t seed, const char *param_name);

/* This rank's slice of a bucket, where it is kept; the values of a second use are the other's. Stages 2
 * and 3. */
struct tensor weights_gradient_slice(const struct weights *weights, int bucket);
struct tensor weights_value_slice(const struct weights *weights, int bucket); // stage 3

/* The rows that are laid side by side with `first_row`, as one matrix (or vector). */
struct tensor weights_fused_value(const struct weights *weights, int first_row);
struct tensor weights_fused_gradient(const struct weights *weights, int first_row);
