// SPDX-License-Identifier: Apache-2.0
/* Finding the newest checkpoint of which all files remain on some node, and who reads them. */
#include "trainer/checkpoint/in_memory/memory_load.h"

#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/metadata_files.h"
#include "trainer/checkpoint/store.h"
#include "trainer/engine/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WORD_BITS = 32, PAIR = sizeof(uint64_t) / sizeof(int32_t) };

/* The newest checkpoint on a node, as its leader reports it. */
struct listing {
    int64_t step;  // -1: none
    uint64_t save; // random number of the save
};

struct candidate {
    int64_t step;
    uint64_t save;
    int root; // lowest rank that has its manifest
};

/* The candidates of one step, and what the node of this rank has. */
struct round {
    struct candidate *list; // [count], those of one save next to each other
    int count;
    struct listing own;
    struct manifest manifest; // of `own`; {0}: handed on
    struct text skipped;      // lines about newer ones on this node that are damaged
};

/* ---- what there is ---- */

static enum status identity_of(const struct memory_checkpoints *m, int64_t step, struct save_identity *out)
{
    AUTO(text) path = {0};
    struct manifest manifest;
    store_of_step(m->folder.chars, step, "", &path);
    enum status status = manifest_read(path.chars, &manifest);
    if (status == OK)
        *out = manifest.identity;
    manifest_free(&manifest);
    return status;
}

/* Finds the newest complete checkpoint of this run in [from, below) on this node. */
static enum status find_own(const struct memory_checkpoints *m, int64_t from, int64_t below,
                            struct round *out)
{
    int64_t step = below;
    bool found = false;
    enum status status = OK;
    while (status == OK && !found && step >= 0) {
        manifest_free(&out->manifest);
        status = store_newest_manifest(m->folder.chars, step, &step, &out->manifest, &out->skipped);
        found = status == OK && step >= from && strcmp(out->manifest.identity.run, m->run) == 0 &&
                hex_parse(out->manifest.identity.save, &out->own.save);
    }
    out->own.step = found ? step : -1;
    return status == OK ? OK : fail(status, "checkpoint.memory_dir: %s", fail_text());
}

static int newest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->save != y->save ? (x->save > y->save ? -1 : 1) : (x->root > y->root) - (x->root < y->root);
}

/* Collective: lists the newest checkpoints in [from, below) on any node, of one step. */
static enum status round_begin(const struct memory_checkpoints *m, int64_t from, int64_t below,
                               struct round *out)
{
    struct rank_state *w = m->rank_state;
    const size_t world = (size_t)w->world->size;
    *out = (struct round){.list = memory_zeroed(world, sizeof *out->list, "the checkpoints of nodes"),
                          .own = {.step = -1}};
    AUTO_FREE struct listing *all = memory_zeroed(world, sizeof *all, "the checkpoints of ranks");
    enum status status = rank_agree(w, memory_is_leader(m) ? find_own(m, from, below, out) : OK);
    if (status == OK)
        status = gather_words(w, &out->own, sizeof out->own / sizeof(int32_t), all);
    for (int rank = 0; status == OK && rank < w->world->size; rank++)
        if (all[rank].step >= 0)
            out->list[out->count++] = (struct candidate){all[rank].step, all[rank].save, rank};
    if (out->count > 0)
        qsort(out->list, (size_t)out->count, sizeof *out->list, newest_first);
    while (out->count > 0 && out->list[out->count - 1].step < out->list[0].step)
        out->count--;
    // Nodes that lack the newest one get its manifest, and report their own if it is damaged.
    if (status == OK && (out->count == 0 || out->own.step == out->list[0].step))
        fputs(text_chars(&out->skipped), stderr);
    return status;
}

static void round_end(struct round *r)
{
    manifest_free(&r->manifest);
    text_free(&r->skipped);
    free(r->list);
}

/* ---- manifests ---- */

static bool has_candidate(const struct memory_checkpoints *m, const struct candidate *c)
{
    struct save_identity identity;
    uint64_t save;
    return identity_of(m, c->step, &identity) == OK && hex_parse(identity.save, &save) && save == c->save;
}

/* True if the manifest or the recipe at `path` is missing or damaged, for a reason in fail_text(); the other
 * files there are kept. */
static bool is_damaged(const struct memory_checkpoints *m, const struct candidate *c, const char *path)
{
    struct save_identity identity;
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && identity_of(m, c->step, &identity) != OK;
}

/* Writes the manifest and the other small files into the folder of this node, at `path`. */
static enum status write_here(const struct memory_checkpoints *m, const struct candidate *c, const char *path,
                              const struct metadata_files *texts)
{
    struct save_ticket ticket;
    AUTO(text) folder = {0};
    if (is_damaged(m, c, path)) {
        print_line(stderr, "warning: %s; restored from another node", fail_text());
        return metadata_files_write(texts, path);
    }
    TRY(store_begin(m->folder.chars, c->step, &ticket));
    store_of_ticket(m->folder.chars, &ticket, &folder);
    enum status status = metadata_files_write(texts, folder.chars);
    if (status == OK)
        status = store_publish(m->folder.chars, &ticket);
    if (status != OK)
        store_abandon(m->folder.chars, &ticket);
    return status;
}

/* Collective: gives the small files of a checkpoint to the nodes that lack them. */
static enum status share_texts(const struct memory_checkpoints *m, const struct candidate *c, bool known,
                               const char *path)
{
    struct rank_state *w = m->rank_state;
    AUTO(metadata_files) texts = {0};
    const bool lacks = memory_is_leader(m) && !known && !has_candidate(m, c);
    double any = lacks ? 1.0 : 0.0;
    TRY(rank_agree_max(w, &any, 1));
    if (any == 0.0)
        return OK;
    TRY(rank_agree(w, w->world->rank == c->root ? metadata_files_read(path, &texts) : OK));
    TRY(broadcast_text(w, c->root, &texts.recipe));
    TRY(broadcast_text(w, c->root, &texts.data));
    TRY(broadcast_text(w, c->root, &texts.manifest));
    return rank_agree(w, lacks ? write_here(m, c, path, &texts) : OK);
}

/* ---- files ---- */

/* Sets the bit of each file on this node. One of another size is reported and does not count. */
static void list_files(const struct manifest *manifest, const char *path, uint32_t *bits)
{
    for (int f = 0; f < manifest->file_count; f++) {
        AUTO(text) name = {0};
        struct stat info;
        text_add(&name, "%s/%s", path, manifest->files[f].name);
        const bool exists = stat(name.chars, &info) == 0;
        if (exists && info.st_size == manifest->files[f].bytes)
            bits[f / WORD_BITS] |= 1U << f % WORD_BITS;
        else if (exists)
            print_line(stderr, "warning: %s: %lld bytes, but the manifest has %lld", name.chars,
                       (long long)info.st_size, (long long)manifest->files[f].bytes);
    }
}

/* Clears the bits of files that differ from their checksums, and reports them. */
static enum status verify_files(const char *path, uint32_t *bits)
{
    struct checkpoint_reader source;
    int64_t bytes = 0;
    enum status status = checkpoint_reader_open(path, -1, &source);
    for (int f = 0; status == OK && f < source.manifest.file_count; f++) {
        const uint32_t bit = 1U << f % WORD_BITS;
        rank_context_set_action("verify a checkpoint");
        if ((bits[f / WORD_BITS] & bit) == 0 || checkpoint_reader_verify_file(&source, f, &bytes) == OK)
            continue;
        print_line(stderr, "warning: %s", fail_text());
        bits[f / WORD_BITS] &= ~bit;
    }
    checkpoint_reader_close(&source);
    return status;
}

/* Chooses the rank that reads a file for other nodes: that of the file if its node has it, else a rank of a
 * node that does. -1: no node has it. */
static int choose_reader(const struct memory_checkpoints *m, const struct manifest *manifest, int file)
{
    const struct rank_nodes *nodes = &m->nodes;
    const int rank = manifest->files[file].rank;
    if (rank >= 0 && rank < nodes->world && reader_nodes_has(&m->holders, rank, file))
        return rank;
    for (int i = 0; i < nodes->count; i++) {
        const int node = (file + i) % nodes->count,
                  reader = rank_nodes_at(nodes, node, file % nodes->ranks[node]);
        if (reader_nodes_has(&m->holders, reader, file))
            return reader;
    }
    return -1;
}

/* Collective: fills in m->holders for the checkpoint at `path`. *lost: files that no node has. */
static enum status find_holders(struct memory_checkpoints *m, const struct manifest *manifest,
                                const char *path, bool verify, int *lost)
{
    struct rank_state *w = m->rank_state;
    const int words = (manifest->file_count + WORD_BITS - 1) / WORD_BITS;
    const size_t row = (size_t)words, nodes = (size_t)m->nodes.count;
    reader_nodes_free(&m->holders);
    m->holders = (struct reader_nodes){.words = words, .node_of = m->nodes.node_of};
    m->holders.has = memory_zeroed(nodes * row, sizeof(uint32_t), "the files of nodes");
    m->holders.reader = memory_zeroed((size_t)manifest->file_count, sizeof(int), "the readers of files");
    AUTO_FREE uint32_t *mine = memory_zeroed(row, sizeof *mine, "the files of a node");
    AUTO_FREE int64_t *counts = memory_zeroed((size_t)w->world->size, sizeof *counts, "a list of ranks");
    if (memory_is_leader(m))
        list_files(manifest, path, mine);
    for (int node = 0; node < m->nodes.count; node++)
        counts[rank_nodes_at(&m->nodes, node, 0)] = words;
    *lost = 0;
    TRY(rank_agree(w, verify && memory_is_leader(m) ? verify_files(path, mine) : OK));
    TRY(gather_lists(w, mine, counts, m->holders.has)); // leaders come in the order of their nodes
    for (int f = 0; f < manifest->file_count; f++) {
        m->holders.reader[f] = choose_reader(m, manifest, f);
        *lost += m->holders.reader[f] < 0;
    }
    return OK;
}

/* ---- finding ---- */

/* Collective: *complete: all files remain; its manifest is then m->manifest. */
static enum status try_candidate(struct memory_checkpoints *m, struct round *round, const struct candidate *c,
                                 const char *path, bool verify, bool *complete)
{
    const bool known = round->own.step == c->step && round->own.save == c->save;
    struct manifest *manifest = &m->manifest;
    enum status status = OK;
    int lost = 0;
    TRY(share_texts(m, c, known, path));
    manifest_free(manifest);
    if (known) {
        *manifest = round->manifest;
        round->manifest = (struct manifest){0};
    } else
        status = manifest_read(path, manifest);
    status = rank_agree(m->rank_state, status);
    if (status == OK)
        status = find_holders(m, manifest, path, verify, &lost);
    *complete = status == OK && lost == 0;
    if (status == OK && lost > 0 && m->rank_state->world->rank == 0)
        print_line(stderr,
                   "skipped: the checkpoint of step %lld in memory: %d of its %d files are on no node",
                   (long long)c->step, lost, manifest->file_count);
    return status;
}

/* Collective: the first complete one of a step. *path is NULL if there is none. */
static enum status try_round(struct memory_checkpoints *m, struct round *round, bool verify, char **path)
{
    enum status status = OK;
    bool complete = false;
    for (int i = 0; i < round->count && status == OK && !complete; i++) {
        struct text folder = {0};
        if (i > 0 && round->list[i].save == round->list[i - 1].save)
            continue;
        store_of_step(m->folder.chars, round->list[i].step, "", &folder);
        status = try_candidate(m, round, &round->list[i], folder.chars, verify, &complete);
        *path = complete ? folder.chars : NULL;
        if (!complete)
            text_free(&folder);
    }
    return status;
}

enum status memory_checkpoints_find(struct memory_checkpoints *memory, int64_t from, int64_t below,
                                    bool verify, int64_t *step, char **path)
{
    enum status status = OK;
    bool more = memory != NULL;
    *step = -1;
    *path = NULL;
    while (status == OK && more) {
        struct round round;
        status = round_begin(memory, from, below, &round);
        more = status == OK && round.count > 0;
        if (more) {
            below = round.list[0].step;
            status = try_round(memory, &round, verify, path);
        }
        if (*path != NULL) {
            *step = below;
            more = false;
        }
        round_end(&round);
    }
    return status;
}

/* ---- the shards of all files ---- */

/* A shard, as the rank that reads its file reports it. */
struct entry {
    int32_t file, tensor;
    int64_t begin[SHARD_MAX_DIMS], count[SHARD_MAX_DIMS];
};
enum { ENTRY_WORDS = sizeof(struct entry) / sizeof(int32_t) };

static int by_tensor_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct manifest_tensor *)tensor)->name);
}

/* Lists the shards of the files that this rank reads; the caller frees *out. */
static enum status list_entries(const struct memory_checkpoints *m, struct checkpoint_reader *s,
                                struct entry **out, int64_t *count)
{
    const struct manifest *manifest = &s->manifest;
    for (int f = 0; f < manifest->file_count; f++) {
        const struct shard *shards;
        int found;
        if (m->holders.reader[f] != m->rank_state->world->rank)
            continue;
        TRY(checkpoint_reader_shards(s, f, &shards, &found));
        *out = memory_resized(*out, (size_t)(*count + found + 1), sizeof **out, "the shards of files");
        for (int i = 0; i < found; i++) {
            const struct manifest_tensor *tensor =
                bsearch(shards[i].name, manifest->tensors, (size_t)manifest->tensor_count,
                        sizeof *manifest->tensors, by_tensor_name);
            if (tensor == NULL)
                return fail(BAD_CHECKPOINT, "%s/%s: %s is not in the manifest", s->folder,
                            manifest->files[f].name, shards[i].name);
            struct entry *entry = &(*out)[(*count)++];
            *entry = (struct entry){.file = f, .tensor = (int32_t)(tensor - manifest->tensors)};
            memcpy(entry->begin, shards[i].slice.begin, sizeof entry->begin);
            memcpy(entry->count, shards[i].slice.count, sizeof entry->count);
        }
    }
    return OK;
}

static void shard_of(const struct manifest *manifest, const struct entry *entry, struct shard *out)
{
    const struct manifest_tensor *tensor = &manifest->tensors[entry->tensor];
    *out = (struct shard){.dtype = tensor->dtype, .slice = slice_whole(tensor->ndim, entry->count)};
    memcpy(out->name, tensor->name, sizeof out->name);
    memcpy(out->dim, tensor->dim, sizeof out->dim);
    memcpy(out->slice.begin, entry->begin, sizeof out->slice.begin);
}

/* The entries of a file are consecutive, and those of files that this rank reads are known. */
static void set_shards(const struct memory_checkpoints *m, struct checkpoint_reader *s,
                       const struct entry *entries, int64_t total)
{
    for (int64_t at = 0, end; at < total; at = end) {
        const int file = entries[at].file;
        for (end = at; end < total && entries[end].file == file;)
            end++;
        if (m->holders.reader[file] == m->rank_state->world->rank)
            continue;
        struct shard *shards = memory_zeroed((size_t)(end - at), sizeof *shards, "the shards of a file");
        for (int64_t i = at; i < end; i++)
            shard_of(&s->manifest, &entries[i], &shards[i - at]);
        checkpoint_reader_set_shards(s, file, shards, (int)(end - at));
    }
}

/* Collective: every rank gets the shards of all files. */
static enum status share_shards(struct memory_checkpoints *m, struct checkpoint_reader *s)
{
    struct rank_state *w = m->rank_state;
    const size_t world = (size_t)w->world->size;
    AUTO_FREE struct entry *mine = NULL;
    AUTO_FREE int64_t *counts = memory_zeroed(world, sizeof *counts, "a list of ranks");
    int64_t own = 0, total = 0;
    TRY(rank_agree(w, list_entries(m, s, &mine, &own)));
    TRY(gather_words(w, &own, PAIR, counts));
    for (size_t rank = 0; rank < world; rank++) {
        total += counts[rank];
        counts[rank] *= ENTRY_WORDS;
    }
    AUTO_FREE struct entry *all = memory_zeroed((size_t)total + 1, sizeof *all, "the shards of all files");
    TRY(gather_lists(w, mine, counts, all));
    set_shards(m, s, all, total);
    return OK;
}

enum status memory_checkpoints_source(struct memory_checkpoints *memory, const char *path,
                                      struct checkpoint_reader *out)
{
    const struct manifest manifest = memory->manifest;
    memory->manifest = (struct manifest){0};
    checkpoint_reader_from(path, &manifest, memory->rank_state->world->rank, out);
    out->nodes = &memory->holders;
    return share_shards(memory, out);
}
