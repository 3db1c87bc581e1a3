// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/activations/stash.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static bool is_offloaded(const struct stash *stash, enum lifetime lifetime)
{
    return stash->offloaded != NULL && lifetime <= KEEP_UNTIL_BACKWARD_WEIGHT;
}

int stash_whole_slots(const struct stash *stash, enum lifetime lifetime, int chunk)
{
    return stash->plan->peak[lifetime][chunk];
}

int stash_whole_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch)
{
    return slot_of(stash->plan, lifetime, chunk, microbatch);
}

int stash_slot(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back)
{
    return is_offloaded(stash, lifetime) ? offload_slot(stash->offloaded, lifetime, chunk, microbatch, back)
                                         : stash_whole_slot(stash, lifetime, chunk, microbatch);
}

static int *owner_of(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back)
{
    int slot = stash_slot(stash, lifetime, chunk, microbatch, back);
    return &stash->owner[lifetime][2 * chunk * stash->m + slot];
}

void stash_set_owner(struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back)
{
    *owner_of(stash, lifetime, chunk, microbatch, back) = microbatch;
}

int stash_owner(const struct stash *stash, enum lifetime lifetime, int chunk, int microbatch, bool back)
{
    return *owner_of(stash, lifetime, chunk, microbatch, back);
}

static int slots_of_lifetime(const struct stash *stash, enum lifetime lifetime, int chunk)
{
    if (lifetime_is_shared(lifetime))
        return chunk == 0 ? 1 : 0;
    if (lifetime == STAGE_GRADIENT || (lifetime == KEEP_INPUT_TO_WEIGHT && !stash->backward))
        return 0;
    return is_offloaded(stash, lifetime) ? stash->offloaded->peak[lifetime][chunk]
                                         : stash_whole_slots(stash, lifetime, chunk);
}

static struct slot_use gradient_slots(const struct stash *stash)
{
    int64_t bytes =
        stash->gradient_rows * stash->gradient_columns * (int64_t)dtype_bytes(stash->gradient_dtype);
    return (struct slot_use){stash->gradients.count, bytes};
}

void stash_slots(const struct stash *stash, int chunk, struct slot_use out[SLOT_LIFETIMES])
{
    for (int lifetime = KEEP_INPUT; lifetime <= KEEP_INPUT_TO_WEIGHT; lifetime++) {
        struct slot_use use = {slots_of_lifetime(stash, (enum lifetime)lifetime, chunk),
                               (int64_t)stash->stages[chunk].layout.bytes[lifetime]};
        out[lifetime] = use.slots > 0 && use.bytes > 0 ? use : (struct slot_use){0};
    }
    out[STAGE_GRADIENT] = chunk == 0 && stash->backward ? gradient_slots(stash) : (struct slot_use){0};
}

static enum status allocate_slots(struct device *device, struct stash *stash)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        bool shared = lifetime_is_shared((enum lifetime)lifetime);
        enum part part = shared ? PART_WORKSPACE : PART_ACTIVATIONS;
        size_t most = 0;
        for (int chunk = 0; chunk < stash->chunks; chunk++)
            if (stash->stages[chunk].layout.bytes[lifetime] > most)
                most = stash->stages[chunk].layout.bytes[lifetime];
        for (int chunk = 0; chunk < stash->chunks; chunk++) {
            size_t bytes = shared ? most : stash->stages[chunk].layout.bytes[lifetime];
            bytes *= (size_t)slots_of_lifetime(stash, (enum lifetime)lifetime, chunk);
            if (bytes > 0)
                TRY(buffer_alloc(device, part, bytes, &stash->lifetime[lifetime][chunk]));
        }
    }
    return OK;
}

static enum status allocate_gradients(struct device *device, const struct layer_context *context,
                                      struct stash *stash)
{
    stash->gradient_rows = context_local_tokens(context);
    stash->gradient_columns = context->model->hidden_size;
    stash->gradient_dtype = context->working;
    stash->gradient_busy = memory_zeroed((size_t)stash->gradients.count, sizeof *stash->gradient_busy,
                                         "the events of gradient buffers");
    struct slot_use use = gradient_slots(stash);
    return buffer_alloc(device, PART_ACTIVATIONS, (size_t)(use.slots * use.bytes), &stash->gradient);
}

static enum status plan_offload(const struct stash_config *config, struct stash *stash)
{
    if (!config->offload || !config->backward)
        return OK;
    TRY(offload_plan_create(config->schedule, config->pp_rank, &stash->offloaded));
    if (stash->offloaded->any)
        return OK;
    offload_plan_destroy(stash->offloaded);
    stash->offloaded = NULL;
    return OK;
}

static void allocate_owners(struct stash *stash)
{
    size_t slots = 2 * (size_t)stash->chunks * (size_t)stash->m;
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++) {
        stash->owner[lifetime] = memory_zeroed(slots, sizeof(int), "the slots of a rank");
        memset(stash->owner[lifetime], 0xff, slots * sizeof(int));
    }
}

enum status stash_create(struct device *device, const struct stash_config *config, struct stash *out)
{
    const struct schedule *schedule = config->schedule;
    *out = (struct stash){
        .chunks = schedule->chunks, .m = schedule->m, .stages = config->stages, .backward = config->backward};
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        out->lifetime[lifetime] =
            memory_zeroed((size_t)out->chunks, sizeof *out->lifetime[lifetime], "the slots of a rank");
    }
    allocate_owners(out);
    out->plan = slot_plan_create(schedule, config->pp_rank);
    TRY(plan_offload(config, out));
    if (config->backward) {
        gradient_plan_create(schedule, config->pp_rank, &out->gradients);
        TRY(allocate_gradients(device, config->stages[0].context, out));
    }
    return allocate_slots(device, out);
}

void stash_destroy(struct stash *stash)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        for (int chunk = 0; stash->lifetime[lifetime] != NULL && chunk < stash->chunks; chunk++)
            buffer_free(&stash->lifetime[lifetime][chunk]);
        free(stash->lifetime[lifetime]);
    }
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        free(stash->owner[lifetime]);
    buffer_free(&stash->gradient);
    free(stash->gradient_busy);
    gradient_plan_destroy(&stash->gradients);
    slot_plan_destroy(stash->plan);
    offload_plan_destroy(stash->offloaded);
    *stash = (struct stash){0};
}

void stash_bases(const struct stash *stash, int chunk, int microbatch, bool back, char *base[LIFETIME_COUNT])
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        if (lifetime_is_shared((enum lifetime)lifetime)) {
            base[lifetime] = stash->lifetime[lifetime][0].data;
            continue;
        }
        char *data = stash->lifetime[lifetime][chunk].data;
        base[lifetime] = NULL;
        if (data == NULL)
            continue;
        size_t bytes = stash->stages[chunk].layout.bytes[lifetime];
        int slot = stash_slot(stash, (enum lifetime)lifetime, chunk, microbatch, back);
        base[lifetime] = data + bytes * (size_t)slot;
    }
}

int stash_gradient(const struct stash *stash, int chunk, int microbatch)
{
    return stash->gradients.of[chunk * stash->m + microbatch];
}

struct tensor stash_gradient_tensor(const struct stash *stash, int index)
{
    struct tensor all = tensor_2d(stash->gradient.data, stash->gradient_dtype,
                                  stash->gradients.count * stash->gradient_rows, stash->gradient_columns);
    return tensor_rows(all, index * stash->gradient_rows, (index + 1) * stash->gradient_rows);
}

static enum status poison_bytes(struct stream *stream, char *data, size_t bytes)
{
    if (bytes == 0)
        return OK;
    return poison(stream, (struct poison){.out = tensor_1d(data, F32, (int64_t)(bytes / sizeof(float)))});
}

enum status stash_poison(const struct stash *stash, struct stream *stream, enum lifetime lifetime, int chunk,
                         int microbatch, bool back)
{
    char *base[LIFETIME_COUNT];
    if (!stream->device->poisons) // this is called after each action
        return OK;
    stash_bases(stash, chunk, microbatch, back, base);
    return poison_bytes(stream, base[lifetime], stash->stages[chunk].layout.bytes[lifetime]);
}

enum status stash_release_shared(const struct stash *stash, struct stream *stream)
{
    const struct buffer *again = &stash->lifetime[RECOMPUTE][0], *scratch = &stash->lifetime[SCRATCH][0];
    if (!stream->device->poisons)
        return OK;
    TRY(poison_bytes(stream, again->data, again->bytes));
    return poison_bytes(stream, scratch->data, scratch->bytes);
}
