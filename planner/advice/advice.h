// SPDX-License-Identifier: Apache-2.0
/* Suggests changes of one or two keys of a recipe. Each changed recipe is loaded and planned like the
 * original, so that a suggestion, once applied, gives exactly the plan that it announced.
 *
 *   parallel.zero_stage=1                       step 1.02 s (-3.1 %), memory 41.0 GiB (-12.5 GiB)
 *
 * Only keys that do not change the result are considered: of the sections parallel, pipeline and memory, and
 * the size of a microbatch. Those that target the largest limits of the plan are tried first. A plan that
 * does not fit gets the fastest changes that make it fit, of single keys and of a sweep (advice_fit.c), with
 * pairs of keys if none does; a plan that fits gets the fastest changes that reduce its step by at least
 * 0.5 %. All leave cluster.memory_headroom. */
#pragma once

#include "planner/plan/step_plan.h"

enum { ADVICE_MAX = 3, ADVICE_CHARS = 160 };

struct advice_item {
    char change[ADVICE_CHARS]; // overrides, separated by spaces
    double step_s;
    int64_t needed_bytes; // as in step_plan
    double bubble_fraction;
};

struct advice {
    struct advice_item items[ADVICE_MAX]; // fastest first
    int count;
    int considered;            // changes that are valid recipes
    int left;                  // of these: not tried, for lack of time
    int planned;               // of these: neither left nor excluded by their memory
    double nondeterministic_s; // the step with deterministic=false; 0: not planned
};

/* The recipe of a plan, as it was loaded. */
struct advice_source {
    const char *path;
    const char *const *overrides;
    size_t override_count;
    int world_size; // as passed to planned_recipe_load()
};

/* Requires a plan with a profile. Changes are tried in an order that the plan determines; for large plans,
 * their number depends on processor time. Changes that cannot be loaded or planned are skipped. NO_MEMORY. */
MUST_USE enum status advice_make(const struct advice_source *source, const struct step_plan *plan,
                                 struct advice *out);

/* Prints the advice; advice_json() appends it as the JSON member "advice". */
void advice_print(const struct advice *advice, const struct step_plan *plan, FILE *to);
void advice_json(const struct advice *advice, struct text *out);

/* ---- advice_list.c ---- */

/* The changes that advice considers. */

enum { ADVICE_CANDIDATES = 64 };

struct advice_list {
    char changes[ADVICE_CANDIDATES][ADVICE_CHARS]; // overrides, separated by spaces
    unsigned targets[ADVICE_CANDIDATES];           // the limits that a change may reduce
    int count;
};

/* Limits that a change may reduce: parts of the step (limits.h), or memory. */
enum advice_target {
    AT_TP = 1,       // tensor-parallel messages
    AT_PP = 2,       // pipeline messages
    AT_DATA = 4,     // messages of data parallelism and ZeRO
    AT_HOST = 8,     // copies
    AT_BUBBLE = 16,  //
    AT_COMPUTE = 32, // matmuls and attention: recomputation
    AT_SMALL = 64,   // launches and memory-bound ops
    AT_MEMORY = 128  // worth combining if no single change fits
};

/* Lists changes of one key, or of two degrees with the same product. They need not be valid. Those that
 * target the largest limits of the plan come first. */
void advice_list_make(const struct step_plan *plan, struct advice_list *out);

/* ---- advice_fit.c ---- */

/* Layouts of a recipe that needs more memory than a device has: a sweep (sweep/sweep.h) over its degrees,
 * ZeRO stage and recomputation, also with smaller microbatches and 1F1B, on the same number of ranks. */

struct advice_items {
    struct advice_item items[ADVICE_MAX]; // fastest first
    int count;
};

/* Finds the fastest layouts that fit. A recipe that cannot be swept has none. NO_MEMORY. */
MUST_USE enum status advice_fit(const struct advice_source *source, const struct recipe *base,
                                struct advice_items *out);
