// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/sharded.h"

#include <stdlib.h>

enum { ALIGN_ELEMENTS = 16 };

/* A layer: the unit of all-gather and reduce-scatter. */
struct unit {
    int layer;
    int first, count; // index range of the held parameters
    int first_bucket, buckets;
    int64_t begin, elements; // offset in all gradients; a multiple of ALIGN_ELEMENTS
};

/* One end of an arena: the buffer of one unit. */
struct room {
    int unit;            // current or last unit; -1: none
    bool there;          // filled, or being filled
    bool used;           // acquired or opened by the caller
    struct event filled; // after it the contents may be read
    struct event left;   // after it the buffer may be overwritten
};

/* Memory for a layer and one neighbour. */
struct arena {
    struct buffer buffer;
    enum dtype dtype;
    int64_t elements;
    int rooms; // 1 without overlap
    int turn;  // next room to use
    struct room room[2];
};

struct sharded {
    struct weights *weights;
    struct group *data, *stage_replicas;
    struct unit *units;
    int count;
    struct arena values, gradients;
    struct stream *gather, *reduce;
    bool gathers; // values are sharded too (stage 3)
};

/* ---- creation ---- */

/* Returns the unit of a layer; -1 if this rank does not hold it. */
static int unit_of(const struct sharded *s, int layer)
{
    for (int u = 0; u < s->count; u++)
        if (s->units[u].layer == layer)
            return u;
    return -1;
}

static void list_units(struct sharded *s)
{
    const struct weights *w = s->weights;
    for (int i = 0; i < w->count; i++) {
        struct unit *unit = &s->units[s->count - 1];
        int bucket = w->plan.bucket_of[i];
        if (i == 0 || w->list[i].row->layer != unit->layer) {
            unit = &s->units[s->count++];
            *unit = (struct unit){.layer = w->list[i].row->layer,
                                  .first = i,
                                  .first_bucket = bucket,
                                  .begin = w->list[i].gradient_offset};
        }
        unit->count++;
        unit->buckets = bucket - unit->first_bucket + 1;
        int64_t elements = w->plan.buckets[bucket].end - unit->begin;
        unit->elements = (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    }
}

static enum status create_arena(const struct sharded *s, enum dtype dtype, bool overlap, struct arena *out)
{
    *out = (struct arena){.dtype = dtype, .rooms = overlap ? 2 : 1, .room = {{.unit = -1}, {.unit = -1}}};
    for (int u = 0; u < s->count; u++) {
        int64_t two = s->units[u].elements + (overlap && u > 0 ? s->units[u - 1].elements : 0);
        out->elements = two > out->elements ? two : out->elements;
    }
    return buffer_alloc(s->weights->device, PART_BUCKETS, (size_t)out->elements * dtype_bytes(dtype),
                        &out->buffer);
}

enum status sharded_create(struct weights *weights, const struct weights_config *config)
{
    struct sharded *s = calloc(1, sizeof *s);
    weights->sharded = s; // set first, so that weights_destroy() frees it after an error
    if (s == NULL)
        return fail(NO_MEMORY, "no memory for sharded parameters");
    *s = (struct sharded){.weights = weights,
                          .data = config->groups->data,
                          .stage_replicas = config->groups->stage_replicas,
                          .gathers = weights->zero_stage >= 3};
    s->units = calloc((size_t)weights->count + 1, sizeof *s->units);
    if (s->units == NULL)
        return fail(NO_MEMORY, "no memory for %d layers", weights->count);
    list_units(s);
    TRY(stream_create(weights->device, "reduce", &s->reduce));
    TRY(create_arena(s, F32, config->overlap_grad_reduce, &s->gradients));
    if (!s->gathers)
        return OK;
    TRY(stream_create(weights->device, "gather", &s->gather));
    return create_arena(s, weights->working, config->overlap_param_gather, &s->values);
}

void sharded_destroy(struct sharded *sharded)
{
    if (sharded == NULL)
        return;
    stream_destroy(sharded->gather);
    stream_destroy(sharded->reduce);
    buffer_free(&sharded->values.buffer);
    buffer_free(&sharded->gradients.buffer);
    free(sharded->units);
    free(sharded);
}

/* ---- rooms ---- */

/* Returns `count` elements of a room's unit, starting at element `begin`. */
static struct tensor room_part(const struct sharded *s, const struct arena *arena, int room, int64_t begin,
                               int64_t count)
{
    const struct unit *unit = &s->units[arena->room[room].unit];
    int64_t at = begin + (room == 0 ? 0 : arena->elements - unit->elements);
    char *data = (char *)arena->buffer.data + (size_t)at * dtype_bytes(arena->dtype);
    return tensor_1d(data, arena->dtype, count);
}

static struct tensor room_tensor(const struct sharded *s, const struct arena *arena, int room)
{
    return room_part(s, arena, room, 0, s->units[arena->room[room].unit].elements);
}

static int room_of(const struct arena *arena, int unit)
{
    for (int r = 0; r < arena->rooms; r++)
        if (arena->room[r].there && arena->room[r].unit == unit)
            return r;
    return -1;
}

/* Returns true if two units do not fit next to each other. */
static bool collide(const struct sharded *s, const struct arena *arena, int a, int b)
{
    return a >= 0 && b >= 0 && s->units[a].elements + s->units[b].elements > arena->elements;
}

/* Returns the next room in rotation, skipping rooms that are in use or being filled. */
static int next_room(const struct arena *arena)
{
    int room = arena->turn, other = (room + 1) % arena->rooms;
    bool taken = arena->room[room].there && !arena->room[other].there;
    return taken || arena->room[room].used ? other : room;
}

/* Assigns the next room to this unit, on `stream`, after its previous contents have been released. */
static enum status take_room(const struct sharded *s, struct arena *arena, int unit, struct stream *stream,
                             int *out)
{
    int room = next_room(arena);
    struct room *mine = &arena->room[room], *other = arena->rooms == 2 ? &arena->room[1 - room] : NULL;
    CHECK(!mine->used);
    TRY(stream_wait(stream, mine->left));
    if (other != NULL && collide(s, arena, unit, other->unit)) {
        CHECK(!other->used);
        TRY(stream_wait(stream, other->left));
        other->there = false;
    }
    *mine = (struct room){.unit = unit, .there = true};
    arena->turn = (room + 1) % arena->rooms;
    *out = room;
    return OK;
}

static void leave_room(struct arena *arena, int room, struct event left)
{
    arena->room[room].there = arena->room[room].used = false;
    arena->room[room].left = left;
}

/* Points one view of each parameter of the unit into the room; room -1: sets it to NULL. */
static void point_views(const struct sharded *s, const struct unit *unit, const struct arena *arena, int room)
{
    for (int i = unit->first; i < unit->first + unit->count; i++) {
        struct held *held = &s->weights->list[i];
        struct tensor *view = arena == &s->gradients ? &held->gradient : &held->weight;
        int64_t begin = held->gradient_offset - unit->begin;
        view->data = room >= 0 ? room_part(s, arena, room, begin, 0).data : NULL;
    }
}

/* ---- values ---- */

/* Copies; rounds if layers compute in a smaller type than the optimizer's. */
static enum status put(struct stream *stream, struct tensor in, struct tensor out)
{
    return in.dtype == out.dtype ? copy(stream, (struct copy){.in = in, .out = out})
                                 : cast(stream, (struct cast){.in = in, .out = out});
}

static enum status gather(struct sharded *s, int index, int *out)
{
    const struct weights *w = s->weights;
    const struct unit *unit = &s->units[index];
    TRY(take_room(s, &s->values, index, s->gather, out));
    TRY(stream_wait(s->gather, w->updated));
    for (int b = unit->first_bucket; b < unit->first_bucket + unit->buckets; b++) {
        const struct bucket *bucket = &w->plan.buckets[b];
        int64_t begin = bucket->begin - unit->begin, own = bucket_cut(bucket, w->rank) - unit->begin;
        int64_t count = bucket->counts[w->rank], all = bucket->end - bucket->begin;
        if (count > 0)
            TRY(put(s->gather, weights_value_slice(w, b), room_part(s, &s->values, *out, own, count)));
        TRY(group_all_gather_v(s->data, s->gather, room_part(s, &s->values, *out, begin, all),
                               bucket->counts));
    }
    s->values.room[*out].filled = stream_record(s->gather);
    return OK;
}

/* Prefetches the layer after `unit` if it fits next to it. */
static enum status gather_ahead(struct sharded *s, int unit, int next)
{
    int room, index = unit_of(s, next);
    bool can = index >= 0 && index != unit && s->values.rooms == 2 && !collide(s, &s->values, unit, index);
    return can && room_of(&s->values, index) < 0 ? gather(s, index, &room) : OK;
}

enum status weights_acquire(struct weights *weights, struct stream *compute, int layer, int next)
{
    struct sharded *s = weights->sharded;
    if (s == NULL || !s->gathers)
        return OK;
    int unit = unit_of(s, layer), room = room_of(&s->values, unit);
    CHECK(unit >= 0);
    if (room < 0)
        TRY(gather(s, unit, &room));
    CHECK(!s->values.room[room].used);
    s->values.room[room].used = true;
    TRY(stream_wait(compute, s->values.room[room].filled));
    point_views(s, &s->units[unit], &s->values, room);
    return gather_ahead(s, unit, next);
}

enum status weights_release(struct weights *weights, struct stream *compute, int layer)
{
    struct sharded *s = weights->sharded;
    if (s == NULL || !s->gathers)
        return OK;
    int unit = unit_of(s, layer), room = room_of(&s->values, unit);
    CHECK(room >= 0 && s->values.room[room].used);
    TRY(poison(compute, (struct poison){.out = room_tensor(s, &s->values, room)}));
    leave_room(&s->values, room, stream_record(compute));
    point_views(s, &s->units[unit], &s->values, -1);
    return OK;
}

/* ---- gradients ---- */

enum status weights_open_gradients(struct weights *weights, struct stream *compute, int layer)
{
    struct sharded *s = weights->sharded;
    int room;
    if (s == NULL)
        return OK;
    int unit = unit_of(s, layer);
    CHECK(unit >= 0);
    TRY(take_room(s, &s->gradients, unit, compute, &room));
    s->gradients.room[room].used = true;
    point_views(s, &s->units[unit], &s->gradients, room);
    return fill(compute, (struct fill){.out = room_tensor(s, &s->gradients, room), .value = 0.0F});
}

/* Adds this rank's slice of the sum over ranks to the sum of earlier microbatches. */
static enum status reduce(struct sharded *s, const struct unit *unit, int room)
{
    const struct weights *w = s->weights;
    for (int b = unit->first_bucket; b < unit->first_bucket + unit->buckets; b++) {
        const struct bucket *bucket = &w->plan.buckets[b];
        int64_t begin = bucket->begin - unit->begin, own = bucket_cut(bucket, w->rank) - unit->begin;
        int64_t count = bucket->counts[w->rank], all = bucket->end - bucket->begin;
        TRY(group_reduce_scatter_v(s->data, s->reduce, room_part(s, &s->gradients, room, begin, all),
                                   bucket->counts));
        if (count > 0)
            TRY(add(s->reduce, (struct add){.in = room_part(s, &s->gradients, room, own, count),
                                            .out = weights_gradient_slice(w, b)}));
    }
    return OK;
}

enum status weights_close_gradients(struct weights *weights, struct stream *compute, int layer)
{
    struct sharded *s = weights->sharded;
    if (s == NULL)
        return OK;
    int unit = unit_of(s, layer), room = room_of(&s->gradients, unit);
    CHECK(room >= 0 && s->gradients.room[room].used);
    TRY(stream_wait(s->reduce, stream_record(compute)));
    TRY(reduce(s, &s->units[unit], room));
    TRY(poison(s->reduce, (struct poison){.out = room_tensor(s, &s->gradients, room)}));
    leave_room(&s->gradients, room, stream_record(s->reduce));
    point_views(s, &s->units[unit], &s->gradients, -1);
    return s->gradients.rooms == 2 ? OK : stream_wait(compute, s->gradients.room[room].left);
}

enum status weights_finish_gradients(struct weights *weights, struct stream *compute)
{
    struct sharded *s = weights->sharded;
    if (s == NULL)
        return OK;
    TRY(stream_wait(compute, stream_record(s->reduce)));
    return s->stage_replicas != NULL
               ? group_all_reduce(s->stage_replicas, compute, weights->flat_gradient, REDUCE_SUM)
               : OK;
}
