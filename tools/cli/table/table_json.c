// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table/table_output.h"

#include <math.h>

static void add_key(struct text *out, const char *key)
{
    const char last = out->chars[out->length - 1];
    text_add(out, "%s\"%s\": ", last == '{' ? "" : ", ", key);
}

/* NAN becomes null. */
static void add_value(struct text *out, const char *key, double value)
{
    char number[NUMBER_CHARS];
    add_key(out, key);
    text_add(out, "%s", isfinite(value) ? number_text(value, number) : "null");
}

/* Adds a figure that is never 0; 0 means unknown and becomes null. */
static void add_number(struct text *out, const char *key, double value)
{
    add_value(out, key, value != 0.0 ? value : NAN);
}

static void add_count(struct text *out, const char *key, size_t value)
{
    add_key(out, key);
    text_add(out, "%zu", value);
}

static void add_string(struct text *out, const char *key, const char *value)
{
    add_key(out, key);
    if (value == NULL)
        text_add(out, "null");
    else
        text_add_json(out, value);
}

static const char *fit_name(enum table_fit fit)
{
    return fit == FIT_OK ? "ok" : fit == FIT_OOM ? "oom" : NULL;
}

static void add_row(struct text *out, const struct table_row *row)
{
    const struct published_row *cells = row->row;
    const bool predicted = row->step_s > 0.0;
    text_add(out, "{");
    add_string(out, "paper", cells->cell[PUBLISHED_PAPER]);
    add_string(out, "model", cells->cell[PUBLISHED_MODEL]);
    add_number(out, "gpus", published_gpus(cells));
    add_string(out, "source", cells->cell[PUBLISHED_SOURCE]);
    add_string(out, "notes", cells->cell[PUBLISHED_NOTES]);
    add_string(out, "figure", cells->cell[PUBLISHED_FIGURE]);
    add_count(out, "line", (size_t)cells->line);
    add_string(out, "reason", row->reason);
    add_string(out, "warning", row->warning);
    add_string(out, "layout", row->layout);
    add_number(out, "dp", row->dp);
    add_string(out, "status", cells->cell[PUBLISHED_STATUS]);
    add_string(out, "profile", row->profile);
    add_number(out, "printed_s", row->printed.seconds);
    add_string(out, "printed_from", printed_from_name(row->printed.from));
    add_number(out, "predicted_s", row->step_s);
    add_value(out, "error", table_error(row->step_s, row->printed.seconds));
    add_number(out, "constant_utilization_s", row->utilization_s);
    add_number(out, "flops_plus_bytes_s", row->roofline_s);
    add_number(out, "printed_mfu", row->printed.seconds > 0.0 ? row->ideal_s / row->printed.seconds : 0.0);
    add_number(out, "predicted_mfu", row->step_s > 0.0 ? row->ideal_s / row->step_s : 0.0);
    add_number(out, "printed_bytes", row->printed_bytes);
    add_number(out, "predicted_bytes", row->bytes);
    add_string(out, "printed_fit", fit_name(row->printed_fit));
    add_string(out, "fit", fit_name(row->fit));
    add_key(out, "breakdown_s");
    text_add(out, "{");
    for (int c = 0; c < COST_CLASSES; c++)
        add_value(out, cost_class_name((enum cost_class)c), predicted ? row->run_s[c] : NAN);
    for (int g = 0; g < PREDICT_GROUPS; g++)
        add_value(out, predict_group_name((enum predict_group)g), predicted ? row->exposed_s[g] : NAN);
    add_value(out, "bubble", predicted ? row->bubble_s : NAN);
    add_value(out, "step_overhead", predicted ? row->overhead_s : NAN);
    text_add(out, "}}");
}

static void add_errors(struct text *out, const char *key, const struct table_errors *errors)
{
    const bool any = errors->count > 0;
    add_key(out, key);
    text_add(out, "{");
    add_count(out, "rows", errors->count);
    add_value(out, "median", any ? errors->median : NAN);
    add_value(out, "p90", any ? errors->p90 : NAN);
    add_value(out, "bias", any ? errors->bias : NAN);
    add_value(out, "worst", any ? errors->worst : NAN);
    text_add(out, "}");
}

/* The profiles of the predictions, and what each rests on. */
static void add_profiles(const struct table *table, struct text *out)
{
    const struct table_row *row = table->rows;
    const char *before = "[";
    add_key(out, "profiles");
    for (; (row = table_next_profile(table, NULL, row)) != NULL; row++) {
        text_add(out, "%s{", before);
        add_string(out, "name", row->profile);
        add_string(out, "basis", row->basis);
        text_add(out, "}");
        before = ", ";
    }
    text_add(out, "%s]", *before == '[' ? "[" : "");
}

void table_json(const struct table *table, const struct table_title *title, struct text *out)
{
    text_add(out, "{");
    add_string(out, "name", title->name);
    add_string(out, "description", title->description);
    add_key(out, "groups");
    for (size_t g = 0; g < table->group_count; g++) {
        const struct table_group *group = &table->groups[g];
        text_add(out, "%s{", g > 0 ? ",\n" : "[\n");
        add_string(out, "paper", group->paper);
        add_count(out, "rows", group->rows);
        add_count(out, "predicted", group->predicted);
        add_number(out, "constant_mfu", group->utilization);
        add_errors(out, "step_time", &group->step);
        add_number(out, "factor", group->factor);
        add_errors(out, "step_time_scaled", &group->scaled);
        add_errors(out, "constant_utilization", &group->by_utilization);
        add_errors(out, "flops_plus_bytes", &group->by_roofline);
        add_errors(out, "memory", &group->memory);
        add_number(out, "rank_correlation_step_time", group->step_correlation);
        add_number(out, "rank_correlation_utilization", group->utilization_correlation);
        add_count(out, "fit_checked", group->fit_checked);
        add_count(out, "fit_right", group->fit_right);
        add_count(out, "fit_near_checked", group->near_checked);
        add_count(out, "fit_near_right", group->near_right);
        text_add(out, "}");
    }
    text_add(out, "%s]", table->group_count == 0 ? "[" : "");
    add_profiles(table, out);
    add_key(out, "rows");
    for (size_t i = 0; i < table->count; i++) {
        text_add(out, i > 0 ? ",\n" : "[\n");
        add_row(out, &table->rows[i]);
    }
    text_add(out, "%s]}\n", table->count == 0 ? "[" : "");
}
