// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/fit/fit.h"

#include "trainer/plan/profile/profile_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The plan of a recipe, whose tapes are predicted repeatedly. */
struct planned {
    struct recipe *recipe;
    struct run run;
    struct step_plan plan;
    bool made;
};

struct fit_row {
    const struct published_row *row;
    double printed_s;
    struct planned whole, longer; // longer: with one more layer, of rows that print the time of a layer
};

struct fit_rows {
    struct fit_row *list;
    size_t count, left_out;
    struct cluster_profile *profile;
};

/* ---- rows ---- */

static enum status plan(const struct table_options *options, const struct published_row *row, int layers,
                        const struct cluster_profile *profile, struct planned *out, struct text *reason)
{
    out->recipe = table_row_recipe(options, row, layers, reason);
    if (out->recipe == NULL)
        return BAD_RECIPE;
    TRY(run_create(out->recipe, false, &out->run));
    enum status status = step_plan_make(&out->run, profile, &out->plan);
    out->made = status == OK;
    if (status != OK)
        run_destroy(&out->run);
    return status;
}

static void planned_free(struct planned *planned)
{
    if (planned->made) {
        step_plan_free(&planned->plan);
        run_destroy(&planned->run);
    }
    recipe_destroy(planned->recipe);
    *planned = (struct planned){.recipe = NULL};
}

static void row_free(struct fit_row *row)
{
    planned_free(&row->whole);
    planned_free(&row->longer);
}

/* Returns false if the row has no prediction or no step time. */
static bool plan_row(const struct table_options *options, const struct published_row *row,
                     const struct cluster_profile *profile, struct fit_row *out)
{
    struct text reason = {0};
    *out = (struct fit_row){.row = row};
    enum status status = plan(options, row, 0, profile, &out->whole, &reason);
    if (status == OK && published_is_layer(row))
        status = plan(options, row, 1, profile, &out->longer, &reason);
    if (status == OK)
        out->printed_s =
            published_step(row, &out->whole.recipe->model, out->whole.recipe->logging.peak_flops).seconds;
    text_free(&reason);
    if (status == OK && out->printed_s > 0.0)
        return true;
    row_free(out);
    return false;
}

static size_t count_rows(const struct fit_table *tables, size_t table_count)
{
    size_t count = 0;
    for (size_t t = 0; t < table_count; t++)
        count += tables[t].published->count;
    return count;
}

static enum status plan_tables(struct fit_rows *rows, const struct fit_table *tables, size_t table_count,
                               const struct fit_options *options)
{
    const size_t all = count_rows(tables, table_count);
    rows->list = calloc(all + 1, sizeof *rows->list);
    if (rows->list == NULL)
        return fail(NO_MEMORY, "no memory for %zu rows", all);
    for (size_t t = 0; t < table_count; t++) {
        const struct table_options row_options = {.base = tables[t].base,
                                                  .profile = options->profile,
                                                  .overrides = options->overrides,
                                                  .override_count = options->override_count};
        for (size_t i = 0; i < tables[t].published->count; i++) {
            if (options->progress != NULL)
                options->progress(options->context, "planning", rows->count + rows->left_out, all);
            const bool planned = plan_row(&row_options, &tables[t].published->rows[i], rows->profile,
                                          &rows->list[rows->count]);
            rows->count += planned;
            rows->left_out += !planned;
        }
    }
    if (rows->count == 0)
        return fail(BAD_DATA,
                    "none of %zu rows has a step time that can be predicted; `cuboid table` says why", all);
    return OK;
}

enum status fit_rows_plan(const struct fit_table *tables, size_t table_count,
                          const struct fit_options *options, struct fit_rows **out)
{
    struct problems problems = {0};
    struct fit_rows *rows = calloc(1, sizeof *rows);
    if (rows == NULL)
        return fail(NO_MEMORY, "no memory for a fit");
    enum status status = profile_load(options->profile, &rows->profile, &problems);
    problems_print(&problems, stderr);
    problems_free(&problems);
    if (status == OK)
        status = plan_tables(rows, tables, table_count, options);
    else
        status = fail(status, "profile %s cannot be used", options->profile);
    if (status == OK)
        *out = rows;
    else
        fit_rows_destroy(rows);
    return status;
}

void fit_rows_destroy(struct fit_rows *rows)
{
    if (rows == NULL)
        return;
    for (size_t i = 0; rows->list != NULL && i < rows->count; i++)
        row_free(&rows->list[i]);
    free(rows->list);
    profile_destroy(rows->profile);
    free(rows);
}

size_t fit_rows_count(const struct fit_rows *rows)
{
    return rows->count;
}

size_t fit_rows_left_out(const struct fit_rows *rows)
{
    return rows->left_out;
}

const char *fit_rows_source(const struct fit_rows *rows, size_t row)
{
    return rows->list[row].row->cell[PUBLISHED_PAPER];
}

const struct published_row *fit_rows_row(const struct fit_rows *rows, size_t row)
{
    return rows->list[row].row;
}

double fit_rows_printed(const struct fit_rows *rows, size_t row)
{
    return rows->list[row].printed_s;
}

/* ---- predictions ---- */

/* Predicts the step time; NAN if memory is exhausted. */
static double predict(const struct planned *planned, const struct cluster_profile *profile)
{
    struct cost_options options = planned->plan.cost;
    struct prediction *step = NULL;
    options.profile = profile;
    if (predict_step(&options, planned->plan.tapes, planned->plan.count, &step) != OK)
        return NAN;
    const double seconds = step->step_s + profile->model.step_overhead_s;
    prediction_destroy(step);
    return seconds;
}

static double predict_row(const struct fit_row *row, const struct cluster_profile *profile)
{
    const double whole = predict(&row->whole, profile);
    if (row->longer.recipe == NULL)
        return whole;
    return (predict(&row->longer, profile) - whole) / (double)recipe_microbatches(row->whole.recipe);
}

void fit_base_error(const struct fit_rows *rows, double *error)
{
    for (size_t i = 0; i < rows->count; i++)
        error[i] = table_error(predict_row(&rows->list[i], rows->profile), rows->list[i].printed_s);
}

/* ---- the fit ---- */

struct fitting {
    const struct fit_rows *rows;
    const struct fit_options *options;
    const bool *used; // NULL: all
    const char *what;
    struct fit_key *keys;
    int key_count;
    size_t calls;
};

/* A shallow copy of the profile with other values. */
static struct cluster_profile with_values(const struct fitting *fitting, const double *values)
{
    struct cluster_profile profile = *fitting->rows->profile;
    for (int i = 0; i < fitting->key_count; i++)
        profile_set_number(&profile, &profile_rows[profile_row_find("model", fitting->keys[i].key)],
                           values[i]);
    return profile;
}

static void predict_rows(void *context, const double *values, double *error)
{
    struct fitting *fitting = context;
    const struct cluster_profile profile = with_values(fitting, values);
    fitting->calls++;
    if (fitting->options->progress != NULL)
        fitting->options->progress(fitting->options->context, fitting->what, fitting->calls, 0);
    for (size_t i = 0; i < fitting->rows->count; i++) {
        const struct fit_row *row = &fitting->rows->list[i];
        const bool used = fitting->used == NULL || fitting->used[i];
        error[i] = used ? log(predict_row(row, &profile) / row->printed_s) : NAN;
    }
}

static int list_keys(const struct cluster_profile *profile, struct fit_key *keys)
{
    int count = 0;
    for (int i = 0; i < profile_row_count; i++) {
        const struct profile_row *row = &profile_rows[i];
        const double start = profile_is_number(row) ? profile_number(profile, row) : 0.0;
        if (row->spread <= 0.0 || start <= 0.0)
            continue;
        CHECK(count < FIT_MAX_PARAMETERS);
        keys[count++] = (struct fit_key){
            .key = profile_row_name(row),
            .parameter = {.prior = start, .spread = row->spread, .low = row->low, .high = row->high}};
    }
    return count;
}

enum status fit_model(const struct fit_rows *rows, const struct fit_options *options, const bool *used,
                      const char *what, struct fit_result *out)
{
    struct fitting fitting = {.rows = rows, .options = options, .used = used, .what = what};
    struct fit_solver solver = {.rows = rows->count, .predict = predict_rows, .context = &fitting};
    double values[FIT_MAX_PARAMETERS];
    *out = (struct fit_result){.error = calloc(rows->count + 1, sizeof *out->error)};
    if (out->error == NULL)
        return fail(NO_MEMORY, "no memory for a fit of %zu rows", rows->count);
    out->key_count = solver.parameter_count = fitting.key_count = list_keys(rows->profile, out->keys);
    fitting.keys = out->keys;
    for (int i = 0; i < out->key_count; i++)
        solver.parameters[i] = out->keys[i].parameter;
    enum status status = fit_solve(&solver);
    for (int i = 0; i < out->key_count && status == OK; i++) {
        out->keys[i].parameter = solver.parameters[i];
        values[i] = solver.parameters[i].value;
    }
    fitting.used = NULL;
    if (status == OK)
        predict_rows(&fitting, values, out->error);
    for (size_t i = 0; i < rows->count; i++)
        out->error[i] = exp(out->error[i]) - 1.0;
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
    double *list = calloc(rows->count + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < rows->count; i++)
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
    free(list);
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
    struct profile_names *at_bound = &profile->fit.at_bound;
    for (size_t i = 0; i < at_bound->count; i++)
        free(at_bound->list[i]);
    free(at_bound->list);
    *at_bound = (struct profile_names){.list = calloc(FIT_MAX_PARAMETERS, sizeof(char *))};
    for (int i = 0; i < result->key_count; i++) {
        const struct fit_key *key = &result->keys[i];
        profile_set_number(profile, &profile_rows[profile_row_find("model", key->key)], key->parameter.value);
        if (key->parameter.at_bound && at_bound->list != NULL)
            at_bound->list[at_bound->count++] = text_copy(key->key);
    }
    profile->fit.error_fraction = fit_error_of(rows, result->error, NULL, true, NULL).median;
    profile->fit.rows = (int64_t)rows->count;
    *out = profile;
    return OK;
}
