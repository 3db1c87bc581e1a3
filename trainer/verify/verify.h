// SPDX-License-Identifier: Apache-2.0
/* Does this layout compute what one rank computes? Both run on the same data, step by step, and each step
 * begins from one rank's weights and moments: so errors do not pile up, the bounds can be tight, and by
 * induction a run that is right in every step is right. Compared are the loss, the gradient's norm, every
 * gradient, weight and moment; and, to the bit, the initial weights and whatever two ranks of the layout hold
 * of the same tensor.
 *
 * In fp16 both have the same loss scale. A step that it makes overflow says nothing, and is made again with
 * half of it. */
#pragma once

#include "trainer/engine/rank_state.h"

#include <stdio.h>

enum verify_quantity {
    VERIFY_INITIAL,  // weights before the first step: to the bit
    VERIFY_REPLICAS, // what several ranks hold: to the bit
    VERIFY_GRADIENT,
    VERIFY_WEIGHT,
    VERIFY_M,
    VERIFY_V,
    VERIFY_QUANTITIES
};

/* The worst element of a row over all steps: error / bound, and the two numbers. */
struct verify_worst {
    double ratio; // above 1: outside
    double error, bound;
    int64_t element;
    int step;
};

struct verify_step {
    double loss[2]; // the layout's, one rank's
    double norm[2]; // the layout's as it reported it, and as its gradients have it
    double loss_bound, norm_bound;
};

struct verify_report {
    int rows, steps;
    char (*names)[PARAM_NAME_CHARS];
    struct verify_worst *worst[VERIFY_QUANTITIES]; // [rows]
    struct verify_step *step;                      // [steps]
    double largest;                                // of all finite ratios
    int outside;                                   // how many comparisons lie outside
    int unbounded;                                 // of these: not finite, or not bit-identical
};

/* one_rank: the same recipe with every degree 1, or, where a small number format leaves no bound for another
 * tp, every degree but that. planted: what is done to the layout's run on purpose; {0}
 * for a real verification. progress: a line per step goes there, or NULL. */
struct verify_options {
    const struct recipe *layout, *one_rank;
    int steps;
    struct hooks injected;
    FILE *progress;
};

/* OK when it could be compared, whatever came out: look at report->outside. */
MUST_USE enum status verify(const struct verify_options *options, struct verify_report *out);
void verify_report_free(struct verify_report *report);
/* The table, in the order of a forward pass: all that is outside and the worst of the others; all: every row.
 */
void verify_print(const struct verify_report *report, bool all, FILE *to);
/* One line: "PASS: ..." or "FAIL: ...". */
void verify_print_verdict(const struct verify_report *report, FILE *to);
/* Which faults this layout and so many steps of it cannot expose. */
void verify_print_hints(const struct recipe *layout, int steps, FILE *to);
