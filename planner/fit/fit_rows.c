// SPDX-License-Identifier: Apache-2.0
#include "planner/fit/fit_rows.h"
#include "base/memory.h"
#include "planner/schedule/choose_schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---- */

static enum status plan(const struct table_options *options, const struct published_row *row, int layers,
                        const struct cluster_profile *profile, struct planned *out, struct text *reason)
{
    out->recipe = table_row_recipe(options, row, layers, reason);
    if (out->recipe == NULL)
        return BAD_RECIPE;
    TRY(planned_run_create(out->recipe, &out->run));
    enum status status = step_plan_make(&out->run, profile, &out->plan);
    out->made = status == OK;
    if (status == OK)
        out->paths = fit_paths_create(&out->plan);
    else
        run_destroy(&out->run);
    return status;
}

static void planned_free(struct planned *planned)
{
    fit_paths_destroy(planned->paths);
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
static bool plan_row(const struct table_options *options, const struct cluster_profile *profile,
                     struct fit_row *out)
{
    struct text reason = {0};
    enum status status = plan(options, out->row, 0, profile, &out->whole, &reason);
    if (status == OK && published_is_layer(out->row))
        status = plan(options, out->row, 1, profile, &out->longer, &reason);
    if (status == OK)
        out->printed_s =
            published_step(out->row, &out->whole.recipe->model, out->whole.recipe->logging.peak_flops)
                .seconds;
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

static const char *profile_of(const struct fit_table *table, const struct fit_options *options)
{
    return table->profile != NULL ? table->profile : options->profile;
}

/* Loads a profile at its first use. */
static enum status find_cluster(struct fit_rows *rows, const char *name, int *out)
{
    struct problems problems = {0};
    for (*out = 0; *out < rows->cluster_count; ++*out)
        if (strcmp(rows->clusters[*out].name, name) == 0)
            return OK;
    struct fit_cluster *cluster = &rows->clusters[*out];
    TRY(problems_report(&problems, profile_load(name, &cluster->profile, &problems)));
    cluster->name = name;
    rows->cluster_count++;
    return OK;
}

static void plan_table(struct fit_rows *rows, const struct fit_table *table, int cluster, size_t all,
                       const struct fit_options *options)
{
    const struct table_options row_options = {.base = table->base,
                                              .profile = profile_of(table, options),
                                              .overrides = options->overrides,
                                              .override_count = options->override_count};
    for (size_t i = 0; i < table->published->count; i++) {
        struct fit_row *row = &rows->list[rows->count];
        if (options->progress != NULL)
            options->progress(options->context, "planning", rows->count + rows->left_out, all);
        *row = (struct fit_row){
            .row = &table->published->rows[i], .table = table->published, .cluster = cluster};
        const struct cluster_profile *profile = rows->clusters[cluster].profile;
        const bool planned =
            table_row_has_gpu(row->row, profile->device.name) && plan_row(&row_options, profile, row);
        rows->count += planned;
        rows->left_out += !planned;
    }
}

static enum status plan_tables(struct fit_rows *rows, const struct fit_table *tables, size_t table_count,
                               const struct fit_options *options)
{
    const size_t all = count_rows(tables, table_count);
    rows->list = memory_zeroed(all + 1, sizeof *rows->list, "the rows of a fit");
    rows->clusters = memory_zeroed(table_count + 1, sizeof *rows->clusters, "the rows of a fit");
    for (size_t t = 0; t < table_count; t++) {
        int cluster;
        TRY(find_cluster(rows, profile_of(&tables[t], options), &cluster));
        plan_table(rows, &tables[t], cluster, all, options);
    }
    if (rows->count == 0)
        return fail(BAD_DATA,
                    "none of %zu rows has a step time that can be predicted; `cuboid table` says why", all);
    return OK;
}

enum status fit_rows_plan(const struct fit_table *tables, size_t table_count,
                          const struct fit_options *options, struct fit_rows **out)
{
    struct fit_rows *rows = memory_zeroed(1, sizeof *rows, "a fit");
    enum status status = plan_tables(rows, tables, table_count, options);
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
    for (int i = 0; i < rows->cluster_count; i++)
        profile_destroy(rows->clusters[i].profile);
    free(rows->list);
    free(rows->clusters);
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

const struct published *fit_rows_table(const struct fit_rows *rows, size_t row)
{
    return rows->list[row].table;
}

int fit_rows_cluster(const struct fit_rows *rows, size_t row)
{
    return rows->list[row].cluster;
}

int fit_rows_cluster_count(const struct fit_rows *rows)
{
    return rows->cluster_count;
}

const char *fit_rows_cluster_name(const struct fit_rows *rows, int cluster)
{
    return rows->clusters[cluster].name;
}

/* ---- predictions ---- */

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

static double simulate_plan(const struct planned *planned, const struct cluster_profile *profile)
{
    double seconds;
    return fit_paths_simulate(planned->paths, profile, &seconds) == OK ? seconds : NAN;
}

static double follow_paths(const struct planned *planned, const struct cluster_profile *profile)
{
    return fit_paths_seconds(planned->paths, profile);
}

static double row_seconds(const struct fit_row *row, const struct cluster_profile *profile,
                          double (*of)(const struct planned *, const struct cluster_profile *))
{
    const double whole = of(&row->whole, profile);
    if (row->longer.recipe == NULL)
        return whole;
    return (of(&row->longer, profile) - whole) / (double)recipe_microbatches(row->whole.recipe);
}

double fit_row_seconds(const struct fit_row *row, const struct cluster_profile *profile)
{
    return row_seconds(row, profile, predict);
}

double fit_row_simulate(struct fit_row *row, const struct cluster_profile *profile)
{
    row->last_s = 0.0; // of other paths
    row->has_path = true;
    return row_seconds(row, profile, simulate_plan);
}

double fit_row_path_s(struct fit_row *row, const struct cluster_profile *profile)
{
    if (row->last_s > 0.0 && memcmp(&row->last, &profile->model, sizeof row->last) == 0)
        return row->last_s;
    row->last = profile->model;
    row->last_s = row_seconds(row, profile, follow_paths);
    return row->last_s;
}

void fit_base_error(const struct fit_rows *rows, double *error)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct fit_row *row = &rows->list[i];
        error[i] = table_error(fit_row_seconds(row, rows->clusters[row->cluster].profile), row->printed_s);
    }
}
