// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/step_plan.h"

#include "layers/model.h"
#include "planner/plan/limits.h"
#include "planner/recipe/planned_recipe.h"

#include <math.h>

static void add_number(struct text *out, const char *key, double value)
{
    char number[NUMBER_CHARS];
    text_add(out, ", \"%s\": %s", key, isfinite(value) ? number_text(value, number) : "null");
}

static void add_integer(struct text *out, const char *key, int64_t value)
{
    text_add(out, ", \"%s\": %lld", key, (long long)value);
}

/* Host memory of the rank that uses the most: offloaded activations and optimizer state, and the copy of a
 * save in the background. */
static int64_t host_bytes(const struct step_plan *plan)
{
    int64_t most = 0;
    for (int i = 0; i < plan->count; i++) {
        int64_t bytes = 0;
        for (int part = 0; part < PART_COUNT; part++)
            bytes += part_is_on_host((enum part)part) ? plan->ranks[i].part_bytes[part] : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void add_memory_parts(const struct rank_memory *rank, struct text *out)
{
    text_add(out, ", \"memory_bytes\": {");
    for (int part = 0; part < PART_COUNT; part++)
        text_add(out, "%s\"%s\": %lld", part > 0 ? ", " : "", part_name((enum part)part),
                 (long long)rank->part_bytes[part]);
    text_add(out, "}");
}

static void add_memory(const struct step_plan *plan, struct text *out)
{
    const struct rank_memory *rank = &plan->ranks[plan->peak_rank];
    add_integer(out, "memory_peak_bytes", rank->bytes);
    add_integer(out, "memory_peak_rank", rank->rank);
    add_memory_parts(rank, out);
    add_integer(out, "host_memory_bytes", host_bytes(plan));
    if (plan->profile == NULL)
        return;
    add_integer(out, "device_memory_bytes", plan->device_bytes);
    add_integer(out, "needed_bytes", plan->needed_bytes);
    text_add(out, ", \"fits\": %s, \"memory_class\": \"%s\"", plan->fits ? "true" : "false",
             !plan->fits   ? "does not fit"
             : plan->tight ? "tight"
                           : "fits");
}

static void add_stages(const struct step_plan *plan, struct text *out)
{
    const struct run *run = plan->run;
    text_add(out, ", \"stages\": [");
    for (int stage = 0; stage < run->schedule->stages; stage++)
        text_add(out, "%s{\"stage\": %d, \"first_layer\": %d, \"layers\": %d, \"pp\": %d}",
                 stage > 0 ? ", " : "", stage, run->stage_first_layer[stage],
                 run->stage_first_layer[stage + 1] - run->stage_first_layer[stage],
                 run->schedule->rank_of[0][stage]);
    text_add(out, "]");
}

/* Memory by part, and messages by group, of one rank of each pipeline coordinate. */
static void add_pipeline_ranks(const struct step_plan *plan, struct text *out)
{
    text_add(out, ", \"pipeline_ranks\": [");
    for (int i = 0; i < plan->count; i++) {
        const struct rank_memory *rank = &plan->ranks[i];
        text_add(out, "%s{\"pp\": %d, \"rank\": %d", i > 0 ? ", " : "", rank->pp, rank->rank);
        add_integer(out, "memory_peak_bytes", rank->bytes);
        add_memory_parts(rank, out);
        for (int group = 0; group < PREDICT_GROUPS && plan->step != NULL; group++)
            text_add(out, "%s\"%s\": {\"calls\": %lld, \"bytes\": %lld}%s",
                     group == 0 ? ", \"messages\": {" : ", ", predict_group_name((enum predict_group)group),
                     (long long)plan->step->ranks[i].calls[group],
                     (long long)plan->step->ranks[i].bytes[group], group + 1 < PREDICT_GROUPS ? "" : "}");
        text_add(out, "}");
    }
    text_add(out, "]");
}

/* Means over the pipeline ranks; with the overhead they add up to step_time_s. */
static void add_breakdown(const struct step_plan *plan, struct text *out)
{
    const struct prediction *step = plan->step;
    const double share = 1.0 / step->count;
    double run_s[COST_CLASSES] = {0}, exposed_s[PREDICT_GROUPS] = {0}, bubble_s = 0.0;
    for (int i = 0; i < step->count; i++) {
        for (int c = 0; c < COST_CLASSES; c++)
            run_s[c] += share * step->ranks[i].run_s[c];
        for (int g = 0; g < PREDICT_GROUPS; g++)
            exposed_s[g] += share * step->ranks[i].exposed_s[g];
        bubble_s += share * step->ranks[i].bubble_s;
    }
    text_add(out, ", \"breakdown_s\": {\"step_overhead\": %.9g", plan->profile->model.step_overhead_s);
    for (int c = 0; c < COST_CLASSES; c++)
        add_number(out, cost_class_name((enum cost_class)c), run_s[c]);
    add_number(out, "bubble", bubble_s);
    for (int g = 0; g < PREDICT_GROUPS; g++)
        add_number(out, predict_group_name((enum predict_group)g), exposed_s[g]);
    text_add(out, "}, \"exposed_communication_s\": {");
    for (int g = 0; g < PREDICT_GROUPS; g++) {
        char number[NUMBER_CHARS];
        text_add(out, "%s\"%s\": %s", g > 0 ? ", " : "", predict_group_name((enum predict_group)g),
                 number_text(exposed_s[g], number));
    }
    text_add(out, "}");
}

/* The parts of the critical path, which also add up to step_time_s, and the share of each pipeline rank. */
static void add_critical_path(const struct step_plan *plan, struct text *out)
{
    const struct prediction *step = plan->step;
    if (step->spans == NULL)
        return;
    text_add(out, ", \"critical_path_s\": {\"step_overhead\": %.9g", plan->profile->model.step_overhead_s);
    for (int c = 0; c < COST_CLASSES; c++)
        add_number(out, cost_class_name((enum cost_class)c), step->path.run_s[c]);
    for (int g = 0; g < PREDICT_GROUPS; g++)
        add_number(out, predict_group_name((enum predict_group)g), step->path.transfer_s[g]);
    text_add(out, "}, \"critical_path_ranks_s\": [");
    for (int i = 0; i < step->count; i++) {
        char number[NUMBER_CHARS];
        text_add(out, "%s%s", i > 0 ? ", " : "", number_text(step->ranks[i].critical_s, number));
    }
    text_add(out, "]");
}

static void add_times(const struct step_plan *plan, struct text *out)
{
    const struct recipe *recipe = plan->run->recipe;
    const double seconds = plan->step_s * (double)recipe->train.train_iters;
    struct text basis = {0};
    add_number(out, "step_time_s", plan->step_s);
    add_number(out, "tokens_per_s", plan->tokens_per_s);
    add_number(out, "model_tflops_per_rank", plan->tflops_per_rank);
    add_number(out, "mfu", plan->mfu > 0.0 ? plan->mfu : NAN);
    add_number(out, "mfu_causal", plan->mfu > 0.0 ? plan->mfu * model_causal_share(&recipe->model) : NAN);
    add_number(out, "hfu", plan->hfu > 0.0 ? plan->hfu : NAN);
    add_number(out, "bubble_fraction", plan->bubble_fraction);
    add_number(out, "train_time_s", seconds);
    add_number(out, "gpu_hours", seconds * plan->run->mesh.world / 3600.0);
    add_number(out, "error_fraction",
               plan->profile->fit.error_fraction > 0.0 ? plan->profile->fit.error_fraction : NAN);
    add_number(out, "held_out_error_fraction",
               plan->profile->fit.held_out_fraction > 0.0 ? plan->profile->fit.held_out_fraction : NAN);
    profile_basis_text(plan->profile, &basis);
    text_add(out, ", \"profile_basis\": ");
    text_add_json(out, basis.chars);
    text_free(&basis);
    add_breakdown(plan, out);
    add_critical_path(plan, out);
    text_add(out, ", \"limits\": ");
    plan_limits_json(plan, out);
}

static void add_assumed(const struct step_plan *plan, struct text *out)
{
    struct text assumed = {0};
    planned_assumed_text(plan->run->recipe, &assumed);
    text_add(out, ", \"assumed\": ");
    text_add_json(out, text_chars(&assumed));
    text_free(&assumed);
}

void step_plan_json(const struct step_plan *plan, struct text *out)
{
    const struct degrees *d = &plan->run->mesh.degrees;
    text_add(out, "\"ranks\": %d", plan->run->mesh.world);
    add_integer(out, "tp", d->tp);
    add_integer(out, "pp", d->pp);
    add_integer(out, "dp", d->dp);
    add_memory(plan, out);
    add_stages(plan, out);
    add_pipeline_ranks(plan, out);
    if (plan->profile != NULL)
        add_times(plan, out);
    add_assumed(plan, out);
}
