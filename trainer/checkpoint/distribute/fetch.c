// SPDX-License-Identifier: Apache-2.0
/* Every rank passes through the same list of transfers and takes part in its own ones, one at a time: since
 * the order is the same everywhere, no two ranks can wait for each other. */
#include "trainer/checkpoint/distribute/fetch.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct fetcher {
    struct fetch_config config;
    enum status *failed;
    struct text *why;
};

static void note_failure(struct fetcher *f, enum status status)
{
    if (status == OK || *f->failed != OK)
        return;
    *f->failed = status;
    text_add(f->why, "%s", fail_text());
}

static struct piece *piece_of(const struct fetcher *f, int param, enum state state)
{
    for (int i = 0; i < f->config.piece_count; i++)
        if (f->config.pieces[i].param == param && f->config.pieces[i].state == state)
            return &f->config.pieces[i];
    return NULL;
}

/* Sends or receives `count` elements of `values`. */
static enum status move(struct fetcher *f, float *values, int64_t count, int peer, bool send)
{
    const struct fetch_config *c = &f->config;
    struct rank_state *w = c->rank_state;
    for (int64_t at = 0; at < count; at += c->capacity) {
        const int64_t length = count - at < c->capacity ? count - at : c->capacity;
        const size_t bytes = (size_t)length * sizeof *values;
        struct message message = {.data = tensor_1d(c->staging, F32, length), .peer = peer, .send = send};
        rank_context_set_action("load a checkpoint");
        if (send)
            TRY(copy_to_device(w->compute, c->staging, values + at, bytes));
        TRY(group_exchange(w->groups->world, w->compute, &message, 1));
        if (!send)
            TRY(copy_to_host(w->compute, values + at, c->staging, bytes));
        TRY(stream_sync(w->compute));
    }
    return OK;
}

/* Puts the elements of a part into the values of a piece. */
static void place(const struct slice *part, const float *values, const struct piece *piece)
{
    const struct slice *slice = &piece->slice;
    for (int64_t row = 0; row < part->count[0]; row++)
        memcpy(piece->values + (part->begin[0] + row - slice->begin[0]) * slice->padded[1] + part->begin[1] -
                   slice->begin[1],
               values + row * part->count[1], (size_t)part->count[1] * sizeof *values);
}

/* Transfers the part of `shard` that `rank` reads. */
static enum status transfer(struct fetcher *f, const struct shard *shard, int param, enum state state,
                            int rank, const struct slice *want)
{
    const int me = f->config.rank_state->world->rank, reader = f->config.source->nodes->reader[shard->file];
    if (reader_nodes_has(f->config.source->nodes, rank, shard->file) || (me != rank && me != reader))
        return OK;
    struct slice part;
    CHECK(slice_intersect(&shard->slice, want, &part));
    AUTO_FREE float *values =
        memory_zeroed((size_t)slice_count(&part) + 1, sizeof *values, "a part of a checkpoint");
    if (me == reader)
        note_failure(f, checkpoint_reader_read(f->config.source, shard, state == STATE_VALUE, &part, values));
    TRY(move(f, values, slice_count(&part), me == reader ? rank : reader, me == reader));
    if (me != rank)
        return OK;
    struct piece *piece = piece_of(f, param, state);
    CHECK(piece != NULL);
    if (piece->values == NULL)
        piece->values = piece->target != NULL
                            ? piece->target
                            : memory_zeroed((size_t)slice_count(&piece->slice) + 1, sizeof *piece->values,
                                            "a part of a checkpoint");
    place(&part, values, piece);
    return OK;
}

/* The slice that `rank` reads; false: none. */
static bool slice_of(const struct fetcher *f, int param, enum state state, const char *name, int rank,
                     struct slice *out)
{
    const struct fetch_config *c = &f->config;
    if (!c->same_layout)
        return load_plan_slice(c->plan, param, state, rank, out);
    const int file = manifest_file_of(&c->source->manifest, rank);
    const struct shard *shard = file < 0 || reader_nodes_has(c->source->nodes, rank, file)
                                    ? NULL
                                    : checkpoint_reader_shard_in(c->source, file, name);
    if (shard != NULL)
        *out = shard->slice;
    return shard != NULL;
}

static enum status fetch_state(struct fetcher *f, int param, enum state state)
{
    struct rank_state *w = f->config.rank_state;
    char name[SHARD_NAME_CHARS];
    state_name(state, w->params.list[param].name, name);
    for (int rank = 0; rank < w->world->size; rank++) {
        struct slice want;
        const struct shard *shards;
        int count;
        if (!slice_of(f, param, state, name, rank, &want))
            continue;
        TRY(checkpoint_reader_find(f->config.source, name, &want, &shards, &count));
        for (int i = 0; i < count; i++)
            TRY(transfer(f, &shards[i], param, state, rank, &want));
    }
    return OK;
}

enum status fetch_pieces(const struct fetch_config *config, enum status *failed, struct text *why)
{
    struct fetcher f = {.config = *config, .failed = failed, .why = why};
    const struct params *params = &config->rank_state->params;
    enum status status = OK;
    for (int param = 0; param < params->count; param++)
        for (enum state state = 0; state < config->states && status == OK; state++)
            if (params->list[param].tie < 0)
                status = fetch_state(&f, param, state);
    return status;
}
