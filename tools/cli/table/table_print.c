// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table/table_output.h"

#include <math.h>
#include <string.h>

static const char *percent(double fraction, char out[NUMBER_CHARS])
{
    if (isnan(fraction))
        snprintf(out, NUMBER_CHARS, "-");
    else
        snprintf(out, NUMBER_CHARS, "%+.1f%%", 100.0 * fraction);
    return out;
}

static const char *count(double value, char out[NUMBER_CHARS])
{
    snprintf(out, NUMBER_CHARS, value > 0.0 ? "%.0f" : "-", value);
    return out;
}

/* A positive number with four digits; "-" for 0. */
static const char *number(double value, char out[NUMBER_CHARS])
{
    snprintf(out, NUMBER_CHARS, value > 0.0 ? "%.4g" : "-", value);
    return out;
}

static const char *fit_text(enum table_fit fit)
{
    return fit == FIT_OK ? "fits" : fit == FIT_OOM ? "OOM" : "-";
}

enum { FEW_ROWS = 3, MODEL_COLUMNS = 40, MIN_MODEL_COLUMNS = 12 };

/* The width of the column of models: that of the longest name. */
static int model_columns(const struct table *table)
{
    size_t width = MIN_MODEL_COLUMNS;
    for (size_t i = 0; i < table->count; i++) {
        const size_t length = strlen(table->rows[i].row->cell[PUBLISHED_MODEL]);
        width = length > width ? length : width;
    }
    return width < MODEL_COLUMNS ? (int)width : MODEL_COLUMNS;
}

static bool is_of(const struct table_row *row, const struct table_group *group)
{
    return strcmp(row->row->cell[PUBLISHED_PAPER], group->paper) == 0;
}

/* A row without a prediction; more than FEW_ROWS rows of a group with the same reason are one line. */
static void print_reason(const struct table *table, const struct table_group *group, size_t index,
                         int columns, FILE *to)
{
    const struct table_row *row = &table->rows[index];
    char gpus[NUMBER_CHARS];
    struct text lines = {0};
    size_t same = 0, before = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *other = &table->rows[i];
        if (other->reason == NULL || !is_of(other, group) || strcmp(other->reason, row->reason) != 0)
            continue;
        before += i < index;
        if (++same <= FEW_ROWS)
            text_add(&lines, "%s%d", same > 1 ? ", " : "", other->row->line);
    }
    if (same <= FEW_ROWS)
        print_line(to, "  %-*.*s %6s  line %d: %s", columns, columns, row->row->cell[PUBLISHED_MODEL],
                   count(published_gpus(row->row), gpus), row->row->line, row->reason);
    else if (before == 0)
        print_line(to, "  %zu rows (lines %s, ...): %s", same, lines.chars, row->reason);
    text_free(&lines);
}

static bool ran_without_memory(const struct table_row *row)
{
    return row->reason == NULL && row->printed_fit == FIT_OK && row->fit == FIT_OOM;
}

static void print_row(const struct table_row *row, int columns, FILE *to)
{
    char printed[NUMBER_CHARS], predicted[NUMBER_CHARS], error[NUMBER_CHARS], memory_error[NUMBER_CHARS];
    char printed_gb[NUMBER_CHARS], gb[NUMBER_CHARS], gpus[NUMBER_CHARS];
    const struct published_row *cells = row->row;
    const bool was_oom = row->printed_fit == FIT_OOM && row->fit == FIT_OK;
    print_line(to, "  %-*.*s %6s  %-44s %11s %10s %8s  %7s %7s %8s  %-5s%s", columns, columns,
               cells->cell[PUBLISHED_MODEL], count(published_gpus(cells), gpus), row->layout,
               number(row->printed.seconds, printed), number(row->step_s, predicted),
               percent(table_error(row->step_s, row->printed.seconds), error),
               number(1e-9 * row->printed_bytes, printed_gb), number(1e-9 * row->bytes, gb),
               percent(table_error(row->bytes, row->printed_bytes), memory_error), fit_text(row->fit),
               ran_without_memory(row) ? " (ran)"
               : was_oom               ? " (was OOM)"
                                       : "");
    if (row->warning != NULL)
        print_line(to, "    line %d: %s", cells->line, row->warning);
}

/* What to do about rows that ran, but are predicted not to fit. */
static void print_memory_hint(const struct table *table, const struct table_group *group, FILE *to)
{
    bool shards = false, recomputes = false;
    for (size_t i = 0; i < table->count; i++)
        if (is_of(&table->rows[i], group) && ran_without_memory(&table->rows[i])) {
            shards = shards || table->rows[i].may_shard;
            recomputes = recomputes || table->rows[i].may_recompute;
        }
    if (shards || recomputes)
        fprintf(to, "  OOM (ran): if the program %s%s%s, fill in %s%s%s\n", shards ? "sharded its state" : "",
                shards && recomputes ? " or " : "", recomputes ? "recomputed activations" : "",
                shards ? "zero_stage" : "", shards && recomputes ? " and " : "",
                recomputes ? "recompute" : "");
}

/* Statistics of one row would repeat its error. */
enum { MIN_ERRORS = 2 };

static void print_errors(const char *what, const struct table_errors *errors, FILE *to)
{
    char bias[NUMBER_CHARS], worst[NUMBER_CHARS];
    if (errors->count < MIN_ERRORS)
        return;
    print_line(to, "  %-38s %4zu  %7.1f%% %7.1f%%  %8s  %8s  %s, line %d", what, errors->count,
               100.0 * errors->median, 100.0 * errors->p90, percent(errors->bias, bias),
               percent(errors->worst, worst), errors->of_worst->row->cell[PUBLISHED_MODEL],
               errors->of_worst->row->line);
}

static void print_group(const struct table_group *group, FILE *to)
{
    struct text constant = {0}, scaled = {0};
    text_add(&scaled, "step time x %.3f, fitted", group->factor);
    text_add(&constant, "constant utilization, MFU %.1f %%, fitted", 100.0 * group->utilization);
    if (group->step.count >= MIN_ERRORS || group->memory.count >= MIN_ERRORS)
        fprintf(to, "  %-38s %4s  %8s %8s  %8s  %8s\n", "error of", "rows", "median", "90th", "bias",
                "worst");
    print_errors("step time", &group->step, to);
    print_errors(scaled.chars, &group->scaled, to);
    print_errors(constant.chars, &group->by_utilization, to);
    print_errors("FLOPs plus bytes, no schedule", &group->by_roofline, to);
    print_errors("memory", &group->memory, to);
    if (!isnan(group->step_correlation))
        fprintf(to, "  rank correlation: step time %.3f", group->step_correlation);
    if (!isnan(group->utilization_correlation))
        fprintf(to, ", utilization %.3f", group->utilization_correlation);
    if (!isnan(group->step_correlation))
        fprintf(to, "\n");
    if (group->fit_checked > 0)
        fprintf(to, "  memory fits as published: %zu of %zu rows", group->fit_right, group->fit_checked);
    if (group->near_checked > 0)
        fprintf(to, "; %zu of %zu without those within %d GB of the limit",
                group->fit_right - group->near_right, group->fit_checked - group->near_checked,
                TABLE_NEAR_GB);
    if (group->fit_checked > 0)
        fprintf(to, "\n");
    if (group->predicted < group->rows)
        fprintf(to, "  not predicted: %zu of %zu rows\n", group->rows - group->predicted, group->rows);
    fprintf(to, "\n");
    text_free(&constant);
    text_free(&scaled);
}

static void print_heading(const struct table *table, const struct table_group *group,
                          const struct table_title *title, FILE *to)
{
    const char *name = *group->paper != 0 ? group->paper : title->name;
    struct text profiles = {0};
    const struct table_row *row = table->rows;
    for (; (row = table_next_profile(table, group, row)) != NULL; row++)
        text_add(&profiles, "%s%s", profiles.length > 0 ? ", " : ", on ", row->profile);
    print_line(to, "%s%s", name, text_chars(&profiles));
    text_free(&profiles);
    for (row = table->rows; (row = table_next_profile(table, group, row)) != NULL; row++)
        print_line(to, "  profile %s: %s", row->profile, row->basis);
}

void table_print(const struct table *table, const struct table_title *title, FILE *to)
{
    const int columns = model_columns(table);
    print_line(to, "%s: %s", title->name, title->description);
    for (size_t g = 0; g < table->group_count; g++) {
        const struct table_group *group = &table->groups[g];
        print_heading(table, group, title, to);
        fprintf(to, "  %-*s %6s  %-44s %11s %10s %8s  %7s %7s %8s\n", columns, "model", "GPUs", "layout",
                title->measured ? "measured s" : "published s", "predicted", "error", "GB", "pred.", "error");
        for (size_t i = 0; i < table->count; i++)
            if (is_of(&table->rows[i], group) && table->rows[i].reason != NULL)
                print_reason(table, group, i, columns, to);
            else if (is_of(&table->rows[i], group))
                print_row(&table->rows[i], columns, to);
        print_memory_hint(table, group, to);
        print_group(group, to);
    }
}
