// SPDX-License-Identifier: Apache-2.0
/* A sweep: every layout of a file (sweep_file.h) is checked, the legal ones that fit are planned.
 *
 *   layouts ── rules of the recipe, constraints ──> legal ── memory formula ──> fit ── step_plan ──> planned
 *
 * Legal layouts are planned in the order of a lower bound of their step (sweep_bound.h), until no bound is
 * below the steps of the best that were asked for: these are then the same as if all layouts were planned.
 *
 * Each layout that is not planned has a reason: a rule, a constraint, its memory, its bound. Layouts of the
 * same reason are counted together, with the first as an example. */
#pragma once

#include "trainer/plan/step_plan.h"
#include "trainer/plan/sweep/sweep_bound.h"
#include "trainer/plan/sweep/sweep_file.h"

enum sweep_state {
    SWEEP_PLANNED,
    SWEEP_TOO_LARGE, // does not fit the device's memory
    SWEEP_REFUSED,   // by a rule of the recipe, or a constraint
    SWEEP_FAILED,    // cannot be planned: schedule, profile
    SWEEP_SLOWER,    // not planned: its bound exceeds the best
    SWEEP_STATES
};

struct sweep_layout {
    int64_t number; // sweep_file.h
    enum sweep_state state;
    int reason;           // of reasons; -1 if planned or slower
    double bound_s;       // of a legal layout: no plan has a shorter step
    int64_t bound_bytes;  // and a bound of the next
    int64_t bytes;        // that the fullest rank allocates; of the formula, unless planned. 0: unknown
    int64_t needed_bytes; // of a device, as in struct step_plan
    /* Of planned layouts, as in struct step_plan. */
    double step_s, tokens_per_s, tflops_per_rank, mfu, bubble_fraction;
};

struct sweep_reason {
    enum sweep_state state;
    char *what;    // "model.num_layers, pipeline.schedule", "constraint tp * pp <= 64", "memory"
    char *example; // the problem of the first layout, in words
    int64_t first; // its number
    int64_t count;
};

enum sweep_phase { SWEEP_CHECKING, SWEEP_PLANNING };

struct sweep_options {
    const char *const *overrides; // of the base recipe
    size_t override_count;
    int world_size; // the launcher's number of ranks; 0: alone
    int64_t best;   // so many layouts are to be found; 0: all are planned
    void (*progress)(void *context, enum sweep_phase phase, int64_t done, int64_t count); // NULL: none
    void *context;
};

enum { SWEEP_MOST_REFUSED = 5000 };

struct sweep {
    const struct sweep_file *file;
    struct recipe_variants *variants;
    struct sweep_layout *layouts; // legal ones, and the first SWEEP_MOST_REFUSED refused ones; by number
    size_t count, capacity;
    int64_t counts[SWEEP_STATES];
    struct sweep_reason *reasons; // most frequent first
    int reason_count;
    size_t *best; // indices of the planned layouts, fastest first
    size_t best_count;
    int64_t device_bytes; // of the profile of the first layout
    struct profile_cache profiles;
    struct sweep_bounds *bounds;
};

/* `file` must outlive the sweep. BAD_RECIPE with problems of the base; layouts that cannot be planned are no
 * error. */
MUST_USE enum status sweep_make(const struct sweep_file *file, const struct sweep_options *options,
                                struct sweep *out, struct problems *problems);
void sweep_free(struct sweep *sweep);

/* The recipe of a legal layout, for recipe_destroy(). */
MUST_USE enum status sweep_recipe(const struct sweep *sweep, int64_t number, struct recipe **out);

/* For a sweep without a planned layout: the smallest change of one axis that leaves one, "pp=8" with the
 * layout that it gives, both empty if none was found within a number of tries. */
MUST_USE enum status sweep_smallest_change(struct sweep *sweep, struct text *change, struct text *layout);

/* ---- for the files sweep*.c ---- */

/* Counts a layout without a plan; the first with this `what` keeps its example. Returns the reason. */
int sweep_add_reason(struct sweep *sweep, enum sweep_state state, const char *what, const char *example,
                     int64_t number);
/* Whether such a reason has been seen, so that its example is not needed. */
bool sweep_has_reason(const struct sweep *sweep, enum sweep_state state, const char *what);
/* Sorts the reasons by count, and renumbers those of the layouts. */
void sweep_sort_reasons(struct sweep *sweep);
void sweep_free_reasons(struct sweep *sweep);

/* Counts a layout that does not fit, by its needed_bytes. Returns the reason. */
int sweep_too_large(struct sweep *sweep, const struct sweep_layout *layout);
/* Plans the legal layouts, and sorts the best. */
MUST_USE enum status sweep_search(struct sweep *sweep, const struct sweep_options *options);
/* The values of a layout that sweep_bound() does not ignore. */
void sweep_shared_text(const struct sweep *sweep, int64_t number, struct text *out);

/* Why a layout is not legal: a rule or a constraint. */
struct sweep_refusal {
    int rule; // as from recipe_variant(); -1 with a constraint NULL: an input
    const struct sweep_constraint *constraint; // NULL: the recipe refuses it
};
/* The recipe of these changes; BAD_RECIPE: it is not legal. */
MUST_USE enum status sweep_load(const struct sweep *sweep, const struct recipe_change *changes,
                                struct recipe **out, struct sweep_refusal *refusal);
/* The memory of a run by the formula, and whether it fits. */
MUST_USE enum status sweep_needed(struct sweep *sweep, const struct run *run, struct sweep_layout *out,
                                  bool *fits);
