// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/in_memory/memory_save.h"

#include "base/memory.h"
#include "trainer/checkpoint/distribute/gather.h"
#include "trainer/checkpoint/in_memory/memory_copy.h"
#include "trainer/checkpoint/metadata_files.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"
#include "trainer/checkpoint/store_lock.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <string.h>

struct memory_save {
    struct memory_checkpoints *memory;
    struct save_ticket ticket; // of the folder of this node
    struct text folder;
    struct rank_writer writer;
    struct manifest manifest; // rank 0
    struct metadata_files texts;
};

/* The leader of the node makes room and creates the folder. */
static enum status begin_on_node(struct memory_save *s)
{
    const struct memory_checkpoints *m = s->memory;
    TRY(memory_restore_folder(m));
    TRY(store_keep_only(m->folder.chars, m->run, m->complete));
    return store_begin(m->folder.chars, m->rank_state->step, &s->ticket);
}

/* All ranks get the identity of the save from rank 0, and the folder from the leader of their node. */
static enum status share_ticket(struct memory_save *s)
{
    const struct memory_checkpoints *m = s->memory;
    struct rank_state *w = m->rank_state;
    AUTO(text) save = {0};
    int32_t attempt = s->ticket.attempt;
    AUTO_FREE int32_t *attempts = memory_zeroed((size_t)w->world->size, sizeof *attempts, "a list of ranks");
    if (w->world->rank == 0)
        text_add(&save, "%s", s->ticket.identity.save);
    TRY(broadcast_text(w, 0, &save));
    TRY(gather_words(w, &attempt, 1, attempts));
    const int node = m->nodes.node_of[w->world->rank];
    CHECK(save.length == SAVE_CHARS - 1);
    memcpy(s->ticket.identity.save, save.chars, SAVE_CHARS);
    memcpy(s->ticket.identity.run, m->run, RUN_CHARS);
    s->ticket.identity.step = w->step;
    s->ticket.attempt = attempts[rank_nodes_at(&m->nodes, node, 0)];
    store_of_ticket(m->folder.chars, &s->ticket, &s->folder);
    return OK;
}

static enum status write_own(struct memory_save *s)
{
    struct rank_state *w = s->memory->rank_state;
    rank_writer_create(w, &s->writer);
    if (w->world->rank == 0)
        TRY(manifest_begin(w, &s->ticket.identity, &s->manifest));
    s->manifest.in_memory = true;
    return rank_writer_write(&s->writer, &s->ticket.identity, s->folder.chars);
}

static enum status copy_to_peers(struct memory_save *s)
{
    const struct memory_checkpoints *m = s->memory;
    struct rank_state *w = m->rank_state;
    const int64_t mine = s->writer.note.bytes;
    AUTO_FREE int64_t *bytes = memory_zeroed((size_t)w->world->size, sizeof *bytes, "the sizes of files");
    TRY(gather_words(w, &mine, sizeof mine / sizeof(int32_t), bytes));
    return memory_copy(w, &m->nodes, &m->placement, bytes, s->folder.chars);
}

static enum status publish_on_node(struct memory_save *s)
{
    TRY(metadata_files_write(&s->texts, s->folder.chars));
    TRY(store_lock_check(s->memory->lock));
    return store_publish(s->memory->folder.chars, &s->ticket);
}

/* Every node gets the manifest of rank 0. */
static enum status publish(struct memory_save *s)
{
    struct rank_state *w = s->memory->rank_state;
    TRY(metadata_files_make(&s->writer, s->folder.chars, &s->manifest, &s->texts));
    TRY(broadcast_text(w, 0, &s->texts.recipe));
    TRY(broadcast_text(w, 0, &s->texts.data));
    TRY(broadcast_text(w, 0, &s->texts.manifest));
    return rank_agree(w, memory_is_leader(s->memory) ? publish_on_node(s) : OK);
}

static enum status save(struct memory_save *s)
{
    struct rank_state *w = s->memory->rank_state;
    TRY(rank_agree(w, memory_is_leader(s->memory) ? begin_on_node(s) : OK));
    TRY(share_ticket(s));
    TRY(rank_agree(w, write_own(s)));
    TRY(rank_agree(w, copy_to_peers(s)));
    return publish(s);
}

/* Only files and memory may fail without ending the run. */
static bool may_continue(enum status status)
{
    return status == IO_ERROR || status == NO_MEMORY;
}

/* Reports the first of consecutive failures. */
static void report(struct memory_checkpoints *m)
{
    AUTO(text) rest = {0};
    if (m->complete >= 0)
        text_add(&rest, "; that of step %lld remains", (long long)m->complete);
    if (m->rank_state->world->rank == 0 && !m->failed)
        print_line(
            stderr,
            "warning: checkpoint.memory_dir: step %lld is not saved in memory: %s%s; training continues",
            (long long)m->rank_state->step, fail_text(), text_chars(&rest));
    m->failed = true;
}

enum status memory_checkpoints_save(struct memory_checkpoints *memory)
{
    struct memory_save s = {.memory = memory};
    enum status status = save(&s);
    if (status == OK) {
        memory->complete = memory->rank_state->step;
        memory->failed = false;
    } else if (may_continue(status)) {
        report(memory);
        status = OK;
        if (memory_is_leader(memory) && store_lock_check(memory->lock) == OK)
            store_abandon(memory->folder.chars, &s.ticket);
    }
    rank_writer_free(&s.writer);
    manifest_free(&s.manifest);
    metadata_files_free(&s.texts);
    text_free(&s.folder);
    return status;
}
