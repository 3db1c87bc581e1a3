// SPDX-License-Identifier: Apache-2.0
#include "planner/table/table.h"

#include "base/memory.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t count, size_t size)
{
    return memory_zeroed(count + 1, size, "a table");
}

/* rank[i]: the mean position of values[i] in sorted order. */
static void ranks_of(const double *values, size_t count, double *rank)
{
    for (size_t i = 0; i < count; i++) {
        double below = 0.0, equal = 0.0;
        for (size_t k = 0; k < count; k++) {
            below += values[k] < values[i];
            equal += values[k] == values[i];
        }
        rank[i] = below + (equal - 1.0) / 2.0;
    }
}

double spearman_correlation(const double *a, const double *b, size_t count)
{
    double *rank_a = allocate(count, sizeof *rank_a), *rank_b = allocate(count, sizeof *rank_b);
    const double mean = ((double)count - 1.0) / 2.0;
    double ab = 0.0, aa = 0.0, bb = 0.0;
    ranks_of(a, count, rank_a);
    ranks_of(b, count, rank_b);
    for (size_t i = 0; i < count; i++) {
        ab += (rank_a[i] - mean) * (rank_b[i] - mean);
        aa += (rank_a[i] - mean) * (rank_a[i] - mean);
        bb += (rank_b[i] - mean) * (rank_b[i] - mean);
    }
    free(rank_a);
    free(rank_b);
    return count < 3 || aa == 0.0 || bb == 0.0 ? NAN : ab / sqrt(aa * bb);
}

double table_error(double predicted, double printed)
{
    return predicted > 0.0 && printed > 0.0 ? predicted / printed - 1.0 : NAN;
}

/* ---- groups ---- */

static struct table_errors errors_of(const struct table *table, const char *paper,
                                     double (*error_of)(const struct table_row *))
{
    struct table_errors errors = {.count = 0};
    double *error = allocate(table->count, sizeof *error),
           *absolute = allocate(table->count, sizeof *absolute);
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        const double found = row->reason == NULL ? error_of(row) : NAN;
        if (isnan(found) || strcmp(row->row->cell[PUBLISHED_PAPER], paper) != 0)
            continue;
        error[errors.count] = found;
        absolute[errors.count++] = fabs(found);
        if (errors.of_worst == NULL || fabs(found) > fabs(errors.worst)) {
            errors.worst = found;
            errors.of_worst = row;
        }
    }
    if (errors.count > 0) {
        errors.median = quantile(absolute, errors.count, 0.5);
        errors.p90 = quantile(absolute, errors.count, 0.9);
        errors.bias = quantile(error, errors.count, 0.5);
    }
    free(error);
    free(absolute);
    return errors;
}

static double step_error(const struct table_row *row)
{
    return table_error(row->step_s, row->printed.seconds);
}

static double scaled_error(const struct table_row *row)
{
    return table_error(row->scaled_s, row->printed.seconds);
}

static double utilization_error(const struct table_row *row)
{
    return table_error(row->utilization_s, row->printed.seconds);
}

static double roofline_error(const struct table_row *row)
{
    return table_error(row->roofline_s, row->printed.seconds);
}

static double memory_error(const struct table_row *row)
{
    return table_error(row->bytes, row->printed_bytes);
}

static bool is_of(const struct table_row *row, const struct table_group *group)
{
    return strcmp(row->row->cell[PUBLISHED_PAPER], group->paper) == 0;
}

/* Whether a row is the first one of the group with its profile. */
static bool is_first_with_profile(const struct table *table, const struct table_group *group,
                                  const struct table_row *row)
{
    for (const struct table_row *other = table->rows; other < row; other++)
        if ((group == NULL || is_of(other, group)) && other->reason == NULL &&
            strcmp(other->profile, row->profile) == 0)
            return false;
    return true;
}

const struct table_row *table_next_profile(const struct table *table, const struct table_group *group,
                                           const struct table_row *begin)
{
    for (const struct table_row *row = begin; row < table->rows + table->count; row++)
        if ((group == NULL || is_of(row, group)) && row->reason == NULL &&
            is_first_with_profile(table, group, row))
            return row;
    return NULL;
}

/* Fits one utilization and one factor to all rows of the group. */
static void fit_constants(struct table *table, struct table_group *group)
{
    double *printed = allocate(table->count, sizeof *printed),
           *factor = allocate(table->count, sizeof *factor);
    size_t count = 0, factors = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        if (!is_of(row, group) || row->reason != NULL || row->printed.seconds <= 0.0)
            continue;
        if (row->ideal_s > 0.0)
            printed[count++] = row->ideal_s / row->printed.seconds;
        factor[factors++] = row->printed.seconds / row->step_s;
    }
    group->utilization = count > 0 ? quantile(printed, count, 0.5) : 0.0;
    group->factor = factors > 0 ? quantile(factor, factors, 0.5) : 0.0;
    for (size_t i = 0; i < table->count; i++) {
        struct table_row *row = &table->rows[i];
        if (is_of(row, group) && group->utilization > 0.0)
            row->utilization_s = row->ideal_s / group->utilization;
        if (is_of(row, group))
            row->scaled_s = group->factor * row->step_s;
    }
    free(printed);
    free(factor);
}

static void correlate(const struct table *table, struct table_group *group)
{
    double *list[4];
    size_t count = 0;
    for (int k = 0; k < 4; k++)
        list[k] = allocate(table->count, sizeof(double));
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        if (!is_of(row, group) || row->reason != NULL || isnan(step_error(row)))
            continue;
        list[0][count] = row->step_s;
        list[1][count] = row->printed.seconds;
        list[2][count] = row->ideal_s / row->step_s;
        list[3][count++] = row->ideal_s / row->printed.seconds;
    }
    group->step_correlation = spearman_correlation(list[0], list[1], count);
    group->utilization_correlation = spearman_correlation(list[2], list[3], count);
    for (int k = 0; k < 4; k++)
        free(list[k]);
}

static void count_rows(const struct table *table, struct table_group *group)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        if (!is_of(row, group))
            continue;
        group->rows++;
        group->predicted += row->reason == NULL;
        if (row->reason == NULL && row->printed_fit != FIT_UNKNOWN && row->fit != FIT_UNKNOWN) {
            group->fit_checked++;
            group->fit_right += row->fit == row->printed_fit;
            group->near_checked += row->near_limit;
            group->near_right += row->near_limit && row->fit == row->printed_fit;
        }
    }
}

void table_summarize(struct table *table)
{
    table->groups = allocate(table->count, sizeof *table->groups);
    for (size_t i = 0; i < table->count; i++) {
        bool known = false;
        for (size_t g = 0; g < table->group_count; g++)
            known = known || is_of(&table->rows[i], &table->groups[g]);
        if (!known)
            table->groups[table->group_count++].paper = table->rows[i].row->cell[PUBLISHED_PAPER];
    }
    for (size_t g = 0; g < table->group_count; g++) {
        struct table_group *group = &table->groups[g];
        count_rows(table, group);
        fit_constants(table, group);
        correlate(table, group);
        group->step = errors_of(table, group->paper, step_error);
        group->scaled = errors_of(table, group->paper, scaled_error);
        group->by_utilization = errors_of(table, group->paper, utilization_error);
        group->by_roofline = errors_of(table, group->paper, roofline_error);
        group->memory = errors_of(table, group->paper, memory_error);
    }
}
