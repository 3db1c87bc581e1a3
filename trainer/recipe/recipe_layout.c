// SPDX-License-Identifier: Apache-2.0
/* The layout of a recipe: how many ranks, over which transport, and which layers are in which stage. */
#include "trainer/recipe/recipe_rules.h"

#include "parallel/comm.h"

#include <string.h>

int64_t recipe_ranks(const struct recipe *recipe)
{
    const struct recipe_parallel *p = &recipe->parallel;
    return (int64_t)p->tensor_parallel_size * p->pipeline_parallel_size * p->data_parallel_size;
}

int recipe_world_size(const struct recipe *recipe)
{
    return (int)recipe_ranks(recipe);
}

const char *recipe_transport(const struct recipe *r)
{
    const char *device = r->cluster.device;
    bool host = !device_traits(device)->computes || device_traits(device)->has_host_memory;
    bool is_auto = strcmp(r->cluster.transport, "auto") == 0;
    return is_auto && !host && recipe_ranks(r) > 1 ? "nccl" : r->cluster.transport;
}

bool recipe_has_processes(const struct recipe *recipe)
{
    struct launcher launcher;
    if (strcmp(recipe->cluster.transport, "auto") != 0)
        return strcmp(recipe->cluster.transport, "mpi") == 0;
    return launcher_find(&launcher) == OK && launcher.size > 1;
}

struct world_options recipe_world(const struct recipe *r, int size)
{
    return (struct world_options){.transport = recipe_transport(r),
                                  .size = size,
                                  .nondeterministic = !r->deterministic,
                                  .ranks_per_gpu = r->cluster.ranks_per_gpu,
                                  .rendezvous = r->logging.run_dir};
}

struct world_options recipe_world_of_threads(const struct recipe *r, int size)
{
    struct world_options options = recipe_world(r, size);
    if (strcmp(options.transport, "nccl") != 0)
        options.transport = "local";
    return options;
}

int64_t recipe_last_profiled_step(const struct recipe *recipe)
{
    const struct recipe_profile *profile = &recipe->profile;
    return profile->profile_step_end > 0 ? profile->profile_step_end : profile->profile_step_start;
}

int64_t recipe_microbatches(const struct recipe *recipe)
{
    return recipe->train.global_batch_size /
           (recipe->train.micro_batch_size * recipe->parallel.data_parallel_size);
}

int64_t recipe_stage_layers(const struct recipe *recipe, int stage)
{
    int64_t stages = (int64_t)recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    int64_t layers = recipe->model.num_layers;
    CHECK(stage >= 0 && stage < stages);
    if (recipe->pipeline.layout.count > 0)
        return recipe->pipeline.layout.list[stage];
    if (recipe->assume.partition != ASSUME_PARTITION_OWN)
        return assume_stage_layers(&recipe->model, recipe->assume.partition, stages, stage);
    return layers / stages + (stage < layers % stages ? 1 : 0);
}

int64_t recipe_stage_first_layer(const struct recipe *recipe, int stage)
{
    int64_t first = 0;
    for (int s = 0; s < stage; s++)
        first += recipe_stage_layers(recipe, s);
    return first;
}
