// SPDX-License-Identifier: Apache-2.0
#include "planner/memory/memory_formula.h"

#include "base/memory.h"
#include "layers/model.h"
#include "planner/memory/memory_states.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/engine/activations/stash.h"

#include <stdlib.h>

/* The rank being estimated. */
struct estimate {
    const struct run *run;
    int rank;
    struct memory_table *table;
    struct mesh_coord coord;
    struct params params;
    struct memory_shape shape;
    struct recompute recompute;
    struct slot_plan *slots;
    struct offload_plan *offloaded; // if activations are offloaded to the host
    enum part part;                 // PART of the activations, or of those in host memory
    struct device_options device;   // selects the kernels
    bool on_gpu;
    bool split;              // some W is separate from its I
    bool shares_activations; // assume.activations shared
    int64_t recomputed;      // maximum so far of the shared recompute buffer
    int64_t scratch;
};

/* Whether the papers count this part: they count model states and activations only. */
static bool is_in_papers(enum part part)
{
    return part == PART_WEIGHTS || part == PART_MASTERS || part == PART_GRADIENTS || part == PART_MOMENTS ||
           part == PART_ACTIVATIONS || part == PART_HOST;
}

static void add_term(struct estimate *s, struct memory_term term)
{
    struct memory_table *t = s->table;
    int64_t bytes = term.bytes * term.count * term.slots;
    if (bytes == 0 || (s->shape.assume.large_only && !is_in_papers(term.part)))
        return;
    if (t->count == t->capacity) {
        int capacity = 2 * t->capacity + 64;
        t->list =
            memory_resized(t->list, (size_t)capacity, sizeof *t->list, "the terms of the memory formula");
        t->capacity = capacity;
    }
    t->list[t->count++] = term;
    t->part_bytes[term.part] += bytes;
    t->bytes += part_is_on_host(term.part) ? 0 : bytes;
}

static void add_bytes(struct estimate *s, enum part part, const char *what, int64_t bytes)
{
    struct memory_term term = {
        .part = part, .stage = -1, .what = what, .bytes = bytes, .count = 1, .slots = 1};
    add_term(s, term);
}

/* Adds a separate buffer: whole cache lines, at least one. */
static void add_buffer(struct estimate *s, enum part part, const char *what, int64_t bytes)
{
    add_bytes(s, part, what, bytes > 0 ? (bytes + 63) / 64 * 64 : 64);
}

static void raise_to(int64_t *most, int64_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

/* ---- activations ---- */

struct chunk {
    int index, stage, layers;
    bool has_embedding, has_head;
    int64_t slots[LIFETIME_COUNT];
};

/* Number of layers that keep the tensors of a module. */
static int layers_keeping(const struct estimate *s, const struct chunk *c, unsigned module)
{
    int keeping = 0;
    for (int i = 0; i < c->layers; i++)
        keeping += (recompute_run_of(&s->recompute, c->layers, i).modules & (module | RECOMPUTE_LAYER)) == 0;
    return keeping;
}

/* Adds `count` tensors to each of the chunk's slots of a lifetime. */
static void add_slots(struct estimate *s, const struct chunk *c, enum lifetime lifetime, const char *what,
                      int64_t bytes, int64_t count)
{
    struct memory_term term = {.part = s->part,
                               .stage = c->stage,
                               .what = what,
                               .bytes = bytes,
                               .count = count,
                               .slots = c->slots[lifetime]};
    struct slot_use *use = &s->table->slots[c->index * SLOT_LIFETIMES + (int)lifetime];
    if (s->part == PART_ACTIVATIONS && bytes * count * term.slots > 0) {
        use->slots = term.slots;
        use->bytes += bytes * count;
    }
    add_term(s, term);
}

/* Adds an item of one block: kept from F on, or between I and W. */
static void add_item(struct estimate *s, const struct chunk *c, const struct memory_item *item)
{
    bool lasts = item->lifetime == KEEP_UNTIL_BACKWARD_INPUT || item->lifetime == KEEP_UNTIL_BACKWARD_WEIGHT;
    if (!lasts && item->lifetime != KEEP_INPUT_TO_WEIGHT)
        return;
    if (!lasts) {
        if (s->split)
            add_slots(s, c, KEEP_INPUT_TO_WEIGHT, item->what, item->bytes, c->layers);
        return;
    }
    int keeping = layers_keeping(s, c, item->module);
    add_slots(s, c, item->lifetime, item->what, item->bytes, keeping);
    if (!s->split || item->lifetime != KEEP_UNTIL_BACKWARD_WEIGHT)
        return;
    add_slots(s, c, KEEP_INPUT_TO_WEIGHT, item->what, item->bytes, c->layers - keeping);
}

/* Recompute buffer of consecutive layers: F recomputes one layer after the other, I needs all at once. */
static int64_t run_bytes(const struct estimate *s, const struct memory_items *items, struct recompute_run run)
{
    int64_t passing = 0, lying = 0, inputs = (run.count - 1) * items->list[0].bytes;
    for (int k = 1; k < items->count; k++) {
        const struct memory_item *item = &items->list[k];
        bool until_input = item->lifetime == KEEP_UNTIL_BACKWARD_INPUT,
             until_weight = item->lifetime == KEEP_UNTIL_BACKWARD_WEIGHT;
        if ((run.modules & (item->module | RECOMPUTE_LAYER)) == 0)
            continue;
        passing += until_input || until_weight ? item->bytes : 0;
        lying += until_input || (until_weight && !s->split) ? item->bytes : 0;
    }
    return inputs + (passing > run.count * lying ? passing : run.count * lying);
}

static void add_blocks(struct estimate *s, const struct chunk *c)
{
    struct memory_items items = memory_of_block(&s->shape);
    int64_t inputs = 0;
    for (int i = 0; i < c->layers;) {
        struct recompute_run run = recompute_run_of(&s->recompute, c->layers, i);
        raise_to(&s->recomputed, run_bytes(s, &items, run));
        inputs += i > 0;
        i += run.count;
    }
    add_slots(s, c, KEEP_INPUT, "input of the stage", items.list[0].bytes, c->layers > 0);
    add_slots(s, c, KEEP_UNTIL_BACKWARD_INPUT, "inputs of layers", items.list[0].bytes, inputs);
    for (int k = 1; k < items.count; k++)
        add_item(s, c, &items.list[k]);
    if (c->layers > 0)
        raise_to(&s->scratch, memory_block_scratch(&s->shape));
}

/* Adds the embedding or the head, which are never recomputed. */
static void add_end(struct estimate *s, const struct chunk *c, const struct memory_items *items)
{
    for (int k = 0; k < items->count; k++) {
        const struct memory_item *item = &items->list[k];
        bool input = k == 0 && c->layers == 0 && item->lifetime == KEEP_UNTIL_BACKWARD_INPUT;
        if (item->lifetime == SCRATCH || (item->lifetime == KEEP_INPUT_TO_WEIGHT && !s->split))
            continue;
        add_slots(s, c, input ? KEEP_INPUT : item->lifetime, item->what, item->bytes, 1);
    }
    raise_to(&s->scratch, memory_of_lifetime(items, SCRATCH));
}

static void add_chunk(struct estimate *s, const struct chunk *c)
{
    struct memory_items block = memory_of_block(&s->shape), embedding = memory_of_embedding(&s->shape),
                        head = memory_of_head(&s->shape);
    int64_t between = 0; // I and W of one layer, if W follows immediately
    add_blocks(s, c);
    if (c->layers > 0)
        raise_to(&between, memory_of_lifetime(&block, KEEP_INPUT_TO_WEIGHT));
    if (c->has_embedding) {
        add_end(s, c, &embedding);
        raise_to(&between, memory_of_lifetime(&embedding, KEEP_INPUT_TO_WEIGHT));
    }
    if (c->has_head) {
        add_end(s, c, &head);
        raise_to(&between, memory_of_lifetime(&head, KEEP_INPUT_TO_WEIGHT));
    } else if (!s->shares_activations) {
        add_slots(s, c, c->layers == 0 ? KEEP_INPUT : KEEP_UNTIL_BACKWARD_INPUT, "output of the stage",
                  (memory_stream_bytes(&s->shape) + 63) / 64 * 64, 1);
    }
    if (!s->split)
        add_slots(s, c, KEEP_INPUT_TO_WEIGHT, "gradients inside one layer", between, 1);
}

/* With offload, each activation briefly has two slots on the device, and one on the host all the time. */
static int64_t slots_of(const struct estimate *s, enum lifetime lifetime, int chunk)
{
    bool offloaded = s->part == PART_ACTIVATIONS && s->offloaded != NULL && s->offloaded->any;
    return offloaded ? s->offloaded->peak[lifetime][chunk] : s->slots->peak[lifetime][chunk];
}

static void add_chunks(struct estimate *s)
{
    const struct run *run = s->run;
    const struct schedule *schedule = run->schedule;
    for (int index = 0; index < schedule->chunks; index++) {
        int stage = schedule_stage(schedule, s->coord.pp, index);
        struct chunk c = {
            .index = index,
            .stage = stage,
            .layers = run->stage_first_layer[stage + 1] - run->stage_first_layer[stage],
            .has_embedding = stage == 0,
            .has_head = stage == schedule->stages - 1,
            .slots = {[KEEP_INPUT] = slots_of(s, KEEP_INPUT, index),
                      [KEEP_UNTIL_BACKWARD_INPUT] = slots_of(s, KEEP_UNTIL_BACKWARD_INPUT, index),
                      [KEEP_UNTIL_BACKWARD_WEIGHT] = slots_of(s, KEEP_UNTIL_BACKWARD_WEIGHT, index)},
        };
        if (s->part == PART_ACTIVATIONS)
            c.slots[KEEP_INPUT_TO_WEIGHT] = s->slots->peak[KEEP_INPUT_TO_WEIGHT][index];
        add_chunk(s, &c);
    }
}

static void add_activations(struct estimate *s)
{
    s->part = PART_HOST;
    if (s->offloaded != NULL && s->offloaded->any)
        add_chunks(s);
    s->part = PART_ACTIVATIONS;
    add_chunks(s);
    struct gradient_plan gradients = {.count = 0};
    gradient_plan_create(s->run->schedule, s->coord.pp, &gradients);
    struct slot_use use = {gradients.count, memory_stream_bytes(&s->shape)};
    gradient_plan_destroy(&gradients);
    s->table->slots[STAGE_GRADIENT] = use;
    add_buffer(s, PART_ACTIVATIONS, "gradients between stages", use.slots * use.bytes);
    if (!s->shares_activations)
        return;
    const int64_t unused = memory_shared_saving(s->run->schedule, s->coord.pp, s->table->slots);
    add_bytes(s, PART_ACTIVATIONS, "shared by chunks at different times", -unused);
}

/* ---- weights and model states ---- */

/* ZeRO 3 stores the master weights, and casts them to the working dtype when they are gathered. */
static bool slices_are_masters(const struct estimate *s)
{
    const struct recipe *recipe = s->run->recipe;
    return recipe->data_parallel.zero_stage >= 3 && s->shape.assume.master > 0 &&
           assumptions_of(recipe)->programs == ASSUME_PROGRAM;
}

/* Adds the stored weights under the given names; masters NULL: without separate master weights. */
static void add_weights(struct estimate *s, const char *weights, const char *masters,
                        const struct memory_states *states)
{
    const struct memory_assume *assume = &s->shape.assume;
    if (slices_are_masters(s)) {
        add_buffer(s, PART_MASTERS, masters, states->values * assume->master);
        return;
    }
    add_buffer(s, PART_WEIGHTS, weights, states->values * assume->weight);
    if (assume->master > 0 && masters != NULL)
        add_buffer(s, PART_MASTERS, masters, states->moments * assume->master);
}

static void add_moments(struct estimate *s, const struct memory_states *states)
{
    bool offload = s->run->recipe->memory.offload_optimizer;
    int64_t moment = states->moments * s->shape.assume.moment;
    add_buffer(s, offload ? PART_HOST : PART_MOMENTS, "first moments", moment);
    add_buffer(s, offload ? PART_HOST : PART_MOMENTS, "second moments", moment);
    if (offload)
        add_buffer(s, PART_MOMENTS, "moment window", 4 * (int64_t)sizeof(float) << 16);
}

/* Adds the report, the scalars and the rank statistics of a step. */
static void add_step(struct estimate *s, const struct memory_states *states)
{
    int64_t word = sizeof(double), samples = s->run->recipe->train.global_batch_size;
    int64_t squares = (int64_t)s->params.count * s->shape.tp;
    int64_t statistics = s->run->mesh.world * (int64_t)sizeof(struct step_stats);
    add_buffer(s, PART_DATA, "report of a step", (4 * samples + squares + 4) * word);
    add_buffer(s, PART_DATA, "scalars of a step", sizeof(struct adamw_hyper));
    if (s->run->recipe->precision.params_dtype == F16)
        add_buffer(s, PART_DATA, "loss scale", (int64_t)sizeof(float));
    add_buffer(s, PART_DATA, "step statistics", statistics);
    if (s->run->recipe->precision.scaling == SCALE_DELAYED)
        add_buffer(s, PART_DATA, "amax of delayed scaling",
                   2 * (int64_t)s->params.count * OPERAND_COUNT * (int64_t)sizeof(float));
    add_buffer(s, PART_WORKSPACE, "squares of blocks", states->blocks * word);
}

/* Adds the reports in transit, and the backup of a rank that may have to roll back. */
static void add_validation(struct estimate *s, const struct memory_states *states)
{
    int64_t word = sizeof(double), samples = s->run->recipe->train.global_batch_size;
    int64_t squares = (int64_t)s->params.count * s->shape.tp, p = s->run->mesh.degrees.pp;
    int64_t moment = states->moments * s->shape.assume.moment;
    int64_t notes = s->run->mesh.world * (int64_t)sizeof(struct step_stats);
    int64_t travelling = (2 * samples + squares + p) * word + notes;
    add_buffer(s, PART_DATA, "validation: own report", samples * word + travelling);
    add_buffer(s, PART_DATA, "validation: report so far", travelling);
    if (s->coord.pp == p - 1)
        return;
    add_buffer(s, PART_DATA, "validation: whole report", travelling);
    if (assumptions_of(s->run->recipe)->rollback == ASSUME_ROLLBACK_INVERSE)
        return;
    add_buffer(s, PART_MOMENTS, "copy of first moments", moment);
    add_buffer(s, PART_MOMENTS, "copy of second moments", moment);
    const bool has_masters = slices_are_masters(s) || states->moments > 0; // not a rank without parameters
    add_weights(s, "copy of weights", has_masters ? "copy of master weights" : NULL, states);
}

static void add_states(struct estimate *s, const struct memory_states *states)
{
    const struct memory_assume *assume = &s->shape.assume;
    add_weights(s, "weights", "masters", states);
    add_buffer(s, PART_GRADIENTS, "gradients", states->gradients * assume->gradient);
    add_moments(s, states);
    if (s->run->recipe->data_parallel.zero_stage >= 3)
        add_buffer(s, PART_BUCKETS, "gathered weights", states->gathered * assume->weight);
    if (s->run->recipe->data_parallel.zero_stage >= 2) // also of a rank without parameters
        add_buffer(s, PART_BUCKETS, "gradients of a layer, before the reduce-scatter",
                   states->opened * assume->gradient);
    if (states->packed > 0)
        add_buffer(s, PART_COMMUNICATION, "gradients that are partial over tp",
                   states->packed * assume->gradient);
    add_step(s, states);
    const int64_t snapshot = memory_snapshot_bytes(s->run, &s->params, s->rank, states);
    if (snapshot > 0)
        add_buffer(s, PART_SNAPSHOT, "copy for checkpoint.async_save", snapshot);
    if (s->run->recipe->pipeline.optimizer_post_validation)
        add_validation(s, states);
}

/* ---- temporary memory and data ---- */

/* Only dimensions and dtype are read. */
static struct tensor shape_2d(const struct estimate *s, int64_t rows, int64_t columns)
{
    return tensor_2d(NULL, s->run->recipe->precision.params_dtype, rows, columns);
}

static int64_t of_sum(const struct estimate *s, int64_t rows, int64_t columns)
{
    struct op op = {.kind = OP_COLUMN_SUM, .column_sum = {.in = shape_2d(s, rows, columns)}};
    return (int64_t)op_scratch_bytes(&op, &s->device);
}

static int64_t of_attention(const struct estimate *s)
{
    const struct model_config *model = s->shape.model;
    int64_t tokens = s->shape.batch * s->shape.sequence;
    int64_t groups = model->num_query_groups * params_kv_replicas(model, s->shape.tp) / s->shape.tp;
    struct attention_forward forward = {
        .q = shape_2d(s, tokens, model->num_attention_heads / s->shape.tp * model->kv_channels),
        .k = shape_2d(s, tokens, groups * model->kv_channels),
        .v = shape_2d(s, tokens, groups * model->kv_channels),
        .batch = s->shape.batch,
        .sequence = s->shape.sequence,
        .head_dim = model->kv_channels,
    };
    struct op op = {.kind = OP_ATTENTION_FORWARD, .attention_forward = forward};
    int64_t most = (int64_t)op_scratch_bytes(&op, &s->device);
    op = (struct op){.kind = OP_ATTENTION_BACKWARD, .attention_backward = {.forward = forward}};
    raise_to(&most, (int64_t)op_scratch_bytes(&op, &s->device));
    return most;
}

/* True if a layer of this rank runs this matmul in the working dtype. `linear` NULL: the head, which always
 * does. */
static bool is_plain(const struct estimate *s, enum matmul matmul, const char *linear)
{
    const struct run *run = s->run;
    const struct linear_precision *precision = &run->recipe->layers.precision;
    if (linear == NULL || precision->format[matmul] == MATMUL_FORMAT_NONE)
        return true;
    for (int chunk = 0; chunk < run->schedule->chunks; chunk++) {
        int stage = schedule_stage(run->schedule, s->coord.pp, chunk);
        for (int layer = run->stage_first_layer[stage]; layer < run->stage_first_layer[stage + 1]; layer++)
            if (linear_is_high(precision, layer, linear))
                return true;
    }
    return false;
}

/* Matmul workspace of a linear layer with K inputs and N outputs: of the library, or copies of operands in
 * dtypes that it does not support. With tp_comm_overlap tokens are split into pieces, except for the weight
 * gradient. */
static int64_t of_matmuls(const struct estimate *s, const char *linear, int64_t inputs, int64_t outputs,
                          bool bias)
{
    float somewhere = 0.0f; // operands without data are ignored
    enum dtype dtype = s->run->recipe->precision.params_dtype;
    int64_t tokens = s->shape.batch * s->shape.sequence, most = 0;
    int64_t rows = s->shape.tp_comm_overlap ? tokens / s->shape.tp : tokens;
    struct tensor weight = tensor_2d(&somewhere, dtype, outputs, inputs);
    struct gemm forward = {.a = tensor_2d(&somewhere, dtype, rows, inputs),
                           .b = weight,
                           .transpose_b = true,
                           .c = tensor_2d(&somewhere, dtype, rows, outputs)};
    struct gemm input = {.a = forward.c, .b = weight, .c = forward.a};
    struct gemm gradient = {.a = tensor_2d(&somewhere, dtype, tokens, outputs),
                            .transpose_a = true,
                            .b = tensor_2d(&somewhere, dtype, tokens, inputs),
                            .c = tensor_2d(&somewhere, F32, outputs, inputs)};
    if (bias)
        forward.bias = tensor_1d(&somewhere, dtype, outputs);
    const struct gemm all[MATMUL_COUNT] = {forward, input, gradient};
    for (enum matmul matmul = 0; matmul < MATMUL_COUNT; matmul++) {
        struct op op = {.kind = OP_GEMM, .gemm = all[matmul]};
        if (is_plain(s, matmul, linear) || s->on_gpu) // the operands of the others are fp32
            raise_to(&most, (int64_t)op_scratch_bytes(&op, &s->device));
    }
    return most;
}

/* Whether the rank executes actions of a stage: with few microbatches, one direction has none. */
static bool runs_stage(const struct estimate *s, int stage)
{
    const struct schedule *schedule = s->run->schedule;
    return (schedule->rank_of[0][stage] == s->coord.pp && schedule->second_from > 0) ||
           (schedule->rank_of[1][stage] == s->coord.pp && schedule->second_from < schedule->m);
}

static bool runs_layers(const struct estimate *s)
{
    bool any = false;
    for (int stage = 0; stage < s->run->schedule->stages; stage++)
        any = any || (runs_stage(s, stage) &&
                      s->run->stage_first_layer[stage + 1] > s->run->stage_first_layer[stage]);
    return any;
}

/* The largest buffer of partial sums and score tiles of any kernel; all kernels share it. */
static int64_t of_kernels(const struct estimate *s)
{
    const struct model_config *model = s->shape.model;
    int64_t tokens = s->shape.batch * s->shape.sequence, most = 0;
    int64_t local = s->shape.sequence_parallel ? tokens / s->shape.tp : tokens;
    const bool has_head = runs_stage(s, s->run->schedule->stages - 1), has_layers = runs_layers(s);
    const bool has_embedding = runs_stage(s, 0);
    struct op norm = {.kind = OP_NORM_BACKWARD,
                      .norm_backward = {.x = shape_2d(s, local, model->hidden_size)}};
    if (has_layers || has_head || (has_embedding && model->embed_layernorm))
        raise_to(&most, (int64_t)op_scratch_bytes(&norm, &s->device));
    norm.norm_backward.x = shape_2d(s, tokens, model->kv_channels); // of a head of q or k
    if (has_layers && model->qk_layernorm)
        raise_to(&most, (int64_t)op_scratch_bytes(&norm, &s->device));
    struct op embedding = {.kind = OP_EMBEDDING_BACKWARD,
                           .embedding_backward = {.dout = shape_2d(s, tokens, model->hidden_size)}};
    if (has_embedding)
        raise_to(&most, (int64_t)op_scratch_bytes(&embedding, &s->device));
    if (has_head)
        raise_to(&most, of_matmuls(s, NULL, model->hidden_size, memory_head_rows(&s->shape), false));
    if (!has_layers)
        return most;
    raise_to(&most, of_attention(s));
    int64_t groups = model->num_query_groups * params_kv_replicas(model, s->shape.tp) / s->shape.tp;
    int64_t heads = model->num_attention_heads / s->shape.tp, hidden = model->hidden_size;
    int64_t fused = (heads + 2 * groups) * model->kv_channels,
            features = model->ffn_hidden_size / s->shape.tp;
    int64_t before = features * (model_is_gated(model) ? 2 : 1);
    raise_to(&most, of_matmuls(s, linear_names[0], hidden, fused, model_has_qkv_bias(model)));
    raise_to(&most, of_matmuls(s, linear_names[1], heads * model->kv_channels, hidden, false));
    raise_to(&most, of_matmuls(s, linear_names[2], hidden, before, model->add_bias_linear));
    raise_to(&most, of_matmuls(s, linear_names[3], features, hidden, false));
    if (model_has_qkv_bias(model))
        raise_to(&most, of_sum(s, tokens, fused));
    if (!model->add_bias_linear)
        return most;
    raise_to(&most, of_sum(s, tokens, before));
    raise_to(&most, of_sum(s, local, hidden));
    return most;
}

/* Adds the buffers of a microbatch: sample, i64; token, label, position, document, loss slot and mask, four
 * bytes each. */
static void add_data(struct estimate *s)
{
    int64_t bytes = s->shape.batch * s->shape.sequence * (8 + 6 * 4);
    add_buffer(s, PART_DATA, "microbatches of a step", (bytes + 63) / 64 * 64 * s->run->schedule->m);
}

static enum status add_all(struct estimate *s)
{
    struct memory_states states;
    TRY(memory_states_of(s->run, &s->params, s->coord, &states));
    add_states(s, &states);
    add_activations(s);
    add_bytes(s, PART_WORKSPACE, "recomputed activations", s->recomputed);
    add_bytes(s, PART_WORKSPACE, "scratch memory of the layers", s->scratch);
    int64_t kernels = of_kernels(s);
    if (kernels > 0)
        add_buffer(s, PART_WORKSPACE, "scratch memory of the kernels", kernels);
    add_data(s);
    return OK;
}

/* The parameters are those of the run, for all ranks. */
static enum status compute(const struct run *run, int rank, int threads, const struct params *params,
                           struct memory_table *out)
{
    const struct recipe *recipe = run->recipe;
    const struct linear_precision *precision = &recipe->layers.precision;
    *out = (struct memory_table){.count = 0};
    struct estimate s = {
        .run = run,
        .rank = rank,
        .params = *params,
        .table = out,
        .coord = mesh_coord(&run->mesh, MESH_DENSE, rank),
        .shape = {.model = &recipe->model,
                  .quantized = linear_precision_quantizes(precision),
                  .tp = run->mesh.degrees.tp,
                  .sequence_parallel = recipe->layers.sequence_parallel,
                  .tp_comm_overlap = recipe->layers.tp_comm_overlap && recipe->layers.sequence_parallel,
                  .batch = recipe->train.micro_batch_size,
                  .sequence = recipe->model.seq_length,
                  .assume = memory_assumed(recipe)},
        .recompute = recipe->layers.recompute,
        .device = run_device_options(run, threads),
    };
    s.on_gpu =
        device_traits(s.device.simulated_device != NULL ? s.device.simulated_device : s.device.name)->is_gpu;
    s.split = schedule_splits_backward(run->schedule, s.coord.pp);
    s.shares_activations = assumptions_of(recipe)->activations == ASSUME_ACTIVATIONS_SHARED &&
                           !recipe->memory.offload_activations;
    out->slots = memory_zeroed((size_t)run->schedule->chunks * SLOT_LIFETIMES, sizeof *out->slots,
                               "the slots of chunks");
    s.slots = slot_plan_create(run->schedule, s.coord.pp);
    enum status status = OK;
    if (recipe->memory.offload_activations)
        status = offload_plan_create(run->schedule, s.coord.pp, &s.offloaded);
    if (status == OK)
        status = add_all(&s);
    slot_plan_destroy(s.slots);
    offload_plan_destroy(s.offloaded);
    if (status != OK)
        memory_table_free(out);
    return status;
}

static enum status declare(const struct run *run, struct params *out)
{
    const struct recipe *recipe = run->recipe;
    return params_declare(&recipe->model, &run->mesh.degrees, recipe->layers.sequence_parallel, out);
}

enum status memory_formula(const struct run *run, int rank, int threads, struct memory_table *out)
{
    struct params params;
    *out = (struct memory_table){.count = 0};
    TRY(declare(run, &params));
    const enum status status = compute(run, rank, threads, &params, out);
    params_free(&params);
    return status;
}

enum status memory_formula_max(const struct run *run, int threads, int64_t *bytes)
{
    struct params params;
    enum status status = OK;
    int64_t most = 0;
    TRY(declare(run, &params));
    for (int pp = 0; pp < run->mesh.degrees.pp && status == OK; pp++) {
        struct memory_table table;
        const int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp});
        status = compute(run, rank, threads, &params, &table);
        if (status == OK) {
            most = table.bytes > most ? table.bytes : most;
            memory_table_free(&table);
        }
    }
    params_free(&params);
    if (status == OK)
        *bytes = most;
    return status;
}

void memory_table_free(struct memory_table *table)
{
    free(table->list);
    free(table->slots);
    *table = (struct memory_table){0};
}
