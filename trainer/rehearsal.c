// SPDX-License-Identifier: Apache-2.0
#include "trainer/rehearsal.h"

#include "kernels/device_plan.h"

/* The run with its device left out. */
struct stand_in {
    struct run run;
    struct slot_use *slots;
    struct rehearsal *out;
};

static enum status play(struct world *world, void *argument)
{
    struct stand_in *s = argument;
    struct worker worker;
    struct step_result result;
    TRY(worker_create(&s->run, world, true, &worker));
    TRY(worker_step(&worker, &result));
    s->out->use = device_memory(worker.device);
    s->out->pool_bytes = device_planned_bytes(worker.device);
    for (int chunk = 0; s->slots != NULL && chunk < s->run.schedule->chunks; chunk++)
        stash_slots(executor_stash(worker.executor), chunk, &s->slots[chunk * SLOT_KINDS]);
    worker_destroy(&worker);
    return OK;
}

enum status rehearse(const struct run *run, int rank, struct slot_use *slots, struct rehearsal *out)
{
    struct stand_in s = {.run = *run, .slots = slots, .out = out};
    s.run.is_rehearsal = true;
    s.run.data = NULL;
    s.run.hooks = (struct hooks){0};
    return world_run_dry(run->mesh.world, rank, play, &s);
}

void rehearsal_advise(const struct recipe *recipe, struct text *out)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const struct recompute recompute = recipe_recompute(recipe);
    const char *const keys[] = {
        recipe->train.micro_batch_size > 1 ? "a smaller train.micro_batch_size" : NULL,
        recompute.granularity != RECOMPUTE_FULL ? "memory.recompute_granularity full" : NULL,
        recipe->precision.params_dtype == RECIPE_FP32 ? "precision.params_dtype bf16" : NULL,
        parallel->data_parallel_size > 1 && parallel->zero_stage < 3 ? "a larger parallel.zero_stage" : NULL,
        !recipe->memory.offload_optimizer ? "memory.offload_optimizer true" : NULL,
        "more ranks in parallel.tensor_parallel_size or parallel.pipeline_parallel_size",
    };
    const char *before = "less is taken with ";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i] != NULL) {
            text_add(out, "%s%s", before, keys[i]);
            before = "; ";
        }
}
