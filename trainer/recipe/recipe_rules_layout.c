// SPDX-License-Identifier: Apache-2.0
/* Rules of the model and of its partition: heads, the MLP, stages, ranks and the batch. */
#include "schedules/schedule.h"
#include "trainer/recipe/recipe_rules.h"

#include <string.h>

enum { SHOWN_STAGES = 64 };

#define TP        "parallel.tensor_parallel_size"
#define PER_STAGE "pipeline.num_layers_per_virtual_pipeline_stage"
#define PP        "parallel.pipeline_parallel_size"
#define DP        "parallel.data_parallel_size"
#define HEADS     "model.num_attention_heads"
#define WIDTH     "model.hidden_size"
#define GROUPS    "model.num_query_groups"

/* ---- the model ---- */

static int64_t heads_of(const struct recipe *r)
{
    return r->model.num_attention_heads;
}

static bool groups_holds(const struct view *v)
{
    return v->recipe->model.num_attention_heads % v->recipe->model.num_query_groups == 0;
}

static void groups_message(const struct view *v, struct text *out)
{
    const struct model_config *m = &v->recipe->model;
    text_add(out, "model.num_attention_heads %lld is not divisible by model.num_query_groups %lld",
             (long long)m->num_attention_heads, (long long)m->num_query_groups);
}

/* ---- tensor parallelism ---- */

static int64_t tp_of(const struct recipe *r)
{
    return r->parallel.tensor_parallel_size;
}

/* Start of a search for a valid tp: it cannot exceed the number of heads. */
static int64_t tp_within_heads(const struct recipe *r)
{
    return tp_of(r) < heads_of(r) ? tp_of(r) : heads_of(r);
}

static bool heads_tp_holds(const struct view *v)
{
    return v->recipe->model.num_attention_heads % tp_of(v->recipe) == 0;
}

static void heads_tp_message(const struct view *v, struct text *out)
{
    text_add(out, "model.num_attention_heads %lld is not divisible by parallel.tensor_parallel_size %lld",
             (long long)v->recipe->model.num_attention_heads, (long long)tp_of(v->recipe));
}

static bool groups_tp_holds(const struct view *v)
{
    int64_t groups = v->recipe->model.num_query_groups, tp = tp_of(v->recipe);
    // Multi-head attention has as many groups as heads: then heads_tp_message() reports it.
    return !v->given[GIVEN_GROUPS] || groups % tp == 0 || tp % groups == 0;
}

static void groups_tp_message(const struct view *v, struct text *out)
{
    text_add(out,
             "model.num_query_groups %lld and parallel.tensor_parallel_size %lld: neither is divisible by "
             "the other",
             (long long)v->recipe->model.num_query_groups, (long long)tp_of(v->recipe));
}

static bool ffn_tp_holds(const struct view *v)
{
    return v->recipe->model.ffn_hidden_size % tp_of(v->recipe) == 0;
}

static void ffn_tp_message(const struct view *v, struct text *out)
{
    text_add(out, "model.ffn_hidden_size %lld is not divisible by parallel.tensor_parallel_size %lld",
             (long long)v->recipe->model.ffn_hidden_size, (long long)tp_of(v->recipe));
}

static bool sequence_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return !r->layers.sequence_parallel || r->train.micro_batch_size * r->model.seq_length % tp_of(r) == 0;
}

static void sequence_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    text_add(out,
             "parallel.sequence_parallel shards train.micro_batch_size %lld x model.seq_length %lld tokens, "
             "which are not divisible by parallel.tensor_parallel_size %lld",
             (long long)r->train.micro_batch_size, (long long)r->model.seq_length, (long long)tp_of(r));
}

/* ---- stages ---- */

static int64_t stages_of(const struct recipe *r)
{
    return (int64_t)r->parallel.pipeline_parallel_size * r->pipeline.virtual_stages;
}

static int64_t layout_sum(const struct recipe *r)
{
    int64_t sum = 0;
    for (size_t i = 0; i < r->pipeline.layout.count; i++)
        sum += r->pipeline.layout.list[i];
    return sum;
}

/* Modules that count as a layer each besides the layers. */
static int64_t other_modules(const struct recipe *r)
{
    const enum stage_partition partition = r->pipeline.partition;
    return partition == PARTITION_MODULES ? 3 : partition == PARTITION_EMBEDDING_AS_LAYER ? 2 : 0;
}

static bool enough_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return r->pipeline.layout.count > 0 || r->model.num_layers + other_modules(r) >= stages_of(r);
}

static void enough_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    text_add(out,
             "model.num_layers %lld is less than the %lld stages of parallel.pipeline_parallel_size %d x "
             "pipeline.virtual_stages %d (a pipeline.layout may have zeros)",
             (long long)r->model.num_layers, (long long)stages_of(r), r->parallel.pipeline_parallel_size,
             r->pipeline.virtual_stages);
}

static int64_t layers_per_chunk(const struct recipe *r)
{
    return r->model.num_layers / r->pipeline.virtual_stages;
}

static bool layout_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    size_t count = r->pipeline.layout.count;
    return count == 0 || ((int64_t)count == stages_of(r) && layout_sum(r) == r->model.num_layers);
}

static void layout_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    int64_t stages = stages_of(r), sum = layout_sum(r);
    size_t count = r->pipeline.layout.count;
    if ((int64_t)count != stages)
        text_add(out,
                 "pipeline.layout has %zu entries; parallel.pipeline_parallel_size %d x "
                 "pipeline.virtual_stages %d is %lld stages",
                 count, r->parallel.pipeline_parallel_size, r->pipeline.virtual_stages, (long long)stages);
    if (sum != r->model.num_layers)
        text_add(out, "%s %lld, but model.num_layers is %lld",
                 (int64_t)count != stages ? ", its sum is" : "pipeline.layout sums to", (long long)sum,
                 (long long)r->model.num_layers);
    if (stages > SHOWN_STAGES) {
        text_add(out, "; remove pipeline.layout to distribute them evenly");
        return;
    }
    int64_t layers = r->model.num_layers;
    for (int64_t s = 0; s < stages; s++)
        text_add(out, "%s%lld", s == 0 ? "; use pipeline.layout=[" : ", ",
                 (long long)(layers / stages + (s < layers % stages ? 1 : 0)));
    text_add(out, "]");
}

/* The number of layers that the keys imply. */
static int64_t layers_implied(const struct recipe *r)
{
    return stages_of(r) * r->pipeline.layers_per_stage;
}

static bool per_stage_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    return r->pipeline.layers_per_stage == 0 ||
           (layers_implied(r) == r->model.num_layers && r->pipeline.layout.count == 0);
}

static void per_stage_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    long long layers = r->model.num_layers, each = r->pipeline.layers_per_stage;
    int p = r->parallel.pipeline_parallel_size;
    text_add(out, PER_STAGE " %lld ", each);
    if (layers_implied(r) == layers)
        text_add(out, "and pipeline.layout are mutually exclusive; use pipeline.layout=[]");
    else if (v->given[GIVEN_VIRTUAL])
        text_add(out,
                 "x " PP " %d x pipeline.virtual_stages %d is %lld layers, but model.num_layers is "
                 "%lld",
                 p, r->pipeline.virtual_stages, (long long)layers_implied(r), layers);
    else
        text_add(out, "x " PP " %d is %lld layers, which do not divide model.num_layers %lld", p, each * p,
                 layers);
}

/* ---- the schedule ---- */

static int64_t samples_at_once(const struct recipe *r)
{
    return r->train.micro_batch_size * r->parallel.data_parallel_size;
}

static bool is_schedule_file(const struct recipe *r)
{
    return strcmp(r->pipeline.schedule, "file") == 0;
}

static bool one_schedule_holds(const struct view *v)
{
    return is_schedule_file(v->recipe) == (v->recipe->pipeline.schedule_file != NULL);
}

static void one_schedule_message(const struct view *v, struct text *out)
{
    const struct recipe_pipeline *p = &v->recipe->pipeline;
    if (p->schedule_file == NULL)
        text_add(out, "pipeline.schedule file needs a pipeline.schedule_file");
    else
        text_add(out,
                 "pipeline.schedule %s and pipeline.schedule_file %s are mutually exclusive; use "
                 "pipeline.schedule_file=none or pipeline.schedule=file",
                 p->schedule, p->schedule_file);
}

static int64_t file_p(const struct recipe *r)
{
    return r->pipeline.file.p;
}

static int64_t file_v(const struct recipe *r)
{
    return r->pipeline.file.v;
}

static int64_t file_batch(const struct recipe *r)
{
    return r->pipeline.file.m * samples_at_once(r);
}

static bool file_holds(const struct view *v)
{
    const struct recipe *r = v->recipe;
    const struct recipe_pipeline *p = &r->pipeline;
    if (p->schedule_file == NULL || !is_schedule_file(r)) // one_schedule_message() reports both together
        return true;
    return p->file.p == r->parallel.pipeline_parallel_size && p->file.v == p->virtual_stages &&
           p->file.m == recipe_microbatches(r) && p->microbatch_group_size == 0;
}

static void file_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    const struct recipe_pipeline *p = &r->pipeline;
    text_add(out,
             "pipeline.schedule_file %s is made for parallel.pipeline_parallel_size %d, %d microbatch%s and "
             "pipeline.virtual_stages %d, not for %d, %lld and %d",
             p->schedule_file, p->file.p, p->file.m, p->file.m == 1 ? "" : "es", p->file.v,
             r->parallel.pipeline_parallel_size, (long long)recipe_microbatches(r), p->virtual_stages);
    if (p->microbatch_group_size > 0)
        text_add(out, "; it does not support pipeline.microbatch_group_size %d", p->microbatch_group_size);
}

static struct schedule_options options_of(const struct recipe *r)
{
    return (struct schedule_options){
        .name = r->pipeline.schedule,
        .p = r->parallel.pipeline_parallel_size,
        .m = (int)recipe_microbatches(r),
        .v = r->pipeline.virtual_stages,
        .microbatch_group_size = r->pipeline.microbatch_group_size,
    };
}

static int64_t most_microbatches(const struct recipe *r)
{
    return schedule_max_microbatches(r->parallel.pipeline_parallel_size, r->pipeline.virtual_stages);
}

static bool fits_holds(const struct view *v)
{
    return recipe_microbatches(v->recipe) <= most_microbatches(v->recipe);
}

static void fits_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    text_add(out,
             "train.global_batch_size %lld gives %lld microbatches of train.micro_batch_size %lld per "
             "data-parallel rank; with parallel.pipeline_parallel_size %d and pipeline.virtual_stages %d at "
             "most %lld fit in memory",
             (long long)r->train.global_batch_size, (long long)recipe_microbatches(r),
             (long long)r->train.micro_batch_size, r->parallel.pipeline_parallel_size,
             r->pipeline.virtual_stages, (long long)most_microbatches(r));
}

static int64_t largest_batch(const struct recipe *r)
{
    return most_microbatches(r) * samples_at_once(r);
}

static bool supported_holds(const struct view *v)
{
    struct schedule_options options = options_of(v->recipe);
    if (!fits_holds(v))
        return true; // fits_message() reports it
    return is_schedule_file(v->recipe) || options.m < 1 ||
           schedule_unsupported(&options) == NULL; // no whole microbatch: batch_message() reports it
}

static void supported_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    struct schedule_options options = options_of(r);
    text_add(out,
             "pipeline.schedule %s does not support parallel.pipeline_parallel_size %d, %d microbatches "
             "and pipeline.virtual_stages %d",
             options.name, options.p, options.m, options.v);
    if (options.microbatch_group_size > 0)
        text_add(out, " with pipeline.microbatch_group_size %d", options.microbatch_group_size);
    text_add(out, ": %s; it supports %s", schedule_unsupported(&options),
             schedule_supported_sizes(options.name));
    int others = 0;
    for (int i = 0; schedule_about(i) != NULL; i++) {
        options.name = schedule_about(i)->name;
        if (schedule_unsupported(&options) == NULL)
            text_add(out, "%s%s", others++ == 0 ? "; schedules that support it: " : ", ", options.name);
    }
}

static bool limit_holds(const struct view *v)
{
    double limit = v->recipe->pipeline.search.memory_limit;
    return limit == 0.0 || limit >= 1.0;
}

static void limit_message(const struct view *v, struct text *out)
{
    char number[NUMBER_CHARS];
    text_add(out,
             "pipeline.auto_memory_limit %s: a rank must hold the activations of a whole microbatch (0: "
             "no limit); use 1",
             number_text(v->recipe->pipeline.search.memory_limit, number));
}

static bool times_hold(const struct view *v)
{
    const struct recipe_auto *times = &v->recipe->pipeline.search;
    return times->f + times->i + times->w > 0.0;
}

static void times_message(const struct view *v, struct text *out)
{
    (void)v;
    text_add(out, "pipeline.auto_f, pipeline.auto_i and pipeline.auto_w are all 0; set at least one of them, "
                  "such as pipeline.auto_f=1");
}

/* ---- post-validation ---- */

static bool validated_pipeline_holds(const struct view *v)
{
    return !v->recipe->pipeline.optimizer_post_validation || v->recipe->parallel.pipeline_parallel_size > 1;
}

static int64_t two(const struct recipe *r)
{
    (void)r;
    return 2;
}

static void validated_pipeline_message(const struct view *v, struct text *out)
{
    text_add(out,
             "pipeline.optimizer_post_validation overlaps the steps of several stages, but "
             "parallel.pipeline_parallel_size is %d",
             v->recipe->parallel.pipeline_parallel_size);
}

static bool validated_schedule_holds(const struct view *v)
{
    const struct recipe_pipeline *p = &v->recipe->pipeline;
    return !p->optimizer_post_validation || (strcmp(p->schedule, "dualpipe") != 0 && !p->file.stage_replicas);
}

static void validated_schedule_message(const struct view *v, struct text *out)
{
    text_add(out,
             "pipeline.optimizer_post_validation gains nothing with pipeline.schedule %s: every stage has "
             "replicas on two ranks, which reduce their gradients before either can step; use "
             "pipeline.optimizer_post_validation=false",
             v->recipe->pipeline.file.stage_replicas ? v->recipe->pipeline.schedule_file : "dualpipe");
}

/* ---- ranks and batches ---- */

static double product_of_degrees(const struct recipe *r)
{
    return (double)r->parallel.tensor_parallel_size * r->parallel.pipeline_parallel_size *
           r->parallel.data_parallel_size;
}

static bool world_holds(const struct view *v)
{
    double product = product_of_degrees(v->recipe);
    return v->world == 0 ? product <= RULE_MAX_WORLD : product == v->world;
}

/* " does not divide the 3 ranks (it divides 2 and 4)": the nearest multiples of the ranks of one replica. */
static void add_nearest_worlds(const struct view *v, struct text *out)
{
    const struct recipe_parallel *p = &v->recipe->parallel;
    const int64_t replica = (int64_t)p->tensor_parallel_size * p->pipeline_parallel_size;
    const int64_t below = v->world / replica * replica;
    text_add(out, " does not divide the %d ranks (it divides ", v->world);
    if (below > 0)
        text_add(out, "%lld and ", (long long)below);
    text_add(out, "%lld)", (long long)(below + replica));
}

static void world_message(const struct view *v, struct text *out)
{
    const struct recipe_parallel *p = &v->recipe->parallel;
    bool fixed = v->given[GIVEN_DP];
    text_add(out, "parallel.tensor_parallel_size %d x parallel.pipeline_parallel_size %d",
             p->tensor_parallel_size, p->pipeline_parallel_size);
    if (fixed || v->world == 0)
        text_add(out, " x parallel.data_parallel_size %d", p->data_parallel_size);
    if (v->world == 0)
        text_add(out, " is %.0f ranks; at most %d are possible", product_of_degrees(v->recipe),
                 RULE_MAX_WORLD);
    else if (fixed)
        text_add(out, " is %.0f ranks, but there are %d", product_of_degrees(v->recipe), v->world);
    else
        add_nearest_worlds(v, out);
}

static bool batch_holds(const struct view *v)
{
    return v->recipe->train.global_batch_size % samples_at_once(v->recipe) == 0 || !rule_replicas_hold(v);
}

static void batch_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    text_add(out,
             "train.global_batch_size %lld is not divisible by train.micro_batch_size %lld x "
             "parallel.data_parallel_size %d",
             (long long)r->train.global_batch_size, (long long)r->train.micro_batch_size,
             r->parallel.data_parallel_size);
    if (rule_degree_of_nodes(v))
        text_add(out, ", of cluster.nodes %d", r->cluster.nodes);
}

/* ---- the rules ---- */

static bool graphs_hold(const struct view *v)
{
    const struct recipe_parallel *p = &v->recipe->parallel;
    return !v->recipe->cluster.cuda_graphs ||
           (p->tensor_parallel_size == 1 &&
            (v->recipe->data_parallel.zero_stage <= 1 || p->data_parallel_size == 1) &&
            !v->recipe->memory.offload_activations);
}

static void graphs_message(const struct view *v, struct text *out)
{
    const struct recipe_parallel *p = &v->recipe->parallel;
    text_add(out,
             "cluster.cuda_graphs true does not support messages or copies inside layers: "
             "parallel.tensor_parallel_size is %d, parallel.zero_stage %d and memory.offload_activations "
             "%s; use 1, at most 1, and false, or cluster.cuda_graphs=false",
             p->tensor_parallel_size, v->recipe->data_parallel.zero_stage,
             v->recipe->memory.offload_activations ? "true" : "false");
}

static const struct rule rules[] = {
    {GROUPS " " HEADS, groups_holds, groups_message, {{.key = GROUPS}, {.key = HEADS}}},
    {TP " " HEADS,
     heads_tp_holds,
     heads_tp_message,
     {{.key = TP, .guess = tp_within_heads}, {.key = HEADS, .grid = tp_of}}},
    {TP " " GROUPS " " HEADS,
     groups_tp_holds,
     groups_tp_message,
     {{.key = TP, .guess = tp_within_heads}, {.key = GROUPS}}},
    {TP " model.ffn_hidden_size " WIDTH " model.activation",
     ffn_tp_holds,
     ffn_tp_message,
     {{.key = TP, .guess = tp_within_heads}, {.key = "model.ffn_hidden_size", .grid = tp_of}}},
    {TP " parallel.sequence_parallel train.micro_batch_size model.seq_length",
     sequence_holds,
     sequence_message,
     {{.key = TP, .guess = tp_within_heads},
      {.key = "train.micro_batch_size"},
      {.key = "model.seq_length", .grid = tp_of}}},
    {PP " model.num_layers pipeline.virtual_stages pipeline.layout pipeline.schedule",
     enough_holds,
     enough_message,
     {{.key = PP, .guess = layers_per_chunk},
      {.key = "pipeline.virtual_stages"},
      {.key = "model.num_layers", .guess = stages_of}}},
    {"pipeline.layout model.num_layers pipeline.virtual_stages pipeline.schedule " PP,
     layout_holds,
     layout_message,
     {{0}}},
    {"pipeline.schedule pipeline.schedule_file", one_schedule_holds, one_schedule_message, {{0}}},
    {PER_STAGE " pipeline.virtual_stages pipeline.layout model.num_layers " PP,
     per_stage_holds,
     per_stage_message,
     {{.key = PER_STAGE}}},
    {"pipeline.schedule_file pipeline.virtual_stages pipeline.microbatch_group_size " PP
     " train.global_batch_size train.micro_batch_size " DP " " TP,
     file_holds,
     file_message,
     {{.key = PP, .guess = file_p},
      {.key = "train.global_batch_size", .guess = file_batch},
      {.key = "pipeline.virtual_stages", .guess = file_v}}},
    {"train.global_batch_size train.micro_batch_size pipeline.virtual_stages " PP " " DP " " TP,
     fits_holds,
     fits_message,
     {{.key = "train.global_batch_size", .guess = largest_batch}}},
    {"pipeline.schedule pipeline.virtual_stages pipeline.microbatch_group_size " PP
     " train.global_batch_size train.micro_batch_size " DP " " TP,
     supported_holds,
     supported_message,
     {{.key = "pipeline.virtual_stages"}, {.key = "pipeline.microbatch_group_size"}, {.key = PP}}},
    {"pipeline.auto_memory_limit", limit_holds, limit_message, {{0}}},
    {"pipeline.auto_f pipeline.auto_i pipeline.auto_w", times_hold, times_message, {{0}}},
    {"pipeline.optimizer_post_validation " PP,
     validated_pipeline_holds,
     validated_pipeline_message,
     {{.key = PP, .guess = two}}},
    {"pipeline.optimizer_post_validation pipeline.schedule pipeline.schedule_file",
     validated_schedule_holds,
     validated_schedule_message,
     {{0}}},
    {PP " " TP " " DP, world_holds, world_message, {{.key = DP}, {.key = TP}, {.key = PP}}},
    {"train.global_batch_size train.micro_batch_size " DP " " TP " " PP,
     batch_holds,
     batch_message,
     {{.key = "train.global_batch_size", .grid = samples_at_once},
      {.key = "cluster.nodes", .min = 1, .applies = rule_degree_of_nodes, .also = true},
      {.key = "train.micro_batch_size"},
      {.key = DP}}},
    {"cluster.cuda_graphs parallel.tensor_parallel_size parallel.zero_stage parallel.data_parallel_size "
     "memory.offload_activations",
     graphs_hold,
     graphs_message,
     {{0}}},
};
const struct rules recipe_layout_rules = RULES_OF(rules);
