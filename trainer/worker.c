// SPDX-License-Identifier: Apache-2.0
#include "trainer/worker.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- making ---- */

/* The machine's cores shared by the ranks that run on it. */
static int threads_of(const struct run *run, const struct world *world)
{
    int asked = run->recipe->cluster.threads_per_rank;
    if (asked > 0)
        return asked;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int share = (int)cores / world->size;
    return share > 1 ? share : 1;
}

static enum status call_hook(enum status (*hook)(void *, struct worker *), const struct run *run,
                             struct worker *w)
{
    return hook != NULL ? hook(run->hooks.context, w) : OK;
}

/* This rank's layers in the order in which their last gradients become ready: its last chunk first, and in
 * it the last layer first. */
static int layers_held(const struct run *run, int pp_rank, int *out)
{
    const struct schedule *schedule = run->schedule;
    int count = 0;
    for (int stage = schedule->stages - 1; stage >= 0; stage--) {
        if (!schedule_holds(schedule, pp_rank, stage))
            continue;
        if (stage == schedule->stages - 1)
            out[count++] = run->stage_first_layer[schedule->stages];
        for (int l = run->stage_first_layer[stage + 1] - 1; l >= run->stage_first_layer[stage]; l--)
            out[count++] = l;
        if (stage == 0)
            out[count++] = LAYER_EMBEDDING;
    }
    return count;
}

static enum status create_weights(struct worker *w, bool training)
{
    const struct run *run = w->run;
    int *layers = calloc((size_t)run->recipe->model.num_layers + 2, sizeof *layers);
    if (layers == NULL)
        return fail(NO_MEMORY, "no memory for the list of layers");
    int count = layers_held(run, w->groups->place.pp, layers);
    enum status status =
        weights_create(w->device, &w->params, w->groups->place, layers, count, training, &w->weights);
    free(layers);
    return status;
}

static enum status create_executor(struct worker *w, bool training)
{
    const struct recipe *recipe = w->run->recipe;
    struct executor_config config = {
        .world = w->world,
        .groups = w->groups,
        .weights = &w->weights,
        .compute = w->compute,
        .schedule = w->run->schedule,
        .stage_first_layer = w->run->stage_first_layer,
        .model = &recipe->model,
        .batch = recipe->train.micro_batch_size,
        .sequence = recipe->model.seq_length,
        .sequence_parallel = recipe->parallel.sequence_parallel,
        .seed = recipe->seed,
        .bucket_bytes = (int64_t)(recipe->parallel.bucket_size_mb * 1048576.0),
        .overlap_grad_reduce = recipe->parallel.overlap_grad_reduce,
        .training = training,
    };
    return executor_create(&config, &w->executor);
}

static enum status create_optimizer(struct worker *w)
{
    const struct recipe *recipe = w->run->recipe;
    struct optimizer_config config = {
        .recipe = &recipe->optimizer,
        .groups = w->groups,
        .weights = &w->weights,
        .compute = w->compute,
        .global_batch_size = recipe->train.global_batch_size,
    };
    int m = (int)recipe_microbatches(recipe);
    TRY(optimizer_create(&config, &w->optimizer));
    return batches_create(w->device, m, recipe->train.micro_batch_size, recipe->model.seq_length,
                          &w->batches);
}

enum status worker_create(const struct run *run, struct world *world, bool training, struct worker *out)
{
    const struct recipe *recipe = run->recipe;
    *out = (struct worker){.run = run, .world = world, .mesh = run->mesh};
    struct who *me = who_am_i();
    struct place place = mesh_place(&run->mesh, MESH_DENSE, world->rank);
    *me = (struct who){.rank = world->rank, .pp = place.pp, .dp = place.dp, .tp = place.tp};

    TRY(params_declare(&recipe->model, &run->mesh.degrees, recipe->parallel.sequence_parallel, &out->params));
    TRY(call_hook(run->hooks.declared, run, out));
    int kv_replicas = params_kv_replicas(&recipe->model, run->mesh.degrees.tp);
    TRY(groups_create(world, &out->mesh, kv_replicas, &out->groups));
    if (schedule_has_twins(run->schedule))
        TRY(groups_add_twins(world, out->groups));
    struct device_options options = {.name = recipe->cluster.device, .threads = threads_of(run, world)};
    TRY(device_open(&options, &out->device));
    TRY(stream_create(out->device, "compute", &out->compute));
    TRY(create_weights(out, training));
    TRY(weights_initialise(&out->weights, out->compute, recipe->seed));
    TRY(create_executor(out, training));
    if (training)
        TRY(create_optimizer(out));
    return call_hook(run->hooks.built, run, out);
}

void worker_destroy(struct worker *worker)
{
    executor_destroy(worker->executor);
    optimizer_destroy(worker->optimizer);
    batches_destroy(&worker->batches);
    weights_destroy(&worker->weights);
    stream_destroy(worker->compute);
    device_close(worker->device);
    groups_destroy(worker->groups);
    params_free(&worker->params);
    *worker = (struct worker){0};
}

/* ---- a step ---- */

static bool has_documents(const struct run *run)
{
    return run->recipe->data.reset_attention_mask;
}

static struct batch_place place_of(const struct worker *w, uint64_t step)
{
    const struct recipe *recipe = w->run->recipe;
    return (struct batch_place){
        .step = step,
        .global_batch_size = recipe->train.global_batch_size,
        .micro_batch_size = recipe->train.micro_batch_size,
        .dp_size = w->mesh.degrees.dp,
        .dp_rank = w->groups->place.dp,
    };
}

/* Reads the microbatches of global batch `index` and says where their losses go: each sample has its own
 * place in the global batch, whoever computes it. In a run without data, the hook `loaded` fills them. */
static enum status load(struct worker *w, enum data_split split, uint64_t index)
{
    struct batch_place place = place_of(w, index);
    uint64_t begin = index * (uint64_t)place.global_batch_size;
    TRY(optimizer_begin(w->optimizer));
    if (w->run->data != NULL)
        TRY(batches_load(&w->batches, w->compute, w->run->data, split, &place, has_documents(w->run)));
    for (int j = 0; j < w->batches.count; j++) {
        place.microbatch = j;
        struct batch *batch = &w->batches.list[j];
        optimizer_loss_place(w->optimizer, (int64_t)(batch_first_sample(&place) - begin),
                             place.micro_batch_size, &batch->sample_loss, &batch->sample_tokens);
    }
    return OK;
}

static enum status call_step_hook(enum status (*hook)(void *, struct worker *, int64_t), struct worker *w,
                                  int64_t step)
{
    return hook != NULL ? hook(w->run->hooks.context, w, step) : OK;
}

enum status worker_step(struct worker *w, struct step_result *out)
{
    const struct hooks *hooks = &w->run->hooks;
    int64_t step = w->step + 1;
    who_am_i()->step = (int)step;
    TRY(load(w, DATA_TRAIN, (uint64_t)w->step));
    TRY(call_step_hook(hooks->loaded, w, step));
    TRY(executor_step(w->executor, w->batches.list));
    TRY(call_step_hook(hooks->executed, w, step));
    TRY(optimizer_reduce(w->optimizer));
    TRY(call_step_hook(hooks->reduced, w, step));
    TRY(optimizer_update(w->optimizer, step));
    TRY(optimizer_finish(w->optimizer, out));
    w->step = step;
    return hooks->stepped != NULL ? hooks->stepped(hooks->context, w, step, out) : OK;
}

enum status worker_evaluate(struct worker *w, double *loss)
{
    int64_t iterations = w->run->recipe->train.eval_iters;
    double sum = 0.0, tokens = 0.0;
    for (int64_t i = 0; i < iterations; i++) {
        struct step_result result;
        TRY(load(w, DATA_VALID, (uint64_t)i));
        TRY(call_step_hook(w->run->hooks.loaded, w, 0));
        TRY(executor_evaluate(w->executor, w->batches.list, w->batches.count));
        TRY(optimizer_reduce_losses(w->optimizer));
        TRY(optimizer_finish(w->optimizer, &result));
        sum += result.loss * result.tokens;
        tokens += result.tokens;
    }
    *loss = tokens > 0.0 ? sum / tokens : 0.0;
    return OK;
}
