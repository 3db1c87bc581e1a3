// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/step_plan.h"

#include "base/memory.h"
#include "layers/model.h"
#include "planner/memory/memory_formula.h"
#include "planner/profile/gpu_type.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/tape/tape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory and tapes ---- */

/* Whether the section `assume` changes the memory, so that the dry run does not apply. */
static bool assumes_memory(const struct assumptions *assume)
{
    return assume->programs != ASSUME_PROGRAM || assume_stores_scores(assume) ||
           assume->gradient_dtype != ASSUME_DTYPE_OWN || assume->optimizer_bytes_per_parameter > 0 ||
           assume->logits_bytes_per_element > 0 || assume->logits == ASSUME_LOGITS_WHOLE ||
           assume->norm == ASSUME_UNFUSED || assume->activation == ASSUME_UNFUSED ||
           assume->activations == ASSUME_ACTIVATIONS_SHARED || assume->rollback == ASSUME_ROLLBACK_INVERSE ||
           assume->dropout_masks == ASSUME_MASKS_STORED;
}

static enum status replace_by_formula(const struct run *run, struct rank_memory *out)
{
    struct memory_table table;
    TRY(memory_formula(run, out->rank, run_threads(run, run->mesh.world), &table));
    memcpy(out->part_bytes, table.part_bytes, sizeof out->part_bytes);
    out->bytes = table.bytes;
    memory_table_free(&table);
    return OK;
}

bool step_plan_overlaps_gathers(const struct recipe *recipe)
{
    const int stage = recipe->data_parallel.zero_stage;
    return assumptions_of(recipe)->overlap == ASSUME_OVERLAP_BOTH && (stage == 1 || stage == 2);
}

static enum status plan_rank(struct step_plan *plan, int pp)
{
    const struct run *run = plan->run;
    struct rank_memory *out = &plan->ranks[pp];
    struct memory_plan memory;
    *out = (struct rank_memory){.rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp}),
                                .pp = pp,
                                .slots = plan->slots + pp * run->schedule->chunks * SLOT_LIFETIMES};
    TRY(memory_plan_record(run, out->rank, out->slots, &memory, &plan->tapes[pp]));
    if (step_plan_overlaps_gathers(run->recipe))
        tape_overlap_gathers(plan->tapes[pp]);
    plan->items += tape_items(plan->tapes[pp]);
    if (plan->items > TAPE_MAX_ITEMS)
        return memory_plan_too_long(run->recipe);
    memcpy(out->part_bytes, memory.use.peak_bytes, sizeof out->part_bytes);
    out->bytes = memory.use.peak_total_bytes;
    plan->assumes_memory = assumes_memory(assumptions_of(run->recipe));
    if (plan->assumes_memory)
        TRY(replace_by_formula(run, out));
    out->part_bytes[PART_WORKSPACE] += assumptions_of(run->recipe)->kept_bytes;
    out->bytes += assumptions_of(run->recipe)->kept_bytes;
    plan->peak_rank = out->bytes > plan->ranks[plan->peak_rank].bytes ? pp : plan->peak_rank;
    return OK;
}

static void allocate(struct step_plan *plan)
{
    const size_t count = (size_t)plan->count, chunks = (size_t)plan->run->schedule->chunks;
    plan->ranks = memory_zeroed(count, sizeof *plan->ranks, "the plan of ranks");
    plan->slots = memory_zeroed(count * chunks * SLOT_LIFETIMES, sizeof *plan->slots, "the plan of ranks");
    plan->tapes = memory_zeroed(count, sizeof(struct tape *), "the plan of ranks");
}

/* ---- time ---- */

static int ranks_per_node(const struct run *run, const struct cluster_profile *profile)
{
    const int world = run->mesh.world, given = run->recipe->cluster.gpus_per_node;
    const int per_node = given > 0 ? given : profile->device.is_cpu ? world : profile->node.devices;
    return per_node < world ? per_node : world;
}

static struct assumed_model assumed_model(const struct recipe *recipe)
{
    const struct model_config *model = &recipe->model;
    const struct recompute *recompute = &recipe->layers.recompute;
    const int tp = recipe->parallel.tensor_parallel_size;
    return (struct assumed_model){.attention_dropout = model->attention_dropout > 0.0,
                                  .hidden = model->hidden_size,
                                  .gate_columns = model_is_gated(model) ? 2 * model->ffn_hidden_size / tp : 0,
                                  .tensor_parallel = tp,
                                  .recomputes_modules = recompute->granularity == RECOMPUTE_FULL &&
                                                        recompute->extent == RECOMPUTE_MODULES,
                                  .replica_ranks = tp * recipe->parallel.pipeline_parallel_size};
}

/* Those of rank 0. */
static struct group_shape tensor_group(const struct run *run, const struct cost_options *options)
{
    enum { MAX_TENSOR_RANKS = 256 };
    int ranks[MAX_TENSOR_RANKS], tp = run->mesh.degrees.tp;
    for (int i = 0; i < tp && tp <= MAX_TENSOR_RANKS; i++)
        ranks[i] = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.tp = i});
    return tp <= MAX_TENSOR_RANKS ? cost_group_shape(options, ranks, tp) : (struct group_shape){.ranks = 0};
}

struct cost_options step_plan_cost_options(const struct run *run, const struct cluster_profile *profile)
{
    const struct recipe *recipe = run->recipe;
    struct cost_options options = {.profile = profile,
                                   .ranks_per_node = ranks_per_node(run, profile),
                                   .threads = recipe->cluster.threads_per_rank,
                                   .processes = profile->device.is_cpu && recipe_has_processes(recipe),
                                   .tf32 = recipe->kernels.tf32,
                                   .assume = assumptions_of(recipe),
                                   .model = assumed_model(recipe),
                                   .in_order = recipe->deterministic && !profile->device.is_cpu};
    const struct gpu_type *gpu = profile->device.is_cpu ? NULL : gpu_type_find(profile->device.name);
    options.model.compute_capability = gpu != NULL ? gpu->compute_capability : 0;
    options.tensor_group = tensor_group(run, &options);
    return options;
}

struct forward_flops {
    double matmul, first_matmul;       // of all matmuls, and of those in first forward passes
    double attention, first_attention; // of forward passes of attention, as executed
};

static void add_forward_flops(const struct tape *tape, struct forward_flops *sum)
{
    for (int lane = 0; lane < tape->lane_count; lane++)
        for (int i = 0; i < tape->lanes[lane].count; i++) {
            const struct tape_item *item = &tape->lanes[lane].items[i];
            if (item->kind != TAPE_OP)
                continue;
            const struct op_record *op = &tape->ops[item->index];
            const bool first = tape_action_is_forward(&tape->actions[item->action]);
            const double flops = 2.0 * (double)op->shape[0] * (double)op->shape[1] * (double)op->shape[2];
            if (op->kind == OP_GEMM) {
                sum->matmul += flops;
                sum->first_matmul += first ? flops : 0.0;
            } else if (op->kind == OP_ATTENTION_FORWARD) {
                sum->attention += op->cost.flops;
                sum->first_attention += first ? op->cost.flops : 0.0;
            }
        }
}

/* FLOPs of recomputed forward passes, mean over the pipeline ranks. A matmul of a forward pass has two
 * gradients of the same size. Attention is counted as by model_flops_per_token(). */
static double recomputed_flops(const struct step_plan *plan)
{
    const struct recipe *recipe = plan->run->recipe;
    const double tokens = (double)(recipe->train.global_batch_size * recipe->model.seq_length);
    const double attention = // forward pass
        model_attention_flops_per_token(&recipe->model) / 3.0 * tokens / plan->run->mesh.world;
    struct forward_flops sum = {.matmul = 0.0};
    for (int i = 0; i < plan->count; i++)
        add_forward_flops(plan->tapes[i], &sum);
    const double again = sum.first_attention > 0.0 ? sum.attention / sum.first_attention - 1.0 : 0.0;
    return fmax(0.0, sum.matmul - 3.0 * sum.first_matmul) / plan->count + again * attention;
}

static void compute_rates(struct step_plan *plan)
{
    const struct recipe *recipe = plan->run->recipe;
    const double tokens = (double)(recipe->train.global_batch_size * recipe->model.seq_length);
    const double peak = recipe->logging.peak_flops;
    double bubble = 0.0;
    for (int i = 0; i < plan->count; i++)
        bubble += plan->step->ranks[i].bubble_s / plan->count;
    plan->step_s = plan->step->step_s + plan->profile->model.step_overhead_s;
    plan->tokens_per_s = tokens / plan->step_s;
    plan->tflops_per_rank =
        model_flops_per_token(&recipe->model) * plan->tokens_per_s / plan->run->mesh.world * 1e-12;
    plan->mfu = peak > 0.0 ? plan->tflops_per_rank * 1e12 / peak : 0.0;
    plan->hfu = peak > 0.0 ? plan->mfu + recomputed_flops(plan) / plan->step_s / peak : 0.0;
    plan->bubble_fraction = bubble / plan->step_s;
}

/* If the largest rank of a device allocates `bytes`. */
static struct plan_needs needs_of(const struct cluster_profile *profile, const struct run *run, int64_t bytes)
{
    const struct assumptions *assume = assumptions_of(run->recipe);
    const double lost = assume->fragmentation >= 0.0 ? assume->fragmentation : profile->model.fragmentation;
    const int ranks = profile->device.is_cpu ? ranks_per_node(run, profile) : 1;
    return (struct plan_needs){.ranks = ranks,
                               .fragmentation = ((int64_t)((double)bytes * (1.0 + lost)) - bytes) * ranks,
                               .reserved = assume->reserved_bytes >= 0 ? assume->reserved_bytes
                                                                       : profile->device.reserved_bytes};
}

int64_t step_plan_needed(const struct cluster_profile *profile, const struct run *run, int64_t bytes)
{
    const struct plan_needs needs = needs_of(profile, run, bytes);
    return bytes * needs.ranks + needs.fragmentation + needs.reserved;
}

int64_t step_plan_limit(const struct cluster_profile *profile, const struct recipe *recipe)
{
    return (int64_t)((double)profile->device.memory_bytes * (1.0 - recipe->cluster.memory_headroom));
}

enum status step_plan_formula_bytes(const struct run *run, int64_t *out)
{
    return memory_formula_max(run, run_threads(run, run->mesh.world), out);
}

static void check_fit(struct step_plan *plan)
{
    plan->device_bytes = plan->profile->device.memory_bytes;
    plan->needs = needs_of(plan->profile, plan->run, plan->ranks[plan->peak_rank].bytes);
    plan->needed_bytes = step_plan_needed(plan->profile, plan->run, plan->ranks[plan->peak_rank].bytes);
    plan->fits = plan->needed_bytes <= plan->device_bytes;
    plan->tight = plan->fits && plan->needed_bytes > step_plan_limit(plan->profile, plan->run->recipe);
}

enum status step_plan_check_profile(const struct run *run, const struct cluster_profile *profile)
{
    const struct recipe *recipe = run->recipe;
    const struct cost_options options = step_plan_cost_options(run, profile);
    const enum profile_dtype dtype = cost_dtype(&options, recipe->precision.params_dtype);
    const int ranks = run->mesh.world;
    struct text why = {0};
    if (profile->device.peak_flops[dtype] <= 0.0)
        text_add(&why,
                 "cluster.profile %s has no peak_flops_%s, the dtype of precision.params_dtype %s; use "
                 "another dtype or profile",
                 recipe->cluster.profile, profile_dtype_name(dtype), recipe_dtype_name(recipe));
    const char *attention = assume_attention_fault(assumptions_of(recipe), options.model.compute_capability);
    if (attention != NULL) {
        text_add(&why, "%sassume.attention ", why.length > 0 ? "; " : "");
        recipe_key_text(recipe, "assume.attention", &why);
        text_add(&why, " %s, not for the %s of cluster.profile %s; use own, which is its fastest kernel",
                 attention, profile->device.name, recipe->cluster.profile);
    }
    if (ranks > options.ranks_per_node && profile->network.nics == 0)
        text_add(&why,
                 "%scluster.profile %s has no network, but %d ranks need %d nodes of %d; use a profile with "
                 "network.nics, or at most %d ranks",
                 why.length > 0 ? "; " : "", recipe->cluster.profile, ranks,
                 (ranks + options.ranks_per_node - 1) / options.ranks_per_node, options.ranks_per_node,
                 options.ranks_per_node);
    enum status status = why.length > 0 ? fail(BAD_RECIPE, "%s", why.chars) : OK;
    text_free(&why);
    return status;
}

static enum status make(struct step_plan *plan, double limit_s, bool timeline)
{
    if (plan->profile != NULL)
        TRY(step_plan_check_profile(plan->run, plan->profile));
    TRY(memory_plan_check_length(plan->run->recipe));
    allocate(plan);
    for (int pp = 0; pp < plan->count; pp++)
        TRY(plan_rank(plan, pp));
    plan->fits = true;
    if (plan->profile == NULL)
        return OK;
    plan->cost = step_plan_cost_options(plan->run, plan->profile);
    check_fit(plan);
    if (timeline)
        TRY(predict_timeline(&plan->cost, plan->tapes, plan->count, &plan->step));
    else
        TRY(predict_within(&plan->cost, plan->tapes, plan->count,
                           limit_s - plan->profile->model.step_overhead_s, &plan->step));
    plan->exceeds = plan->step->exceeds;
    if (plan->exceeds)
        return OK;
    compute_rates(plan);
    return OK;
}

enum status step_plan_profile(const struct recipe *recipe, struct cluster_profile **out)
{
    struct problems problems = {0};
    *out = NULL;
    if (recipe->cluster.profile == NULL)
        return OK;
    return problems_report(&problems, profile_load(recipe->cluster.profile, out, &problems));
}

static enum status make_plan(const struct run *run, const struct cluster_profile *profile, double limit_s,
                             bool timeline, struct step_plan *out)
{
    *out = (struct step_plan){.run = run, .profile = profile, .count = run->mesh.degrees.pp};
    enum status status = make(out, limit_s, timeline);
    if (status != OK)
        step_plan_free(out);
    return status;
}

enum status step_plan_make(const struct run *run, const struct cluster_profile *profile,
                           struct step_plan *out)
{
    return make_plan(run, profile, INFINITY, false, out);
}

enum status step_plan_make_within(const struct run *run, const struct cluster_profile *profile,
                                  double limit_s, struct step_plan *out)
{
    return make_plan(run, profile, limit_s, false, out);
}

enum status step_plan_make_timeline(const struct run *run, const struct cluster_profile *profile,
                                    struct step_plan *out)
{
    return make_plan(run, profile, INFINITY, true, out);
}

void step_plan_free(struct step_plan *plan)
{
    for (int i = 0; plan->tapes != NULL && i < plan->count; i++)
        tape_destroy(plan->tapes[i]);
    free(plan->tapes);
    free(plan->ranks);
    free(plan->slots);
    prediction_destroy(plan->step);
    *plan = (struct step_plan){.run = NULL};
}
