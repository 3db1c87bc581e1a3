// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/profile/profile_validate.h"
#include "base/memory.h"
#include "base/quantile.h"

#include "planner/fit/fit.h"
#include "tools/cli/options.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/table/table_argument.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_ROWS = 15, MIN_ROWS = 20 };
enum protocol { ONE_DEVICE, PAPER_OUT, CLUSTER_OUT, FITTED_TO_FEW, UTILIZATION, ROOFLINE, PROTOCOLS };
static const char *const protocol_names[PROTOCOLS] = {"one device",   "paper out",   "cluster out",
                                                      "fitted to 15", "utilization", "FLOPs, bytes"};

struct validation {
    int table_count;
    char **names; // of tables; owned
    struct published *published;
    struct fit_table *tables;
    struct fit_options options;
    struct fit_rows *rows;
    bool *used;                // [rows]
    double *errors[PROTOCOLS]; // [rows] NAN: the protocol has no such row
    struct fit_result one;     // of ONE_DEVICE
};

static void show_progress(void *context, const char *what, size_t done, size_t count)
{
    if (count > 0)
        progress_line_show(context, "%s: %zu of %zu rows", what, done, count);
    else
        progress_line_show(context, "%s: round %zu", what, done);
}

/* ---- fits ---- */

/* Copies the errors of rows that are not used, and which `table` (NULL: any) and `cluster` have. */
static void take_errors(const struct validation *v, const struct fit_result *result,
                        const struct published *table, int cluster, enum protocol protocol)
{
    for (size_t i = 0; i < fit_rows_count(v->rows); i++)
        if (!v->used[i] && (table == NULL || fit_rows_table(v->rows, i) == table) &&
            fit_rows_cluster(v->rows, i) == cluster)
            v->errors[protocol][i] = result->error[i];
}

static enum status fit_all(struct validation *v)
{
    TRY(fit_model(v->rows, &v->options, &(struct fit_choice){.what = "all rows"}, &v->one));
    memcpy(v->errors[ONE_DEVICE], v->one.error, fit_rows_count(v->rows) * sizeof *v->one.error);
    return OK;
}

static size_t rows_of_cluster(const struct fit_rows *rows, int cluster)
{
    size_t count = 0;
    for (size_t i = 0; i < fit_rows_count(rows); i++)
        count += fit_rows_cluster(rows, i) == cluster;
    return count;
}

static enum status leave_out_table(struct validation *v, const struct published *table)
{
    struct fit_result result;
    int cluster = -1;
    for (size_t i = 0; i < fit_rows_count(v->rows); i++) {
        v->used[i] = fit_rows_table(v->rows, i) != table;
        cluster = v->used[i] ? cluster : fit_rows_cluster(v->rows, i);
    }
    bool known = false;
    for (size_t i = 0; i < fit_rows_count(v->rows); i++)
        known = known || (v->used[i] && fit_rows_cluster(v->rows, i) == cluster);
    if (cluster < 0 || !known)
        return OK;
    TRY(fit_model(v->rows, &v->options, &(struct fit_choice){.what = "paper out", .used = v->used}, &result));
    take_errors(v, &result, table, cluster, PAPER_OUT);
    fit_result_free(&result);
    return OK;
}

/* Uses FEW_ROWS rows of the cluster, at equal distances in the order of its tables. */
static enum status fit_to_few(struct validation *v, int cluster, const struct fit_result *prior)
{
    const size_t count = rows_of_cluster(v->rows, cluster);
    struct fit_result result;
    size_t number = 0;
    if (count < MIN_ROWS)
        return OK;
    for (size_t i = 0; i < fit_rows_count(v->rows); i++) {
        const bool here = fit_rows_cluster(v->rows, i) == cluster;
        v->used[i] = here && number * FEW_ROWS / count != (number + 1) * FEW_ROWS / count;
        number += here;
    }
    const struct fit_choice choice = {.what = "fitted to few rows", .used = v->used, .prior = prior};
    TRY(fit_model(v->rows, &v->options, &choice, &result));
    take_errors(v, &result, NULL, cluster, FITTED_TO_FEW);
    fit_result_free(&result);
    return OK;
}

static enum status leave_out_cluster(struct validation *v, int cluster)
{
    struct fit_result result;
    for (size_t i = 0; i < fit_rows_count(v->rows); i++)
        v->used[i] = fit_rows_cluster(v->rows, i) != cluster;
    const struct fit_choice choice = {.what = "cluster out", .used = v->used};
    TRY(fit_model(v->rows, &v->options, &choice, &result));
    take_errors(v, &result, NULL, cluster, CLUSTER_OUT);
    enum status status = fit_to_few(v, cluster, &result);
    fit_result_free(&result);
    return status;
}

/* ---- baselines ---- */

static enum status add_baselines(struct validation *v, int t)
{
    const struct table_options options = {.base = v->tables[t].base, .profile = v->tables[t].profile};
    struct table table;
    TRY(table_predict(&v->published[t], &options, &table));
    for (size_t i = 0; i < fit_rows_count(v->rows); i++)
        for (size_t k = 0; k < table.count; k++)
            if (table.rows[k].row == fit_rows_row(v->rows, i)) {
                const struct table_row *row = &table.rows[k];
                v->errors[UTILIZATION][i] = table_error(row->utilization_s, row->printed.seconds);
                v->errors[ROOFLINE][i] = table_error(row->roofline_s, row->printed.seconds);
            }
    table_free(&table);
    return OK;
}

/* ---- printing ---- */

/* Prints median and 90th percentile of the absolute errors of one table (NULL: all). */
static void print_error(const struct validation *v, const double *error, const struct published *table,
                        double *scratch)
{
    size_t count = 0;
    for (size_t i = 0; i < fit_rows_count(v->rows); i++)
        if ((table == NULL || fit_rows_table(v->rows, i) == table) && isfinite(error[i]))
            scratch[count++] = fabs(error[i]);
    if (count == 0)
        printf("  %6s %6s", "-", "-");
    else
        printf("  %6.1f %6.1f", 100.0 * quantile(scratch, count, 0.5), 100.0 * quantile(scratch, count, 0.9));
}

static size_t rows_of_table(const struct fit_rows *rows, const struct published *table)
{
    size_t count = 0;
    for (size_t i = 0; i < fit_rows_count(rows); i++)
        count += table == NULL || fit_rows_table(rows, i) == table;
    return count;
}

static void print_errors(const struct validation *v, double *scratch)
{
    printf("\n%% error of the step, median and 90th percentile of absolute values\n%-18s %4s", "table",
           "rows");
    for (int p = 0; p < PROTOCOLS; p++)
        printf("  %13s", protocol_names[p]);
    for (int t = 0; t <= v->table_count; t++) {
        const struct published *table = t < v->table_count ? &v->published[t] : NULL;
        printf("\n%-18s %4zu", table != NULL ? v->names[t] : "all", rows_of_table(v->rows, table));
        for (int p = 0; p < PROTOCOLS; p++)
            print_error(v, v->errors[p], table, scratch);
    }
    printf("\n");
}

static void print_parameters(const struct validation *v)
{
    printf("%zu step times of %d clusters; %zu rows without a step time or a prediction are left out\n\n",
           fit_rows_count(v->rows), fit_rows_cluster_count(v->rows), fit_rows_left_out(v->rows));
    printf("%-32s %-20s %10s %10s\n", "one device", "cluster", "base", "fitted");
    for (int i = 0; i < v->one.key_count; i++) {
        const struct fit_key *key = &v->one.keys[i];
        const char *cluster =
            key->cluster == FIT_ALL_CLUSTERS ? "all" : fit_rows_cluster_name(v->rows, key->cluster);
        printf("%-32s %-20s %10.4g %10.4g%s\n", key->key, cluster, key->parameter.prior, key->parameter.value,
               key->parameter.at_bound ? "  at a bound of its range" : "");
    }
}

/* ---- the command ---- */

static enum status run_protocols(struct validation *v)
{
    const size_t count = fit_rows_count(v->rows);
    v->used = memory_zeroed(count + 1, sizeof *v->used, "the rows of a fit");
    for (int p = 0; p < PROTOCOLS; p++) {
        v->errors[p] = memory_zeroed(count + 1, sizeof(double), "the rows of a fit");
        for (size_t i = 0; i < count; i++)
            v->errors[p][i] = NAN;
    }
    TRY(fit_all(v));
    for (int t = 0; t < v->table_count; t++)
        TRY(leave_out_table(v, &v->published[t]));
    for (int c = 0; c < fit_rows_cluster_count(v->rows) && fit_rows_cluster_count(v->rows) > 1; c++)
        TRY(leave_out_cluster(v, c));
    for (int t = 0; t < v->table_count; t++)
        TRY(add_baselines(v, t));
    return OK;
}

static enum status open_table(struct validation *v, int t, const char *argument)
{
    struct table_title title;
    char *at = strrchr(argument, '@') != NULL ? text_copy(argument) : NULL;
    if (at == NULL)
        return fail(BAD_USAGE,
                    "profile validate: %s is not TABLE@PROFILE; for example megascale@megascale-sheet",
                    argument);
    v->names[t] = at;
    *strrchr(at, '@') = '\0';
    v->tables[t].profile = at + strlen(at) + 1;
    v->tables[t].published = &v->published[t];
    return table_open(at, NULL, &v->published[t], &v->tables[t].base, &title);
}

static void validation_free(struct validation *v)
{
    for (int p = 0; p < PROTOCOLS; p++)
        free(v->errors[p]);
    fit_result_free(&v->one);
    fit_rows_destroy(v->rows);
    for (int t = 0; t < v->table_count; t++) {
        published_free(&v->published[t]);
        free(v->names[t]);
    }
    free(v->used);
    free(v->names);
    free(v->published);
    free(v->tables);
}

static int validate(struct validation *v, char **arguments)
{
    struct progress_line progress = progress_line_begin();
    v->options = (struct fit_options){.progress = show_progress, .context = &progress};
    enum status status = OK;
    for (int t = 0; t < v->table_count && status == OK; t++)
        status = open_table(v, t, arguments[t]);
    if (status == OK)
        status = fit_rows_plan(v->tables, (size_t)v->table_count, &v->options, &v->rows);
    if (status != OK)
        return exit_status_of_input(status);
    status = run_protocols(v);
    progress_line_clear(&progress);
    if (status == OK) {
        AUTO_FREE double *scratch =
            memory_zeroed(fit_rows_count(v->rows) + 1, sizeof *scratch, "the rows of a fit");
        print_parameters(v);
        print_errors(v, scratch);
    }
    return exit_status(status);
}

int profile_validate(int argc, char **argv)
{
    struct validation v = {.table_count = argc - 1};
    const size_t count = (size_t)argc;
    if (argc < 2)
        return exit_status(fail(BAD_USAGE, "profile validate: no table given; use cuboid profile validate "
                                           "TABLE@PROFILE... (cuboid table --list has the tables)"));
    v.names = memory_zeroed(count, sizeof *v.names, "the tables");
    v.published = memory_zeroed(count, sizeof *v.published, "the tables");
    v.tables = memory_zeroed(count, sizeof *v.tables, "the tables");
    const int status = validate(&v, argv + 1);
    validation_free(&v);
    return status;
}
