// SPDX-License-Identifier: Apache-2.0
#include "planner/schedule/sweep_bound.h"

#include "base/memory.h"
#include "planner/schedule/sweep_unit.h"
#include "schedules/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sweep_bounds {
    struct sweep_unit *units;
    int count;
};

struct sweep_bounds *sweep_bounds_create(void)
{
    return memory_zeroed(1, sizeof(struct sweep_bounds), "the bounds of a sweep");
}

void sweep_bounds_destroy(struct sweep_bounds *bounds)
{
    for (int i = 0; bounds != NULL && i < bounds->count; i++)
        free(bounds->units[i].key);
    if (bounds != NULL)
        free(bounds->units);
    free(bounds);
}

bool sweep_bound_ignores(const char *key)
{
    static const char *const ignored[] = {
        "parallel.pipeline_parallel_size",
        "parallel.data_parallel_size",
        "parallel.zero_stage",
        "parallel.overlap_grad_reduce",
        "parallel.overlap_param_gather",
        "parallel.bucket_size_mb",
        "train.global_batch_size",
        "cluster.nodes",
    };
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (strcmp(key, ignored[i]) == 0)
            return true;
    return strncmp(key, "pipeline.", 9) == 0;
}

/* Finds or measures the unit costs of a recipe. */
static struct sweep_unit *find_unit(struct sweep_bounds *bounds, const char *key, const struct recipe *recipe,
                                    const struct cluster_profile *profile)
{
    for (int i = bounds->count - 1; i >= 0; i--)
        if (strcmp(bounds->units[i].key, key) == 0)
            return &bounds->units[i];
    bounds->units = memory_resized(bounds->units, (size_t)(bounds->count + 1), sizeof *bounds->units,
                                   "the bounds of a sweep");
    struct sweep_unit *unit = &bounds->units[bounds->count++];
    sweep_unit_measure(recipe, profile, unit);
    unit->key = text_copy(key);
    return unit;
}

static void add_cost(struct stage_cost *to, const struct stage_cost *cost, double times)
{
    to->f += times * cost->f;
    to->i += times * cost->i;
    to->w += times * cost->w;
}

static double total(const struct stage_cost *cost)
{
    return cost->f + cost->i + cost->w;
}

/* ---- one layout ---- */

struct bounded {
    const struct recipe *recipe;
    const struct schedule *placed;
    struct sweep_unit *unit;
    bool has_lists; // the schedule has lists of actions; otherwise only the placement is known
    struct cost_options options;
    struct run run;                 // recipe and mesh
    struct stage_cost *stages;      // [placed->stages]
    int64_t min_layers, max_layers; // of a rank
    int64_t smallest_stage;         // in layers
};

static enum status find_mesh(struct bounded *l)
{
    const struct recipe_parallel *parallel = &l->recipe->parallel;
    const struct degrees degrees = {.tp = parallel->tensor_parallel_size,
                                    .cp = 1,
                                    .ep = 1,
                                    .dp = parallel->data_parallel_size,
                                    .pp = parallel->pipeline_parallel_size};
    return mesh_create(degrees, parallel->rank_order, &l->run.mesh);
}

/* Costs of the stages, and layers of the ranks. */
static void find_stages(struct bounded *l)
{
    const bool split = sweep_unit_splits(l->recipe);
    const struct schedule *placed = l->placed;
    l->min_layers = l->smallest_stage = INT64_MAX;
    for (int i = 0; i < placed->stages; i++) {
        const int64_t layers = recipe_stage_layers(l->recipe, i);
        add_cost(&l->stages[i], &l->unit->layer[split], (double)layers);
        if (i == 0)
            add_cost(&l->stages[i], &l->unit->embedding[split], 1.0);
        if (i == placed->stages - 1)
            add_cost(&l->stages[i], &l->unit->head[split], 1.0);
        l->smallest_stage = layers < l->smallest_stage ? layers : l->smallest_stage;
    }
    for (int rank = 0; rank < placed->p; rank++) {
        int64_t layers = 0;
        for (int chunk = 0; chunk < placed->chunks; chunk++)
            layers += recipe_stage_layers(l->recipe, schedule_stage(placed, rank, chunk));
        l->min_layers = layers < l->min_layers ? layers : l->min_layers;
        l->max_layers = layers > l->max_layers ? layers : l->max_layers;
    }
}

/* Lower bound of the time of a message between consecutive stages. */
static double message_seconds(const struct bounded *l)
{
    const struct recipe *recipe = l->recipe;
    if (l->placed->p == 1)
        return 0.0;
    const int ranks[] = {0, mesh_rank(&l->run.mesh, MESH_DENSE, (struct mesh_coord){.pp = 1})};
    const int64_t elements =
        recipe->train.micro_batch_size * recipe->model.seq_length * recipe->model.hidden_size;
    const int64_t bytes = elements * (recipe->precision.params_dtype == F32 ? 4 : 2);
    return cost_of_message(
        &l->options, CALL_SEND, cost_group_shape(&l->options, ranks, 2),
        bytes / (recipe->layers.sequence_parallel ? recipe->parallel.tensor_parallel_size : 1));
}

/* ---- parts of a step ---- */

static enum status simulated_s(const struct schedule *schedule, const struct cost_table *costs, double *out)
{
    struct simulation *simulation = NULL;
    TRY(simulate(schedule, costs, NULL, &simulation));
    *out = simulation->makespan;
    simulation_destroy(simulation);
    return OK;
}

/* Lower bound from compute and messages between stages. */
static enum status compute_s(const struct bounded *l, double *out)
{
    const struct schedule *placed = l->placed;
    const char *schedule = l->recipe->pipeline.schedule;
    const bool holds_p = placed->v == 1 && (strcmp(schedule, "1f1b") == 0 || strcmp(schedule, "zb-h1") == 0);
    const struct cost_table costs = {.of_stage = l->stages, .latency = message_seconds(l)};
    double sum = 0.0;
    for (int i = 0; i < placed->stages; i++)
        sum += total(&l->stages[i]);
    *out = sum * placed->m / placed->p;                // mean over the ranks
    if (l->recipe->pipeline.optimizer_post_validation) // consecutive steps overlap
        return OK;
    if (l->has_lists)
        return simulated_s(placed, &costs, out);
    if (schedule_has_replicas(placed))
        return OK;
    return schedule_bound(placed, &costs, holds_p ? placed->p : placed->m * placed->v, out);
}

/* Time of the longest of the calls, each as one message of `layers` layers: they may be on different
 * streams. */
static double traffic_s(const struct bounded *l, const int64_t bytes[CALL_COUNT], int64_t layers)
{
    const int dp = l->run.mesh.degrees.dp;
    AUTO_FREE int *ranks = memory_zeroed((size_t)dp, sizeof *ranks, "the data-parallel ranks");
    double longest = 0.0;
    for (int i = 0; i < dp; i++)
        ranks[i] = mesh_rank(&l->run.mesh, MESH_DENSE, (struct mesh_coord){.dp = i});
    for (int call = 0; call < CALL_COUNT; call++)
        if (bytes[call] > 0)
            longest = fmax(longest,
                           cost_of_message(&l->options, (enum call)call,
                                           cost_group_shape(&l->options, ranks, dp), bytes[call] * layers));
    return longest;
}

/* Adds the messages of data-parallel ranks to a step whose compute ends at `end_s`. */
static double with_traffic(const struct bounded *l, double end_s, double update_s)
{
    const struct data_parallel_options *options = &l->recipe->data_parallel;
    const bool overlap = options->overlap_grad_reduce;
    if (l->run.mesh.degrees.dp == 1)
        return end_s + update_s;
    struct sweep_traffic *traffic = &l->unit->traffic[options->zero_stage][overlap];
    if (!traffic->is_known)
        sweep_unit_measure_traffic(l->recipe, traffic);
    // Reductions of a stage begin in its last backward pass.
    double last_s = 0.0;
    for (int i = 0; i < l->placed->stages; i++)
        last_s = fmax(last_s, l->stages[i].i + l->stages[i].w);
    const double busy_s = l->placed->m * (double)l->max_layers * traffic_s(l, traffic->microbatch, 1);
    const double reduced_s = end_s - last_s + traffic_s(l, traffic->reduce, l->smallest_stage);
    end_s = fmax(end_s, fmax(busy_s, reduced_s));
    return end_s + fmax(update_s, traffic_s(l, traffic->update, l->min_layers));
}

static enum status bound_layout(struct bounded *l, double *out)
{
    const double shards =
        l->recipe->data_parallel.zero_stage > 0 ? (double)l->recipe->parallel.data_parallel_size : 1.0;
    double end_s = 0.0;
    find_stages(l);
    TRY(compute_s(l, &end_s));
    *out = with_traffic(l, end_s, l->unit->update_s * (double)l->min_layers / shards);
    return OK;
}

static enum status bound_placed(const struct recipe *recipe, const struct schedule *placed, bool has_lists,
                                struct sweep_unit *unit, const struct cluster_profile *profile, double *out)
{
    struct bounded layout = {
        .recipe = recipe,
        .placed = placed,
        .has_lists = has_lists,
        .unit = unit,
        .run = {.recipe = recipe},
        .stages = memory_zeroed((size_t)placed->stages, sizeof *layout.stages, "the stages of a layout")};
    enum status status = find_mesh(&layout);
    if (status == OK) {
        layout.options = step_plan_cost_options(&layout.run, profile);
        status = bound_layout(&layout, out);
    }
    free(layout.stages);
    return status;
}

static enum status bound_in(struct sweep_bounds *bounds, const char *shared, const struct recipe *recipe,
                            const struct schedule *placed, bool has_lists,
                            const struct cluster_profile *profile, double *seconds)
{
    struct sweep_unit *unit = find_unit(bounds, shared, recipe, profile);
    *seconds = 0.0;
    if (!unit->is_known)
        return OK;
    TRY(bound_placed(recipe, placed, has_lists, unit, profile, seconds));
    // Rounding errors must not exclude a layout that is as fast as the best.
    *seconds = *seconds * (1.0 - 1e-6) + profile->model.step_overhead_s;
    return OK;
}

/* Finds the placement of the recipe's schedule. OK with NULL if it has none; planning then reports the
 * reason. */
static enum status place(const struct recipe *recipe, struct schedule **out)
{
    const struct schedule_options options = {.name = recipe->pipeline.schedule,
                                             .p = recipe->parallel.pipeline_parallel_size,
                                             .m = (int)recipe_microbatches(recipe),
                                             .v = recipe->pipeline.virtual_stages,
                                             .microbatch_group_size = recipe->pipeline.microbatch_group_size};
    *out = NULL;
    if (recipe->pipeline.schedule_file != NULL)
        return OK;
    const enum status status = schedule_build_placement(&options, out);
    return status == NO_MEMORY ? status : OK;
}

enum status sweep_bound(struct sweep_bounds *bounds, const char *shared, const struct recipe *recipe,
                        const struct cluster_profile *profile, double *seconds)
{
    struct schedule *placed = NULL;
    *seconds = 0.0;
    TRY(place(recipe, &placed));
    if (placed == NULL)
        return OK;
    const enum status status = bound_in(bounds, shared, recipe, placed, false, profile, seconds);
    schedule_destroy(placed);
    return status;
}

enum status sweep_bound_schedule(struct sweep_bounds *bounds, const char *shared, const struct run *run,
                                 const struct cluster_profile *profile, double *seconds)
{
    return bound_in(bounds, shared, run->recipe, run->schedule, true, profile, seconds);
}

/* ---- memory ---- */

/* Weights, gradients and optimizer state of a layer. */
static double state_bytes(const struct recipe *recipe, const struct sweep_unit *unit)
{
    const double dp = (double)recipe->parallel.data_parallel_size;
    const int stage = recipe->data_parallel.zero_stage;
    const double moments = (double)unit->moment_bytes / (stage >= 1 ? dp : 1.0);
    const double masters = (double)unit->master_bytes / (stage >= 1 ? dp : 1.0);
    const double gradients = (double)unit->gradient_bytes / (stage >= 2 ? dp : 1.0);
    double weights = (double)unit->weight_bytes;
    if (stage >= 3) // the slices are those of the masters, if there are any
        weights = unit->master_bytes > 0 ? 0.0 : weights / dp;
    return weights + masters + gradients + moments;
}

/* Number of microbatches that the first rank holds at once, from F to I. */
static int held_microbatches(const struct recipe *recipe, const struct schedule *placed)
{
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(recipe->pipeline.schedule, names[i]) == 0)
            return placed->p < placed->m ? placed->p : placed->m;
    return 1;
}

enum status sweep_bound_memory(struct sweep_bounds *bounds, const char *shared, const struct recipe *recipe,
                               const struct cluster_profile *profile, int64_t *bytes)
{
    struct sweep_unit *unit = find_unit(bounds, shared, recipe, profile);
    struct schedule *placed = NULL;
    *bytes = 0;
    if (!unit->is_known)
        return OK;
    TRY(place(recipe, &placed));
    if (placed == NULL)
        return OK;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < placed->stages; i++) {
        const int64_t layers = recipe_stage_layers(recipe, i);
        smallest = layers < smallest ? layers : smallest;
    }
    const double each =
        state_bytes(recipe, unit) + (double)unit->activation_bytes * held_microbatches(recipe, placed);
    *bytes = (int64_t)(each * (double)smallest * placed->v);
    schedule_destroy(placed);
    return OK;
}
