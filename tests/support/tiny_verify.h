// SPDX-License-Identifier: Apache-2.0
/* Verifies a layout of a tiny model against one rank, and queries the report. */
#pragma once

#include "tests/support/tiny.h"
#include "trainer/verify/verify.h"

/* `common` applies to both; `layout` to the layout; `one` to the single rank, whose other layout keys have
 * the values of one rank (recipe_one_rank_override). */
struct comparison {
    enum tiny_family family;
    const char *common, *layout, *one;
};

/* injected: {0} for a run without injected faults. The caller frees the report, also on failure. */
MUST_USE enum status tiny_verify(const struct tiny *tiny, const struct comparison *comparison, int steps,
                                 struct step_observer injected, struct verify_report *report);

/* The quantities of enum verify_quantity, and two that are not per parameter. */
enum { QUANTITY_LOSS = VERIFY_QUANTITIES, QUANTITY_NORM, QUANTITIES };
const char *quantity_name(int quantity);

/* The largest error / bound of a quantity over all steps: for one parameter, or with NULL for all. */
double largest_ratio(const struct verify_report *report, int quantity, const char *row);
