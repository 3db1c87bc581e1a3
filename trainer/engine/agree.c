// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/agree.h"

#include <string.h>

enum { NOTE_INTS = 512 }; // a status, and the whole reason of fail()

/* Reduces through device memory, as all communication does. */
static enum status reduce_max(struct rank_state *w, const struct buffer *buffer, double *values, int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    TRY(copy_to_device(w->compute, buffer->data, values, bytes));
    TRY(group_all_reduce(w->groups->world, w->compute, tensor_1d(buffer->data, F64, count), REDUCE_MAX));
    TRY(copy_to_host(w->compute, values, buffer->data, bytes));
    return stream_sync(w->compute);
}

enum status rank_agree_max(struct rank_state *w, double *values, int count)
{
    _Static_assert((int)AGREE_MAX_VALUES <= (int)STAT_COUNT,
                   "the step statistics have buffer for agreed values");
    CHECK(count <= AGREE_MAX_VALUES);
    // Between steps the statistics buffer is free: saving needs no additional memory.
    if (w->stats_buffer.data != NULL)
        return reduce_max(w, &w->stats_buffer, values, count);
    struct buffer buffer = {0};
    TRY(buffer_alloc(w->device, PART_COMMUNICATION, AGREE_MAX_VALUES * sizeof *values, &buffer));
    enum status status = reduce_max(w, &buffer, values, count);
    buffer_free(&buffer);
    return status;
}

enum status rank_broadcast_small(struct rank_state *w, uint32_t *words, int count)
{
    double values[AGREE_MAX_VALUES] = {0.0};
    CHECK(count <= AGREE_MAX_VALUES);
    for (int i = 0; i < count && w->world->rank == 0; i++)
        values[i] = (double)words[i];
    TRY(rank_agree_max(w, values, count));
    for (int i = 0; i < count; i++)
        words[i] = (uint32_t)values[i];
    return OK;
}

static enum status broadcast(struct rank_state *w, struct buffer *buffer, int32_t *note, int count, int root)
{
    size_t bytes = (size_t)count * sizeof *note;
    TRY(copy_to_device(w->compute, buffer->data, note, bytes));
    TRY(group_broadcast(w->groups->world, w->compute, tensor_1d(buffer->data, I32, count), root));
    TRY(copy_to_host(w->compute, note, buffer->data, bytes));
    return stream_sync(w->compute);
}

enum status rank_broadcast(struct rank_state *w, int32_t *words, int count)
{
    const int most = (int)(w->stats_buffer.bytes / sizeof *words);
    CHECK(most > 0);
    for (int at = 0; at < count; at += most)
        TRY(broadcast(w, &w->stats_buffer, words + at, count - at < most ? count - at : most, 0));
    return OK;
}

/* Broadcasts the status and the reason of rank `root`. */
static enum status broadcast_reason(struct rank_state *w, enum status mine, int root)
{
    int32_t note[NOTE_INTS] = {(int32_t)mine};
    char *reason = (char *)(note + 1);
    size_t most = (NOTE_INTS - 1) * sizeof *note - 1;
    const char *text = mine != OK ? fail_text() : "";
    memcpy(reason, text, strlen(text) < most ? strlen(text) : most);
    struct buffer buffer = {0};
    TRY(buffer_alloc(w->device, PART_COMMUNICATION, sizeof note, &buffer));
    enum status status = broadcast(w, &buffer, note, NOTE_INTS, root);
    buffer_free(&buffer);
    TRY(status);
    return fail((enum status)note[0], "%s", reason);
}

enum status rank_agree(struct rank_state *w, enum status mine)
{
    if (w->world->size == 1)
        return mine;
    // The lowest rank that failed contributes the greatest value.
    double worst = mine == OK ? 0.0 : (double)(w->world->size - w->world->rank);
    TRY(rank_agree_max(w, &worst, 1));
    return worst == 0.0 ? OK : broadcast_reason(w, mine, w->world->size - (int)worst);
}
