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
 * A layout is one value of each axis, and has a number: 0 has the first value of each. A side of a constraint
 * is a product (or quotient) of numbers, recipe keys, and the derived values ranks, microbatches (m of a
 * data-parallel rank), nodes and layers_per_stage. Text can be compared with == and !=. */
#pragma once

#include "trainer/recipe/recipe_variants.h"

enum { SWEEP_MOST_AXES = 24, SWEEP_MOST_CONSTRAINTS = 32, SWEEP_MOST_FACTORS = 6 };
#define SWEEP_MOST_LAYOUTS 1000000000LL

struct sweep_axis {
    const char *key; // main name of the recipe key
    char *label;     // as it is written
    int line, count;
    const struct node **values; // [count]; of the file
    char **texts;               // [count]; as YAML, on one line
};

/* Something that a constraint compares. */
struct sweep_factor {
    const char *key; // main name of a recipe key, or a derived value; NULL: `text`
    char *text;      // as it is written
    double number;   // of text; NAN: it is none
    bool is_divisor;
};

struct sweep_constraint {
    char *text;  // the whole
    int compare; // index of "<=", "<", ">=", ">", "==", "!="
    int line, left_count, right_count;
    struct sweep_factor left[SWEEP_MOST_FACTORS], right[SWEEP_MOST_FACTORS];
};

struct sweep_file {
    char *path, *base;
    struct sweep_axis axes[SWEEP_MOST_AXES];
    struct sweep_constraint constraints[SWEEP_MOST_CONSTRAINTS];
    int axis_count, constraint_count;
    int64_t layouts;   // product of the axes
    struct node *root; // owns the values
};

/* Reads a sweep. BAD_RECIPE: `problems` has all that is wrong with it; more than SWEEP_MOST_LAYOUTS layouts
 * are an error. */
MUST_USE enum status sweep_file_read(const char *path, struct sweep_file *out, struct problems *problems);
/* Same for text in memory; `path` names it, and `base` in it is relative to it. */
MUST_USE enum status sweep_file_parse(const char *path, const char *bytes, size_t length,
                                      struct sweep_file *out, struct problems *problems);
void sweep_file_free(struct sweep_file *file);

/* The values of a layout, one change for each axis. */
void sweep_changes(const struct sweep_file *file, int64_t number,
                   struct recipe_change changes[SWEEP_MOST_AXES]);
/* The index of axis `axis`'s value in layout `number`. */
int sweep_value(const struct sweep_file *file, int64_t number, int axis);
/* "tp=2 pp=4 pipeline.schedule=1f1b": overrides of the recipe. */
void sweep_layout_text(const struct sweep_file *file, int64_t number, struct text *out);

/* ---- constraints: sweep_constraint.c ---- */

/* Parses "tp * pp <= 64"; false with `why`. */
bool sweep_constraint_parse(const char *text, struct sweep_constraint *out, struct text *why);
void sweep_constraint_free(struct sweep_constraint *constraint);
bool sweep_constraint_holds(const struct sweep_constraint *constraint, const struct recipe *recipe);
