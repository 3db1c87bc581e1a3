// SPDX-License-Identifier: Apache-2.0
/* What a run needs and how long a step takes, before anything is allocated: memory by part of one rank of
 * each pipeline coordinate (memory_plan.h), and, with a cluster profile, the time of a step and where it goes
 * (predict/predict.h).
 *
 *   recipe ── each pipeline rank on dry ──> memory, tape ── profile ──> prediction ──> plan */
#pragma once

#include "planner/plan/memory_plan.h"
#include "planner/plan/report.h"
#include "planner/predict/predict.h"

#include <stdio.h>

/* Memory of a device beyond what each of its ranks allocates. */
struct plan_needs {
    int ranks;             // that allocate on it
    int64_t fragmentation; // lost, of all of them
    int64_t reserved;      // by CUDA, NCCL and cuDNN
};

struct step_plan {
    const struct run *run;
    const struct cluster_profile *profile; // NULL: no times
    struct cost_options cost;
    int count;                 // pipeline ranks
    struct rank_memory *ranks; // [count]
    struct slot_use *slots;    // of all ranks
    struct tape **tapes;       // [count]
    int64_t items;             // of all tapes
    struct prediction *step;   // NULL without a profile
    int peak_rank;             // index of the rank with the most memory
    /* 0 without a profile: */
    double step_s; // including the profile's overhead per step
    double tokens_per_s, tflops_per_rank;
    double mfu, hfu; // layers/model.h
    double bubble_fraction;
    int64_t device_bytes; // memory of one device
    int64_t needed_bytes; // needed by its ranks, with `needs`
    struct plan_needs needs;
    bool fits;           // true without a profile
    bool tight;          // fits, but leaves less than cluster.memory_headroom
    bool exceeds;        // step_plan_make_within(): the step takes longer than its limit
    bool assumes_memory; // the ranks' memory is that of the formula under the section `assume`
};

/* Loads the profile of the recipe, NULL if it has none. BAD_RECIPE after printing what is wrong with it. */
MUST_USE enum status step_plan_profile(const struct recipe *recipe, struct cluster_profile **out);

/* Checks that the profile has what the run needs: a peak of its working dtype, a network. BAD_RECIPE
 * otherwise. Of the run, only its recipe and the size of its mesh are read. */
MUST_USE enum status step_plan_check_profile(const struct run *run, const struct cluster_profile *profile);

/* Plans the run. The run, and `profile`, which may be NULL, must outlive the plan. Returns the errors that a
 * run would return (BAD_RECIPE, ...). */
MUST_USE enum status step_plan_make(const struct run *run, const struct cluster_profile *profile,
                                    struct step_plan *out);
/* Same, but if the step takes longer than `limit_s`, stops as soon as that is certain: the plan then has
 * `exceeds` set and no times. */
MUST_USE enum status step_plan_make_within(const struct run *run, const struct cluster_profile *profile,
                                           double limit_s, struct step_plan *out);
/* As step_plan_make(); also records the spans of all lanes and the critical path. */
MUST_USE enum status step_plan_make_timeline(const struct run *run, const struct cluster_profile *profile,
                                             struct step_plan *out);
void step_plan_free(struct step_plan *plan);

/* Memory that the ranks of one device need if the largest of them allocates `bytes`: with fragmentation and
 * reserved memory. */
int64_t step_plan_needed(const struct cluster_profile *profile, const struct run *run, int64_t bytes);

/* Memory of a device that a chosen layout may need: without cluster.memory_headroom. */
int64_t step_plan_limit(const struct cluster_profile *profile, const struct recipe *recipe);

/* Whether the recipe assumes a program that gathers updated weights during the next step (tape.h). */
bool step_plan_overlaps_gathers(const struct recipe *recipe);

/* Options for the cost of the run's ops and messages. */
struct cost_options step_plan_cost_options(const struct run *run, const struct cluster_profile *profile);

/* The largest allocation of any rank according to the formula: fast, but without the scratch memory of
 * reductions between GPUs. */
MUST_USE enum status step_plan_formula_bytes(const struct run *run, int64_t *out);

/* Prints the plan, its results first; `terms`: with a row for each of equal ranks and stages, the slots of
 * activations, and the memory terms of the rank with the most memory. step_plan_json() appends
 * the members of a JSON object, with the names of metrics.jsonl. */
MUST_USE enum status step_plan_print(const struct step_plan *plan, bool terms, FILE *to);
void step_plan_json(const struct step_plan *plan, struct text *out);
/* Prints the ops of a step by layer of the model, equal layers as one: shape, count, FLOPs, bytes, time,
 * share. Requires a profile. */
void step_plan_print_ops(const struct step_plan *plan, FILE *to);
