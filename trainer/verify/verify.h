// SPDX-License-Identifier: Apache-2.0
/* Verifies that a layout computes the same results as one rank. Both run on the same data, step by step, and
 * each step begins with the weights and moments of the one-rank run: errors do not accumulate, the bounds can
 * be tight, and by induction a run that is correct in every step is correct. Compares the loss, the gradient
 * norm, every gradient, weight and moment; and bitwise, the initial weights and all replicas of a tensor in
 * the layout.
 *
 * In fp16 both runs use the same loss scale. A step that overflows is inconclusive, and is repeated with half
 * the scale. */
#pragma once

#include "trainer/engine/memory_need.h"

#include <stdio.h>

enum verify_quantity {
    VERIFY_INITIAL,  // weights before the first step: bitwise
    VERIFY_REPLICAS, // replicas on several ranks: bitwise
    VERIFY_GRADIENT,
    VERIFY_WEIGHT,
    VERIFY_M,
    VERIFY_V,
    VERIFY_QUANTITIES
};

/* The worst element of a parameter over all steps: error / bound, and both values. */
struct verify_worst {
    double ratio; // above 1: outside the bound
    double error, bound;
    int64_t element;
    int step;
};

/* All compared elements of a quantity, and of these the one that differs most for the size of its tensor. */
struct verify_total {
    int64_t compared, identical;
    double error, bound;
    double relative; // error / the rms of its tensor; for a bias, of its matrix, if that is larger
    int row;
};

struct verify_step {
    double loss[2]; // of the layout, of one rank
    double norm[2]; // of the layout: as reported, and from its gradients
    double loss_bound, norm_bound;
};

struct verify_report {
    int rows, steps;
    char (*names)[PARAM_NAME_CHARS];
    struct verify_worst *worst[VERIFY_QUANTITIES]; // [rows]
    struct verify_step *step;                      // [steps]
    struct verify_total total[VERIFY_QUANTITIES];
    double visible; // a gradient that is wrong by this fraction of its rms is outside, whichever it is
    double largest; // maximum of all finite ratios
    int outside;    // number of comparisons outside their bounds
    int unbounded;  // of these: not finite, or bitwise comparisons
};

/* One of the runs that are compared, and what a plan of it gives: the schedule of pipeline.auto_times=plan
 * (NULL: the run builds its own), and on a GPU the needs of its ranks (NULL: no pool is reserved). */
struct verify_side {
    const struct recipe *recipe;
    struct schedule *schedule;
    const struct memory_need *needs; // [ranks]
};

/* one_rank: the same recipe with all degrees 1; all degrees except tp if a low-precision format has no bound
 * between different tp. injected: the fault injected into the layout's run; {0} for a real verification.
 * progress: destination of a line per step, or NULL. */
struct verify_options {
    struct verify_side layout, one_rank;
    int steps;
    struct step_observer injected;
    FILE *progress;
};

/* Returns OK if the comparison was possible, whatever its result: see report->outside. */
MUST_USE enum status verify(const struct verify_options *options, struct verify_report *out);
void verify_report_free(struct verify_report *report);
/* Prints the table in the order of a forward pass: all rows outside their bounds and the worst of the others;
 * all=true: every row. */
void verify_print(const struct verify_report *report, bool all, FILE *to);
/* How far both runs are apart and what rounding explains; the last line is "PASS: ..." or "FAIL: ...". */
void verify_print_verdict(const struct verify_report *report, FILE *to);
/* Lists the faults that this layout and this number of steps cannot expose. */
void verify_print_hints(const struct recipe *layout, const struct recipe *one_rank, int steps, FILE *to);
