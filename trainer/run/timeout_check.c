// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/timeout_check.h"

#include "base/machine.h"
#include "trainer/plan/model_flops.h"

/* FLOP/s above those of any device: of a CPU core with two FMA units of 512 bits in fp32, or with AMX in
 * bf16, at 6.5 GHz, and of a GPU in its fastest format. */
static const double core_fp32 = 64.0 * 6.5e9, core_bf16 = 2048.0 * 6.5e9, gpu = 2e16;

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

/* Messages of an action are progress: those of the other axes, and of ZeRO. */
static bool is_interrupted(const struct recipe *recipe)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    return parallel->tensor_parallel_size > 1 || parallel->context_parallel_size > 1 ||
           parallel->expert_parallel_size > 1 || recipe->data_parallel.zero_stage > 2;
}

double timeout_least_action_s(const struct recipe *recipe)
{
    const struct model_config *model = &recipe->model;
    if (is_interrupted(recipe))
        return 0.0;
    // A third is the forward pass; without attention and head. Some stage has at least the mean of all.
    const double flops_of_token = (model_flops_per_token(model) - model_attention_flops_per_token(model) -
                                   6.0 * (double)model->vocab_size * (double)model->hidden_size) /
                                  3.0;
    const double tokens = (double)recipe->train.micro_batch_size * (double)model->seq_length;
    const double stages = (double)recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    return flops_of_token * tokens / stages / most_flops(recipe);
}

enum status timeout_check(const struct recipe *recipe)
{
    const double timeout_s = recipe->resilience.heartbeat_timeout_seconds;
    if (recipe->resilience.heartbeat_is_automatic || timeout_s == 0.0)
        return OK;
    const double least_s = timeout_least_action_s(recipe);
    if (timeout_s >= least_s)
        return OK;
    return fail(BAD_RECIPE,
                "resilience.heartbeat_timeout_seconds %.9g is shorter than an action: the forward pass of a "
                "microbatch takes at least %.3g s; use auto, or a timeout above the longest action",
                timeout_s, least_s);
}
