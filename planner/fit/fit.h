// SPDX-License-Identifier: Apache-2.0
/* Efficiency parameters of cluster profiles from measured or published step times.
 *
 *   rows ── recipe, tapes, once per row ──> plans
 *   base profile's `model` ── simulate all plans: their critical paths (fit_rows.h)
 *        ──> least squares with the paths: other values ── simulate again ... ──> fitted `model`
 *
 * A parameter starts at the base's value, with the spread of its row in profile_table.c as prior. Rows of
 * several clusters share the parameters of the device; each cluster has its own of network and program. */
#pragma once

#include "base/status.h"
#include "planner/profile/profile.h"
#include "planner/table/table.h"

#include <stddef.h>

/* ---- fit_solve.c ---- */

/* Robust nonlinear least squares for positive parameters, in log space:
 *
 *     minimize  sum over rows        of huber(log(predicted / measured) / NOISE)
 *             + sum over parameters  of (log(value / prior) / spread)²
 *
 * huber(r) is r² for small r and grows like |r| for large r, so that the influence of an outlier is bounded.
 * A value that the rows do not determine stays at its prior. */

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
/* NOT_SUPPORTED without cminpack. With no row, values are the priors. */
MUST_USE enum status fit_solve(struct fit_solver *solver);

/* ---- fit.c ---- */

/* Rows of all tables that can be predicted and print a step time. */
struct fit_rows;

struct fit_table {
    const struct published *published; // outlives the rows
    struct table_base base;            // base of the rows' recipes
    const char *profile;               // NULL: that of the options; outlives the rows
};

struct fit_options {
    const char *profile;          // name or path, for tables without one
    const char *const *overrides; // recipe overrides for all rows, applied after those of the row
    size_t override_count;
    /* NULL: none. count 0: `done` rounds of simulations. */
    void (*progress)(void *context, const char *what, size_t done, size_t count);
    void *context;
};

/* Plans every row; tables with the same profile are of one cluster. BAD_DATA if none can be predicted; errors
 * of the profiles. */
MUST_USE enum status fit_rows_plan(const struct fit_table *tables, size_t table_count,
                                   const struct fit_options *options, struct fit_rows **out);
void fit_rows_destroy(struct fit_rows *rows); // takes NULL
size_t fit_rows_count(const struct fit_rows *rows);
/* Rows without a printed time or a prediction by the profile of their table, such as those of another GPU. */
size_t fit_rows_left_out(const struct fit_rows *rows);
const char *fit_rows_source(const struct fit_rows *rows, size_t row); // the cell `paper`
const struct published_row *fit_rows_row(const struct fit_rows *rows, size_t row);
const struct published *fit_rows_table(const struct fit_rows *rows, size_t row);
int fit_rows_cluster(const struct fit_rows *rows, size_t row);
int fit_rows_cluster_count(const struct fit_rows *rows);
const char *fit_rows_cluster_name(const struct fit_rows *rows, int cluster); // its profile

/* Sets error[row] = predicted / printed - 1 with the base profile. */
void fit_base_error(const struct fit_rows *rows, double *error);

/* Statistics of the absolute relative errors of some rows. */
struct fit_error {
    size_t count;
    double median, p90, bias; // bias: median with sign
};

enum { FIT_ALL_CLUSTERS = -1 };

struct fit_key {
    const char *key; // "matmul_efficiency"
    int cluster;     // FIT_ALL_CLUSTERS: shared
    struct fit_parameter parameter;
};

struct fit_result {
    struct fit_key keys[FIT_MAX_PARAMETERS];
    int key_count;
    double *error; // [rows] predicted / printed - 1, of every row, held out or not
};

/* What is fitted. */
struct fit_choice {
    const char *what;               // for progress
    const bool *used;               // [rows] NULL: all
    const struct fit_result *prior; // values to start from instead of the profiles'; NULL: none
};

/* Fits to the rows used. Free the result with fit_result_free(). */
MUST_USE enum status fit_model(const struct fit_rows *rows, const struct fit_options *options,
                               const struct fit_choice *choice, struct fit_result *out);
void fit_result_free(struct fit_result *result);

/* Errors of the rows with used[row] == which (used NULL: all) and of one source (NULL: all). */
struct fit_error fit_error_of(const struct fit_rows *rows, const double *error, const bool *used, bool which,
                              const char *source);

/* The options' profile with the fitted values of all clusters and the section `fit`; profile_destroy() frees
 * it. */
MUST_USE enum status fit_profile(const struct fit_rows *rows, const struct fit_options *options,
                                 const struct fit_result *result, struct cluster_profile **out);
