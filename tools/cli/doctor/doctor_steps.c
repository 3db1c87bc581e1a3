// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_steps.h"

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/device_plan.h"
#include "kernels/observe.h"
#include "parallel/comm.h"
#include "planner/plan/memory_plan.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/doctor/doctor_time.h"
#include "trainer/engine/rank.h"
#include "trainer/engine/step.h"
#include "trainer/files/problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 1, MIN_STEPS = 3, MAX_STEPS = 40, MICROBATCHES = 2 };
static const double MIN_ELEMENTS = 4096.0;
static const double MEASURE_S = 0.15; // total time of the steps of one model
/* After this time there are no further steps, even if there were fewer than MIN_STEPS: in a step that long,
 * the layers and microbatches of a model run each op at least four times. */
static const double LONG_S = 0.5;

/* ---- what is measured ---- */

/* An op of one shape, with its rates so far: FLOP/s, or bytes/s. */
struct timed_op {
    enum profile_kind table;
    struct profile_sample sample; // its value is not set
    double *rates;
    size_t count;
};

struct timed_ops {
    struct timed_op *list;
    size_t count;
};

/* The observer of a rank. */
struct watch {
    struct timed_ops *ops; // NULL: the rank only keeps a core busy
    int threads;
    struct timed_op *running; // NULL: none
    double work;              // of the running op: FLOPs or bytes
    int64_t began_ns;
    int64_t in_ops_ns; // time in all ops of a step
};

static enum profile_kind table_of(enum op_kind kind)
{
    switch ((int)kind) {
    case OP_GEMM:
        return MEASURED_MATMUL;
    case OP_ATTENTION_FORWARD:
        return MEASURED_ATTENTION_FORWARD;
    case OP_ATTENTION_BACKWARD:
        return MEASURED_ATTENTION_BACKWARD;
    default:
        return MEASURED_OP;
    }
}

static bool same_sample(const struct profile_sample *a, const struct profile_sample *b)
{
    return memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->dtype == b->dtype &&
           a->threads == b->threads && a->op == b->op && a->transposed == b->transposed;
}

static struct timed_op *find(struct timed_ops *ops, enum profile_kind table,
                             const struct profile_sample *sample)
{
    for (size_t i = ops->count; i-- > 0;)
        if (ops->list[i].table == table && same_sample(&ops->list[i].sample, sample))
            return &ops->list[i];
    return NULL;
}

/* Whether a list, whose capacity is a power of two, has no room for another entry. */
static bool is_full(size_t count)
{
    return (count & (count - 1)) == 0;
}

static struct timed_op *append(struct timed_ops *ops, enum profile_kind table,
                               const struct profile_sample *sample)
{
    if (is_full(ops->count)) {
        ops->list = memory_resized(ops->list, 2 * ops->count + 1, sizeof *ops->list, "the ops");
    }
    ops->list[ops->count] = (struct timed_op){.table = table, .sample = *sample};
    return &ops->list[ops->count++];
}

static void add_rate(struct timed_op *op, double rate)
{
    if (is_full(op->count)) {
        op->rates = memory_resized(op->rates, 2 * op->count + 1, sizeof *op->rates, "the rates of an op");
    }
    op->rates[op->count++] = rate;
}

static void timed_ops_free(struct timed_ops *ops)
{
    for (size_t i = 0; i < ops->count; i++)
        free(ops->list[i].rates);
    free(ops->list);
}

/* ---- the observer ---- */

static void begin_op(struct watch *watch, const struct op *op, int64_t at_ns)
{
    const struct op_record record = op_record(op);
    const enum profile_kind table = table_of(op->kind);
    const bool has_flops = table != MEASURED_OP;
    struct profile_sample sample = {.dtype = record.dtype == BF16 ? PROFILE_BF16 : PROFILE_FP32,
                                    .threads = watch->threads,
                                    .op = has_flops ? 0 : (int)op->kind,
                                    .transposed = record.transposed};
    const int columns = has_flops ? MEASURED_COLUMNS : 2;
    for (int i = 0; i < columns; i++)
        sample.shape[i] = record.shape[i] > 0 ? record.shape[i] : 1;
    watch->work = op->kind == OP_GEMM ? 2.0 * (double)(record.shape[0] * record.shape[1] * record.shape[2])
                  : has_flops         ? record.cost.flops
                                      : record.cost.bytes;
    const bool is_derived = op->kind == OP_GEMM && watch->threads > 1; // from one thread
    if (op->kind == OP_TO_DEVICE || op->kind == OP_TO_HOST || is_derived || !(watch->work > 0.0))
        return;
    watch->running = find(watch->ops, table, &sample);
    if (watch->running == NULL)
        watch->running = append(watch->ops, table, &sample);
    watch->began_ns = at_ns;
}

static void see(void *context, const struct observation *seen)
{
    struct watch *watch = context;
    if (watch->ops == NULL || seen->who->step <= WARM_STEPS)
        return;
    if (watch->running != NULL) {
        const int64_t ns = seen->at_ns - watch->began_ns;
        add_rate(watch->running, watch->work / (1e-9 * (double)(ns > 0 ? ns : 1)));
        watch->in_ops_ns += ns;
        watch->running = NULL;
    }
    if (seen->what == OBSERVED_OP)
        begin_op(watch, seen->op, seen->at_ns);
}

static enum status observe(void *context, struct rank_state *state)
{
    return device_observe(state->device, (struct observer){.notify = see, .context = context});
}

/* Random tokens. */
static enum status fill_batches(void *context, struct rank_state *state, int64_t step)
{
    const int64_t tokens = state->batches.rows * state->batches.seq_length;
    const int64_t vocabulary = state->run->recipe->model.vocab_size;
    (void)context;
    for (int j = 0; j < state->batches.count; j++) {
        const struct batch *batch = &state->batches.list[j]; // in host memory
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t draw = (t * 7919 + 104729 * (step + j)) % vocabulary;
            ((int32_t *)batch->token)[t] = (int32_t)draw;
            ((int32_t *)batch->label)[t] = (int32_t)((draw + 1) % vocabulary);
            ((int32_t *)batch->position)[t] = (int32_t)(t % state->batches.seq_length);
            ((float *)batch->loss_mask)[t] = 1.0F;
            ((int64_t *)batch->sample)[t] = t / state->batches.seq_length;
            ((int32_t *)batch->sample_offset)[t] = (int32_t)(t % state->batches.seq_length);
        }
    }
    return OK;
}

/* ---- one model ---- */

/* tokens: of a microbatch. tensor_parallel: the model has the shapes that one of so many ranks computes. */
struct small_model {
    int layers, hidden, head_dim, tokens, sequence, tensor_parallel;
    bool in_all;   // also measured in bf16, and with all threads
    bool in_quick; // also measured if quick
};
static const struct small_model models[] = {
    {4, 64, 32, 256, 128, 1, false, false},   {4, 64, 32, 1024, 256, 1, false, false},
    {4, 128, 32, 256, 256, 1, true, false},   {4, 128, 32, 1024, 256, 1, true, true},
    {4, 256, 64, 256, 256, 1, false, false},  {2, 256, 32, 256, 256, 2, false, false},
    {2, 256, 32, 1024, 512, 1, false, false}, {2, 512, 64, 128, 128, 1, true, false},
    {2, 512, 64, 512, 512, 1, true, false},
};
enum { MODELS = sizeof models / sizeof *models };

static const char gpt[] = "";
static const char llama[] = ", normalization: RMSNorm, activation: swiglu, add_bias_linear: false, "
                            "position_embedding_type: rope, tie_word_embeddings: false";

struct measurement {
    struct run run;
    struct timed_ops *ops;
    int ranks, threads;
    double overhead_s; // the longest of a step; written by rank 0
};

static enum status recipe_of(const struct small_model *model, const char *family, const char *dtype,
                             int threads, struct recipe **out)
{
    enum { ALIGN = 64 }; // of the default with a gate
    struct text text = {0};
    struct problems problems = {0};
    const int rows = model->tokens / model->sequence, shards = model->tensor_parallel;
    const int inner = family[0] == '\0' ? 4 * model->hidden : 8 * model->hidden / 3 / ALIGN * ALIGN;
    text_add(&text,
             "model: {num_layers: %d, hidden_size: %d, num_attention_heads: %d, kv_channels: %d, "
             "ffn_hidden_size: %d, seq_length: %d, vocab_size: %d%s}\n"
             "tokenizer: {tokenizer_type: none}\n"
             "train: {train_iters: %d, micro_batch_size: %d, global_batch_size: %d, eval_interval: 0}\n"
             "optimizer: {lr: 1e-4, lr_warmup_iters: 1}\n"
             "precision: {params_dtype: %s}\n"
             "data: {train: random}\n"
             "cluster: {threads_per_rank: %d}\n"
             "checkpoint: {save: none}\n",
             model->layers, model->hidden, model->hidden / model->head_dim / shards, model->head_dim,
             inner / shards, model->sequence, 16 * model->hidden / shards, family, MAX_STEPS, rows,
             rows * MICROBATCHES, dtype, threads);
    enum status status = planned_recipe_load_text("doctor.yaml", text_chars(&text), NULL, 0, out, &problems);
    if (status != OK)
        status = fail(status, "%s", problems.count > 0 ? problems.list[0].text : "doctor.yaml");
    problems_free(&problems);
    text_free(&text);
    return status;
}

/* Runs steps for MEASURE_S; all ranks of a measurement do about the same at the same time. */
static enum status train(struct rank_state *state, struct watch *watch, double *overhead_s)
{
    struct step_result result;
    double begin_s = 0.0;
    *overhead_s = 1.0;
    for (int step = 1; step <= MAX_STEPS; step++) {
        const double now_s = clock_s();
        begin_s = step <= WARM_STEPS + 1 ? now_s : begin_s;
        const double enough_s = step > WARM_STEPS + MIN_STEPS ? MEASURE_S : LONG_S;
        if (step > WARM_STEPS + 1 && now_s - begin_s > enough_s)
            break;
        watch->in_ops_ns = 0;
        TRY(rank_step(state, &result));
        const double other_s = clock_s() - now_s - 1e-9 * (double)watch->in_ops_ns;
        *overhead_s = step > WARM_STEPS && other_s < *overhead_s ? other_s : *overhead_s;
    }
    return OK;
}

/* A rank that trains a model of its own. */
static enum status alone(struct world *world, void *argument)
{
    struct measurement *m = ((void **)argument)[0];
    struct watch *watch = ((void **)argument)[1];
    struct run run = m->run;
    struct rank_state state;
    double overhead_s = 0.0;
    run.observer = (struct step_observer){
        .context = watch, .on_params_declared = observe, .on_batches_loaded = fill_batches};
    TRY(memory_plan_create_rank(&run, world, &state));
    enum status status = train(&state, watch, &overhead_s);
    rank_destroy(&state);
    if (watch->ops != NULL && watch->threads == 1) // all ops are timed
        m->overhead_s = overhead_s > m->overhead_s ? overhead_s : m->overhead_s;
    return status;
}

static enum status measure_rank(struct world *world, void *argument)
{
    struct measurement *m = argument;
    struct watch watch = {.ops = world->rank == 0 ? m->ops : NULL, .threads = m->threads};
    void *both[] = {m, &watch};
    return world_run_dry(1, 0, alone, both);
}

static enum status measure(const struct small_model *model, const char *family, const char *dtype,
                           struct measurement *m)
{
    struct recipe *recipe = NULL;
    const struct world_options options = {.transport = "local", .size = m->ranks};
    TRY(recipe_of(model, family, dtype, m->threads, &recipe));
    enum status status = run_create(recipe, false, &m->run);
    if (status == OK) {
        status = world_run_as(&options, measure_rank, m);
        run_destroy(&m->run);
    }
    recipe_destroy(recipe);
    return status;
}

/* ---- all models ---- */

static double elements(const struct profile_sample *sample)
{
    return (double)sample->shape[0] * (double)sample->shape[1];
}

/* Adds the median rate of each op, except for those with negligible time. */
static void add_samples(const struct timed_ops *ops, struct cluster_profile *profile)
{
    for (size_t i = 0; i < ops->count; i++) {
        struct timed_op *op = &ops->list[i];
        if (op->count == 0 || elements(&op->sample) < MIN_ELEMENTS)
            continue;
        op->sample.value = doctor_median(op->rates, op->count);
        profile_add_sample(profile, op->table, &op->sample);
    }
}

/* Measures with one thread per rank, and with one rank that has all threads. */
static enum status measure_both(const struct small_model *model, const char *family, const char *dtype,
                                int cores, struct measurement *m)
{
    m->ranks = cores;
    m->threads = 1;
    TRY(measure(model, family, dtype, m));
    if (!model->in_all || cores == 1)
        return OK;
    m->ranks = 1;
    m->threads = cores;
    return measure(model, family, dtype, m);
}

static enum status measure_all(int cores, bool quick, struct measurement *m)
{
    for (int i = 0; i < MODELS; i++) {
        if (quick && !models[i].in_quick)
            continue;
        TRY(measure_both(&models[i], gpt, "fp32", cores, m));
        TRY(measure_both(&models[i], llama, "fp32", cores, m));
        if (models[i].in_all)
            TRY(measure_both(&models[i], gpt, "bf16", cores, m));
    }
    return OK;
}

enum status doctor_steps(int cores, bool quick, struct cluster_profile *profile)
{
    struct timed_ops ops = {0};
    struct measurement m = {.ops = &ops};
    enum status status = measure_all(cores, quick, &m);
    if (status == OK)
        add_samples(&ops, profile);
    profile->model.step_overhead_s = m.overhead_s;
    printf("measured    %zu ops by shape, in training steps of small models\n", ops.count);
    fflush(stdout);
    timed_ops_free(&ops);
    return status;
}
