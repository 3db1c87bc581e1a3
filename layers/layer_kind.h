// SPDX-License-Identifier: Apache-2.0
/* A layer kind: the constant ops table through which the rest of the program uses a layer. A model is a
 * list of layers (layers/model.h); stages, parameters, checkpoints and `verify` work on any list. A new
 * kind is one file with its struct, its functions and its ops table, and an entry in layers/model.h.
 *
 *     declare_params    the descriptors of its parameters          once per model
 *     declare           regions of its activations, in `self`      when a stage is created
 *     forward           x -> out                                   F
 *     recompute         dropped activations from kept ones         before I
 *     backward_input    dx: gradient of out -> gradient of x       I
 *     backward_weight   += gradients of weights                    W
 *
 * `self` is the kind's own struct of `bytes` bytes: regions, parameter indices, random streams. Functions
 * enqueue ops on context->compute and never wait on the host.
 *
 * Caution: `declare` runs twice, for F and for the backward pass (layers/recompute.h), and must declare the
 * same regions in the same order both times. */
#pragma once

#include "layers/parameters/declare.h"
#include "layers/pass.h"

struct layer_kind {
    const char *name;
    size_t bytes;    // of `self`
    bool has_input;  // false: reads the batch instead of activations, as an embedding does
    bool has_output; // false: writes losses instead of activations, as a head does
    void (*declare_params)(struct declaration *declaration);
    /* layer: numbered as in struct param; x: [T or T/tp, H], the input, if the kind has one; self: zeroed. */
    void (*declare)(const struct layer_context *context, struct slot_layout *layout, int layer,
                    struct region x, void *self);
    /* out: [T or T/tp, H]; {0} without output. */
    enum status (*forward)(const void *self, const struct pass *pass, struct tensor out);
    /* out: {0}, or the destination of the output when the next layer of a recomputed run needs it. NULL: the
     * kind is never recomputed. */
    enum status (*recompute)(const void *self, const struct pass *pass, struct tensor out);
    /* dx: gradient of out on entry, of x on return; overwritten without output, ignored without input. */
    enum status (*backward_input)(const void *self, const struct pass *pass, struct tensor dx);
    enum status (*backward_weight)(const void *self, const struct pass *pass);
    /* Logits [T, columns >= V/tp] of the last forward pass. NULL: the kind computes none. */
    struct tensor (*logits)(const void *self, const struct pass *pass);
};
