// SPDX-License-Identifier: Apache-2.0
/* The time of one microbatch in one layer, the embedding and the head of a recipe, from tapes of models of
 * one and two layers: for sweep_bound.c. */
#pragma once

#include "schedules/simulate.h"
#include "trainer/plan/step_plan.h"

/* Bytes of the messages of data parallelism that a layer adds, by call. */
struct sweep_traffic {
    bool is_known;
    int64_t microbatch[CALL_COUNT]; // for each microbatch, with ZeRO 2 and 3
    int64_t reduce[CALL_COUNT];     // once, after the last microbatch
    int64_t update[CALL_COUNT];     // once, after the last backward pass
};

struct sweep_unit {
    char *key;
    struct sweep_traffic traffic[4][2]; // by ZeRO stage, and whether reductions overlap
    bool is_known;
    /* Lower bounds, in seconds: with whole backward passes (then i is B and w is 0), and with split ones. A
     * schedule with both has the smaller of them. */
    struct stage_cost layer[2], embedding[2], head[2];
    /* Of a split pass, what is neither in a layer nor a lookup: final norm, head, loss. No lower bound. */
    struct stage_cost rest;
    double update_s; // of the parameters of a layer, in the optimizer
    /* Bytes that a layer adds on one data-parallel rank: its states, and activations that a microbatch keeps
     * from F to I. 0 with offload_activations. */
    int64_t weight_bytes, master_bytes, gradient_bytes, moment_bytes, activation_bytes;
};

/* Whether the recipe's schedule has actions I and W. */
bool sweep_unit_splits(const struct recipe *recipe);

/* Of a recipe with several data-parallel ranks. */
void sweep_unit_measure_traffic(const struct recipe *recipe, struct sweep_traffic *out);

/* is_known: false if the recipe has layers of different formats, or cannot be run alone. */
void sweep_unit_measure(const struct recipe *recipe, const struct cluster_profile *profile,
                        struct sweep_unit *out);
