// SPDX-License-Identifier: Apache-2.0
/* The layout of a recipe: how many ranks, over which transport, and which layers are in which stage. */
#include "trainer/recipe/recipe_rules.h"

#include "parallel/comm.h"

#include <math.h>
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

const char *recipe_transport(const struct recipe *recipe)
{
    const char *device = recipe->cluster.device;
    bool host = !device_traits(device)->computes || device_traits(device)->has_host_memory;
    bool is_auto = strcmp(recipe->cluster.transport, "auto") == 0;
    return is_auto && !host && recipe_ranks(recipe) > 1 ? "nccl" : recipe->cluster.transport;
}

bool recipe_has_processes(const struct recipe *recipe)
{
    struct launcher launcher;
    if (strcmp(recipe->cluster.transport, "auto") != 0)
        return strcmp(recipe->cluster.transport, "mpi") == 0;
    return launcher_find(&launcher) == OK && launcher.size > 1;
}

struct world_options recipe_world(const struct recipe *recipe, int size)
{
    return (struct world_options){.transport = recipe_transport(recipe),
                                  .size = size,
                                  .nondeterministic = !recipe->deterministic,
                                  .ranks_per_gpu = recipe->cluster.ranks_per_gpu,
                                  .rendezvous = recipe->logging.run_dir};
}

struct world_options recipe_world_of_threads(const struct recipe *recipe, int size)
{
    struct world_options options = recipe_world(recipe, size);
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

/* Number of layers before the end of `stage` (-1: 0) if each stage ends where the parameters so far are
 * nearest to an even share. Norms and biases are not counted. */
static int64_t layers_until(const struct model_config *model, int64_t stages, int64_t stage)
{
    const double hidden = (double)model->hidden_size, layers = (double)model->num_layers;
    const double heads = (double)(2 * model->num_attention_heads + 2 * model->num_query_groups);
    const double matrices = model_is_gated(model) ? 3.0 : 2.0;
    const double layer =
        hidden * (heads * (double)model->kv_channels + matrices * (double)model->ffn_hidden_size);
    const double vocabulary = hidden * (double)model->vocab_size; // of the embedding, and again of the head
    if (stage < 0 || stage == stages - 1)
        return stage < 0 ? 0 : model->num_layers;
    const double share = (layers * layer + 2.0 * vocabulary) * (double)(stage + 1) / (double)stages;
    const double until = floor((share - vocabulary) / layer + 0.5);
    return (int64_t)fmax(0.0, fmin(until, layers));
}

/* Layers before the first module of `stage`, of the list embedding, layers, final norm, head. */
static int64_t layers_before_module(const struct model_config *model, int64_t stages, int64_t stage)
{
    const int64_t modules = model->num_layers + 3, larger = modules % stages;
    const int64_t before = stage * (modules / stages) + (stage < larger ? stage : larger);
    return before <= 1 ? 0 : before - 1 < model->num_layers ? before - 1 : model->num_layers;
}

int64_t partition_stage_layers(const struct model_config *model, enum stage_partition partition,
                               int64_t stages, int64_t stage)
{
    if (partition == PARTITION_PARAMETERS)
        return layers_until(model, stages, stage) - layers_until(model, stages, stage - 1);
    if (partition == PARTITION_MODULES)
        return layers_before_module(model, stages, stage + 1) - layers_before_module(model, stages, stage);
    // Embedding and head as layers: num_layers + 2 as evenly as possible, the larger stages in the middle.
    const int64_t all = model->num_layers + 2, larger = all % stages, begin = (stages - larger) / 2;
    const int64_t here = all / stages + (stage >= begin && stage < begin + larger ? 1 : 0);
    return here - (stage == 0) - (stage == stages - 1);
}

int64_t recipe_stage_layers(const struct recipe *recipe, int stage)
{
    int64_t stages = (int64_t)recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    int64_t layers = recipe->model.num_layers;
    CHECK(stage >= 0 && stage < stages);
    if (recipe->pipeline.layout.count > 0)
        return recipe->pipeline.layout.list[stage];
    if (recipe->pipeline.partition != PARTITION_EVEN)
        return partition_stage_layers(&recipe->model, recipe->pipeline.partition, stages, stage);
    return layers / stages + (stage < layers % stages ? 1 : 0);
}

int64_t recipe_stage_first_layer(const struct recipe *recipe, int stage)
{
    int64_t first = 0;
    for (int s = 0; s < stage; s++)
        first += recipe_stage_layers(recipe, s);
    return first;
}
