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
    find_waits(plan.step, out->wait_s);
    find_parts(&plan, out->part_bytes);
    enum status status = plan.fits ? OK : refuse(&plan, source);
    if (status == OK)
        status = write_plan(&plan);
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
static void compare_times(const struct run_plan *plan, const struct run_measured *measured, FILE *to)
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

void run_plan_compare(const struct run_plan *plan, const struct run_measured *measured, FILE *to)
{
    if (plan->step_s <= 0.0 || measured->steps <= 0)
        return;
    fprintf(to, "%-22s %14s %14s %12s\n", "", "predicted", "measured", "difference");
    compare_times(plan, measured, to);
    compare_bytes("memory of a rank", plan->memory_peak_bytes, measured->memory_peak_bytes, to);
    for (int part = 0; part < PART_COUNT; part++) {
        char name[40];
        snprintf(name, sizeof name, "  %s", part_name((enum part)part));
        if (plan->part_bytes[part] > 0 || measured->part_peak_bytes[part] > 0)
            compare_bytes(name, plan->part_bytes[part], measured->part_peak_bytes[part], to);
    }
}
