// SPDX-License-Identifier: Apache-2.0
#include "trainer/executor_slots.h"

#include <stdlib.h>
#include <string.h>

static const enum slot_class class_of[HOME_COUNT] = {
    [HOME_UNTIL_INPUT] = UNTIL_INPUT,
    [HOME_UNTIL_WEIGHT] = UNTIL_WEIGHT,
    [HOME_INPUT_TO_WEIGHT] = INPUT_TO_WEIGHT,
};

/* The free buffers while the list is walked: a queue, so that the buffer longest free is taken. One always
 * stays back: the last message may still read it while the next action starts. */
struct pool {
    int *queue; // every index enters it once for each time it is given
    int begin, end, made;
};

static int pool_take(struct pool *pool)
{
    return pool->end - pool->begin >= 2 ? pool->queue[pool->begin++] : pool->made++;
}

static void pool_give(struct pool *pool, int index)
{
    pool->queue[pool->end++] = index;
}

/* Walks the rank's list once. */
static enum status plan_gradients(const struct schedule *schedule, int rank, struct gradient_plan *out)
{
    const struct action_list *list = &schedule->ranks[rank];
    int m = schedule->m;
    size_t cells = (size_t)schedule->chunks * (size_t)m;
    struct pool pool = {.queue = malloc((cells + 1) * sizeof *pool.queue)};
    out->of = malloc(cells * sizeof *out->of);
    if (pool.queue == NULL || out->of == NULL) {
        free(pool.queue);
        return fail(NO_MEMORY, "no memory for the gradient buffers of %d microbatches", m);
    }
    memset(out->of, 0xff, cells * sizeof *out->of);
    for (int i = 0; i < list->count; i++) {
        struct action action = list->actions[i];
        const struct action_fact *fact = action_fact(action.kind);
        int *cell =
            &out->of[schedule_chunk(schedule, action.stage, action.microbatch) * m + action.microbatch];
        if ((action.kind == RECV_GRADIENT || fact->backs_input) && *cell < 0)
            *cell = pool_take(&pool);
        if (action.kind == SEND_GRADIENT || (fact->backs_input && action.stage == 0))
            pool_give(&pool, *cell);
        bool goes_on = fact->backs_input && action.stage > 0 &&
                       schedule_rank(schedule, action.stage - 1, action.microbatch) == rank;
        if (goes_on)
            out->of[schedule_chunk(schedule, action.stage - 1, action.microbatch) * m + action.microbatch] =
                *cell;
    }
    out->count = pool.made;
    free(pool.queue);
    return OK;
}

static int slots_of_home(const struct slots *slots, enum home home, int chunk)
{
    if (home == HOME_SCRATCH)
        return chunk == 0 ? 1 : 0;
    return slots->plan != NULL            ? slots->plan->peak[class_of[home]][chunk]
           : home == HOME_INPUT_TO_WEIGHT ? 0
                                          : 1;
}

static enum status allocate_homes(struct device *device, struct slots *slots)
{
    for (int home = 0; home < HOME_COUNT; home++) {
        enum part part = home == HOME_SCRATCH ? PART_WORKSPACE : PART_ACTIVATIONS;
        size_t most = 0;
        for (int chunk = 0; chunk < slots->chunks; chunk++)
            if (slots->stages[chunk].layout.bytes[home] > most)
                most = slots->stages[chunk].layout.bytes[home];
        for (int chunk = 0; chunk < slots->chunks; chunk++) {
            size_t bytes = home == HOME_SCRATCH ? most : slots->stages[chunk].layout.bytes[home];
            bytes *= (size_t)slots_of_home(slots, (enum home)home, chunk);
            if (bytes > 0)
                TRY(buffer_alloc(device, part, bytes, &slots->home[home][chunk]));
        }
    }
    return OK;
}

static enum status allocate_gradients(struct device *device, const struct env *env, struct slots *slots)
{
    slots->gradient_rows = env_local_tokens(env);
    slots->gradient_columns = env->model->hidden_size;
    size_t bytes = (size_t)(slots->gradient_rows * slots->gradient_columns) * sizeof(float);
    slots->gradient_busy = calloc((size_t)slots->gradients.count, sizeof *slots->gradient_busy);
    if (slots->gradient_busy == NULL)
        return fail(NO_MEMORY, "no memory for the events of %d gradient buffers", slots->gradients.count);
    return buffer_alloc(device, PART_ACTIVATIONS, bytes * (size_t)slots->gradients.count, &slots->gradient);
}

enum status slots_create(struct device *device, const struct schedule *schedule, int pp_rank,
                         const struct stage *stages, bool backward, struct slots *out)
{
    *out = (struct slots){.chunks = schedule->chunks, .m = schedule->m, .stages = stages};
    for (int home = 0; home < HOME_COUNT; home++) {
        out->home[home] = calloc((size_t)out->chunks, sizeof *out->home[home]);
        if (out->home[home] == NULL)
            return fail(NO_MEMORY, "no memory for the slots of %d chunks", out->chunks);
    }
    if (backward) {
        TRY(slot_plan_create(schedule, pp_rank, 0, &out->plan));
        TRY(plan_gradients(schedule, pp_rank, &out->gradients));
        TRY(allocate_gradients(device, stages[0].env, out));
    }
    return allocate_homes(device, out);
}

void slots_destroy(struct slots *slots)
{
    for (int home = 0; home < HOME_COUNT; home++) {
        for (int chunk = 0; slots->home[home] != NULL && chunk < slots->chunks; chunk++)
            buffer_free(&slots->home[home][chunk]);
        free(slots->home[home]);
    }
    buffer_free(&slots->gradient);
    free(slots->gradient_busy);
    free(slots->gradients.of);
    slot_plan_destroy(slots->plan);
    *slots = (struct slots){0};
}

static int slot_index(const struct slots *slots, enum home home, int chunk, int microbatch)
{
    return slots->plan != NULL ? slot_of(slots->plan, class_of[home], chunk, microbatch) : 0;
}

void slots_bases(const struct slots *slots, int chunk, int microbatch, char *base[HOME_COUNT])
{
    for (int home = 0; home < HOME_SCRATCH; home++) {
        size_t bytes = slots->stages[chunk].layout.bytes[home];
        char *data = slots->home[home][chunk].data;
        base[home] = data == NULL
                         ? NULL
                         : data + bytes * (size_t)slot_index(slots, (enum home)home, chunk, microbatch);
    }
    base[HOME_SCRATCH] = slots->home[HOME_SCRATCH][0].data;
}

int slots_gradient(const struct slots *slots, int chunk, int microbatch)
{
    return slots->gradients.of[chunk * slots->m + microbatch];
}

struct tensor slots_gradient_tensor(const struct slots *slots, int index)
{
    float *data = slots->gradient.data;
    return tensor_2d(data + index * slots->gradient_rows * slots->gradient_columns, F32, slots->gradient_rows,
                     slots->gradient_columns);
}

static enum status poison_bytes(struct stream *stream, char *data, size_t bytes)
{
    if (bytes == 0)
        return OK;
    return poison(stream, (struct poison){.out = tensor_1d(data, F32, (int64_t)(bytes / sizeof(float)))});
}

enum status slots_release(const struct slots *slots, struct stream *stream, enum home home, int chunk,
                          int microbatch)
{
    char *base[HOME_COUNT];
    slots_bases(slots, chunk, microbatch, base);
    return poison_bytes(stream, base[home], slots->stages[chunk].layout.bytes[home]);
}

enum status slots_release_scratch(const struct slots *slots, struct stream *stream)
{
    const struct buffer *scratch = &slots->home[HOME_SCRATCH][0];
    return poison_bytes(stream, scratch->data, scratch->bytes);
}
