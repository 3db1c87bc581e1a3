// SPDX-License-Identifier: Apache-2.0
/* A failure to read must not leave other ranks waiting: a rank that cannot read continues with zeros, and
 * reports the first error at the end. */
#include "trainer/checkpoint/distribute/redistribute.h"

#include "base/memory.h"
#include "kernels/host_floats.h"
#include "trainer/checkpoint/distribute/coverage.h"
#include "trainer/checkpoint/distribute/fetch.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/distribute/load_plan.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_BYTES  ((size_t)128 << 20)
#define MAX_STAGING_BYTES ((size_t)32 << 20)

/* Part of the message to or from one rank, in this rank's staging memory. */
struct parcel {
    int rank;
    struct slice slice; // global slice; padded equals count
    int64_t at;         // element offset in the staging memory
};

struct loader {
    struct rank_state *rank_state;
    struct checkpoint_reader *source;
    enum state states;
    struct load_plan *plan;
    struct piece *pieces; // in the order in which they are needed
    int piece_count, piece;
    int ahead;          // number of pieces read so far
    size_t ahead_bytes; // their values in memory
    struct staging staging;
    int64_t capacity;              // elements that fit into half of the staging memory of every rank
    float *host;                   // [2 * capacity] image of the staging memory
    struct parcel *send, *receive; // [world]
    struct message *messages;      // [2 * world]
    int send_count, receive_count;
    enum status status; // of reading
    struct text why;
};

/* ---- slices ---- */

/* Copies the elements of `part` between two slices that contain it, each with its own row stride. */
static void copy_part(const struct slice *part, const struct slice *from, const float *source,
                      const struct slice *to, float *target)
{
    for (int64_t row = part->begin[0]; row < part->begin[0] + part->count[0]; row++)
        memcpy(target + (row - to->begin[0]) * to->padded[1] + part->begin[1] - to->begin[1],
               source + (row - from->begin[0]) * from->padded[1] + part->begin[1] - from->begin[1],
               (size_t)part->count[1] * sizeof *target);
}

/* ---- reading ---- */

/* Keeps the first error of this rank. */
static void note_failure(struct loader *l, enum status status)
{
    if (status == OK || l->status != OK)
        return;
    l->status = status;
    text_add(&l->why, "%s", fail_text());
}

/* Initializes the rows of a piece that the checkpoint does not have, and returns the others: the checkpoint
 * of a smaller vocabulary, when fine-tuning begins (load.c). */
static struct slice known_rows(const struct loader *l, const char *name, struct piece *piece)
{
    struct shard whole;
    struct slice known = piece->slice, rest = piece->slice;
    const struct rank_state *w = l->rank_state;
    if (!checkpoint_reader_tensor(l->source, name, &whole) || whole.dim[0] >= known.begin[0] + known.count[0])
        return known;
    known.count[0] = whole.dim[0] > known.begin[0] ? whole.dim[0] - known.begin[0] : 0;
    rest.begin[0] += known.count[0];
    rest.count[0] -= known.count[0];
    param_initial_values(&w->params.list[piece->param], w->run->recipe->seed, &rest,
                         piece->values + known.count[0] * piece->slice.padded[1]);
    return known;
}

static enum status read_values(struct loader *l, struct piece *piece)
{
    struct rank_state *w = l->rank_state;
    char name[SHARD_NAME_CHARS];
    const struct shard *shards;
    int count;
    state_name(piece->state, w->params.list[piece->param].name, name);
    const struct slice known = known_rows(l, name, piece);
    if (slice_count(&known) == 0)
        return OK;
    TRY(checkpoint_reader_find(l->source, name, &known, &shards, &count));
    for (int i = 0; i < count; i++)
        if (l->source->nodes == NULL || reader_nodes_has(l->source->nodes, w->world->rank, shards[i].file))
            TRY(checkpoint_reader_read(l->source, &shards[i], piece->state == STATE_VALUE, &known,
                                       piece->values));
    return OK;
}

static void read_piece(struct loader *l, struct piece *piece)
{
    size_t bytes = (size_t)slice_count(&piece->slice) * sizeof *piece->values;
    if (piece->values == NULL) // otherwise parts of it were fetched
        piece->values =
            piece->target != NULL ? piece->target : memory_zeroed(1, bytes + 1, "a part of a checkpoint");
    l->ahead_bytes += piece->target != NULL ? 0 : bytes;
    if (l->status == OK)
        note_failure(l, read_values(l, piece));
}

/* Reads ahead from the current piece, as long as the values fit. */
static void read_ahead(struct loader *l)
{
    while (l->ahead < l->piece_count && (l->ahead <= l->piece || l->ahead_bytes < READ_AHEAD_BYTES))
        read_piece(l, &l->pieces[l->ahead++]);
}

static void free_values(struct piece *piece)
{
    if (piece->target == NULL)
        free(piece->values);
    piece->values = NULL;
}

static void drop_piece(struct loader *l)
{
    struct piece *piece = &l->pieces[l->piece++];
    if (piece->target == NULL)
        l->ahead_bytes -= (size_t)slice_count(&piece->slice) * sizeof *piece->values;
    free_values(piece);
}

/* ---- messages of one band of rows ---- */

/* Packs the part for `rank`, unless an earlier one is the same. */
static void pack(struct loader *l, int rank, const struct slice *part, const struct piece *piece,
                 int64_t *used)
{
    struct parcel *parcel = &l->send[l->send_count];
    *parcel = (struct parcel){.rank = rank, .slice = *part, .at = -1};
    for (int i = 0; i < l->send_count && parcel->at < 0; i++)
        if (slice_equal(&l->send[i].slice, part))
            parcel->at = l->send[i].at;
    if (parcel->at < 0) {
        parcel->at = *used;
        *used += slice_count(part);
        CHECK(*used <= l->capacity);
        copy_part(part, &piece->slice, piece->values, part, l->host + parcel->at);
    }
    l->send_count++;
}

static void expect_from(struct loader *l, int rank, const struct slice *part, int64_t *used)
{
    l->receive[l->receive_count++] = (struct parcel){.rank = rank, .slice = *part, .at = l->capacity + *used};
    *used += slice_count(part);
    CHECK(*used <= l->capacity);
}

/* Lists what this rank sends and receives of a band. */
static void list_parcels(struct loader *l, const struct load_rank *ranks, int count,
                         const struct load_rank *me, enum state state, const struct piece *piece,
                         const struct slice *band)
{
    const int need = state != STATE_VALUE;
    struct slice part, here;
    int64_t sent = 0, received = 0;
    l->send_count = l->receive_count = 0;
    for (int i = 0; i < count; i++) {
        const struct load_rank *other = &ranks[i];
        if (other == me)
            continue;
        if (piece != NULL && other->needs[need] && slice_intersect(&piece->slice, band, &here) &&
            slice_intersect(&here, &other->needed[need], &part))
            pack(l, other->rank, &part, piece, &sent);
        if (me->needs[need] && other->reads[state] && slice_intersect(&other->slices[state], band, &here) &&
            slice_intersect(&here, &me->needed[need], &part))
            expect_from(l, other->rank, &part, &received);
    }
}

static enum status exchange_band(struct loader *l)
{
    struct rank_state *w = l->rank_state;
    int count = 0;
    int64_t sent = 0, received = 0;
    if (l->send_count + l->receive_count == 0)
        return OK;
    for (int i = 0; i < l->send_count; i++) {
        int64_t elements = slice_count(&l->send[i].slice);
        sent = sent > l->send[i].at + elements ? sent : l->send[i].at + elements;
        l->messages[count++] = (struct message){
            .data = tensor_1d((float *)l->staging.data + l->send[i].at, F32, elements),
            .peer = l->send[i].rank,
            .send = true,
        };
    }
    for (int i = 0; i < l->receive_count; i++) {
        int64_t elements = slice_count(&l->receive[i].slice);
        received += elements;
        l->messages[count++] = (struct message){
            .data = tensor_1d((float *)l->staging.data + l->receive[i].at, F32, elements),
            .peer = l->receive[i].rank,
        };
    }
    rank_context_set_action("load a checkpoint");
    if (sent > 0)
        TRY(copy_to_device(w->compute, l->staging.data, l->host, (size_t)sent * sizeof *l->host));
    TRY(group_exchange(w->groups->world, w->compute, l->messages, count));
    if (received > 0)
        TRY(copy_to_host(w->compute, l->host + l->capacity, (float *)l->staging.data + l->capacity,
                         (size_t)received * sizeof *l->host));
    return stream_sync(w->compute);
}

/* ---- one state of one parameter ---- */

/* A parameter of this rank, perhaps as a second use. */
static const struct held_param *held_of(const struct rank_state *w, int param)
{
    const struct held_param *held = weights_held(&w->weights, param);
    for (int i = 0; held == NULL && i < w->params.count; i++)
        if (w->params.list[i].tie == param)
            held = weights_held(&w->weights, i);
    return held;
}

/* The memory of a state, if it is host memory with exactly the rows of `slice`, which this rank needs, and
 * perhaps rows of padding after them; else NULL. */
static float *target_of(const struct rank_state *w, int param, enum state state, const struct slice *slice,
                        const struct load_rank *me)
{
    const struct recipe *recipe = w->run->recipe;
    const struct device_traits *traits = device_traits(recipe->cluster.device);
    const int need = state != STATE_VALUE;
    const struct held_param *held = held_of(w, param);
    if (!traits->synchronous || !traits->has_host_memory || recipe->memory.offload_optimizer ||
        held == NULL || !me->needs[need] || !slice_equal(slice, &me->needed[need]) ||
        me->needed[need].padded[1] != slice->count[1])
        return NULL;
    const bool is_weight = state == STATE_VALUE && w->weights.zero_stage < 3;
    const struct owned_param *owned = is_weight ? NULL : weights_owned(&w->weights, held->index);
    const struct tensor target = is_weight       ? held->weight
                                 : owned != NULL ? state_tensor(owned, state)
                                                 : (struct tensor){.data = NULL};
    const bool fits = target.data != NULL && target.dtype == F32 && tensor_is_dense(target) &&
                      tensor_count(target) == slice_padded(&me->needed[need]) &&
                      (!is_weight || w->weights.working == F32);
    return fits ? target.data : NULL;
}

/* What was read in place ends before the rows of padding. */
static void clear_padding(const struct piece *piece, const struct slice *needed)
{
    const size_t read = (size_t)slice_count(&piece->slice);
    memset(piece->target + read, 0, ((size_t)slice_padded(needed) - read) * sizeof *piece->target);
}

/* Stores the needed slice, with padding, on the device. */
static enum status put(struct loader *l, int param, enum state state, const float *local)
{
    struct rank_state *w = l->rank_state;
    const struct held_param *held = held_of(w, param);
    CHECK(held != NULL);
    if (state == STATE_VALUE && w->weights.zero_stage < 3)
        return weights_set(&w->weights, w->compute, held, local);
    const struct owned_param *owned = weights_owned(&w->weights, held->index);
    CHECK(owned != NULL);
    struct tensor target = state_tensor(owned, state);
    return target.data != NULL ? floats_to_device(w->compute, target, local) : OK;
}

/* `piece`: what this rank reads; NULL: nothing. */
static enum status exchange_rows(struct loader *l, const struct param *param, const struct load_rank *ranks,
                                 int count, const struct load_rank *me, enum state state,
                                 const struct piece *piece, float *local)
{
    const int need = state != STATE_VALUE;
    const struct slice *needed = &me->needed[need];
    const int64_t rows = l->capacity / param->dim[1];
    struct slice part;
    for (int64_t first = 0; first < param->dim[0]; first += rows) {
        struct slice band = {.ndim = 2, .begin = {first, 0}, .count = {rows, param->dim[1]}};
        list_parcels(l, ranks, count, me, state, piece, &band);
        TRY(exchange_band(l));
        for (int i = 0; i < l->receive_count; i++)
            copy_part(&l->receive[i].slice, &l->receive[i].slice, l->host + l->receive[i].at, needed, local);
    }
    if (local != NULL && piece != NULL && slice_intersect(&piece->slice, needed, &part))
        copy_part(&part, &piece->slice, piece->values, needed, local);
    return OK;
}

static enum status load_state(struct loader *l, int param, enum state state, const struct load_rank *ranks,
                              int count, const struct load_rank *me)
{
    const int need = state != STATE_VALUE;
    const struct piece *piece = me->reads[state] ? &l->pieces[l->piece] : NULL;
    AUTO_FREE float *local = NULL;
    CHECK(piece == NULL || (piece->param == param && piece->state == state));
    if (piece != NULL)
        read_ahead(l);
    const bool in_place = piece != NULL && piece->target != NULL;
    if (me->needs[need] && !in_place)
        local = memory_zeroed((size_t)slice_padded(&me->needed[need]) + 1, sizeof *local,
                              "this rank's part of a parameter");
    enum status status =
        exchange_rows(l, &l->rank_state->params.list[param], ranks, count, me, state, piece, local);
    if (status == OK && local != NULL)
        status = put(l, param, state, local);
    if (in_place)
        clear_padding(piece, &me->needed[need]);
    if (piece != NULL)
        drop_piece(l);
    return status;
}

static enum status load_row(struct loader *l, int param)
{
    const struct load_rank *ranks, *me = NULL;
    const int rank = l->rank_state->world->rank;
    int count;
    if (l->rank_state->params.list[param].tie >= 0 || !load_plan_has(l->plan, param, rank))
        return OK;
    load_plan_of(l->plan, param, &ranks, &count);
    for (int i = 0; i < count; i++)
        if (ranks[i].rank == rank)
            me = &ranks[i];
    for (enum state state = 0; state < l->states; state++)
        TRY(load_state(l, param, state, ranks, count, me));
    return OK;
}

/* ---- preparation ---- */

/* Whether this rank's file has exactly the shards that this rank would write now. */
static bool wrote_the_same(struct loader *l, const struct save_plan *share)
{
    const struct rank_state *w = l->rank_state;
    for (int i = 0; i < share->count; i++)
        for (enum state state = 0; state < l->states; state++) {
            char name[SHARD_NAME_CHARS];
            state_name(state, w->params.list[share->parts[i].param].name, name);
            if (!checkpoint_reader_file_has(l->source, w->world->rank, name, &share->parts[i].slice))
                return false;
        }
    return true;
}

/* Agrees on whether the checkpoint has the layout of this run. */
static enum status compare_layouts(struct loader *l, bool *same)
{
    struct rank_state *w = l->rank_state;
    struct save_plan share = {0};
    const bool may_be_same = manifest_has_layout(&l->source->manifest, &w->mesh);
    if (may_be_same)
        save_plan_of_rank(w->run, &w->params, &w->weights, w->world->rank, &share);
    double differs = may_be_same && wrote_the_same(l, &share) ? 0.0 : 1.0;
    save_plan_free(&share);
    TRY(rank_agree_max(w, &differs, 1));
    *same = differs == 0.0;
    return OK;
}

/* Lists what this rank reads. */
static void list_pieces(struct loader *l)
{
    struct rank_state *w = l->rank_state;
    l->pieces = memory_zeroed((size_t)w->params.count * STATE_COUNT + 1, sizeof *l->pieces,
                              "the pieces that a rank reads");
    for (int param = 0; param < w->params.count; param++) {
        const struct load_rank *ranks;
        int count;
        if (w->params.list[param].tie >= 0 || !load_plan_has(l->plan, param, w->world->rank))
            continue;
        load_plan_of(l->plan, param, &ranks, &count);
        for (int i = 0; i < count; i++)
            for (enum state state = 0; state < l->states; state++)
                if (ranks[i].rank == w->world->rank && ranks[i].reads[state])
                    l->pieces[l->piece_count++] = (struct piece){
                        .param = param,
                        .state = state,
                        .slice = ranks[i].slices[state],
                        .target = target_of(w, param, state, &ranks[i].slices[state], &ranks[i]),
                    };
    }
}

/* Sets the capacity to the minimum over all ranks. */
static enum status open_staging(struct loader *l)
{
    struct rank_state *w = l->rank_state;
    int64_t widest = 1;
    for (int i = 0; i < w->params.count; i++)
        widest = w->params.list[i].dim[1] > widest ? w->params.list[i].dim[1] : widest;
    TRY(staging_open(w, 2 * (size_t)widest * sizeof *l->host, &l->staging));
    size_t bytes = l->staging.bytes < MAX_STAGING_BYTES ? l->staging.bytes : MAX_STAGING_BYTES;
    double least = -(double)(bytes / 2 / sizeof *l->host);
    TRY(rank_agree_max(w, &least, 1));
    l->capacity = (int64_t)-least;
    l->host = memory_resized(NULL, 2 * (size_t)l->capacity, sizeof *l->host, "messages of a load");
    l->send = memory_zeroed((size_t)w->world->size, sizeof *l->send, "messages of a load");
    l->receive = memory_zeroed((size_t)w->world->size, sizeof *l->receive, "messages of a load");
    l->messages = memory_zeroed(2 * (size_t)w->world->size, sizeof *l->messages, "messages of a load");
    return OK;
}

/* Fetches the parts of this rank's pieces that are in the memory of other nodes. */
static enum status fetch(struct loader *l, bool same_layout)
{
    const struct fetch_config config = {
        .rank_state = l->rank_state,
        .source = l->source,
        .plan = l->plan,
        .same_layout = same_layout,
        .states = l->states,
        .pieces = l->pieces,
        .piece_count = l->piece_count,
        .staging = l->staging.data,
        .capacity = l->capacity,
    };
    return l->source->nodes != NULL ? fetch_pieces(&config, &l->status, &l->why) : OK;
}

static enum status prepare(struct loader *l)
{
    struct rank_state *w = l->rank_state;
    struct load_plan_config config = {
        .run = w->run, .params = &w->params, .weights = &w->weights, .states = l->states};
    TRY(compare_layouts(l, &config.same_layout));
    l->plan = load_plan_create(&config);
    list_pieces(l);
    TRY(open_staging(l));
    return fetch(l, config.same_layout);
}

static void loader_free(struct loader *l)
{
    for (int i = l->piece; l->pieces != NULL && i < l->piece_count; i++)
        free_values(&l->pieces[i]);
    staging_close(&l->staging);
    load_plan_destroy(l->plan);
    free(l->pieces);
    free(l->host);
    free(l->send);
    free(l->receive);
    free(l->messages);
    text_free(&l->why);
}

enum status redistribute_load(struct rank_state *state, struct checkpoint_reader *source, bool with_moments)
{
    struct loader l = {
        .rank_state = state,
        .source = source,
        .states = with_moments ? STATE_COUNT : STATE_VALUE + 1,
    };
    enum status status = prepare(&l);
    for (int param = 0; status == OK && param < state->params.count; param++)
        status = load_row(&l, param);
    if (status == OK && l.status != OK)
        status = fail(l.status, "%s", l.why.chars);
    loader_free(&l);
    return status;
}
