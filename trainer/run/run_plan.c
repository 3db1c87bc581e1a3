// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_plan.h"

#include <math.h>
#include <string.h>

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

static enum status write_plan(const struct step_plan *plan)
{
    struct text path = {0}, json = {0};
    text_add(&path, "%s/plan.json", plan->run->recipe->logging.run_dir);
    text_add(&json, "{");
    step_plan_json(plan, &json);
    text_add(&json, "}\n");
    enum status status = file_write_atomic(path.chars, json.chars, json.length);
    text_free(&path);
    text_free(&json);
    return status;
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

static enum status plan_and_write(const struct run *run, const struct cluster_profile *profile,
                                  const struct advice_source *source, struct run_plan *out)
{
    struct step_plan plan;
    const enum status planned = step_plan_make_timeline(run, profile, &plan);
    if (planned == NOT_SUPPORTED) {
        print_line(stderr, "warning: the step time is not predicted: %s", fail_text());
        return OK;
    }
    TRY(planned);
    *out = (struct run_plan){.step_s = plan.step_s,
                             .bubble_fraction = plan.bubble_fraction,
                             .memory_peak_bytes = plan.ranks[plan.peak_rank].bytes,
                             .error_fraction = profile->fit.error_fraction};
    enum status status = plan.fits ? write_plan(&plan) : refuse(&plan, source);
    step_plan_free(&plan);
    return status;
}

enum status run_plan_make(const struct run *run, const struct advice_source *source, struct run_plan *out)
{
    struct cluster_profile *profile = NULL;
    *out = (struct run_plan){.step_s = 0.0};
    TRY(step_plan_profile(run->recipe, &profile));
    enum status status = OK;
    if (profile != NULL && is_of_this_kind(run->recipe, profile))
        status = plan_and_write(run, profile, source, out);
    profile_destroy(profile);
    return status;
}

void run_plan_compare(const struct run_plan *plan, const struct run_measured *measured, FILE *to)
{
    char predicted[NUMBER_CHARS], peak[NUMBER_CHARS];
    if (plan->step_s <= 0.0 || measured->steps <= 0)
        return;
    fprintf(to, "%-22s %14s %14s %12s\n", "", "predicted", "measured", "difference");
    fprintf(to, "%-22s %12.4g s %12.4g s %10.1f %%", "step", plan->step_s, measured->step_s,
            100.0 * (measured->step_s / plan->step_s - 1.0));
    if (plan->error_fraction > 0.0)
        fprintf(to, "  (the profile: +- %.0f %%)", 100.0 * plan->error_fraction);
    if (!isnan(measured->bubble_fraction))
        fprintf(to, "\n%-22s %12.1f %% %12.1f %%", "bubble", 100.0 * plan->bubble_fraction,
                100.0 * measured->bubble_fraction);
    fprintf(to, "\n%-22s %14s %14s %10.1f %%\n", "memory of a rank",
            bytes_text(plan->memory_peak_bytes, predicted), bytes_text(measured->memory_peak_bytes, peak),
            100.0 * ((double)measured->memory_peak_bytes / (double)plan->memory_peak_bytes - 1.0));
}
