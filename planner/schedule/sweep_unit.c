// SPDX-License-Identifier: Apache-2.0
#include "planner/schedule/sweep_unit.h"

#include "planner/memory/memory_formula.h"

#include <math.h>
#include <string.h>

enum phase { PHASE_F, PHASE_I, PHASE_W, PHASE_UPDATE, PHASE_OTHER, PHASES };

/* Times of a step of one microbatch, in seconds. */
struct sums {
    double ops[PHASES];       // all ops of the compute lane
    double matmuls[PHASES];   // of these
    double embedding[PHASES]; // of these: lookups
    double elapsed[PHASES];   // with the messages of tensor parallelism that the compute lane waits for
};

bool sweep_unit_splits(const struct recipe *recipe)
{
    static const char *const whole[] = {"1f1b", "gpipe", "interleaved", "looped-bfs"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(recipe->pipeline.schedule, whole[i]) == 0)
            return false;
    return true;
}

/* "3F7" */
static enum phase phase_of(const struct tape_action *action)
{
    if (strcmp(action->name, "optimizer") == 0)
        return PHASE_UPDATE;
    if (!action->scheduled.exists)
        return PHASE_OTHER;
    switch ((enum action_kind)action->scheduled.kind) { // no default: a new kind is a compile error here
    case FORWARD:
        return PHASE_F;
    case BACKWARD:
    case BACKWARD_INPUT:
        return PHASE_I;
    case BACKWARD_WEIGHT:
        return PHASE_W;
    case RECV_ACTIVATION:
    case SEND_ACTIVATION:
    case RECV_GRADIENT:
    case SEND_GRADIENT:
    case ACTION_KIND_COUNT:
        break;
    }
    return PHASE_OTHER;
}

static void add_lane(const struct cost_options *options, const struct tape *tape,
                     const struct tape_lane *lane, struct sums *out)
{
    const bool computes = strcmp(lane->name, "compute") == 0;
    for (int i = 0; i < lane->count; i++) {
        const struct tape_item *item = &lane->items[i];
        const enum phase phase = phase_of(&tape->actions[item->action]);
        if (item->kind == TAPE_OP && computes) {
            const struct op_record *op = &tape->ops[item->index];
            const struct op_time time = cost_of_op(options, op);
            const double seconds = time.run_s + time.launch_s;
            out->ops[phase] += seconds;
            if (cost_class_of(op->kind) == COST_MATMUL)
                out->matmuls[phase] += seconds;
            if (op->kind == OP_EMBEDDING_FORWARD || op->kind == OP_EMBEDDING_BACKWARD)
                out->embedding[phase] += seconds;
        }
    }
}

/* Adds the time between the ends of the spans of the compute lane. Messages, some of them overlapped with
 * ops, make them longer than their ops. */
static void add_spans(const struct tape *tape, const struct prediction *prediction, struct sums *out)
{
    double end_s = 0.0;
    for (int64_t i = 0; i < prediction->span_count; i++) {
        const struct predicted_span *span = &prediction->spans[i];
        const struct tape_lane *lane = &tape->lanes[span->lane];
        if (strcmp(lane->name, "compute") != 0)
            continue;
        out->elapsed[phase_of(&tape->actions[lane->items[span->first].action])] += span->end_s - end_s;
        end_s = span->end_s;
    }
}

static enum status add_tape(const struct run *run, const struct cluster_profile *profile,
                            struct tape *const *tape, struct sums *out)
{
    const struct cost_options options = step_plan_cost_options(run, profile);
    struct prediction *prediction = NULL;
    TRY(predict_timeline(&options, tape, 1, &prediction));
    add_spans(*tape, prediction, out);
    prediction_destroy(prediction);
    for (int i = 0; i < (*tape)->lane_count; i++)
        add_lane(&options, *tape, &(*tape)->lanes[i], out);
    return OK;
}

/* Which variant of a recipe is recorded. */
struct variant {
    int layers, data_parallel_size;
    bool split; // split backward passes into I and W
};

/* One microbatch of the recipe on `data_parallel_size` data-parallel ranks, without a pipeline. */
static enum status record(const struct recipe *recipe, const struct variant *variant,
                          enum status (*use)(const struct run *run, struct tape *const *tape, void *context),
                          void *context)
{
    char split[] = "zb-h1", whole[] = "1f1b";
    struct recipe unit = *recipe; // shares texts and lists
    struct memory_plan memory;
    struct tape *tape = NULL;
    struct run run;
    unit.model.num_layers = variant->layers;
    unit.parallel.pipeline_parallel_size = 1;
    unit.parallel.data_parallel_size = variant->data_parallel_size;
    if (variant->data_parallel_size == 1)
        unit.data_parallel = (struct data_parallel_options){.bucket_size_mb = 1.0};
    unit.pipeline = (struct recipe_pipeline){.schedule = variant->split ? split : whole, .virtual_stages = 1};
    unit.train.global_batch_size = unit.train.micro_batch_size * variant->data_parallel_size;
    unit.cluster.nodes = 0;
    enum status status = run_create(&unit, false, &run);
    if (status == OK)
        status = memory_plan_record(&run, 0, NULL, &memory, &tape);
    if (status == OK)
        status = use(&run, &tape, context);
    tape_destroy(tape);
    run_destroy(&run);
    return status;
}

struct measured {
    const struct cluster_profile *profile;
    struct sums sums;
};

static enum status sum_up(const struct run *run, struct tape *const *tape, void *context)
{
    struct measured *measured = context;
    measured->sums = (struct sums){.ops = {0.0}};
    return add_tape(run, measured->profile, tape, &measured->sums);
}

static enum status measure(const struct recipe *recipe, const struct cluster_profile *profile, int layers,
                           bool split, struct sums *out)
{
    struct measured measured = {.profile = profile};
    TRY(record(recipe, &(struct variant){layers, 1, split}, sum_up, &measured));
    *out = measured.sums;
    return OK;
}

/* ---- memory ---- */

static enum status add_memory(const struct run *run, int sign, struct sweep_unit *out)
{
    struct memory_table table;
    TRY(memory_formula(run, 0, run_threads(run, run->mesh.world), &table));
    out->weight_bytes += sign * table.part_bytes[PART_WEIGHTS];
    out->master_bytes += sign * table.part_bytes[PART_MASTERS];
    out->gradient_bytes += sign * table.part_bytes[PART_GRADIENTS];
    out->moment_bytes += sign * table.part_bytes[PART_MOMENTS];
    out->activation_bytes += sign * table.slots[KEEP_UNTIL_BACKWARD_INPUT].bytes;
    memory_table_free(&table);
    return OK;
}

static enum status take_one(const struct run *run, struct tape *const *tape, void *context)
{
    (void)tape;
    return add_memory(run, -1, context);
}

static enum status take_two(const struct run *run, struct tape *const *tape, void *context)
{
    (void)tape;
    return add_memory(run, 1, context);
}

static enum status measure_memory(const struct recipe *recipe, struct sweep_unit *out)
{
    TRY(record(recipe, &(struct variant){1, 1, false}, take_one, out));
    TRY(record(recipe, &(struct variant){2, 1, false}, take_two, out));
    if (recipe->memory.offload_activations)
        out->activation_bytes = 0;
    return OK;
}

/* ---- time ---- */

/* The cost that a second layer adds, but at most that of the first one alone. */
static struct stage_cost layer_of(const struct sums *one, const struct sums *two, bool messages)
{
    double seconds[PHASES];
    for (int phase = 0; phase < PHASES; phase++)
        seconds[phase] = fmax(
            messages ? two->elapsed[phase] - one->elapsed[phase] : two->ops[phase] - one->ops[phase], 0.0);
    return (struct stage_cost){.f = seconds[PHASE_F], .i = seconds[PHASE_I], .w = seconds[PHASE_W]};
}

/* Time of the matmuls outside the layers. */
static double head_of(const struct sums *one, const struct sums *two, enum phase phase)
{
    return fmax(2.0 * one->matmuls[phase] - two->matmuls[phase], 0.0);
}

/* The ops of a model without layers, except for lookups. */
static struct stage_cost rest_of(const struct sums *one, const struct sums *two)
{
    double seconds[PHASES];
    for (int phase = 0; phase < PHASES; phase++)
        seconds[phase] = fmax(2.0 * one->ops[phase] - two->ops[phase] - one->embedding[phase], 0.0);
    return (struct stage_cost){.f = seconds[PHASE_F], .i = seconds[PHASE_I], .w = seconds[PHASE_W]};
}

/* Limits the time of I and W together to that of B. */
static void limit(struct stage_cost *split, const struct stage_cost *whole)
{
    const double both = split->i + split->w, factor = both > whole->i ? whole->i / both : 1.0;
    split->i *= factor;
    split->w *= factor;
    split->f = fmin(split->f, whole->f);
}

void sweep_unit_measure(const struct recipe *recipe, const struct cluster_profile *profile,
                        struct sweep_unit *out)
{
    const bool tp_is_first = strncmp(recipe->parallel.rank_order, "tp", 2) == 0;
    const char *key;
    const bool equal = recipe_quantized_format(recipe, &key) == NULL &&
                       (recipe->model.window_size == 0 || recipe->model.window_attn_skip_freq.count == 0);
    *out = (struct sweep_unit){.is_known = equal};
    for (int split = 0; split < 2 && out->is_known; split++) {
        struct sums one, two;
        if (measure(recipe, profile, 1, split == 1, &one) != OK ||
            measure(recipe, profile, 2, split == 1, &two) != OK) {
            out->is_known = false;
            return;
        }
        out->layer[split] = layer_of(&one, &two, tp_is_first);
        out->embedding[split] = (struct stage_cost){.f = one.embedding[PHASE_F], .i = 0.0, .w = 0.0};
        out->head[split] = (struct stage_cost){.f = head_of(&one, &two, PHASE_F),
                                               .i = head_of(&one, &two, PHASE_I),
                                               .w = head_of(&one, &two, PHASE_W)};
        if (split == 1)
            out->rest = rest_of(&one, &two);
        out->update_s = fmax(two.ops[PHASE_UPDATE] - one.ops[PHASE_UPDATE], 0.0);
    }
    if (!out->is_known)
        return;
    out->is_known = measure_memory(recipe, out) == OK;
    limit(&out->layer[1], &out->layer[0]);
    limit(&out->head[1], &out->head[0]);
}

/* ---- messages of data parallelism ---- */

static enum status add_traffic(const struct run *run, struct tape *const *tapes, void *context)
{
    struct sweep_traffic *out = context;
    const struct tape *tape = *tapes;
    const bool each = run->recipe->data_parallel.zero_stage >= 2;
    for (int lane = 0; lane < tape->lane_count; lane++)
        for (int i = 0; i < tape->lanes[lane].count; i++) {
            const struct tape_item *item = &tape->lanes[lane].items[i];
            if (item->kind != TAPE_MESSAGE)
                continue;
            const struct tape_message *message = &tape->messages[item->index];
            const enum phase phase = phase_of(&tape->actions[item->action]);
            if (!tape_group_is_data(&tape->groups[message->group]) || phase == PHASE_OTHER)
                continue;
            if (phase == PHASE_UPDATE && message->call == CALL_ALL_GATHER &&
                step_plan_overlaps_gathers(run->recipe))
                continue;
            if (phase == PHASE_UPDATE)
                out->update[message->call] += message->bytes;
            else if (each)
                out->microbatch[message->call] += message->bytes;
            else
                out->reduce[message->call] += message->bytes;
        }
    return OK;
}

void sweep_unit_measure_traffic(const struct recipe *recipe, struct sweep_traffic *out)
{
    struct sweep_traffic one = {.is_known = true}, two = {.is_known = true};
    *out = (struct sweep_traffic){.is_known = true}; // zeros, unless both can be recorded
    if (record(recipe, &(struct variant){1, 2, false}, add_traffic, &one) != OK ||
        record(recipe, &(struct variant){2, 2, false}, add_traffic, &two) != OK)
        return;
    for (int call = 0; call < CALL_COUNT; call++) {
        out->microbatch[call] = two.microbatch[call] - one.microbatch[call];
        out->reduce[call] = two.reduce[call] - one.reduce[call];
        out->update[call] = two.update[call] - one.update[call];
    }
}
