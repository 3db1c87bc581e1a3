// SPDX-License-Identifier: Apache-2.0
/* Robust nonlinear least squares for positive parameters, in log space:
 *
 *     minimize  sum over rows        of huber(log(predicted / measured) / NOISE)
 *             + sum over parameters  of (log(value / prior) / spread)²
 *
 * huber(r) is r² for small r and grows like |r| for large r, so that the influence of an outlier is bounded.
 * A value that the rows do not determine stays at its prior. */
#pragma once

#include "base/status.h"

#include <stddef.h>

enum { FIT_MAX_PARAMETERS = 96 };

struct fit_parameter {
    double prior, spread; // prior value; standard deviation of its logarithm
    double low, high;     // range, low may be 0
    double value;         // out; also where to begin, with begins_at_values
    double uncertainty;   // out: standard deviation after / before the fit; 1: the rows do not determine it
    bool at_bound;        // out
};

struct fit_solver {
    struct fit_parameter parameters[FIT_MAX_PARAMETERS];
    int parameter_count;
    bool begins_at_values; // instead of the priors
    size_t rows;
    /* Sets error[r] = log(predicted / measured) of each row with `values` of the parameters; NAN leaves a row
     * out. */
    void (*predict)(void *context, const double *values, double *error);
    void *context;
    /* Out: */
    double *error; // [rows], of the result; free()
    int evaluations;
    double *base; // of fit_solve() alone
};

/* What fit_solve() minimizes, with the values of the parameters and these errors. */
double fit_objective(const struct fit_solver *solver, const double *error);

/* Whether this build includes the solver (cminpack). */
bool fit_is_available(void);
/* NOT_SUPPORTED without cminpack; NO_MEMORY. With no row, values are the priors. */
MUST_USE enum status fit_solve(struct fit_solver *solver);
