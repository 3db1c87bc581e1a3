// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/activations/activation_store.h"

#include "trainer/engine/activations/offload.h"

enum status activation_store_create(const struct activation_store_config *config,
                                    struct activation_store *out)
{
    *out = (struct activation_store){
        .schedule = config->schedule, .pp_rank = config->pp_rank, .compute = config->compute};
    struct stash_config stash = {
        .schedule = config->schedule,
        .pp_rank = config->pp_rank,
        .stages = config->stages,
        .backward = config->training,
        .offload = config->offload,
    };
    TRY(stash_create(stream_device(config->compute), &stash, &out->stash));
    TRY(activation_store_check(out));
    const struct action_list *list = &config->schedule->ranks[config->pp_rank];
    return offload_create(&out->stash, config->compute, list, &out->offload);
}

void activation_store_destroy(struct activation_store *store)
{
    offload_destroy(store->offload);
    stash_destroy(&store->stash);
    *store = (struct activation_store){0};
}

/* ---- checks ---- */

static int chunk_of(const struct activation_store *store, struct action action)
{
    return schedule_chunk(store->schedule, action.stage, action.microbatch);
}

static bool in_backward(struct action action)
{
    const struct action_traits *traits = action_traits(action.kind);
    return traits->backward_input || traits->backward_weight;
}

static enum status check_slot(const struct activation_store *store, struct action action,
                              enum lifetime lifetime)
{
    int chunk = chunk_of(store, action);
    int slot = stash_slot(&store->stash, lifetime, chunk, action.microbatch, in_backward(action));
    size_t bytes = store->stash.stages[chunk].layout.bytes[lifetime];
    const struct buffer *memory = &store->stash.lifetime[lifetime][chunk];
    if (slot >= 0 && bytes * (size_t)(slot + 1) <= memory->bytes)
        return OK;
    return fail(BAD_SCHEDULE, "chunk %d, microbatch %d: slot %d of %s is outside of %zu bytes", chunk,
                action.microbatch, slot, lifetime_name(lifetime), memory->bytes);
}

static enum status check_action(const struct activation_store *store, struct action action)
{
    const struct action_traits *traits = action_traits(action.kind);
    bool training = store->stash.backward;
    if (!traits->computes || (in_backward(action) && !training))
        return OK;
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        if (training || lifetime != KEEP_INPUT_TO_WEIGHT)
            TRY(check_slot(store, action, (enum lifetime)lifetime));
    int chunk = chunk_of(store, action),
        gradient = training ? stash_gradient(&store->stash, chunk, action.microbatch) : 0;
    if (!traits->backward_input || (gradient >= 0 && gradient < store->stash.gradients.count))
        return OK;
    return fail(BAD_SCHEDULE, "chunk %d, microbatch %d: there is no gradient buffer %d", chunk,
                action.microbatch, gradient);
}

enum status activation_store_check(const struct activation_store *store)
{
    const struct action_list *list = &store->schedule->ranks[store->pp_rank];
    for (int i = 0; i < list->count; i++)
        TRY(check_action(store, list->actions[i]));
    return OK;
}

/* ---- acquire ---- */

static enum status acquire_to_write(struct activation_store *store, struct action action,
                                    enum lifetime lifetime)
{
    int chunk = chunk_of(store, action);
    TRY(offload_acquire(store->offload, store->compute, lifetime, chunk, action.microbatch));
    stash_set_owner(&store->stash, lifetime, chunk, action.microbatch, false);
    return OK;
}

static enum status acquire_to_read(const struct activation_store *store, struct action action,
                                   enum lifetime lifetime)
{
    int chunk = chunk_of(store, action);
    int owner = stash_owner(&store->stash, lifetime, chunk, action.microbatch, in_backward(action));
    if (owner == action.microbatch)
        return OK;
    return fail(BAD_SCHEDULE, "chunk %d, microbatch %d: its slot of %s holds microbatch %d", chunk,
                action.microbatch, lifetime_name(lifetime), owner);
}

/* The first stage computes its input. Others received it, or copy the output of the previous stage on this
 * rank. */
static enum status acquire_input(struct activation_store *store, struct action action)
{
    struct action previous = action;
    previous.stage--;
    if (action.stage == 0)
        return acquire_to_write(store, action, KEEP_INPUT);
    if (schedule_rank(store->schedule, previous.stage, previous.microbatch) != store->pp_rank)
        return acquire_to_read(store, action, KEEP_INPUT);
    enum lifetime of_output = store->stash.stages[chunk_of(store, previous)].output.lifetime;
    TRY(acquire_to_read(store, previous, of_output));
    return acquire_to_write(store, action, KEEP_INPUT);
}

static enum status acquire_forward(struct activation_store *store, struct action action)
{
    TRY(acquire_input(store, action));
    TRY(acquire_to_write(store, action, KEEP_UNTIL_BACKWARD_INPUT));
    return acquire_to_write(store, action, KEEP_UNTIL_BACKWARD_WEIGHT);
}

/* The first writer of a stage gradient waits for the message that last read the buffer. */
static enum status acquire_gradient(struct activation_store *store, struct action action)
{
    return stream_wait(store->compute, *activation_store_gradient(store, action).sent);
}

static enum status acquire_backward(struct activation_store *store, struct action action)
{
    const struct action_traits *traits = action_traits(action.kind);
    int chunk = chunk_of(store, action);
    if (traits->backward_input) {
        TRY(offload_wait(store->offload, chunk, action.microbatch));
        TRY(acquire_to_read(store, action, KEEP_INPUT));
        TRY(acquire_to_read(store, action, KEEP_UNTIL_BACKWARD_INPUT));
        stash_set_owner(&store->stash, KEEP_INPUT_TO_WEIGHT, chunk, action.microbatch, true);
        if (action.stage == store->schedule->stages - 1)
            TRY(acquire_gradient(store, action));
    }
    if (!traits->backward_weight)
        return OK;
    TRY(acquire_to_read(store, action, KEEP_UNTIL_BACKWARD_WEIGHT));
    return acquire_to_read(store, action, KEEP_INPUT_TO_WEIGHT);
}

enum status activation_store_prefetch(struct activation_store *store, int position)
{
    return offload_prefetch(store->offload, position);
}

enum status activation_store_acquire(struct activation_store *store, struct action action,
                                     char *base[LIFETIME_COUNT])
{
    activation_store_addresses(store, action, base);
    switch (action.kind) {
    case RECV_ACTIVATION:
        return acquire_to_write(store, action, KEEP_INPUT);
    case FORWARD:
        return acquire_forward(store, action);
    case RECV_GRADIENT:
        return acquire_gradient(store, action);
    case BACKWARD:
    case BACKWARD_INPUT:
    case BACKWARD_WEIGHT:
        return acquire_backward(store, action);
    case SEND_ACTIVATION:
    case SEND_GRADIENT:
    case ACTION_KIND_COUNT:
        break;
    }
    return OK;
}

/* ---- release ---- */

/* True if the action is the last one that reads tensors of a lifetime. */
static bool ends(struct action action, enum lifetime lifetime)
{
    const struct action_traits *traits = action_traits(action.kind);
    bool until_input = lifetime == KEEP_INPUT || lifetime == KEEP_UNTIL_BACKWARD_INPUT;
    return until_input ? traits->backward_input : traits->backward_weight;
}

enum status activation_store_release(struct activation_store *store, struct action action)
{
    int chunk = chunk_of(store, action);
    if (action.kind == FORWARD)
        TRY(offload_to_host(store->offload, chunk, action.microbatch));
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        if (ends(action, (enum lifetime)lifetime))
            TRY(stash_poison(&store->stash, store->compute, (enum lifetime)lifetime, chunk, action.microbatch,
                             true));
    return action_traits(action.kind)->computes ? stash_release_shared(&store->stash, store->compute) : OK;
}

void activation_store_sent(struct activation_store *store, struct action action, struct event sent)
{
    int chunk = chunk_of(store, action);
    offload_sent(store->offload, store->stash.stages[chunk].output.lifetime, chunk, action.microbatch, sent);
}

/* ---- addresses ---- */

struct stage_gradient activation_store_gradient(const struct activation_store *store, struct action action)
{
    int index = stash_gradient(&store->stash, chunk_of(store, action), action.microbatch);
    return (struct stage_gradient){stash_gradient_tensor(&store->stash, index),
                                   &store->stash.gradient_busy[index]};
}

void activation_store_addresses(const struct activation_store *store, struct action action,
                                char *base[LIFETIME_COUNT])
{
    stash_bases(&store->stash, chunk_of(store, action), action.microbatch, in_backward(action), base);
}
