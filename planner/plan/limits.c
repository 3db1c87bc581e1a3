// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/limits.h"

#include <stdlib.h>

static int by_fraction(const void *a, const void *b)
{
    const struct plan_limit *x = a, *y = b;
    return x->fraction < y->fraction ? 1 : x->fraction > y->fraction ? -1 : 0;
}

/* All parts of the step; matmuls and attention are one part. */
static int all_parts(const struct step_plan *plan, struct plan_limit *out)
{
    const struct prediction *step = plan->step;
    const double share = 1.0 / (plan->step_s * step->count);
    int count = 0;
    struct plan_limit compute = {.name = "compute"}, bubble = {.name = "bubble"};
    for (int c = 0; c < COST_CLASSES; c++) {
        const bool computes = c == COST_MATMUL || c == COST_ATTENTION;
        struct plan_limit one = {.name = cost_class_name((enum cost_class)c)};
        for (int r = 0; r < step->count; r++)
            *(computes ? &compute.fraction : &one.fraction) += share * step->ranks[r].run_s[c];
        if (!computes)
            out[count++] = one;
    }
    for (int g = 0; g < PREDICT_GROUPS; g++) {
        struct plan_limit one = {.name = predict_group_name((enum predict_group)g)};
        for (int r = 0; r < step->count; r++)
            one.fraction += share * step->ranks[r].exposed_s[g];
        out[count++] = one;
    }
    for (int r = 0; r < step->count; r++)
        bubble.fraction += share * step->ranks[r].bubble_s;
    out[count++] = compute;
    out[count++] = bubble;
    out[count++] = (struct plan_limit){"step_overhead", plan->profile->model.step_overhead_s / plan->step_s};
    return count;
}

int plan_limits(const struct step_plan *plan, struct plan_limit out[MAX_LIMITS])
{
    struct plan_limit parts[MAX_LIMITS];
    const struct plan_limit memory = {"memory", (double)plan->needed_bytes / (double)plan->device_bytes};
    CHECK(plan->step != NULL);
    const int all = all_parts(plan, parts);
    int count = 0;
    qsort(parts, (size_t)all, sizeof *parts, by_fraction);
    if (!plan->fits)
        out[count++] = memory;
    for (int i = 0; i < all && (i == 0 || parts[i].fraction >= LIMIT_MIN_FRACTION); i++)
        out[count++] = parts[i];
    if (plan->fits && memory.fraction >= LIMIT_MIN_MEMORY)
        out[count++] = memory;
    return count;
}

void plan_limits_print(const struct step_plan *plan, FILE *to)
{
    struct plan_limit limits[MAX_LIMITS];
    const int count = plan_limits(plan, limits);
    fprintf(to, "limited by");
    for (int i = 0; i < count; i++)
        fprintf(to, "%s %s (%.1f %%)", i > 0 ? "," : "", limits[i].name, 100.0 * limits[i].fraction);
    fprintf(to, "\n");
}

void plan_limits_json(const struct step_plan *plan, struct text *out)
{
    struct plan_limit limits[MAX_LIMITS];
    const int count = plan_limits(plan, limits);
    text_add(out, "[");
    for (int i = 0; i < count; i++)
        text_add(out, "%s{\"limit\": \"%s\", \"fraction\": %.6g}", i > 0 ? ", " : "", limits[i].name,
                 limits[i].fraction);
    text_add(out, "]");
}
