// SPDX-License-Identifier: Apache-2.0
/* Unit costs of a recipe, for sweep_bound.c: the time of one microbatch in a layer, in the embedding and in
 * the head, from tapes of models of one and two layers. */
#pragma once

#include "planner/plan/step_plan.h"
#include "schedules/simulate.h"

/* Bytes of the messages of data parallelism that a layer adds, by call. */
struct sweep_traffic {
    bool is_known;
    int64_t microbatch[CALL_COUNT]; // per microbatch, with ZeRO 2 and 3
    int64_t reduce[CALL_COUNT];     // once, after the last microbatch
    int64_t update[CALL_COUNT];     // once, after the last backward pass
};

struct sweep_unit {
    char *key;
    struct sweep_traffic traffic[4][2]; // by ZeRO stage, and whether reductions overlap
    bool is_known;
    /* Lower bounds, in seconds: [0] with whole backward passes (i is B, and w is 0), [1] with split ones. A
     * schedule with both uses the smaller one. */
    struct stage_cost layer[2], embedding[2], head[2];
    /* With a split backward pass, the time of everything that is neither in a layer nor a lookup: final norm,
     * head, loss. Not a lower bound. */
    struct stage_cost rest;
    double update_s; // optimizer update of the parameters of a layer
    /* Bytes that a layer adds on one data-parallel rank: model states, and activations that a microbatch
     * keeps from F to I (0 with offload_activations). */
    int64_t weight_bytes, master_bytes, gradient_bytes, moment_bytes, activation_bytes;
};

/* Whether the recipe's schedule has actions I and W. */
bool sweep_unit_splits(const struct recipe *recipe);

/* Measures the traffic of a recipe with several data-parallel ranks. */
void sweep_unit_measure_traffic(const struct recipe *recipe, struct sweep_traffic *out);

/* Measures the unit costs. is_known is false if the recipe's layers have different formats or windows, or if
 * it cannot run on one data-parallel rank without a pipeline. */
void sweep_unit_measure(const struct recipe *recipe, const struct cluster_profile *profile,
                        struct sweep_unit *out);
