// SPDX-License-Identifier: Apache-2.0
/* Files are sent in chunks, a chunk of every file in each round. A rank that cannot read or write its files
 * continues to send and receive, so that the others are not left waiting. */
#include "trainer/checkpoint/in_memory/memory_copy.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/engine/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int placement_holder(const struct placement *placement, int node, int copy)
{
    const int groups = placement->nodes / placement->copies, last = groups - 1;
    const int group = node / placement->copies < last ? node / placement->copies : last;
    const int first = group * placement->copies,
              size = group == last ? placement->nodes - first : placement->copies;
    return first + (node - first + copy) % size;
}

enum { WORD = sizeof(int32_t), MIN_CHUNK = 1 << 16, MAX_CHUNK = 1 << 23 };

/* A file that is received. */
struct received {
    int rank;
    struct text path;
    struct file_temporary file;
};

struct copier {
    struct rank_state *rank_state;
    const int64_t *bytes;
    struct text path; // of this rank's own file
    int own;          // its descriptor; -1: none
    int *receivers;   // [copies - 1]
    int receiver_count;
    struct received *copies;
    int copy_count;
    struct staging staging;
    int64_t chunk;            // bytes, the same on all ranks
    char *host;               // [copy_count + 1][chunk]
    struct message *messages; // [receiver_count + copy_count]
    enum status status;       // first failure of this rank
    struct text why;
};

static void note_failure(struct copier *c, enum status status)
{
    if (status == OK || c->status != OK)
        return;
    c->status = status;
    text_add(&c->why, "%s", fail_text());
}

/* ---- who sends to whom ---- */

/* The rank that receives copy `copy` of a rank's file. */
static int receiver_of(const struct rank_nodes *nodes, const struct placement *placement, int rank, int copy)
{
    const int node = placement_holder(placement, nodes->node_of[rank], copy);
    return rank_nodes_at(nodes, node, nodes->index[rank] % nodes->ranks[node]);
}

int memory_copy_sources(const struct rank_nodes *nodes, const struct placement *placement, int rank,
                        int *list)
{
    int count = 0;
    for (int other = 0; other < nodes->world; other++)
        for (int copy = 1; copy < placement->copies; copy++)
            if (receiver_of(nodes, placement, other, copy) == rank)
                list[count++] = other;
    return count;
}

/* ---- files ---- */

static enum status file_error(const struct text *path)
{
    return fail(IO_ERROR, "%s: %s", path->chars, strerror(errno));
}

static void path_of(const char *folder, int rank, struct text *out)
{
    char name[MANIFEST_FILE_CHARS];
    manifest_file_name(rank, name);
    text_add(out, "%s/%s", folder, name);
}

static void read_chunk(struct copier *c, int64_t at, int64_t length)
{
    for (int64_t done = 0; done < length && c->status == OK;) {
        const ssize_t count = pread(c->own, c->host + done, (size_t)(length - done), (off_t)(at + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            errno = EIO; // truncated
        if (count <= 0)
            note_failure(c, file_error(&c->path));
        else
            done += count;
    }
}

static void write_chunk(struct copier *c, struct received *copy, const char *bytes, int64_t at,
                        int64_t length)
{
    if (c->status == OK && !file_temporary_write(&copy->file, bytes, (size_t)length, at))
        note_failure(c, file_error(&copy->path));
}

/* ---- rounds ---- */

static int64_t chunk_at(const struct copier *c, int rank, int64_t at)
{
    const int64_t left = c->bytes[rank] - at;
    return left < 0 ? 0 : left < c->chunk ? left : c->chunk;
}

/* Adds a message of `length` bytes, padded to whole words, at slot `slot` of the staging memory. */
static void add_message(const struct copier *c, int slot, int64_t length, int peer, bool send, int *count)
{
    c->messages[(*count)++] = (struct message){
        .data = tensor_1d(c->staging.data + slot * c->chunk, I32, (length + WORD - 1) / WORD),
        .peer = peer,
        .send = send,
    };
}

static enum status exchange_round(struct copier *c, int64_t at)
{
    struct rank_state *w = c->rank_state;
    const int64_t own = chunk_at(c, w->world->rank, at);
    int count = 0;
    rank_context_set_action("save in memory");
    if (own > 0 && c->receiver_count > 0) {
        read_chunk(c, at, own);
        TRY(copy_to_device(w->compute, c->staging.data, c->host, (size_t)own));
        for (int i = 0; i < c->receiver_count; i++)
            add_message(c, 0, own, c->receivers[i], true, &count);
    }
    for (int i = 0; i < c->copy_count; i++)
        if (chunk_at(c, c->copies[i].rank, at) > 0)
            add_message(c, i + 1, chunk_at(c, c->copies[i].rank, at), c->copies[i].rank, false, &count);
    if (count == 0)
        return OK;
    TRY(group_exchange(w->groups->world, w->compute, c->messages, count));
    for (int i = 0; i < c->copy_count; i++)
        TRY(copy_to_host(w->compute, c->host + (i + 1) * c->chunk, c->staging.data + (i + 1) * c->chunk,
                         (size_t)chunk_at(c, c->copies[i].rank, at)));
    TRY(stream_sync(w->compute));
    for (int i = 0; i < c->copy_count; i++)
        write_chunk(c, &c->copies[i], c->host + (i + 1) * c->chunk, at, chunk_at(c, c->copies[i].rank, at));
    return OK;
}

/* ---- all ---- */

static void list_peers(struct copier *c, const struct rank_nodes *nodes, const struct placement *placement)
{
    const int rank = c->rank_state->world->rank;
    const size_t copies = (size_t)placement->copies;
    AUTO_FREE int *sources =
        memory_zeroed((size_t)nodes->world * copies, sizeof *sources, "the sources of copies");
    const int count = memory_copy_sources(nodes, placement, rank, sources);
    c->receivers = memory_zeroed(copies, sizeof *c->receivers, "the receivers of copies");
    c->copies = memory_zeroed((size_t)count + 1, sizeof *c->copies, "the copies of other ranks");
    c->messages = memory_zeroed((size_t)count + copies, sizeof *c->messages, "the messages of copies");
    for (int copy = 1; copy < placement->copies; copy++)
        c->receivers[c->receiver_count++] = receiver_of(nodes, placement, rank, copy);
    for (int i = 0; i < count; i++)
        c->copies[c->copy_count++] = (struct received){.rank = sources[i], .file = {.fd = -1}};
}

static enum status open_files(struct copier *c, const char *folder)
{
    const int rank = c->rank_state->world->rank;
    path_of(folder, rank, &c->path);
    if (c->bytes[rank] > 0 && c->receiver_count > 0)
        c->own = open(c->path.chars, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (c->bytes[rank] > 0 && c->receiver_count > 0 && c->own < 0)
        return file_error(&c->path);
    for (int i = 0; i < c->copy_count; i++) {
        path_of(folder, c->copies[i].rank, &c->copies[i].path);
        if (c->bytes[c->copies[i].rank] == 0)
            continue;
        TRY(file_temporary_create(c->copies[i].path.chars, &c->copies[i].file));
    }
    return OK;
}

static enum status allocate(struct copier *c)
{
    const size_t slots = (size_t)c->copy_count + 1;
    TRY(staging_open(c->rank_state, slots * MIN_CHUNK, &c->staging));
    c->chunk = (int64_t)(c->staging.bytes / slots / MIN_CHUNK * MIN_CHUNK);
    c->chunk = c->chunk < MAX_CHUNK ? c->chunk : MAX_CHUNK;
    return OK;
}

static enum status agree_on_chunk(struct copier *c)
{
    double least = -(double)c->chunk;
    TRY(rank_agree_max(c->rank_state, &least, 1));
    c->chunk = (int64_t)-least;
    c->host = memory_resized(NULL, (size_t)c->copy_count + 1, (size_t)c->chunk, "the chunks of copies");
    return OK;
}

static enum status run(struct copier *c)
{
    int64_t longest = 0;
    for (int rank = 0; rank < c->rank_state->world->size; rank++)
        longest = c->bytes[rank] > longest ? c->bytes[rank] : longest;
    for (int64_t at = 0; at < longest; at += c->chunk)
        TRY(exchange_round(c, at));
    for (int i = 0; i < c->copy_count && c->status == OK; i++)
        if (c->copies[i].file.fd >= 0)
            note_failure(c, file_temporary_commit(&c->copies[i].file, c->copies[i].path.chars));
    return c->status == OK ? OK : fail(c->status, "%s", c->why.chars);
}

static void copier_free(struct copier *c)
{
    for (int i = 0; i < c->copy_count; i++) {
        file_temporary_discard(&c->copies[i].file);
        text_free(&c->copies[i].path);
    }
    if (c->own >= 0)
        close(c->own);
    staging_close(&c->staging);
    text_free(&c->path);
    text_free(&c->why);
    free(c->receivers);
    free(c->copies);
    free(c->host);
    free(c->messages);
}

enum status memory_copy(struct rank_state *state, const struct rank_nodes *nodes,
                        const struct placement *placement, const int64_t *bytes, const char *folder)
{
    AUTO(copier) c = {.rank_state = state, .bytes = bytes, .own = -1};
    list_peers(&c, nodes, placement);
    TRY(rank_agree(state, open_files(&c, folder)));
    TRY(allocate(&c));
    TRY(agree_on_chunk(&c));
    return run(&c);
}
