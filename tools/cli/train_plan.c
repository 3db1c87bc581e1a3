// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/train_plan.h"

#include "base/machine.h"
#include "parallel/comm.h"
#include "planner/plan/report.h"

#include <math.h>
#include <stdlib.h>

/* Returns false, with a warning, if the profile describes another kind of device than cluster.device. */
static bool is_of_this_kind(const struct recipe *recipe, const struct cluster_profile *profile)
{
    const bool on_gpu = device_traits(recipe->cluster.device)->is_gpu;
    if (on_gpu == !profile->device.is_cpu)
        return true;
    print_line(stderr,
               "warning: cluster.profile %s describes %s, but cluster.device is %s: the step time is not "
               "predicted",
               recipe->cluster.profile, profile->device.is_cpu ? "CPUs" : "GPUs", recipe->cluster.device);
    return false;
}

/* The changes for which the run fits, fastest first. */
static enum status advise(const struct step_plan *plan, const struct advice_source *source, struct text *out)
{
    struct advice advice;
    TRY(advice_make(source, plan, &advice));
    if (advice.count == 0)
        text_add(out,
                 "no change of one or two layout keys makes it fit (%d planned); use more ranks, or a "
                 "smaller batch or model",
                 advice.planned);
    for (int i = 0; i < advice.count; i++) {
        char needed[NUMBER_CHARS];
        text_add(out, "%s%s (%s, predicted step %.4g s)", i == 0 ? "it fits with " : ", or with ",
                 advice.items[i].change, bytes_text(advice.items[i].needed_bytes, needed),
                 advice.items[i].step_s);
    }
    return OK;
}

static enum status refuse(const struct step_plan *plan, const struct advice_source *source)
{
    char needed[NUMBER_CHARS], there[NUMBER_CHARS];
    struct text advice = {0};
    TRY(advise(plan, source, &advice));
    bytes_text(plan->needed_bytes, needed);
    bytes_text(plan->device_bytes, there);
    enum status status =
        fail(BAD_RECIPE, "rank %d needs %s, but a device of cluster.profile %s has %s; %s",
             plan->ranks[plan->peak_rank].rank, needed, plan->profile->name, there, text_chars(&advice));
    text_free(&advice);
    return status;
}

/* Finds the least and the most that a rank waits: for other stages, and for messages. */
static void find_waits(const struct prediction *step, double wait_s[2])
{
    for (int i = 0; i < step->count; i++) {
        const struct predicted_rank *rank = &step->ranks[i];
        double sum_s = rank->bubble_s;
        for (int group = 0; group < PREDICT_GROUPS; group++)
            sum_s += rank->exposed_s[group];
        wait_s[0] = i == 0 ? sum_s : fmin(wait_s[0], sum_s);
        wait_s[1] = fmax(wait_s[1], sum_s);
    }
}

static void find_parts(const struct step_plan *plan, int64_t part_bytes[PART_COUNT])
{
    for (int i = 0; i < plan->count; i++)
        for (int part = 0; part < PART_COUNT; part++)
            if (plan->ranks[i].part_bytes[part] > part_bytes[part])
                part_bytes[part] = plan->ranks[i].part_bytes[part];
}

static void predict(const struct step_plan *plan, struct train_plan *out)
{
    struct run_prediction *predicted = &out->plan.predicted;
    *predicted = (struct run_prediction){.step_s = plan->step_s,
                                         .bubble_fraction = plan->bubble_fraction,
                                         .memory_peak_bytes = plan->ranks[plan->peak_rank].bytes,
                                         .error_fraction = plan->profile->fit.error_fraction};
    find_waits(plan->step, predicted->wait_s);
    find_parts(plan, predicted->part_bytes);
    text_add(&out->json, "{");
    step_plan_json(plan, &out->json);
    text_add(&out->json, "}\n");
    out->plan.json = out->json.chars;
}

static enum status plan_step(const struct run *run, const struct cluster_profile *profile,
                             const struct advice_source *source, struct train_plan *out)
{
    struct step_plan plan;
    const enum status planned = step_plan_make_timeline(run, profile, &plan);
    if (planned == NOT_SUPPORTED) {
        print_line(stderr, "warning: the step time is not predicted: %s", fail_text());
        return OK;
    }
    TRY(planned);
    const enum status status = plan.fits ? OK : refuse(&plan, source);
    if (status == OK)
        predict(&plan, out);
    step_plan_free(&plan);
    return status;
}

/* Rank 0's process: reports layout and memory, and predicts the step if there is a profile for this kind of
 * device. */
static enum status report(const struct advice_source *source, struct train_plan *out, FILE *to)
{
    const struct run *run = &out->planned.run;
    struct cluster_profile *profile = NULL;
    report_layout(run, to);
    report_stages(run, false, to);
    TRY(report_offload(run, stderr));
    TRY(step_plan_profile(run->recipe, &profile));
    enum status status = OK;
    if (profile != NULL && is_of_this_kind(run->recipe, profile))
        status = plan_step(run, profile, source, out);
    profile_destroy(profile);
    // Between GPUs the transport also allocates memory, which the formula does not include.
    if (status == OK && device_traits(run->recipe->cluster.device)->has_memory_pool)
        return report_dry_run(run, to);
    return status == OK ? report_formula(run, to) : status;
}

static enum status plan_and_report(const struct advice_source *source, struct train_plan *out)
{
    size_t length;
    FILE *to = open_memstream(&out->report, &length);
    if (to == NULL)
        return fail(NO_MEMORY, "no memory for the report of a plan");
    const enum status status = report(source, out, to);
    if (fclose(to) != 0)
        return fail(NO_MEMORY, "no memory for the report of a plan");
    out->plan.report = out->report;
    return status;
}

static enum status make(const struct recipe *recipe, const struct advice_source *source,
                        const struct launcher *launcher, struct train_plan *out)
{
    // With several machines the assignment of ranks to machines is unknown.
    if (launcher->size == 0 || launcher_local_size(getenv, launcher->size) == launcher->size)
        TRY(memory_plan_check_host(recipe));
    TRY(planned_run_make(recipe, launcher->rank, &out->planned));
    out->plan.schedule = out->planned.run.schedule;
    out->plan.needs = out->planned.needs;
    return launcher->rank <= 0 ? plan_and_report(source, out) : OK;
}

void train_plan_make(const struct recipe *recipe, const struct advice_source *source,
                     const struct launcher *launcher, struct train_plan *out)
{
    *out = (struct train_plan){.plan = {.status = OK}};
    out->plan.status = make(recipe, source, launcher, out);
    if (out->plan.status == OK)
        return;
    text_add(&out->why, "%s", fail_text());
    out->plan.why = out->why.chars;
}

void train_plan_free(struct train_plan *plan)
{
    planned_run_free(&plan->planned);
    text_free(&plan->json);
    text_free(&plan->why);
    free(plan->report);
}
