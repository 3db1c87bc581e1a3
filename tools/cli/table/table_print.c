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

static void print_row(const struct table_row *row, FILE *to)
{
    char printed[NUMBER_CHARS], predicted[NUMBER_CHARS], error[NUMBER_CHARS], memory_error[NUMBER_CHARS];
    char printed_gb[NUMBER_CHARS], gb[NUMBER_CHARS], gpus[NUMBER_CHARS];
    const struct published_row *cells = row->row;
    if (row->reason != NULL) {
        print_line(to, "  %-12.12s %6s  line %d: %s", cells->cell[PUBLISHED_MODEL],
                   count(published_gpus(cells), gpus), cells->line, row->reason);
        return;
    }
    const bool wrong =
        row->printed_fit != FIT_UNKNOWN && row->fit != FIT_UNKNOWN && row->fit != row->printed_fit;
    print_line(to, "  %-12.12s %6s  %-44s %10s %10s %8s  %7s %7s %8s  %-5s%s", cells->cell[PUBLISHED_MODEL],
               count(published_gpus(cells), gpus), row->layout, number(row->printed.seconds, printed),
               number(row->step_s, predicted), percent(table_error(row->step_s, row->printed.seconds), error),
               number(1e-9 * row->printed_bytes, printed_gb), number(1e-9 * row->bytes, gb),
               percent(table_error(row->bytes, row->printed_bytes), memory_error), fit_text(row->fit),
               wrong ? row->printed_fit == FIT_OK ? " (ran)" : " (was OOM)" : "");
}

static void print_errors(const char *what, const struct table_errors *errors, FILE *to)
{
    char bias[NUMBER_CHARS], worst[NUMBER_CHARS];
    if (errors->count == 0)
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
    fprintf(to, "  %-38s %4s  %8s %8s  %8s  %8s\n", "error of", "rows", "median", "90th", "bias", "worst");
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
        fprintf(to, "  memory fits as printed: %zu of %zu rows", group->fit_right, group->fit_checked);
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

void table_print(const struct table *table, const struct table_title *title, FILE *to)
{
    print_line(to, "%s: %s", title->name, title->description);
    for (size_t g = 0; g < table->group_count; g++) {
        const struct table_group *group = &table->groups[g];
        const char *profile = "";
        for (size_t i = 0; i < table->count && *profile == 0; i++)
            if (strcmp(table->rows[i].row->cell[PUBLISHED_PAPER], group->paper) == 0 &&
                table->rows[i].profile)
                profile = table->rows[i].profile;
        print_line(to, "%s%s%s", *group->paper != 0 ? group->paper : title->name,
                   *profile != 0 ? ", on " : "", profile);
        fprintf(to, "  %-12s %6s  %-44s %10s %10s %8s  %7s %7s %8s\n", "model", "GPUs", "layout",
                title->measured ? "measured s" : "printed s", "predicted", "error", "GB", "pred.", "error");
        for (size_t i = 0; i < table->count; i++)
            if (strcmp(table->rows[i].row->cell[PUBLISHED_PAPER], group->paper) == 0)
                print_row(&table->rows[i], to);
        print_group(group, to);
    }
}
