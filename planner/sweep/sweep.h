// SPDX-License-Identifier: Apache-2.0
/* A sweep checks every layout of a file (sweep_file.h) and plans the valid ones that fit:
 *
 *   layouts ── rules of the recipe, constraints ──> valid ── memory formula ──> fit ── step_plan ──> planned
 *
 * Valid layouts are planned in the order of a lower bound of their step time (sweep_bound.h), until no
 * remaining bound is below the step times of the requested number of best layouts: the result is then the
 * same as if all layouts had been planned.
 *
 * Each layout that is not planned has a reason: a rule, a constraint, its memory, its bound. Layouts with the
 * same reason are counted together, with the first as an example. */
#pragma once

#include "planner/plan/step_plan.h"
#include "planner/schedule/sweep_bound.h"
#include "planner/sweep/sweep_file.h"
#include "schedules/schedule.h"
#include "trainer/recipe/recipe.h"

/* ---- sweep_schedules.c ---- */

/* Recently built schedules of a sweep. Layouts that differ in neither schedule, pipeline nor microbatches
 * share one, and layouts with similar bounds, such as those with and without ZeRO, are visited after each
 * other. */

enum { SWEEP_SCHEDULES = 8 };

struct sweep_schedule {
    struct schedule_options options;
    char *name; // options.name
    struct schedule *schedule;
};

struct sweep_schedules {
    struct sweep_schedule list[SWEEP_SCHEDULES]; // the last used first
    int count;
};

/* Returns the schedule of a recipe, which is valid until the next call; *out is NULL if the recipe reads it
 * from a file or searches it. Errors are those of schedule_build(). */
MUST_USE enum status sweep_schedule_of(struct sweep_schedules *schedules, const struct recipe *recipe,
                                       struct schedule **out);
void sweep_schedules_free(struct sweep_schedules *schedules);

/* ---- sweep.c ---- */

enum sweep_state {
    SWEEP_PLANNED,
    SWEEP_TIGHT,     // fits, but leaves less than cluster.memory_headroom; not planned
    SWEEP_TOO_LARGE, // does not fit the device's memory
    SWEEP_INVALID,   // rejected by a rule of the recipe or a constraint, or equal to another layout
    SWEEP_FAILED,    // cannot be planned: schedule, profile
    SWEEP_SLOWER,    // not planned: its bound exceeds the step time of the best
    SWEEP_STATES
};

struct sweep_layout {
    int64_t number; // sweep_file.h
    enum sweep_state state;
    int reason;           // index into reasons; -1 if planned or slower
    double bound_s;       // lower bound of the step time of a valid layout
    int64_t bound_bytes;  // lower bound of `bytes`
    int64_t bytes;        // of the rank that allocates the most; by the formula, unless planned. 0: unknown
    int64_t needed_bytes; // on one device, as in struct step_plan
    /* Planned layouts only, as in struct step_plan: */
    double step_s, tokens_per_s, tflops_per_rank, mfu, bubble_fraction;
};

struct sweep_reason {
    enum sweep_state state;
    char *what;    // "model.num_layers, pipeline.schedule", "constraint tp * pp <= 64", "memory"
    char *example; // message about the first layout
    int64_t first; // number of that layout
    int64_t count;
};

enum sweep_phase { SWEEP_CHECKING, SWEEP_PLANNING };

struct sweep_options {
    const char *const *overrides; // of the base recipe
    size_t override_count;
    int world_size; // number of ranks of the launcher; 0: no launcher
    int64_t best;   // number of best layouts to find; 0: plan all
    double limit_s; // layouts that cannot have a shorter step are not planned; 0: no limit
    void (*progress)(void *context, enum sweep_phase phase, int64_t done, int64_t count); // NULL: none
    void *context;
};

enum { SWEEP_MAX_INVALID = 5000 };

struct sweep {
    const struct sweep_file *file;
    struct recipe_variants *variants;
    struct sweep_layout *layouts; // valid ones, and the first SWEEP_MAX_INVALID invalid ones; by number
    size_t count, capacity;
    int64_t counts[SWEEP_STATES];
    struct sweep_reason *reasons; // most frequent first
    int reason_count;
    size_t *best; // indices of the planned layouts, fastest first
    size_t best_count;
    int64_t device_bytes; // memory of a device in the profile of the first layout
    struct profile_cache profiles;
    struct sweep_bounds *bounds;
    struct sweep_schedules schedules;
};

/* `file` must outlive the sweep. BAD_RECIPE with problems of the base recipe; layouts that cannot be planned
 * are not an error. */
MUST_USE enum status sweep_make(const struct sweep_file *file, const struct sweep_options *options,
                                struct sweep *out, struct problems *problems);
void sweep_free(struct sweep *sweep);

/* The recipe of a valid layout; free it with recipe_destroy(). */
MUST_USE enum status sweep_recipe(const struct sweep *sweep, int64_t number, struct recipe **out);

/* Appends what the prediction of the fastest layout rests on (profile_named_basis_text()); nothing if no
 * layout is planned. */
void sweep_basis_text(const struct sweep *sweep, struct text *out);

/* For a sweep without a planned layout: finds the smallest change of one axis that makes one possible,
 * "pp=8", and that layout; both are empty if none was found within a number of tries. */
MUST_USE enum status sweep_smallest_change(struct sweep *sweep, struct text *change, struct text *layout);

/* ---- private to sweep*.c ---- */

/* Counts a layout without a plan; the first one with this `what` sets the example. Returns the reason's
 * index. */
int sweep_add_reason(struct sweep *sweep, enum sweep_state state, const char *what, const char *example,
                     int64_t number);
/* Whether this reason already exists, so that no example is needed. */
bool sweep_has_reason(const struct sweep *sweep, enum sweep_state state, const char *what);
/* Sorts the reasons by count, and renumbers those of the layouts. */
void sweep_sort_reasons(struct sweep *sweep);
void sweep_free_reasons(struct sweep *sweep);

/* Counts a layout whose plan has just failed, with the text of fail(). Returns the reason's index. */
int sweep_add_failed(struct sweep *sweep, int64_t number);
/* Counts a layout that does not fit, or is tight, by its state and needed_bytes. Returns the reason's
 * index. */
int sweep_add_memory(struct sweep *sweep, const struct sweep_layout *layout, const struct recipe *recipe);
/* SWEEP_TOO_LARGE, SWEEP_TIGHT, or SWEEP_PLANNED for a layout that may be chosen. */
enum sweep_state sweep_fit(const struct sweep *sweep, const struct recipe *recipe, int64_t needed_bytes);
/* Plans the valid layouts, and sorts the best. */
MUST_USE enum status sweep_search(struct sweep *sweep, const struct sweep_options *options);
/* Appends the values of a layout whose keys sweep_bound_ignores() does not list. */
void sweep_shared_text(const struct sweep *sweep, int64_t number, struct text *out);

/* Why a layout is not valid: a rule or a constraint. */
struct sweep_violation {
    int rule; // as from recipe_variant(); -1 with a constraint NULL: an input file
    const struct sweep_constraint *constraint; // NULL: the recipe itself is not valid
};
/* Makes the recipe with these changes. BAD_RECIPE: it is not valid, see *violation. */
MUST_USE enum status sweep_load(const struct sweep *sweep, const struct recipe_change *changes,
                                struct recipe **out, struct sweep_violation *violation);
/* Before a recipe is planned: a plan for GPUs does not depend on host threads, so the machine need not be
 * examined for each layout. */
void sweep_set_threads(struct recipe *recipe);
/* Computes the memory of a run by the formula; out->state becomes that of sweep_fit(). */
MUST_USE enum status sweep_needed(struct sweep *sweep, const struct run *run, struct sweep_layout *out);
