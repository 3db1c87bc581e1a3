// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/timeout_check.h"

#include "base/machine.h"
#include "trainer/plan/model_flops.h"

#include <math.h>
#include <stdlib.h>

/* FLOP/s above those of any device: of a CPU core with two FMA units of 512 bits in fp32, or with AMX in
 * bf16, at 6.5 GHz, and of a GPU in its fastest format. */
static const double core_fp32 = 64.0 * 6.5e9, core_bf16 = 2048.0 * 6.5e9, gpu = 2e16;

static const double look_s = 1.0;      // four polls of the monitor (trainer/progress/monitor.h)
static const double slower_most = 4.0; // the device of a profile, than the one on which the run is
enum { GPU_MESSAGES = 64 };            // that may be in flight (kernels/cuda/runtime/device_cuda.c)

static double most_flops(const struct recipe *recipe)
{
    struct machine machine;
    if (device_traits(recipe->cluster.device)->is_gpu)
        return gpu;
    machine_query(&machine);
    const int threads =
        recipe->cluster.threads_per_rank > 0 ? recipe->cluster.threads_per_rank : machine.shared_cpus;
    const bool is_fp32 = recipe->precision.params_dtype == RECIPE_FP32 &&
                         !linear_precision_quantizes(&recipe->layers.precision);
    return (double)threads * (is_fp32 ? core_fp32 : core_bf16);
}

static int64_t count_messages(const struct tape *tape)
{
    int64_t messages = 0;
    for (int lane = 0; lane < tape->lane_count; lane++)
        for (int i = 0; i < tape->lanes[lane].count; i++)
            messages += tape->lanes[lane].items[i].kind == TAPE_MESSAGE;
    return messages;
}

double timeout_least_s(const struct tape *tape, const double *op_s, bool is_gpu)
{
    double longest_op_s = 0.0, longest_action_s = 0.0, action_s = 0.0, all_s = 0.0;
    int64_t actions = 0;
    if (tape->lane_count == 0)
        return 0.0;
    const struct tape_lane *compute = &tape->lanes[0];
    for (int i = 0; i < compute->count; i++) {
        const struct tape_item *item = &compute->items[i];
        if (i == 0 || item->action != compute->items[i - 1].action) {
            actions++;
            action_s = 0.0;
        }
        if (item->kind != TAPE_OP)
            continue;
        all_s += op_s[item->index];
        action_s += op_s[item->index];
        longest_op_s = fmax(longest_op_s, op_s[item->index]);
        longest_action_s = fmax(longest_action_s, action_s);
    }
    const int64_t messages = count_messages(tape);
    if (messages == 0)
        return longest_action_s;
    // A message is progress when it is enqueued and when it arrives; an action when the host begins it, and
    // on a GPU also when that begins and completes it.
    const double parts = (double)(2 * messages + (is_gpu ? 3 : 1) * actions + 1);
    return fmax(all_s / parts, longest_op_s / (is_gpu ? GPU_MESSAGES + 1 : 1));
}

/* Seconds of each op at `flops`; only those of matmuls, of which the data does not change the FLOPs. */
static void fill_at_rate(const struct tape *tape, double flops, double *op_s)
{
    for (int i = 0; i < tape->op_count; i++)
        if (cost_class_of(tape->ops[i].kind) == COST_MATMUL)
            op_s[i] = tape->ops[i].cost.flops / flops;
}

static void fill_predicted(const struct tape *tape, const struct cost_options *options, double *op_s)
{
    for (int i = 0; i < tape->op_count; i++) {
        const struct op_time time = cost_of_op(options, &tape->ops[i]);
        op_s[i] = time.run_s + time.launch_s;
    }
}

static enum status op_times(const struct tape *tape, double **out)
{
    *out = calloc((size_t)tape->op_count + 1, sizeof **out);
    return *out != NULL ? OK : fail(NO_MEMORY, "no memory for the times of %d ops", tape->op_count);
}

/* Seconds that any action takes at most, at the rate of most_flops(): those of all layers, both passes and
 * recomputation. */
static double most_action_s(const struct recipe *recipe)
{
    const struct model_config *model = &recipe->model;
    return 2.0 * model_flops_per_token(model) * (double)recipe->train.micro_batch_size *
           (double)model->seq_length / most_flops(recipe);
}

static bool is_fixed(const struct recipe *recipe)
{
    return !recipe->resilience.heartbeat_is_automatic && recipe->resilience.heartbeat_timeout_seconds > 0.0;
}

enum status timeout_check(const struct run *run)
{
    const struct recipe *recipe = run->recipe;
    const double timeout_s = recipe->resilience.heartbeat_timeout_seconds;
    struct memory_plan memory;
    struct tape *tape = NULL;
    double *op_s = NULL;
    if (!is_fixed(recipe) || !device_traits(recipe->cluster.device)->computes ||
        timeout_s + look_s >= most_action_s(recipe) || memory_plan_check_length(recipe) != OK)
        return OK;
    enum status status = memory_plan_record(run, 0, NULL, &memory, &tape);
    if (status == NOT_SUPPORTED)
        return OK; // too long for a tape
    if (status == OK)
        status = op_times(tape, &op_s);
    if (status == OK) {
        fill_at_rate(tape, most_flops(recipe), op_s);
        const double least_s = timeout_least_s(tape, op_s, device_traits(recipe->cluster.device)->is_gpu);
        if (timeout_s + look_s < least_s)
            status =
                fail(BAD_RECIPE,
                     "resilience.heartbeat_timeout_seconds %.9g is shorter than a rank computes without "
                     "progress: at least %.3g s, on any device; use auto, or a timeout above the longest "
                     "action",
                     timeout_s, least_s);
    }
    free(op_s);
    tape_destroy(tape);
    return status;
}

enum status timeout_check_plan(const struct step_plan *plan)
{
    const struct recipe *recipe = plan->run->recipe;
    const double timeout_s = recipe->resilience.heartbeat_timeout_seconds;
    double longest_s = 0.0;
    int longest = 0;
    if (!is_fixed(recipe) || !device_traits(recipe->cluster.device)->computes)
        return OK;
    for (int i = 0; i < plan->count; i++) {
        double *op_s = NULL;
        TRY(op_times(plan->tapes[i], &op_s));
        fill_predicted(plan->tapes[i], &plan->cost, op_s);
        const double least_s = timeout_least_s(plan->tapes[i], op_s, !plan->profile->device.is_cpu);
        free(op_s);
        longest = least_s > longest_s ? i : longest;
        longest_s = fmax(longest_s, least_s);
    }
    if (slower_most * (timeout_s + look_s) >= longest_s)
        return OK;
    return fail(
        BAD_RECIPE,
        "resilience.heartbeat_timeout_seconds %.9g is shorter than rank %d computes without progress: "
        "%.3g s are predicted with cluster.profile %s; use auto, or "
        "resilience.heartbeat_timeout_seconds=%.0f",
        timeout_s, plan->ranks[longest].rank, longest_s, recipe->cluster.profile,
        ceil(slower_most * longest_s));
}
