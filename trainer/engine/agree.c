// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/agree.h"

#include <stdio.h>
#include <string.h>

enum { REASON_CHARS = 2048, SHARED_WORDS = 256 };

/* Memory of the device for small messages. Between steps the buffer of the statistics is free, so that saving
 * needs no additional memory; before it exists, one of its own. */
static enum status begin_shared(struct rank_state *state, struct buffer *own, struct buffer **out)
{
    *out = state->stats.buffer.data != NULL ? &state->stats.buffer : own;
    _Static_assert(AGREE_MAX_VALUES * sizeof(double) <= sizeof(struct step_stats),
                   "the buffer has the space");
    return *out != own
               ? OK
               : buffer_alloc(state->device, PART_COMMUNICATION, AGREE_MAX_VALUES * sizeof(double), own);
}

/* Reduces through device memory, as all communication does. */
static enum status reduce_max(struct rank_state *state, const struct buffer *buffer, double *values,
                              int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    TRY(copy_to_device(state->compute, buffer->data, values, bytes));
    TRY(group_all_reduce(state->groups->world, state->compute, tensor_1d(buffer->data, F64, count),
                         REDUCE_MAX));
    TRY(copy_to_host(state->compute, values, buffer->data, bytes));
    return stream_sync(state->compute);
}

enum status rank_agree_max(struct rank_state *state, double *values, int count)
{
    struct buffer own = {0}, *buffer;
    CHECK(count <= AGREE_MAX_VALUES);
    TRY(begin_shared(state, &own, &buffer));
    const enum status status = reduce_max(state, buffer, values, count);
    buffer_free(&own);
    return status;
}

static enum status broadcast_words(struct rank_state *state, struct buffer *buffer, int32_t *words, int count,
                                   int root)
{
    const size_t bytes = (size_t)count * sizeof *words;
    TRY(copy_to_device(state->compute, buffer->data, words, bytes));
    TRY(group_broadcast(state->groups->world, state->compute, tensor_1d(buffer->data, I32, count), root));
    TRY(copy_to_host(state->compute, words, buffer->data, bytes));
    return stream_sync(state->compute);
}

enum status rank_broadcast(struct rank_state *state, int root, void *data, size_t bytes)
{
    int32_t words[SHARED_WORDS] = {0};
    struct buffer own = {0}, *buffer;
    TRY(begin_shared(state, &own, &buffer));
    enum status status = OK;
    const size_t most = buffer->bytes < sizeof words ? buffer->bytes / 4 * 4 : sizeof words;
    for (size_t at = 0; at < bytes && status == OK; at += most) {
        const size_t part = bytes - at < most ? bytes - at : most;
        memcpy(words, (char *)data + at, part);
        status = broadcast_words(state, buffer, words, (int)((part + 3) / 4), root);
        memcpy((char *)data + at, words, part);
    }
    buffer_free(&own);
    return status;
}

/* Broadcasts the status and the reason of rank `root`. */
static enum status broadcast_reason(struct rank_state *state, enum status mine, int root)
{
    struct {
        enum status status;
        char text[REASON_CHARS];
    } reason = {.status = mine};
    snprintf(reason.text, sizeof reason.text, "%s", mine != OK ? fail_text() : "");
    TRY(rank_broadcast(state, root, &reason, sizeof reason));
    return fail(reason.status, "%s", reason.text);
}

enum status rank_agree(struct rank_state *state, enum status mine)
{
    if (state->world->size == 1)
        return mine;
    // The lowest rank that failed contributes the greatest value.
    double worst = mine == OK ? 0.0 : (double)(state->world->size - state->world->rank);
    TRY(rank_agree_max(state, &worst, 1));
    return worst == 0.0 ? OK : broadcast_reason(state, mine, state->world->size - (int)worst);
}
