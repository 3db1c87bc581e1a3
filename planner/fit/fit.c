// SPDX-License-Identifier: Apache-2.0
#include "planner/fit/fit.h"

#include "base/memory.h"
#include "base/quantile.h"
#include "planner/fit/fit_rows.h"
#include "planner/profile/profile_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A fit is done when the paths reproduce the simulated times to this fraction. */
static const double TOLERANCE = 1e-3;
enum { MAX_ROUNDS = 16 };

struct fitting {
    const struct fit_rows *rows;
    const struct fit_options *options;
    const struct fit_choice *choice;
    struct fit_key *keys;
    int key_count;
    size_t rounds;
    struct cluster_profile *profiles; // [cluster_count] with the values of the keys; shallow copies
};

/* ---- parameters ---- */

static void set_values(struct fitting *fitting, const double *values)
{
    const struct fit_rows *rows = fitting->rows;
    for (int c = 0; c < rows->cluster_count; c++) {
        fitting->profiles[c] = *rows->clusters[c].profile;
        for (int i = 0; i < fitting->key_count; i++)
            if (fitting->keys[i].cluster == FIT_ALL_CLUSTERS || fitting->keys[i].cluster == c)
                profile_set_number(&fitting->profiles[c],
                                   &profile_rows[profile_row_find("model", fitting->keys[i].key)], values[i]);
    }
}

/* Adds the keys of one cluster, or those of all. */
static int add_keys(const struct fit_rows *rows, int cluster, struct fit_key *keys, int count)
{
    const struct cluster_profile *profile = rows->clusters[cluster == FIT_ALL_CLUSTERS ? 0 : cluster].profile;
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        const double start = profile_is_number(row) ? profile_number(profile, row) : 0.0;
        const bool shared = rows->cluster_count == 1 || row->of_device;
        if (row->spread <= 0.0 || start <= 0.0 || shared != (cluster == FIT_ALL_CLUSTERS))
            continue;
        CHECK(count < FIT_MAX_PARAMETERS);
        keys[count++] = (struct fit_key){
            .key = profile_row_name(row),
            .cluster = cluster,
            .parameter = {
                .prior = start, .value = start, .spread = row->spread, .low = row->low, .high = row->high}};
    }
    return count;
}

static int list_keys(const struct fit_rows *rows, const struct fit_result *prior, struct fit_key *keys)
{
    int count = add_keys(rows, FIT_ALL_CLUSTERS, keys, 0);
    for (int c = 0; c < rows->cluster_count; c++)
        count = add_keys(rows, c, keys, count);
    for (int i = 0; i < count && prior != NULL; i++)
        keys[i].parameter.prior = keys[i].parameter.value = prior->keys[i].parameter.value;
    return count;
}

/* ---- the fit ---- */

static bool is_used(const struct fitting *fitting, size_t row)
{
    return fitting->choice->used == NULL || fitting->choice->used[row];
}

/* Sets error[row] = log(predicted / printed) of the rows used, by `seconds`. */
static void predict_rows(struct fitting *fitting, const double *values, double *error,
                         double (*seconds)(struct fit_row *, const struct cluster_profile *))
{
    set_values(fitting, values);
    for (size_t i = 0; i < fitting->rows->count; i++) {
        struct fit_row *row = &fitting->rows->list[i];
        error[i] =
            is_used(fitting, i) ? log(seconds(row, &fitting->profiles[row->cluster]) / row->printed_s) : NAN;
    }
}

static void follow_paths(void *context, const double *values, double *error)
{
    predict_rows(context, values, error, fit_row_path_s);
}

/* Simulates the rows with the values of the parameters. */
static void simulate_rows(struct fitting *fitting, const struct fit_solver *solver, double *error)
{
    double values[FIT_MAX_PARAMETERS];
    for (int i = 0; i < solver->parameter_count; i++)
        values[i] = solver->parameters[i].value;
    if (fitting->options->progress != NULL)
        fitting->options->progress(fitting->options->context, fitting->choice->what, ++fitting->rounds, 0);
    predict_rows(fitting, values, error, fit_row_simulate);
}

static double largest_difference(const double *a, const double *b, size_t count)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(a[i]) && isfinite(b[i]))
            largest = fmax(largest, fabs(a[i] - b[i]));
    return largest;
}

static bool have_paths(const struct fitting *fitting)
{
    bool all = true;
    for (size_t i = 0; i < fitting->rows->count; i++)
        all = all && (!is_used(fitting, i) || fitting->rows->list[i].has_path);
    return all;
}

/* Alternates between solving with the paths and simulating. Keeps the values with the best simulated errors,
 * and these. */
static enum status solve(struct fitting *fitting, struct fit_solver *solver, struct fit_parameter *best,
                         double *best_error)
{
    const size_t bytes = (size_t)solver->parameter_count * sizeof *best;
    double *error = memory_zeroed(solver->rows + 1, sizeof *error, "a fit"), objective = INFINITY;
    enum status status = OK;
    if (!have_paths(fitting))
        simulate_rows(fitting, solver, error);
    for (int round = 0; round < MAX_ROUNDS && status == OK; round++) {
        status = fit_solve(solver);
        if (status != OK)
            break;
        simulate_rows(fitting, solver, error);
        const double now = fit_objective(solver, error);
        if (now < objective) {
            memcpy(best, solver->parameters, bytes);
            memcpy(best_error, error, solver->rows * sizeof *error);
        }
        objective = fmin(objective, now);
        if (largest_difference(error, solver->error, solver->rows) < TOLERANCE)
            break;
        solver->begins_at_values = true;
    }
    free(error);
    return status;
}

/* Replaces the logarithms of the rows that are used by relative errors, and predicts the others. */
static void set_errors(struct fitting *fitting, double *error)
{
    double values[FIT_MAX_PARAMETERS];
    for (int i = 0; i < fitting->key_count; i++)
        values[i] = fitting->keys[i].parameter.value;
    set_values(fitting, values);
    for (size_t i = 0; i < fitting->rows->count; i++) {
        const struct fit_row *row = &fitting->rows->list[i];
        error[i] = is_used(fitting, i)
                       ? exp(error[i]) - 1.0
                       : table_error(fit_row_seconds(row, &fitting->profiles[row->cluster]), row->printed_s);
    }
}

enum status fit_model(const struct fit_rows *rows, const struct fit_options *options,
                      const struct fit_choice *choice, struct fit_result *out)
{
    struct fitting fitting = {.rows = rows, .options = options, .choice = choice};
    struct fit_solver solver = {.rows = rows->count, .predict = follow_paths, .context = &fitting};
    struct fit_parameter best[FIT_MAX_PARAMETERS];
    *out = (struct fit_result){.error = memory_zeroed(rows->count + 1, sizeof *out->error, "a fit")};
    fitting.profiles = memory_zeroed((size_t)rows->cluster_count, sizeof *fitting.profiles, "a fit");
    fitting.keys = out->keys;
    out->key_count = solver.parameter_count = fitting.key_count = list_keys(rows, choice->prior, out->keys);
    for (int i = 0; i < out->key_count; i++)
        solver.parameters[i] = best[i] = out->keys[i].parameter;
    const enum status status = solve(&fitting, &solver, best, out->error);
    for (int i = 0; i < out->key_count; i++)
        out->keys[i].parameter = best[i];
    if (status == OK)
        set_errors(&fitting, out->error);
    free(fitting.profiles);
    free(solver.error);
    if (status != OK)
        fit_result_free(out);
    return status;
}

void fit_result_free(struct fit_result *result)
{
    free(result->error);
    *result = (struct fit_result){.key_count = 0};
}

struct fit_error fit_error_of(const struct fit_rows *rows, const double *error, const bool *used, bool which,
                              const char *source)
{
    struct fit_error found = {.count = 0};
    AUTO_FREE double *list = memory_zeroed(rows->count + 1, sizeof *list, "a fit");
    for (size_t i = 0; i < rows->count; i++)
        if ((used == NULL || used[i] == which) &&
            (source == NULL || strcmp(fit_rows_source(rows, i), source) == 0))
            list[found.count++] = error[i];
    if (found.count > 0) {
        found.bias = quantile(list, found.count, 0.5);
        for (size_t i = 0; i < found.count; i++)
            list[i] = fabs(list[i]);
        found.median = quantile(list, found.count, 0.5);
        found.p90 = quantile(list, found.count, 0.9);
    }
    return found;
}

enum status fit_profile(const struct fit_rows *rows, const struct fit_options *options,
                        const struct fit_result *result, struct cluster_profile **out)
{
    struct cluster_profile *profile = NULL;
    struct problems problems = {0};
    enum status status = profile_load(options->profile, &profile, &problems);
    problems_free(&problems);
    if (status != OK)
        return status;
    struct recipe_names *at_bound = &profile->fit.at_bound;
    for (size_t i = 0; i < at_bound->count; i++)
        free(at_bound->list[i]);
    free(at_bound->list);
    *at_bound = (struct recipe_names){
        .list = memory_zeroed(FIT_MAX_PARAMETERS, sizeof(char *), "the names of parameters")};
    for (int i = 0; i < result->key_count; i++) {
        const struct fit_key *key = &result->keys[i];
        if (key->cluster != FIT_ALL_CLUSTERS)
            continue;
        profile_set_number(profile, &profile_rows[profile_row_find("model", key->key)], key->parameter.value);
        if (key->parameter.at_bound)
            at_bound->list[at_bound->count++] = text_copy(key->key);
    }
    profile->fit.error_fraction = fit_error_of(rows, result->error, NULL, true, NULL).median;
    profile->fit.rows = (int64_t)rows->count;
    *out = profile;
    return OK;
}
