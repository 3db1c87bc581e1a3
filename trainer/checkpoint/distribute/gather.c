// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/gather.h"

#include "base/memory.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = sizeof(int32_t), TEXT_BYTES = 1 << 20 };

/* ---- memory ---- */

static enum status allocate(struct rank_state *w, size_t bytes, struct staging *out)
{
    TRY(buffer_alloc(w->device, PART_COMMUNICATION, bytes, &out->own));
    out->data = out->own.data;
    out->bytes = bytes;
    return OK;
}

enum status staging_open(struct rank_state *state, size_t bytes, struct staging *out)
{
    const struct buffer *gradient = &state->weights.gradient;
    *out = (struct staging){.data = gradient->data, .bytes = gradient->bytes};
    const enum status status = rank_agree(state, out->bytes >= bytes ? OK : allocate(state, bytes, out));
    if (status != OK)
        staging_close(out);
    return status;
}

void staging_close(struct staging *staging)
{
    buffer_free(&staging->own);
    *staging = (struct staging){0};
}

/* ---- messages ---- */

static enum status gather(struct rank_state *w, const struct staging *staging, const void *mine,
                          const int64_t *counts, void *all)
{
    int64_t before = 0, total = 0;
    for (int rank = 0; rank < w->world->size; rank++) {
        before += rank < w->world->rank ? counts[rank] : 0;
        total += counts[rank];
    }
    TRY(copy_to_device(w->compute, staging->data + before * WORD, mine,
                       (size_t)counts[w->world->rank] * WORD));
    TRY(group_all_gather_v(w->groups->world, w->compute, tensor_1d(staging->data, I32, total), counts));
    TRY(copy_to_host(w->compute, all, staging->data, (size_t)total * WORD));
    return stream_sync(w->compute);
}

enum status gather_lists(struct rank_state *state, const void *mine, const int64_t *counts, void *all)
{
    struct staging staging;
    int64_t total = 0;
    for (int rank = 0; rank < state->world->size; rank++)
        total += counts[rank];
    if (total == 0)
        return OK;
    TRY(staging_open(state, (size_t)total * WORD, &staging));
    const enum status status = gather(state, &staging, mine, counts, all);
    staging_close(&staging);
    return status;
}

enum status gather_words(struct rank_state *state, const void *mine, int words, void *all)
{
    AUTO_FREE int64_t *counts = memory_zeroed((size_t)state->world->size, sizeof *counts, "a list of ranks");
    for (int rank = 0; rank < state->world->size; rank++)
        counts[rank] = words;
    return gather_lists(state, mine, counts, all);
}

static enum status broadcast(struct rank_state *w, const struct staging *staging, int root, char *bytes,
                             size_t length)
{
    const int64_t words = (int64_t)(length + WORD - 1) / WORD;
    if (w->world->rank == root)
        TRY(copy_to_device(w->compute, staging->data, bytes, length));
    TRY(group_broadcast(w->groups->world, w->compute, tensor_1d(staging->data, I32, words), root));
    TRY(copy_to_host(w->compute, bytes, staging->data, length));
    return stream_sync(w->compute);
}

enum status broadcast_text(struct rank_state *state, int root, struct text *text)
{
    struct staging staging;
    AUTO_FREE char *block = memory_zeroed(1, TEXT_BYTES, "a message");
    TRY(staging_open(state, TEXT_BYTES, &staging));
    uint64_t length = text->length;
    enum status status = broadcast(state, &staging, root, (char *)&length, sizeof length);
    for (uint64_t at = 0; status == OK && at < length; at += TEXT_BYTES) {
        const size_t count = length - at < TEXT_BYTES ? (size_t)(length - at) : TEXT_BYTES;
        if (state->world->rank == root)
            memcpy(block, text->chars + at, count);
        status = broadcast(state, &staging, root, block, count);
        if (state->world->rank != root)
            text_add_bytes(text, block, count);
    }
    staging_close(&staging);
    return status;
}
