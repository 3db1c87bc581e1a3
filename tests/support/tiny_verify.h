// SPDX-License-Identifier: Apache-2.0
/* A layout of a tiny model against one rank, and what the report says of one quantity. */
#pragma once

#include "tests/support/tiny.h"
#include "trainer/verify/verify.h"

/* `common` holds for both; `layout` for the layout; `one` for the one rank, beside what makes it one
 * (but for a tp that it says itself). */
struct comparison {
    enum tiny_family family;
    const char *common, *layout, *one;
};

/* planted: {0} for a run without faults. The caller frees the report, whatever came out. */
MUST_USE enum status tiny_verify(const struct tiny *tiny, const struct comparison *comparison, int steps,
                                 struct hooks injected, struct verify_report *report);

/* The quantities of enum verify_quantity, and two that belong to no parameter. */
enum { QUANTITY_LOSS = VERIFY_QUANTITIES, QUANTITY_NORM, QUANTITIES };
const char *quantity_name(int quantity);

/* The largest error / bound of a quantity over all steps: of one parameter, or with NULL of all. */
double largest_ratio(const struct verify_report *report, int quantity, const char *row);
