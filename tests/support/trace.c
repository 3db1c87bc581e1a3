// SPDX-License-Identifier: Apache-2.0
#include "tests/support/trace.h"

#include "kernels/host_floats.h"
#include "planner/plan/memory_plan.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/store.h"
#include "trainer/engine/step.h"

#include <stdlib.h>
#include <string.h>

/* ---- one number per parameter ---- */

static const int64_t SUM_BITS = ((int64_t)1 << 56) - 1;

/* Hash of one element: its index and its bits. 56 bits, and sums are modulo 2^56: adding a few ranks' sums
 * fits in an i64. */
static uint64_t mix(uint64_t row, uint64_t index, uint32_t bits)
{
    uint64_t x = (row << 40 ^ index) * 0x9e3779b97f4a7c15U + bits;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return (x ^ x >> 31) >> 8;
}

static enum status hash_tensor(struct rank_state *w, const struct owned_param *owned, struct tensor tensor,
                               uint64_t salt, uint64_t *sum)
{
    const struct held_param *held = owned->held;
    const struct slice part = owned_slice(owned), *slice = &part;
    float *local = malloc((size_t)tensor_count(tensor) * sizeof *local + 1);
    enum status status = local != NULL ? OK : fail(NO_MEMORY, "no memory to read %s", held->param->name);
    if (status == OK)
        status = floats_from_device(w->compute, tensor, local);
    for (int64_t i = 0; status == OK && i < slice->count[0]; i++)
        for (int64_t j = 0; j < slice->count[1]; j++) {
            uint32_t bits;
            memcpy(&bits, &local[i * slice->padded[1] + j], sizeof bits);
            int64_t index = (slice->begin[0] + i) * held->param->dim[1] + slice->begin[1] + j;
            *sum += mix(((uint64_t)held->index << 2) + salt, (uint64_t)index, bits);
        }
    free(local);
    return status;
}

/* Each element is hashed by one rank: the first owner of its shard. */
static enum status hash_weights(struct rank_state *w, int64_t hash[TRACE_MAX_ROWS])
{
    struct buffer sums = {0};
    size_t bytes = (size_t)w->params.count * sizeof *hash;
    const struct groups *groups = w->groups;
    bool first = w->weights.zero_stage > 0
                     ? groups->stage_replicas == NULL || groups->stage_replicas->rank == 0
                     : groups_is_primary_replica(groups);
    for (int i = 0; i < w->weights.owned_count; i++) {
        const struct owned_param *owned = &w->weights.owned[i];
        const struct held_param *held = owned->held;
        if (!first || !held->slice.first_replica || held->param->tie >= 0)
            continue;
        uint64_t sum = 0;
        TRY(hash_tensor(w, owned, owned->value, 0, &sum));
        TRY(hash_tensor(w, owned, owned->m, 1, &sum));
        TRY(hash_tensor(w, owned, owned->v, 2, &sum));
        hash[held->index] = (int64_t)sum & SUM_BITS;
    }
    TRY(buffer_alloc(w->device, PART_DATA, bytes, &sums));
    TRY(copy_to_device(w->compute, sums.data, hash, bytes));
    TRY(group_all_reduce(w->groups->world, w->compute, tensor_1d(sums.data, I64, w->params.count),
                         REDUCE_SUM));
    TRY(copy_to_host(w->compute, hash, sums.data, bytes));
    TRY(stream_sync(w->compute));
    for (int i = 0; i < w->params.count; i++)
        hash[i] &= SUM_BITS;
    buffer_free(&sums);
    return OK;
}

/* ---- running ---- */

struct traced_run {
    struct run run;
    const struct trace_options *options;
    struct trace *out;
};

static enum status resume(struct rank_state *w)
{
    char *path = NULL;
    TRY(store_find(w->run->recipe->checkpoint.save, &path));
    enum status status =
        path != NULL ? checkpoint_load(w, path, CHECKPOINT_RESUME) : fail(BAD_CHECKPOINT, "there is none");
    free(path);
    return status;
}

static enum status train_steps(struct rank_state *w, const struct trace_options *options, struct trace *trace)
{
    bool stop;
    while (w->step < trace->steps) {
        struct step_result result;
        double ignored;
        bool looks_ahead = options->looks_ahead && !options->evaluates_often && w->step + 1 < trace->steps &&
                           w->step + 1 != options->stop_after;
        TRY(looks_ahead ? rank_step_look_ahead(w, &result) : rank_step(w, &result));
        TRY(rank_check_finite(w, &result));
        trace->rollbacks += result.rollbacks;
        trace->ahead += w->ahead;
        trace->loss[w->step - 1] = result.loss;
        trace->grad_norm[w->step - 1] = result.grad_norm;
        if (options->evaluates_often)
            TRY(rank_evaluate(w, &ignored, &stop));
        if (w->step == options->stop_after)
            return checkpoint_save(w);
    }
    TRY(rank_evaluate(w, &trace->valid_loss, &stop));
    return hash_weights(w, trace->hash);
}

static enum status rank_run(struct world *world, const struct traced_run *job)
{
    struct rank_state state;
    struct trace trace = *job->out;
    world->synchronous = job->options->synchronous;
    TRY(memory_plan_create_rank(&job->run, world, &state));
    trace.steps = (int)job->run.recipe->train.train_iters;
    trace.rows = state.params.count;
    CHECK(trace.steps <= TRACE_MAX_STEPS && trace.rows <= TRACE_MAX_ROWS);
    for (int i = 0; i < trace.rows; i++)
        memcpy(trace.names[i], state.params.list[i].name, sizeof trace.names[i]);
    memset(trace.hash, 0, sizeof trace.hash);
    if (job->options->resume)
        TRY(resume(&state));
    enum status status = train_steps(&state, job->options, &trace);
    if (status == OK)
        status = group_barrier(state.groups->world, state.compute); // all have copied job->out
    if (status == OK && world->rank == 0)
        *job->out = trace;
    if (status == OK || status == NOT_FINITE) // on which all ranks agree
        rank_destroy(&state);
    return status;
}

struct jobs {
    struct traced_run *list;
    int count;
};

static enum status rank_main(struct world *world, void *argument)
{
    const struct jobs *jobs = argument;
    for (int i = 0; i < jobs->count; i++)
        TRY(rank_run(world, &jobs->list[i]));
    return OK;
}

enum status trace_run_all(const struct recipe *const *recipes, const struct trace_options *options, int count,
                          struct trace *out)
{
    struct jobs jobs = {calloc((size_t)count, sizeof *jobs.list), 0};
    struct world_options world = recipe_world(recipes[0], recipe_world_size(recipes[0]));
    world.transport = options[0].transport;
    enum status status = jobs.list != NULL ? OK : fail(NO_MEMORY, "no memory for %d runs", count);
    for (; status == OK && jobs.count < count; jobs.count++) {
        struct traced_run *job = &jobs.list[jobs.count];
        *job = (struct traced_run){.options = &options[jobs.count], .out = &out[jobs.count]};
        status = run_create(recipes[jobs.count], true, &job->run);
        job->run.observer = job->options->observer;
    }
    if (status == OK)
        status = world_run_as(&world, rank_main, &jobs);
    for (int i = 0; i < jobs.count; i++)
        run_destroy(&jobs.list[i].run);
    free(jobs.list);
    return status;
}

enum status trace_run(const struct recipe *recipe, const struct trace_options *options, struct trace *out)
{
    return trace_run_all(&recipe, options, 1, out);
}

/* ---- comparing ---- */

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

bool trace_differs(const struct trace *a, const struct trace *b, struct text *why)
{
    if (a->steps != b->steps || a->rows != b->rows) {
        text_add(why, "%d steps of %d parameters, and %d of %d", a->steps, a->rows, b->steps, b->rows);
        return true;
    }
    for (int s = 0; s < a->steps; s++) {
        if (same_bits(a->loss[s], b->loss[s]) && same_bits(a->grad_norm[s], b->grad_norm[s]))
            continue;
        text_add(why, "step %d: loss %.17g and %.17g, gradient norm %.17g and %.17g", s + 1, a->loss[s],
                 b->loss[s], a->grad_norm[s], b->grad_norm[s]);
        return true;
    }
    for (int i = 0; i < a->rows; i++)
        if (a->hash[i] != b->hash[i]) {
            text_add(why, "%s has other bits", a->names[i]);
            return true;
        }
    if (same_bits(a->valid_loss, b->valid_loss))
        return false;
    text_add(why, "validation loss %.17g and %.17g", a->valid_loss, b->valid_loss);
    return true;
}

enum status trace_write(const struct trace *trace, const char *path)
{
    return file_write_atomic(path, trace, sizeof *trace);
}

enum status trace_read(const char *path, struct trace *out)
{
    struct text text = {0};
    TRY(file_read(path, &text));
    enum status status = text.length == sizeof *out
                             ? OK
                             : fail(BAD_DATA, "%s has %zu bytes, not %zu", path, text.length, sizeof *out);
    if (status == OK)
        memcpy(out, text_chars(&text), sizeof *out);
    text_free(&text);
    return status;
}
