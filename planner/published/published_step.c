// SPDX-License-Identifier: Apache-2.0
#include "layers/model.h"
#include "planner/published/published.h"

#include <math.h>
#include <string.h>

const char *printed_from_name(enum printed_from from)
{
    static const char *const names[] = {
        [PRINTED_NOTHING] = "nothing",
        [PRINTED_STEP_TIME] = "step time",
        [PRINTED_DERIVED_STEP_TIME] = "derived step time",
        [PRINTED_SAMPLES_PER_S] = "samples/s",
        [PRINTED_TOKENS_PER_S] = "tokens/s",
        [PRINTED_TFLOPS] = "TFLOP/s",
        [PRINTED_HFU] = "HFU",
        [PRINTED_MFU] = "MFU",
    };
    return names[from];
}

/* FLOPs per token, including recomputed forward passes. */
static double executed_flops(const struct model_config *model, bool full, bool selective)
{
    const double all = model_flops_per_token(model);
    const double head = 6.0 * (double)model->vocab_size * (double)model->hidden_size;
    const double attention = 2.0 * (1.0 - model_causal_share(model)) * all;
    return all + (full ? (all - head) / 3.0 : selective ? attention / 3.0 : 0.0);
}

struct printed_step published_step(const struct published_row *row, const struct model_config *model,
                                   double peak_flops)
{
    const double gpus = published_gpus(row), samples = row->number[PUBLISHED_GLOBAL_BATCH];
    const double tokens = samples * row->number[PUBLISHED_SEQ];
    const bool full = strncmp(row->cell[PUBLISHED_RECOMPUTE], "full", 4) == 0;
    const bool selective = strncmp(row->cell[PUBLISHED_RECOMPUTE], "selective", 9) == 0;
    const double flops = model != NULL ? model_flops_per_token(model) * tokens : NAN;
    const double executed = model != NULL ? executed_flops(model, full, selective) * tokens : NAN;
    const double peak = peak_flops > 0.0 ? peak_flops : NAN;
    const struct printed_step found[] = {
        {row->number[PUBLISHED_STEP_TIME_S], PRINTED_STEP_TIME},
        {row->number[PUBLISHED_STEP_TIME_DERIVED_S], PRINTED_DERIVED_STEP_TIME},
        {samples / (row->number[PUBLISHED_SAMPLES_PER_S_PER_GPU] * gpus), PRINTED_SAMPLES_PER_S},
        {tokens / (row->number[PUBLISHED_TOKENS_PER_S_PER_GPU] * gpus), PRINTED_TOKENS_PER_S},
        {(full ? executed : flops) / (row->number[PUBLISHED_TFLOPS_PER_GPU] * 1e12 * gpus), PRINTED_TFLOPS},
        {executed / (row->number[PUBLISHED_HFU_PCT] / 100.0 * peak * gpus), PRINTED_HFU},
        {flops / (row->number[PUBLISHED_MFU_PCT] / 100.0 * peak * gpus), PRINTED_MFU},
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (isfinite(found[i].seconds) && found[i].seconds > 0.0)
            return found[i];
    return (struct printed_step){0.0, PRINTED_NOTHING};
}
