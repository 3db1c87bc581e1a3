// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/step_plan.h"

#include "layers/model.h"
#include "planner/plan/limits.h"
#include "planner/recipe/planned_recipe.h"

#include <stdlib.h>
#include <string.h>

/* ---- where the time goes ---- */

static void print_line_of(FILE *to, const char *what, double seconds, double step_s)
{
    if (seconds > 0.0)
        fprintf(to, "  %-36s %11.3f ms %6.1f %%\n", what, 1e3 * seconds, 100.0 * seconds / step_s);
}

static const char *const classes[COST_CLASSES] = {
    [COST_MATMUL] = "matmuls",
    [COST_ATTENTION] = "attention",
    [COST_MEMORY] = "memory-bound ops",
    [COST_LAUNCH] = "kernel launches",
    [COST_OVERLAP] = "slowdown by overlap with messages",
    [COST_SHARED_CORES] = "slowdown by shared cores",
};
static const char *const groups[PREDICT_GROUPS] = {
    [GROUP_TP] = "tensor-parallel messages", [GROUP_PP] = "pipeline messages",
    [GROUP_DP] = "data-parallel messages",   [GROUP_ZERO] = "ZeRO gathers and reductions",
    [GROUP_HOST] = "host-device copies",     [GROUP_OTHER] = "other messages",
};

static void print_breakdown(const struct step_plan *plan, FILE *to)
{
    const struct prediction *step = plan->step;
    double bubble_s = 0.0;
    fprintf(to, "time of a step, mean over the pipeline ranks:\n");
    for (int c = 0; c < COST_CLASSES; c++) {
        double sum = 0.0;
        for (int i = 0; i < step->count; i++)
            sum += step->ranks[i].run_s[c];
        print_line_of(to, classes[c], sum / step->count, plan->step_s);
    }
    for (int g = 0; g < PREDICT_GROUPS; g++) {
        double sum = 0.0;
        char what[64];
        for (int i = 0; i < step->count; i++)
            sum += step->ranks[i].exposed_s[g];
        snprintf(what, sizeof what, "exposed %s", groups[g]);
        print_line_of(to, what, sum / step->count, plan->step_s);
    }
    for (int i = 0; i < step->count; i++)
        bubble_s += step->ranks[i].bubble_s / step->count;
    print_line_of(to, "pipeline bubble", bubble_s, plan->step_s);
    print_line_of(to, "step overhead", plan->profile->model.step_overhead_s, plan->step_s);
}

struct share {
    const char *name; // NULL: the share of a rank
    int rank;
    double seconds;
};

static int larger_share(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : x->rank - y->rank;
}

/* One line: the largest shares, and the sum of the others. */
static void print_shares(struct share *shares, int count, double step_s, FILE *to)
{
    enum { MAX_SHARES = 5 };
    double others_s = 0.0;
    qsort(shares, (size_t)count, sizeof *shares, larger_share);
    for (int i = 0; i < count; i++) {
        const double percent = 100.0 * shares[i].seconds / step_s;
        if (i >= MAX_SHARES || shares[i].seconds <= 0.0)
            others_s += shares[i].seconds;
        else if (shares[i].name != NULL)
            fprintf(to, "%s%s %.1f %%", i > 0 ? ", " : "  ", shares[i].name, percent);
        else
            fprintf(to, "%spp %d %.1f %%", i > 0 ? ", " : "  ", shares[i].rank, percent);
    }
    if (others_s > 0.0)
        fprintf(to, ", others %.1f %%", 100.0 * others_s / step_s);
    fprintf(to, "\n");
}

static void print_critical_path(const struct step_plan *plan, FILE *to)
{
    const struct prediction *step = plan->step;
    struct share parts[COST_CLASSES + PREDICT_GROUPS];
    struct share *ranks = calloc((size_t)step->count, sizeof *ranks);
    for (int c = 0; c < COST_CLASSES; c++)
        parts[c] = (struct share){.name = classes[c], .rank = c, .seconds = step->path.run_s[c]};
    for (int g = 0; g < PREDICT_GROUPS; g++)
        parts[COST_CLASSES + g] =
            (struct share){.name = groups[g], .rank = COST_CLASSES + g, .seconds = step->path.transfer_s[g]};
    for (int i = 0; ranks != NULL && i < step->count; i++)
        ranks[i] = (struct share){.rank = i, .seconds = step->ranks[i].critical_s};
    fprintf(to, "critical path: shares of the step\n");
    print_shares(parts, COST_CLASSES + PREDICT_GROUPS, plan->step_s + step->overlap_s, to);
    if (ranks != NULL && step->count > 1)
        print_shares(ranks, step->count, plan->step_s + step->overlap_s, to);
    free(ranks);
}

static bool same_messages(const struct predicted_rank *a, const struct predicted_rank *b)
{
    return memcmp(a->calls, b->calls, sizeof a->calls) == 0 &&
           memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* detail: ranks with the same messages have rows of their own. */
static void print_messages(const struct step_plan *plan, bool detail, FILE *to)
{
    char range[REPORT_RANGE_CHARS];
    fprintf(to, "messages of a step, by group: calls and bytes of one rank\n%5s %6s", "rank", "pp");
    for (int g = 0; g < PREDICT_GROUPS; g++)
        fprintf(to, "  %20s", predict_group_name((enum predict_group)g));
    for (int i = 0, next; i < plan->count; i = next) {
        const struct predicted_rank *rank = &plan->step->ranks[i];
        for (next = i + 1; !detail && next < plan->count && same_messages(rank, &plan->step->ranks[next]);)
            next++;
        report_range(plan->ranks[i].pp, plan->ranks[next - 1].pp, range);
        fprintf(to, "\n%5d %6s", plan->ranks[i].rank, range);
        for (int g = 0; g < PREDICT_GROUPS; g++) {
            char bytes[NUMBER_CHARS], cell[NUMBER_CHARS + 32] = "-";
            if (rank->calls[g] > 0)
                snprintf(cell, sizeof cell, "%lld x, %s", (long long)rank->calls[g],
                         bytes_text(rank->bytes[g], bytes));
            fprintf(to, "  %20s", cell);
        }
    }
    fprintf(to, "\n");
}

static void print_utilization(const struct step_plan *plan, FILE *to)
{
    const struct recipe *recipe = plan->run->recipe;
    if (plan->mfu <= 0.0)
        return;
    fprintf(to, "MFU %.1f %%, with causal attention %.1f %%; HFU %.1f %%; peak %.4g TFLOP/s (%s)\n",
            100.0 * plan->mfu, 100.0 * plan->mfu * model_causal_share(&recipe->model), 100.0 * plan->hfu,
            recipe->logging.peak_flops * 1e-12, recipe->kernels.tf32 ? "tf32" : recipe_dtype_name(recipe));
    if (plan->mfu > 1.0 || plan->hfu > 1.0)
        fprintf(to,
                "above 100 %%: MFU and HFU count all of attention, of which kernels skip the masked half\n");
}

static void print_training(const struct step_plan *plan, FILE *to)
{
    char time[NUMBER_CHARS];
    const int64_t steps = plan->run->recipe->train.train_iters;
    const double seconds = plan->step_s * (double)steps, hours = seconds * plan->run->mesh.world / 3600.0;
    fprintf(to, "training: %lld step%s in %s", (long long)steps, steps == 1 ? "" : "s",
            seconds_text(seconds, time));
    if (!plan->profile->device.is_cpu)
        fprintf(to, hours < 1e9 ? ", %.0f GPU hours" : ", %.3g GPU hours", hours);
    fprintf(to, "\n");
}

/* "memory: rank 0 needs the most: 50.10 GiB allocated + 1.00 GiB fragmentation + 2.79 GiB reserved = 53.90
 * GiB of 79.65 GiB: " */
static void print_needed(const struct step_plan *plan, FILE *to)
{
    const struct plan_needs *needs = &plan->needs;
    char number[NUMBER_CHARS], there[NUMBER_CHARS];
    fprintf(to, "memory: rank %d needs the most: ", plan->ranks[plan->peak_rank].rank);
    if (needs->ranks > 1)
        fprintf(to, "%d x ", needs->ranks);
    fprintf(to, "%s allocated", bytes_text(plan->ranks[plan->peak_rank].bytes, number));
    if (needs->fragmentation > 0)
        fprintf(to, " + %s fragmentation", bytes_text(needs->fragmentation, number));
    if (needs->reserved > 0)
        fprintf(to, " + %s reserved", bytes_text(needs->reserved, number));
    if (needs->ranks > 1 || needs->fragmentation > 0 || needs->reserved > 0)
        fprintf(to, " = %s", bytes_text(plan->needed_bytes, number));
    fprintf(to, " of %s: ", bytes_text(plan->device_bytes, there));
}

/* What a reader wants first: the step, whether it fits, and what limits it. */
static void print_results(const struct step_plan *plan, FILE *to)
{
    char tokens[NUMBER_CHARS];
    struct text basis = {0};
    fprintf(to, "on %s, %d rank%s per node: step %.4g s", plan->profile->name, plan->cost.ranks_per_node,
            plan->cost.ranks_per_node == 1 ? "" : "s", plan->step_s);
    fprintf(to, ", %s tokens/s, %.4g TFLOP/s per rank, bubble %.1f %%\n",
            count_text(plan->tokens_per_s, tokens), plan->tflops_per_rank, 100.0 * plan->bubble_fraction);
    profile_basis_text(plan->profile, &basis);
    fprintf(to, "profile: %s\n", basis.chars);
    text_free(&basis);
    print_utilization(plan, to);
    print_needed(plan, to);
    if (plan->tight)
        fprintf(to, "it fits, but leaves less than cluster.memory_headroom, %.4g %%, free\n",
                100.0 * plan->run->recipe->cluster.memory_headroom);
    else
        fprintf(to, plan->fits ? "it fits\n" : "it does NOT fit\n");
    plan_limits_print(plan, to);
    print_training(plan, to);
}

static void print_times(const struct step_plan *plan, bool detail, FILE *to)
{
    print_breakdown(plan, to);
    if (plan->step->spans != NULL)
        print_critical_path(plan, to);
    print_messages(plan, detail, to);
}

static void print_others(const struct run *run, FILE *to)
{
    int others = run->mesh.world / run->mesh.degrees.pp - 1;
    if (others > 0)
        fprintf(to, "One rank of each stage is shown; the %d other%s of a stage ha%s the same%s.\n", others,
                others == 1 ? "" : "s", others == 1 ? "s" : "ve",
                run->recipe->data_parallel.zero_stage > 0 ? ", except for one block of each bucket" : "");
}

static void print_notes(const struct step_plan *plan, FILE *to)
{
    const struct recipe *recipe = plan->run->recipe;
    if (plan->assumes_memory)
        fprintf(to, "Nothing was computed. These are not allocations of Cuboid: the section assume "
                    "counts what\nother programs store, such as those of ZeRO (1910.02054) and "
                    "Korthikanti et al. (2205.05198).\n");
    else if (device_traits(recipe->cluster.dry_device)->is_gpu)
        fprintf(to,
                "Nothing was computed: these are the allocations of this recipe with one GPU "
                "per rank. CUDA, NCCL and\ncuDNN allocate additional memory%s.\n",
                plan->profile == NULL ? "" : ": reserved and fragmentation above are estimates of it");
    else
        fprintf(to, "Nothing was computed: these are the allocations of this recipe with ranks as "
                    "threads. Ranks as\nprocesses need up to 2 MiB more per group, for "
                    "reductions.\n");
}

static enum status print_memory(const struct step_plan *plan, bool terms, FILE *to)
{
    report_parts(plan->run, plan->ranks, plan->count, terms, to);
    fflush(to);
    if (terms) {
        TRY(report_terms(plan->run, plan->ranks[plan->peak_rank].rank, to));
        if (!plan->assumes_memory && device_traits(plan->run->recipe->cluster.dry_device)->is_gpu)
            fprintf(to, "The terms do not include the buffers of reductions between GPUs.\n");
    }
    print_others(plan->run, to);
    print_notes(plan, to);
    return OK;
}

enum status step_plan_print(const struct step_plan *plan, bool terms, FILE *to)
{
    struct text assumed = {0};
    report_layout(plan->run, to);
    planned_assumed_text(plan->run->recipe, &assumed);
    if (assumed.length > 0)
        fprintf(to, "assumed of another program: %s\n", assumed.chars);
    text_free(&assumed);
    if (plan->profile == NULL)
        fprintf(to, "For the time of a step, set cluster.profile (cuboid profile --list).\n");
    else
        print_results(plan, to);
    report_stages(plan->run, terms, to);
    TRY(print_memory(plan, terms, to));
    if (plan->profile != NULL)
        print_times(plan, terms, to);
    return OK;
}
