// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/coverage.h"

#include "trainer/checkpoint/distribute/gather.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_WORDS = sizeof(struct note) / sizeof(uint32_t), WORD_BITS = 32, MAX_MESSAGES = 64 };
_Static_assert(sizeof(struct note) == 4 * sizeof(uint64_t), "a note has no padding");

/* ---- the tensors ---- */

void tensor_list_create(const struct rank_state *state, struct tensor_list *out)
{
    *out = (struct tensor_list){
        .params = &state->params,
        .states = state->run->recipe->checkpoint.save_optim ? STATE_COUNT : STATE_VALUE + 1,
        .main = state->weights.main,
    };
    state_list(state, &out->replicated, &out->replicated_count);
}

void tensor_list_free(struct tensor_list *list)
{
    free(list->replicated);
    *list = (struct tensor_list){0};
}

int tensor_list_count(const struct tensor_list *list)
{
    return list->params->count * STATE_COUNT + list->replicated_count;
}

int tensor_list_index(const struct tensor_list *list, int param, enum state state)
{
    (void)list;
    return param * STATE_COUNT + (int)state;
}

int tensor_list_replicated(const struct tensor_list *list, int index)
{
    return list->params->count * STATE_COUNT + index;
}

bool tensor_list_at(const struct tensor_list *list, int index, struct shard *out)
{
    if (index >= list->params->count * STATE_COUNT) {
        *out = list->replicated[index - list->params->count * STATE_COUNT].shard;
        return true;
    }
    const struct param *row = &list->params->list[index / STATE_COUNT];
    enum state state = (enum state)(index % STATE_COUNT);
    if (row->tie >= 0 || state >= list->states)
        return false;
    *out = (struct shard){.dtype = shard_dtype(state, list->main), .slice = slice_whole(row->ndim, row->dim)};
    memcpy(out->dim, row->dim, sizeof out->dim);
    state_name(state, row->name, out->name);
    return true;
}

/* ---- notes ---- */

int note_words(int tensors)
{
    return HEAD_WORDS + (tensors + WORD_BITS - 1) / WORD_BITS;
}

void note_pack(const struct note *note, const uint8_t *has, int tensors, uint32_t *out)
{
    memset(out, 0, (size_t)note_words(tensors) * sizeof *out);
    memcpy(out, note, sizeof *note);
    for (int i = 0; i < tensors; i++)
        out[HEAD_WORDS + i / WORD_BITS] |= (uint32_t)(has[i] != 0) << i % WORD_BITS;
}

static void note_unpack(const uint32_t *words, struct note *out)
{
    memcpy(out, words, sizeof *out);
}

static bool note_has(const uint32_t *words, int tensor)
{
    return (words[HEAD_WORDS + tensor / WORD_BITS] >> tensor % WORD_BITS & 1) != 0;
}

/* ---- messages ---- */

/* Rank 0 receives the notes of ranks [first, first + count). */
static enum status receive(struct rank_state *w, const struct staging *staging, int first, int count,
                           int words, uint32_t *all)
{
    struct message messages[MAX_MESSAGES];
    const size_t bytes = (size_t)words * sizeof *all;
    for (int i = 0; i < count; i++)
        messages[i] = (struct message){.data = tensor_1d(staging->data + (size_t)i * bytes, I32, words),
                                       .peer = first + i};
    TRY(group_exchange(w->groups->world, w->compute, messages, count));
    TRY(copy_to_host(w->compute, all + (size_t)first * (size_t)words, staging->data, (size_t)count * bytes));
    return stream_sync(w->compute);
}

static enum status send(struct rank_state *w, const struct staging *staging, const uint32_t *mine, int words)
{
    struct message message = {.data = tensor_1d(staging->data, I32, words), .peer = 0, .send = true};
    TRY(copy_to_device(w->compute, staging->data, mine, (size_t)words * sizeof *mine));
    TRY(group_exchange(w->groups->world, w->compute, &message, 1));
    return stream_sync(w->compute);
}

enum status notes_gather(struct rank_state *state, const uint32_t *mine, int words, uint32_t *all)
{
    struct staging staging;
    const size_t bytes = (size_t)words * sizeof *mine;
    const int size = state->world->size;
    if (state->world->rank == 0)
        memcpy(all, mine, bytes);
    if (size == 1)
        return OK;
    TRY(staging_open(state, bytes, &staging));
    int most = staging.bytes / bytes < MAX_MESSAGES ? (int)(staging.bytes / bytes) : MAX_MESSAGES;
    enum status status = state->world->rank > 0 ? send(state, &staging, mine, words) : OK;
    for (int first = 1; status == OK && state->world->rank == 0 && first < size; first += most)
        status = receive(state, &staging, first, size - first < most ? size - first : most, words, all);
    staging_close(&staging);
    return status;
}

/* ---- the manifest ---- */

static void add_files(const uint32_t *all, int ranks, int words, struct manifest *manifest,
                      struct cover *cover)
{
    for (int rank = 0; rank < ranks; rank++) {
        struct note note;
        note_unpack(all + (size_t)rank * (size_t)words, &note);
        if (note.bytes > 0)
            manifest_add_file(manifest, rank, note.bytes, note.checksum);
        cover_join(cover, &note.cover);
    }
}

enum status notes_add(const struct tensor_list *list, const uint32_t *all, int ranks, int words,
                      const char *path, struct manifest *manifest)
{
    struct cover cover = {0}, expected = {0};
    add_files(all, ranks, words, manifest, &cover);
    for (int i = 0; i < tensor_list_count(list); i++) {
        struct shard whole;
        if (!tensor_list_at(list, i, &whole))
            continue;
        cover_add_whole(&expected, &whole);
        manifest_add_tensor(manifest, &whole);
        for (int rank = 0; rank < ranks; rank++)
            if (note_has(all + (size_t)rank * (size_t)words, i))
                manifest_add_rank(manifest, rank);
    }
    TRY(manifest_complete(manifest, path));
    if (cover_equal(&cover, &expected))
        return OK;
    return fail(BAD_CHECKPOINT,
                "%s: the files of all ranks contain %llu of %llu elements, or some of them twice", path,
                (unsigned long long)cover.elements, (unsigned long long)expected.elements);
}
