// SPDX-License-Identifier: Apache-2.0
/* The file of a sweep.
 *
 *     base: gpt3-175b.yaml            # a recipe, relative to this file
 *     axes:                           # recipe keys and their values; the last axis varies fastest
 *       tp: [1, 2, 4, 8]
 *       pp: [4, 8, 16]
 *       pipeline.schedule: [1f1b, interleaved]
 *     constraints:                    # all must hold
 *       - tp * pp <= 64
 *       - microbatches >= 2 * pp
 *       - pipeline.schedule != gpipe
 *
 * A layout is one value of each axis. Layouts are numbered; 0 has the first value of each axis. A side of a
 * constraint is a product (or quotient) of numbers, recipe keys, and the derived values ranks, microbatches
 * (m of a data-parallel rank), nodes and layers_per_stage. Text can be compared with == and !=. */
#pragma once

#include "trainer/recipe/recipe_variants.h"

enum { SWEEP_MAX_AXES = 24, SWEEP_MAX_CONSTRAINTS = 32, SWEEP_MAX_FACTORS = 6 };
#define SWEEP_MAX_LAYOUTS 1000000000LL

struct sweep_axis {
    const char *key; // main name of the recipe key
    char *label;     // the key as written in the file
    int line, count;
    const struct node **values; // [count]; owned by sweep_file.root
    char **texts;               // [count]; as YAML, on one line
};

/* A factor of one side of a constraint. */
struct sweep_factor {
    const char *key; // main name of a recipe key, or a derived value; NULL: `text`
    char *text;      // as written in the file
    double number;   // value of `text`; NAN: not a number
    bool is_divisor;
};

struct sweep_constraint {
    char *text;  // as written in the file
    int compare; // index of "<=", "<", ">=", ">", "==", "!="
    int line, left_count, right_count;
    struct sweep_factor left[SWEEP_MAX_FACTORS], right[SWEEP_MAX_FACTORS];
};

struct sweep_file {
    char *path, *base;
    struct sweep_axis axes[SWEEP_MAX_AXES];
    struct sweep_constraint constraints[SWEEP_MAX_CONSTRAINTS];
    int axis_count, constraint_count;
    int64_t layouts;   // product of the axes
    struct node *root; // owns the values
};

/* Reads a sweep. BAD_RECIPE: `problems` lists everything that is wrong, such as more than SWEEP_MAX_LAYOUTS
 * layouts. */
MUST_USE enum status sweep_file_read(const char *path, struct sweep_file *out, struct problems *problems);
/* Same for text in memory; `path` names it, and `base` in it is relative to it. */
MUST_USE enum status sweep_file_parse(const char *path, const char *bytes, size_t length,
                                      struct sweep_file *out, struct problems *problems);
void sweep_file_free(struct sweep_file *file);

/* The values of a layout, one change for each axis. */
void sweep_changes(const struct sweep_file *file, int64_t number,
                   struct recipe_change changes[SWEEP_MAX_AXES]);
/* The index of axis `axis`'s value in layout `number`. */
int sweep_value(const struct sweep_file *file, int64_t number, int axis);
/* "tp=2 pp=4 pipeline.schedule=1f1b": overrides of the recipe. */
void sweep_layout_text(const struct sweep_file *file, int64_t number, struct text *out);

/* ---- constraints: sweep_file_constraint.c ---- */

/* Parses "tp * pp <= 64"; returns false with the reason in `why`. */
bool sweep_constraint_parse(const char *text, struct sweep_constraint *out, struct text *why);
void sweep_constraint_free(struct sweep_constraint *constraint);
bool sweep_constraint_holds(const struct sweep_constraint *constraint, const struct recipe *recipe);
