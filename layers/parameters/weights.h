// SPDX-License-Identifier: Apache-2.0
/* Parameters held by one rank: for each descriptor (param.h) of its layers a slice, its value and its
 * gradient. They are stored in flat buffers, in the order in which the last gradients of a step become ready:
 * the last layer first, the embedding last. A bucket of gradients is therefore one range of one buffer.
 *
 * The optimizer of a rank updates the *owned* parameters: all that it holds, or with ZeRO (1910.02054) its
 * slices. A bucket is split into one slice per data rank (parallel/bucket_plan.h), between rows of a
 * matrix, so that the owned part of a matrix is again a matrix:
 *
 *     held    | head          | norm | mlp 5 w | b | ...        used by the layers
 *     owned   | rows 40..79   |      | rows 0.. |               updated by AdamW, saved in checkpoints
 *
 *                 value       gradient       m, v
 *     stage 0     whole       whole          whole
 *     stage 1     whole       whole          slices
 *     stage 2     whole       slices         slices
 *     stage 3     slices      slices         slices
 *
 * Sharded values are gathered while a layer uses them (layers/parameters/sharded.h). Gradients are reduced
 * through layers/parameters/gradients.h.
 *
 * With bf16 or f16 layers the held values have that type, and the owned values are fp32 master weights
 * (1710.03740): AdamW updates them and writes the rounded result to the held values. With fp32 the owned
 * values are views of the held ones. In stage 3 only the masters exist, and are rounded when they are
 * gathered. Initialization, checkpoints and comparisons use the masters. Without masters (`main` is the
 * working type) the owned values are views of the held ones, and AdamW rounds its updates stochastically
 * (kernels/ops.h).
 *
 * A tied weight with both uses on one rank (pp 1) has one value and two gradients. With the uses on two ranks
 * each holds a copy, and both copies are updated identically. In both cases the gradient of each use is
 * reduced separately, then embedding + head are added, so that results are bit-identical over pipeline
 * degrees.
 *
 * Caution: after the reduction over data ranks only the owned slices of a gradient are valid. */
#pragma once

#include "kernels/ops.h"
#include "layers/parameters/param.h"
#include "parallel/bucket_plan.h"
#include "parallel/data_parallel_options.h"
#include "parallel/group.h"

struct held_param {
    const struct param *param;
    int index; // of the descriptor in params
    struct slice slice;
    int64_t value_offset, gradient_offset; // element offsets in the flat buffers
    struct tensor weight, gradient; // working type, and f32; padded local shape; data is NULL while they are
                                    // sharded
    bool second_use;                // shares the value of another held parameter on this rank
};

/* Rows [begin, begin + count) of a held matrix (elements of a vector), including padding. Never empty. */
struct owned_param {
    struct held_param *held;
    int64_t begin, count;
    struct tensor value, gradient, m, v; // f32[count] or [count, columns]; value has the type `main`; a
                                         // second use has only the gradient, and without training there is
                                         // only the value
    struct tensor working;               // the same rows of held->weight, if separate from value
};

/* The parameters of a layer: neighbours in flat order. */
struct held_layer {
    int layer;                 // as in struct param
    int first, count;          // in `list`
    int64_t begin, elements;   // their gradients, with padding at the end
    int first_bucket, buckets; // that contain them; with ZeRO stage 2 and 3 they contain nothing else
};

struct weights {
    const struct params *params;
    struct device *device;
    struct held_param *list; // in flat order
    int count;
    int *held_of_param;        // index into list, or -1
    struct held_layer *layers; // in flat order
    int layer_count;
    enum dtype working; // type of the held values
    enum dtype main;    // type of the owned values
    int zero_stage;
    struct bucket_plan plan;
    struct group **group_of; // [plan.count]: the group that reduces each bucket, and shares its slices; NULL
                             // without groups
    int rank;                // index of this rank's slices
    int64_t *slices_before[2]; // [plan.count + 1] elements before the slice of a bucket: of values, gradients
    struct owned_param *owned; // in flat order
    int owned_count;
    struct buffer value, gradient, m, v;
    struct buffer master;        // f32 master weights, if the held values have another type than `main`
    struct tensor flat_gradient; // f32[all gradients], or all of their slices
    struct event updated;        // recorded after the last update of the values
    struct gradients *gradients; // NULL without training
    struct sharded *sharded;     // NULL except with ZeRO stage 3
};

struct weights_config {
    struct device *device;
    const struct params *params;
    struct mesh_coord coord;
    /* Layers on this rank, in the order in which their gradients become ready; including LAYER_EMBEDDING and
     * num_layers (final norm and head) if it holds them. */
    const int *layers;
    int layer_count;
    enum dtype working;
    enum dtype main;                             // f32, or the working type (no master weights)
    bool training;                               // false: held->weight only, not sharded
    bool offload_moments;                        // to host memory (PART_HOST)
    const struct groups *groups;                 // may be NULL without training
    const struct data_parallel_options *options; // NULL: no sharding, no overlap, one bucket
};

MUST_USE enum status weights_create(const struct weights_config *config, struct weights *out);
void weights_destroy(struct weights *weights);

/* Initializes values as functions of (seed, name, global index), and moments to zero. */
MUST_USE enum status weights_initialize(struct weights *weights, struct stream *stream, uint64_t seed);
/* Copies the value of a held parameter from f32 host memory, in its padded local shape, to held->weight and
 * to its owned part. Synchronous. */
MUST_USE enum status weights_set(struct weights *weights, struct stream *stream,
                                 const struct held_param *held, const float *host);
/* After an update: all-gathers the owned values into the held values, where both exist. */
MUST_USE enum status weights_gather(struct weights *weights, struct stream *stream);

/* Returns NULL if this rank does not hold the layer. */
const struct held_layer *weights_layer(const struct weights *weights, int layer);

/* Returns NULL if this rank does not hold the parameter. */
struct held_param *weights_held(const struct weights *weights, int param);

/* Returns the owned part of a parameter; NULL if there is none. */
struct owned_param *weights_owned(const struct weights *weights, int param);

/* Computes the rows of a held parameter, with padding, that data rank `rank` owns; false if it owns none. The
 * same on all ranks that hold the parameter, also on other tensor ranks. */
bool weights_owned_rows(const struct weights *weights, int row, int rank, int64_t *begin, int64_t *count);

/* Returns the owned rectangle of the global tensor; padded[0] equals `count`. */
struct slice owned_slice(const struct owned_param *owned);

/* Stochastic rounding of the updates of a two-byte value. */
struct stochastic owned_stochastic(const struct weights *weights, const struct owned_param *owned,
                                   uint64_t seed);
/* Returns the random generator of the stochastic rounding for this parameter name. */
struct philox stochastic_named(uint64_t seed, const char *param_name);

/* This rank's slice of a bucket in the sharded buffers; a second use shares the values of the first. Stages 2
 * and 3. */
struct tensor weights_gradient_slice(const struct weights *weights, int bucket);
struct tensor weights_value_slice(const struct weights *weights, int bucket); // stage 3

/* The parameters fused with `first`, as one matrix (or vector). */
struct tensor weights_fused_value(const struct weights *weights, int first);
struct tensor weights_fused_gradient(const struct weights *weights, int first);
