// SPDX-License-Identifier: Apache-2.0
/* A lower bound of the step time of a layout, computed in microseconds, whereas a plan takes milliseconds.
 * The program runs one step of one microbatch on models of one and of two layers, without pipeline and data
 * parallelism, on the dry device; the difference is the cost of a layer:
 *
 *   layer, embedding, head ── layers of each stage ──> cost of each stage ── schedule_bound() ──> bound
 *
 * These tapes are shared by all layouts that differ only in pipeline, data parallelism and batch. Messages
 * of tensor parallelism count if compute waits for all of them. The messages of data parallelism come from
 * tapes of two data-parallel ranks: those of each microbatch keep their stream busy, those of the optimizer
 * follow the last backward pass, and reductions begin in the last backward pass of a stage. Memory-bound ops
 * of the embedding and the head are not counted. */
#pragma once

#include "planner/plan/step_plan.h"

struct sweep_bounds;

struct sweep_bounds *sweep_bounds_create(void);
void sweep_bounds_destroy(struct sweep_bounds *bounds); // takes NULL

/* Whether layouts that differ in this key share the tapes of a microbatch. */
bool sweep_bound_ignores(const char *key);

/* *seconds: lower bound of the step time of any plan of the recipe; 0 if nothing is known. `shared` is a text
 * of all keys that differ between layouts, except for the ignored ones. NO_MEMORY. */
MUST_USE enum status sweep_bound(struct sweep_bounds *bounds, const char *shared, const struct recipe *recipe,
                                 const struct cluster_profile *profile, double *seconds);
/* *bytes: lower bound of the memory of the rank that allocates the most; 0 if nothing is known. Counts
 * weights, gradients, optimizer state, and activations of the microbatches that any schedule of this kind
 * holds. */
MUST_USE enum status sweep_bound_memory(struct sweep_bounds *bounds, const char *shared,
                                        const struct recipe *recipe, const struct cluster_profile *profile,
                                        int64_t *bytes);

/* sweep_bound() with the schedule of a run, simulated with lower bounds of its actions: at least as large. */
MUST_USE enum status sweep_bound_schedule(struct sweep_bounds *bounds, const char *shared,
                                          const struct run *run, const struct cluster_profile *profile,
                                          double *seconds);
