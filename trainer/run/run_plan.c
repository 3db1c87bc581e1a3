// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_plan.h"

#include "base/file.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

enum status run_plan_write(const struct run_plan *plan, const char *run_dir)
{
    AUTO(text) path = {0};
    if (plan->json == NULL)
        return OK;
    text_add(&path, "%s/plan.json", run_dir);
    return file_write_atomic(path.chars, plan->json, strlen(plan->json));
}

static void compare_seconds(const char *name, double predicted_s, double measured_s, FILE *to)
{
    fprintf(to, "%-22s %12.4g s %12.4g s", name, predicted_s, measured_s);
    if (predicted_s > 0.0)
        fprintf(to, " %10.1f %%", 100.0 * (measured_s / predicted_s - 1.0));
}

static void compare_bytes(const char *name, int64_t predicted, int64_t measured, FILE *to)
{
    char left[NUMBER_CHARS], right[NUMBER_CHARS];
    fprintf(to, "%-22s %14s %14s", name, bytes_text(predicted, left), bytes_text(measured, right));
    if (predicted > 0)
        fprintf(to, " %10.1f %%", 100.0 * ((double)measured / (double)predicted - 1.0));
    fputs("\n", to);
}

/* The busiest rank is the one that waits least. */
static void compare_times(const struct run_prediction *plan, const struct run_measured *measured, FILE *to)
{
    compare_seconds("step", plan->step_s, measured->step_s, to);
    if (plan->error_fraction > 0.0)
        fprintf(to, "  (the profile: +- %.0f %%)", 100.0 * plan->error_fraction);
    fputs("\n", to);
    if (!isnan(measured->wait_s[0])) {
        compare_seconds("  busiest rank, busy", plan->step_s - plan->wait_s[0],
                        measured->step_s - measured->wait_s[0], to);
        fputs("\n", to);
        compare_seconds("  idlest rank, waiting", plan->wait_s[1], measured->wait_s[1], to);
        fputs("\n", to);
    }
    if (!isnan(measured->bubble_fraction))
        fprintf(to, "%-22s %12.1f %% %12.1f %%\n", "bubble", 100.0 * plan->bubble_fraction,
                100.0 * measured->bubble_fraction);
}

void run_plan_compare(const struct run_prediction *predicted, const struct run_measured *measured, FILE *to)
{
    if (predicted->step_s <= 0.0 || measured->steps <= 0)
        return;
    fprintf(to, "%-22s %14s %14s %12s\n", "", "predicted", "measured", "difference");
    compare_times(predicted, measured, to);
    compare_bytes("memory of a rank", predicted->memory_peak_bytes, measured->memory_peak_bytes, to);
    for (int part = 0; part < PART_COUNT; part++) {
        char name[40];
        snprintf(name, sizeof name, "  %s", part_name((enum part)part));
        if (predicted->part_bytes[part] > 0 || measured->part_peak_bytes[part] > 0)
            compare_bytes(name, predicted->part_bytes[part], measured->part_peak_bytes[part], to);
    }
}
