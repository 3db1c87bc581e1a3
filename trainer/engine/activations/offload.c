// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/activations/offload.h"

#include "base/memory.h"

#include <stdlib.h>

/* The lifetimes of activations that F writes. */
enum { LIFETIMES = KEEP_UNTIL_BACKWARD_WEIGHT + 1 };
_Static_assert(KEEP_INPUT == 0 && KEEP_UNTIL_BACKWARD_INPUT == 1 && KEEP_UNTIL_BACKWARD_WEIGHT == 2,
               "they come first");

struct offload {
    struct stash *stash;
    struct stream *compute, *stream;
    struct buffer host;
    size_t *begin[LIFETIMES]; // [chunks] offsets in `host`, where each activation has its slot of stash->plan
    struct event *copied[LIFETIMES],
        *sent[LIFETIMES]; // [chunks][2m] per slot: its last reader besides the compute stream
    struct event *back;   // [chunks][m]
    int *first_at, *next; // copies back to start at a position of the list: [count], [chunks][m]
};

static size_t slot_bytes(const struct offload *o, int lifetime, int chunk)
{
    return o->stash->stages[chunk].layout.bytes[lifetime];
}

#define OFFLOAD "the offload plan of a rank (memory.offload_activations)"

/* ---- creation ---- */

static void allocate_tables(struct offload *o, int positions)
{
    size_t chunks = (size_t)o->stash->chunks, cells = chunks * (size_t)o->stash->m;
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++) {
        o->begin[lifetime] = memory_zeroed(chunks, sizeof *o->begin[lifetime], OFFLOAD);
        o->copied[lifetime] = memory_zeroed(2 * cells, sizeof *o->copied[lifetime], OFFLOAD);
        o->sent[lifetime] = memory_zeroed(2 * cells, sizeof *o->sent[lifetime], OFFLOAD);
    }
    o->back = memory_zeroed(cells, sizeof *o->back, OFFLOAD);
    o->first_at = memory_zeroed((size_t)positions, sizeof *o->first_at, OFFLOAD);
    o->next = memory_zeroed(cells, sizeof *o->next, OFFLOAD);
}

static void list_reloads(struct offload *o, int positions)
{
    for (int i = 0; i < positions; i++)
        o->first_at[i] = -1;
    for (int cell = 0; cell < o->stash->chunks * o->stash->m; cell++) {
        int at = o->stash->offloaded->reload_at[cell];
        if (at < 0)
            continue;
        o->next[cell] = o->first_at[at];
        o->first_at[at] = cell;
    }
}

static enum status allocate_host(struct offload *o)
{
    size_t bytes = 0;
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++)
        for (int chunk = 0; chunk < o->stash->chunks; chunk++) {
            o->begin[lifetime][chunk] = bytes;
            bytes += slot_bytes(o, lifetime, chunk) *
                     (size_t)stash_whole_slots(o->stash, (enum lifetime)lifetime, chunk);
        }
    return buffer_alloc(stream_device(o->compute), PART_HOST, bytes, &o->host);
}

enum status offload_create(struct stash *stash, struct stream *compute, const struct action_list *list,
                           struct offload **out)
{
    if (stash->offloaded == NULL)
        return OK;
    struct offload *o = memory_zeroed(1, sizeof *o, OFFLOAD);
    o->stash = stash;
    o->compute = compute;
    allocate_tables(o, list->count);
    enum status status = allocate_host(o);
    if (status == OK)
        status = stream_create(stream_device(compute), "offload", &o->stream);
    if (status == OK) {
        list_reloads(o, list->count);
        *out = o;
    } else {
        offload_destroy(o);
    }
    return status;
}

void offload_destroy(struct offload *offload)
{
    if (offload == NULL)
        return;
    stream_destroy(offload->stream);
    buffer_free(&offload->host);
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++) {
        free(offload->begin[lifetime]);
        free(offload->copied[lifetime]);
        free(offload->sent[lifetime]);
    }
    free(offload->back);
    free(offload->first_at);
    free(offload->next);
    free(offload);
}

/* ---- copies ---- */

/* Index of a slot in `copied` and `sent`. */
static size_t slot_index(const struct offload *o, int lifetime, int chunk, int microbatch, bool back)
{
    int slot = stash_slot(o->stash, (enum lifetime)lifetime, chunk, microbatch, back);
    return (size_t)(2 * chunk * o->stash->m + slot);
}

static enum status acquire(struct offload *o, struct stream *stream, int lifetime, int chunk, int microbatch,
                           bool back)
{
    size_t index = slot_index(o, lifetime, chunk, microbatch, back);
    TRY(stream_wait(stream, o->copied[lifetime][index]));
    TRY(stream_wait(stream, o->sent[lifetime][index]));
    return stash_poison(o->stash, stream, (enum lifetime)lifetime, chunk, microbatch, back);
}

enum status offload_acquire(struct offload *offload, struct stream *stream, enum lifetime lifetime, int chunk,
                            int microbatch)
{
    return offload != NULL ? acquire(offload, stream, lifetime, chunk, microbatch, false) : OK;
}

static size_t host_offset(const struct offload *o, int lifetime, int chunk, int microbatch)
{
    int slot = stash_whole_slot(o->stash, (enum lifetime)lifetime, chunk, microbatch);
    return o->begin[lifetime][chunk] + slot_bytes(o, lifetime, chunk) * (size_t)slot;
}

enum status offload_to_host(struct offload *offload, int chunk, int microbatch)
{
    if (offload == NULL || offload->stash->offloaded->reload_at[chunk * offload->stash->m + microbatch] < 0)
        return OK;
    char *base[LIFETIME_COUNT];
    stash_bases(offload->stash, chunk, microbatch, false, base);
    TRY(stream_wait(offload->stream, stream_record(offload->compute)));
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++) {
        size_t offset = host_offset(offload, lifetime, chunk, microbatch),
               bytes = slot_bytes(offload, lifetime, chunk);
        TRY(copy_to_host(offload->stream, (char *)offload->host.data + offset, base[lifetime], bytes));
        buffer_page_out(&offload->host, offset, bytes);
        offload->copied[lifetime][slot_index(offload, lifetime, chunk, microbatch, false)] =
            stream_record(offload->stream);
    }
    return OK;
}

void offload_sent(struct offload *offload, enum lifetime lifetime, int chunk, int microbatch,
                  struct event sent)
{
    if (offload != NULL)
        offload->sent[lifetime][slot_index(offload, lifetime, chunk, microbatch, false)] = sent;
}

static enum status reload(struct offload *o, int chunk, int microbatch)
{
    char *base[LIFETIME_COUNT];
    stash_bases(o->stash, chunk, microbatch, true, base);
    for (int lifetime = 0; lifetime < LIFETIMES; lifetime++) {
        size_t offset = host_offset(o, lifetime, chunk, microbatch), bytes = slot_bytes(o, lifetime, chunk);
        TRY(acquire(o, o->stream, lifetime, chunk, microbatch, true));
        stash_set_owner(o->stash, (enum lifetime)lifetime, chunk, microbatch, true);
        TRY(copy_to_device(o->stream, base[lifetime], (char *)o->host.data + offset, bytes));
        buffer_page_out(&o->host, offset, bytes);
    }
    o->back[chunk * o->stash->m + microbatch] = stream_record(o->stream);
    return OK;
}

enum status offload_prefetch(struct offload *offload, int position)
{
    if (offload == NULL || offload->first_at[position] < 0)
        return OK;
    // Previous readers of the slot are actions enqueued before this point.
    TRY(stream_wait(offload->stream, stream_record(offload->compute)));
    for (int cell = offload->first_at[position]; cell >= 0; cell = offload->next[cell])
        TRY(reload(offload, cell / offload->stash->m, cell % offload->stash->m));
    return OK;
}

enum status offload_wait(struct offload *offload, int chunk, int microbatch)
{
    int cell = offload != NULL ? chunk * offload->stash->m + microbatch : 0;
    return offload != NULL && offload->stash->offloaded->reload_at[cell] >= 0
               ? stream_wait(offload->compute, offload->back[cell])
               : OK;
}

struct stream *offload_stream(const struct offload *offload)
{
    return offload->stream;
}
