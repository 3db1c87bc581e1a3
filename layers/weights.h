// SPDX-License-Identifier: Apache-2.0
/* The parameters that one rank holds: for each row (layers/param.h) of its layers the slice, its value,
 * its gradient and Adam's moments. The four live in four flat buffers, and the order in them is the
 * order in which the last gradients of a step become ready: the last layer first, the embedding last,
 * so that a bucket of gradients is one range of one buffer.
 *
 * A tied weight used twice on one rank (pp 1) has one value and two gradients. Used on two ranks it is
 * held twice, and both copies make the same step. Either way each use's gradient is reduced
 * alone, then embedding + head, so that pipeline degrees agree to the bit. */
#pragma once

#include "kernels/ops.h"
#include "layers/param.h"

struct held {
    const struct param *row;
    int index; // of the row
    struct slice slice;
    int64_t value_offset, gradient_offset; // elements in the flat buffers
    struct tensor weight, gradient;        // f32, padded local shape
    struct tensor m, v;                    // {0} where `second_use`
    bool second_use;                       // value and moments are another held row's, on this rank
};

struct weights {
    const struct params *params;
    struct device *device;
    struct held *list; // in flat order
    int count;
    int *held_of_row; // index into list, or -1
    struct buffer value, gradient, m, v;
    struct tensor flat_gradient; // f32[all gradients]
};

/* layers: those this rank holds, in the order their gradients become ready; LAYER_EMBEDDING and
 * num_layers (norm and head) among them where it holds them. `training` false: values only. */
MUST_USE enum status weights_create(struct device *device, const struct params *params, struct place place,
                                    const int *layers, int layer_count, bool training, struct weights *out);
void weights_destroy(struct weights *weights);

/* Values as functions of (seed, name, global index); moments zero. */
MUST_USE enum status weights_initialise(struct weights *weights, struct stream *stream, uint64_t seed);
MUST_USE enum status weights_zero_gradients(struct weights *weights, struct stream *stream);

/* NULL when this rank does not hold the row. */
struct held *weights_held(const struct weights *weights, int row);

/* The rows that are laid side by side with `first_row`, as one matrix (or vector). */
struct tensor weights_fused_value(const struct weights *weights, int first_row);
struct tensor weights_fused_gradient(const struct weights *weights, int first_row);
