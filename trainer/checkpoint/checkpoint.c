// SPDX-License-Identifier: Apache-2.0
/* Saving: all ranks write their files, then rank 0 publishes them. */
#include "trainer/checkpoint/checkpoint.h"

#include "base/memory.h"
#include "trainer/checkpoint/best.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/checkpoint/metadata_files.h"
#include "trainer/checkpoint/store.h"
#include "trainer/checkpoint/store_lock.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/engine/agree.h"
#include "trainer/files/disk_space.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A save in progress on this rank. */
struct checkpoint_saving {
    struct rank_state *rank_state;
    struct save_ticket ticket;
    struct text folder;
    struct rank_writer writer;
    struct manifest manifest; // rank 0: the state of the run at this step
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; // of `reached`
    pthread_cond_t reached;
    atomic_bool copied; // the state of the rank may change, and its copy can be read
    bool begun;         // rank_writer_begin() was called before the thread started
    struct event copy;  // begun: its end, in the stream of copies
    atomic_bool written;
    enum status status; // of writing
    struct text why;
};

/* ---- all ranks ---- */

static enum status publish(struct checkpoint_saving *s, const struct metadata_files *texts)
{
    const struct run *run = s->rank_state->run;
    if (run->model_files != NULL)
        TRY(model_files_write(run->model_files, s->folder.chars));
    TRY(metadata_files_write(texts, s->folder.chars));
    TRY(store_lock_check(run->checkpoint_lock));
    return store_publish(run->recipe->checkpoint.save, &s->ticket);
}

/* Rank 0 publishes the checkpoint. */
static enum status publish_together(struct checkpoint_saving *s)
{
    AUTO(metadata_files) texts = {0};
    struct rank_state *w = s->rank_state;
    TRY(metadata_files_make(&s->writer, s->folder.chars, &s->manifest, &texts));
    return rank_agree(w, w->world->rank == 0 ? publish(s, &texts) : OK);
}

/* Bytes of all tensors of a checkpoint. */
static int64_t bytes_of_all(const struct rank_state *w)
{
    struct tensor_list list = {.replicated_count = 0};
    struct shard whole;
    int64_t bytes = 0;
    tensor_list_create(w, &list);
    for (int i = 0; i < tensor_list_count(&list); i++)
        if (tensor_list_at(&list, i, &whole))
            bytes += slice_count(&whole.slice) * (int64_t)safetensors_dtype_bytes(whole.dtype);
    tensor_list_free(&list);
    return bytes;
}

/* Appends the keys that determine the destination and the size. */
static void explain(const struct rank_state *w, struct text *out)
{
    const struct recipe_checkpoint *recipe = &w->run->recipe->checkpoint;
    disk_space_text(recipe->save, bytes_of_all(w), "set checkpoint.save to", out);
    if (recipe->keep_last > 0)
        text_add(out, "; checkpoint.keep_last=%lld needs space for one more checkpoint during a save",
                 (long long)recipe->keep_last);
    else
        text_add(out, "; checkpoint.keep_last=0 keeps all checkpoints");
}

/* Called when no rank is writing any more; keeps the reason of the failure. A folder that another run has
 * taken is left as it is. The free space is that without this checkpoint. */
static enum status abandon(const struct rank_state *w, const struct save_ticket *ticket, enum status status)
{
    AUTO(text) reason = {0};
    text_add(&reason, "%s%s", status == IO_ERROR ? "checkpoint.save: " : "", fail_text());
    if (w->world->rank == 0 && store_lock_check(w->run->checkpoint_lock) == OK &&
        store_abandon(w->run->recipe->checkpoint.save, ticket) != OK)
        print_line(stderr, "warning: %s", fail_text());
    if (status == IO_ERROR)
        explain(w, &reason);
    return fail(status, "%s", reason.chars);
}

static enum status begin_save(struct rank_state *w, struct save_ticket *ticket)
{
    TRY(store_lock_check(w->run->checkpoint_lock));
    return store_begin(w->run->recipe->checkpoint.save, w->step, ticket);
}

static void reach(struct checkpoint_saving *s, atomic_bool *what)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(what, true);
    pthread_cond_broadcast(&s->reached);
    pthread_mutex_unlock(&s->lock);
}

/* Waits for the writer thread to copy the state, or to write the file. What it writes meanwhile is progress
 * of the rank: a slow disk is not a hang. */
static void await(struct checkpoint_saving *s, const atomic_bool *what)
{
    int seen = atomic_load(&s->writer.parts);
    pthread_mutex_lock(&s->lock);
    while (!atomic_load(what)) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 250000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&s->reached, &s->lock, &soon);
        if (atomic_load(&s->writer.parts) != seen)
            progress_continue();
        seen = atomic_load(&s->writer.parts);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Writes this rank's file and keeps the outcome; also the body of the writer thread. */
static void *write_file(void *argument)
{
    struct checkpoint_saving *s = argument;
    if (s->begun) {
        await(s, &s->copied);
    } else {
        s->status = rank_writer_begin(&s->writer, &s->ticket.identity, s->folder.chars);
        reach(s, &s->copied);
    }
    if (s->status == OK)
        s->status = rank_writer_finish(&s->writer);
    if (s->status != OK)
        text_add(&s->why, "%s", fail_text());
    reach(s, &s->written);
    return NULL;
}

static enum status prepare(struct checkpoint_saving *s, bool in_background)
{
    struct rank_state *w = s->rank_state;
    rank_writer_create(w, &s->writer);
    if (w->world->rank == 0)
        TRY(manifest_begin(w, &s->ticket.identity, &s->manifest));
    if (!in_background)
        return OK;
    TRY(stream_sync(w->compute));
    rank_writer_stage(&s->writer, w->staging.buffer.data, w->staging.buffer.bytes, w->staging.copies);
    // Other memory than the host's is copied by the device, while the next step runs.
    s->begun = !s->writer.is_host_memory;
    if (!s->begun)
        return OK;
    TRY(rank_writer_begin(&s->writer, &s->ticket.identity, s->folder.chars));
    s->copy = stream_record(w->staging.copies);
    return OK;
}

enum status checkpoint_reserve(struct rank_state *state)
{
    const struct recipe_checkpoint *recipe = &state->run->recipe->checkpoint;
    const int64_t limit = recipe->staging_mb << 20;
    struct rank_writer writer = {.count = 0};
    if (!recipe->async_save || recipe->save == NULL)
        return OK;
    rank_writer_create(state, &writer);
    int64_t bytes = (int64_t)rank_writer_bytes(&writer);
    rank_writer_free(&writer);
    bytes = limit > 0 && limit < bytes ? limit : bytes;
    enum status status = OK;
    if (bytes > 0)
        status = buffer_alloc(state->device, PART_SNAPSHOT, (size_t)bytes, &state->staging.buffer);
    // Pages are made by the first store, now rather than in a step: a second for 1 GB on a virtual machine.
    if (status == OK && bytes > 0 && device_traits(state->run->recipe->cluster.device)->has_host_memory)
        memset(state->staging.buffer.data, 0, (size_t)bytes);
    if (status == OK)
        status = stream_create(state->device, "snapshot", &state->staging.copies);
    return status != NO_MEMORY
               ? status
               : fail(status, "checkpoint.async_save: %s; set a smaller checkpoint.staging_mb", fail_text());
}

static void saving_free(struct checkpoint_saving *s)
{
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->reached);
    rank_writer_free(&s->writer);
    manifest_free(&s->manifest);
    text_free(&s->folder);
    text_free(&s->why);
    free(s);
}

/* Everything before the files are written. */
static enum status begin(struct checkpoint_saving *s, bool in_background)
{
    struct rank_state *w = s->rank_state;
    TRY(rank_agree(w, w->world->rank == 0 ? begin_save(w, &s->ticket) : OK));
    TRY(rank_broadcast(w, 0, &s->ticket, sizeof s->ticket));
    store_of_ticket(w->run->recipe->checkpoint.save, &s->ticket, &s->folder);
    return rank_agree(w, prepare(s, in_background));
}

enum status checkpoint_begin(struct rank_state *state, bool in_background, struct checkpoint_saving **out)
{
    *out = NULL;
    if (!device_computes(state->device))
        return OK;
    if (state->run->recipe->checkpoint.save == NULL)
        return fail(BAD_ARGUMENT, "checkpoint.save is none: there is no directory to save to");
    struct checkpoint_saving *s = memory_zeroed(1, sizeof *s, "a checkpoint being saved");
    s->rank_state = state;
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0 && pthread_cond_init(&s->reached, NULL) == 0);
    enum status status = begin(s, in_background);
    if (status != OK) {
        status = abandon(state, &s->ticket, status);
        saving_free(s);
        return status;
    }
    s->has_thread = in_background && pthread_create(&s->thread, NULL, write_file, s) == 0;
    if (!s->has_thread) {
        s->status = checkpoint_end_copy(s);
        write_file(s);
    }
    *out = s;
    return OK;
}

enum status checkpoint_hold_update(struct checkpoint_saving *saving)
{
    if (saving->begun)
        return stream_wait(saving->rank_state->compute, saving->copy);
    await(saving, &saving->copied);
    return OK;
}

enum status checkpoint_end_copy(struct checkpoint_saving *saving)
{
    const enum status status = saving->begun ? event_sync(saving->copy) : OK;
    if (saving->begun)
        reach(saving, &saving->copied);
    return status;
}

bool checkpoint_is_written(const struct checkpoint_saving *saving)
{
    return saving == NULL || atomic_load(&saving->written);
}

/* Removes older checkpoints; none if it cannot be found out which one is the best. */
static void prune(const struct checkpoint_saving *s)
{
    const struct recipe_checkpoint *recipe = &s->rank_state->run->recipe->checkpoint;
    struct best_checkpoint best = {.step = -1};
    const enum status status = recipe->keep_best ? best_update(recipe->save, &s->manifest, &best) : OK;
    const bool known = status == OK || best.step >= 0;
    if (status != OK)
        print_line(stderr, "warning: %s%s", fail_text(), known ? "" : "; no checkpoint is removed");
    store_prune(recipe->save, &s->ticket, known ? recipe->keep_last : 0, recipe->save_retain_interval,
                best.step);
    best_remove_dangling(recipe->save);
}

enum status checkpoint_finish(struct checkpoint_saving *saving)
{
    if (saving == NULL)
        return OK;
    struct rank_state *w = saving->rank_state;
    enum status status = checkpoint_end_copy(saving);
    await(saving, &saving->written);
    if (saving->has_thread)
        pthread_join(saving->thread, NULL);
    if (status == OK && saving->status != OK)
        status = fail(saving->status, "%s", saving->why.chars);
    status = rank_agree(w, status);
    if (status == OK)
        status = publish_together(saving);
    if (status != OK)
        status = abandon(w, &saving->ticket, status);
    else if (w->world->rank == 0)
        prune(saving);
    saving_free(saving);
    return status;
}

enum status checkpoint_save(struct rank_state *state)
{
    struct checkpoint_saving *saving;
    TRY(checkpoint_begin(state, false, &saving));
    return checkpoint_finish(saving);
}
