// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/memory_need.h"

#include "base/memory.h"

/* Appends the keys that reduce the device memory of this recipe: "reduce it with
 * memory.recompute_granularity full, ...". */
static void advise_of_device(const struct recipe *recipe, struct text *out)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const struct recompute *recompute = &recipe->layers.recompute;
    const char *const keys[] = {
        recipe->train.micro_batch_size > 1 ? "a smaller train.micro_batch_size" : NULL,
        recompute->granularity != RECOMPUTE_FULL ? "memory.recompute_granularity full" : NULL,
        recipe->precision.params_dtype == F32 ? "precision.params_dtype bf16" : NULL,
        parallel->data_parallel_size > 1 && recipe->data_parallel.zero_stage < 3
            ? "a larger parallel.zero_stage"
            : NULL,
        !recipe->memory.offload_optimizer ? "memory.offload_optimizer true" : NULL,
        recipe->kernels.matmul_algorithms != NULL ? "cluster.matmul_algorithms none" : NULL,
        "more ranks in parallel.tensor_parallel_size or parallel.pipeline_parallel_size",
    };
    const char *before = "reduce it with ";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i] != NULL) {
            text_add(out, "%s%s", before, keys[i]);
            before = "; ";
        }
}

void memory_need_largest(const int64_t *bytes, struct text *out)
{
    enum { LARGEST = 4 };
    bool listed[PART_COUNT] = {[PART_SNAPSHOT] = true, [PART_HOST] = true};
    for (int n = 0; n < LARGEST; n++) {
        char number[NUMBER_CHARS];
        int most = PART_HOST;
        for (int part = 0; part < PART_COUNT; part++)
            if (!listed[part] && (listed[most] || bytes[part] > bytes[most]))
                most = part;
        text_add(out, "%s%s %s", n > 0 ? ", " : "", part_name((enum part)most),
                 bytes_text(bytes[most], number));
        listed[most] = true;
    }
}

enum status rank_create_for_training(const struct run *run, struct world *world,
                                     const struct memory_need *need, struct rank_state *out)
{
    const struct rank_options options = {.training = true, .pool_bytes = need != NULL ? need->pool_bytes : 0};
    char size[NUMBER_CHARS];
    AUTO(text) why = {0};
    *out = (struct rank_state){.run = run};
    enum status status = rank_create(run, world, &options, out);
    if (status != NO_DEVICE_MEMORY || out->device != NULL || need == NULL)
        return status; // of an open device: memory_need_explain()
    text_add(&why, "%s; rank %d needs %s of GPU %d (", fail_text(), world->rank,
             bytes_text((int64_t)need->pool_bytes, size), world->device_index);
    memory_need_largest(need->part_bytes, &why);
    text_add(&why, "); ");
    advise_of_device(run->recipe, &why);
    return fail(status, "%s", text_chars(&why));
}

/* Appends the keys that reduce host memory, pinned or not. */
static void advise_of_host(const struct recipe *recipe, struct text *out)
{
    text_add(out, "; reduce it with ");
    if (recipe->memory.offload_optimizer)
        text_add(out, "memory.offload_optimizer false; ");
    if (recipe->memory.offload_activations)
        text_add(out, "memory.offload_activations false; ");
    if (recipe->checkpoint.async_save)
        text_add(out, "a smaller checkpoint.staging_mb; ");
    text_add(out, "fewer ranks on a machine; other processes or a limit (container, srun --mem) "
                  "account for the rest");
}

/* Memory outside the plan's pool is allocated from CUDA, in competition with other users of the GPU. */
static void describe_allocations(const struct rank_state *state, struct text *out)
{
    char size[NUMBER_CHARS];
    const struct memory_use use = device_memory(state->device);
    int64_t held = 0;
    for (int part = 0; part < PART_COUNT; part++)
        held += part_is_on_host((enum part)part) ? 0 : use.now_bytes[part];
    text_add(out, "; rank %d has %s of GPU %d (", state->world->rank, bytes_text(held, size),
             state->world->device_index);
    memory_need_largest(use.now_bytes, out);
    text_add(out, "), and CUDA's libraries or other processes (nvidia-smi) the rest; ");
}

enum status memory_need_explain(const struct recipe *recipe, const struct rank_state *state,
                                enum status status)
{
    const bool of_gpu = status == NO_DEVICE_MEMORY && state->device != NULL;
    const bool of_host = status == NO_MEMORY && device_traits(recipe->cluster.device)->is_gpu;
    const struct rank_context *who = rank_context();
    AUTO(text) why = {0};
    if (!of_gpu && !of_host)
        return status;
    if (who->step > 0)
        text_add(&why, "step %d, %s: ", who->step, who->action);
    text_add(&why, "%s", fail_text());
    if (of_gpu) {
        describe_allocations(state, &why);
        advise_of_device(recipe, &why);
    } else {
        advise_of_host(recipe, &why);
    }
    return fail(status, "%s", text_chars(&why));
}
