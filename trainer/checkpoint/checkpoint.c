// SPDX-License-Identifier: Apache-2.0
/* Saving. Values are written a band of rows at a time, through one small host buffer. */
#include "trainer/checkpoint/checkpoint.h"

#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/checkpoint_lock.h"
#include "trainer/checkpoint/distribute/checkpoint_note.h"
#include "trainer/checkpoint/distribute/checkpoint_share.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 20 };

/* The shards that this rank writes. */
struct job {
    struct rank_state *rank_state;
    struct tensor_list tensors;
    struct share share;
    struct shard *shards;
    struct slice *slices;
    const char **sources; // device address of the first element of each shard, used for arithmetic only
    const void **in_host; // or its host memory; else NULL
    uint8_t *has;         // [tensors] whether a shard of the tensor is written
    int count;
    float *host; // holds the largest band
    struct note note;
};

static void job_free(struct job *job)
{
    tensor_list_free(&job->tensors);
    share_free(&job->share);
    free(job->shards);
    free(job->slices);
    free(job->sources);
    free(job->in_host);
    free(job->has);
    free(job->host);
}

/* Adds a shard of tensor `index`. */
static void job_add(struct job *job, int index, const struct slice *slice, const void *source,
                    const void *in_host)
{
    struct shard *shard = &job->shards[job->count];
    CHECK(tensor_list_at(&job->tensors, index, shard));
    for (int d = 0; d < SHARD_MAX_DIMS && slice != NULL; d++) {
        shard->begin[d] = slice->begin[d];
        shard->count[d] = slice->count[d];
    }
    if (slice != NULL)
        job->slices[job->count] = *slice;
    job->sources[job->count] = source;
    job->in_host[job->count] = in_host;
    job->has[index] = 1;
    cover_add(&job->note.cover, shard);
    job->count++;
}

static void job_add_part(struct job *job, const struct share_part *part)
{
    const struct owned_param *owned = weights_owned(&job->rank_state->weights, part->row);
    CHECK(owned != NULL); // the share of a rank is among the parameters that it owns
    int64_t skipped = (part->slice.begin[0] - owned_slice(owned).begin[0]) * part->slice.padded[1];
    for (enum state state = 0; state < job->tensors.states; state++) {
        struct tensor source = state_tensor(owned, state);
        if (source.data != NULL)
            job_add(job, tensor_list_index(&job->tensors, part->row, state), &part->slice,
                    (const char *)source.data + (size_t)skipped * dtype_bytes(source.dtype), NULL);
    }
}

/* All ranks hold the same state: rank 0 writes it. */
static void job_add_replicated(struct job *job)
{
    for (int i = 0; i < job->tensors.replicated_count && job->rank_state->world->rank == 0; i++)
        job_add(job, tensor_list_replicated(&job->tensors, i), NULL, NULL, job->tensors.replicated[i].bytes);
}

/* Number of rows with about BAND_ELEMENTS elements, at least 1. */
static int64_t rows_at_once(const struct slice *slice)
{
    int64_t rows = BAND_ELEMENTS / slice->padded[1];
    return rows > 0 ? rows : 1;
}

static enum status job_allocate(struct job *job)
{
    int64_t largest = BAND_ELEMENTS;
    size_t most = (size_t)job->share.count * STATE_COUNT + (size_t)job->tensors.replicated_count + 1;
    job->shards = calloc(most, sizeof *job->shards);
    job->slices = calloc(most, sizeof *job->slices);
    job->sources = calloc(most, sizeof *job->sources);
    job->in_host = calloc(most, sizeof *job->in_host);
    job->has = calloc((size_t)tensor_list_count(&job->tensors) + 1, 1);
    if (!job->shards || !job->slices || !job->sources || !job->in_host || !job->has)
        return fail(NO_MEMORY, "no memory for the list of checkpoint tensors");
    for (int i = 0; i < job->share.count; i++)
        if (largest < job->share.parts[i].slice.padded[1])
            largest = job->share.parts[i].slice.padded[1];
    job->host = malloc((size_t)largest * sizeof *job->host);
    return job->host != NULL ? OK : fail(NO_MEMORY, "no memory to read %lld elements", (long long)largest);
}

static enum status job_create(struct rank_state *w, struct job *job)
{
    *job = (struct job){.rank_state = w};
    TRY(tensor_list_create(w, &job->tensors));
    TRY(share_of_rank(w->run, &w->params, &w->weights, w->world->rank, &job->share));
    TRY(job_allocate(job));
    for (int i = 0; i < job->share.count; i++)
        job_add_part(job, &job->share.parts[i]);
    job_add_replicated(job);
    return OK;
}

/* Writes the elements of one shard without padding, a band of rows at a time. */
static enum status write_shard(struct job *job, int index, struct checkpoint_writer *writer)
{
    const struct shard *shard = &job->shards[index];
    const struct slice *slice = &job->slices[index];
    const char *source = job->sources[index];
    const size_t each = safetensors_dtype_bytes(shard->dtype);
    struct stream *stream = job->rank_state->compute;
    if (job->in_host[index] != NULL)
        return checkpoint_writer_append(writer, job->in_host[index], (size_t)shard_elements(shard) * each);
    for (int64_t row = 0, rows = rows_at_once(slice); row < slice->count[0]; row += rows) {
        struct slice band = *slice;
        rank_context_set_action("save");
        band.count[0] = slice->count[0] - row < rows ? slice->count[0] - row : rows;
        size_t padded_bytes = (size_t)(band.count[0] * band.padded[1]) * each;
        TRY(copy_to_host(stream, job->host, source + (size_t)(row * band.padded[1]) * each, padded_bytes));
        TRY(stream_sync(stream));
        shard_remove_padding(&band, job->host, each);
        TRY(checkpoint_writer_append(writer, job->host, (size_t)slice_count(&band) * each));
    }
    return OK;
}

static enum status write_all(struct job *job, const struct save_identity *identity, const char *path)
{
    struct checkpoint_writer *writer = NULL;
    TRY(checkpoint_writer_create(path, identity, job->shards, job->count, &writer));
    enum status status = OK;
    for (int i = 0; status == OK && i < job->count; i++)
        status = write_shard(job, i, writer);
    if (status == OK)
        status = checkpoint_writer_finish(writer);
    if (status == OK) {
        job->note.bytes = checkpoint_writer_bytes(writer);
        job->note.checksum = checkpoint_writer_checksum(writer);
    }
    checkpoint_writer_destroy(writer);
    return status;
}

/* A rank that holds no shard writes no file. */
static enum status write_rank_file(struct job *job, const struct save_identity *identity, const char *folder)
{
    char name[MANIFEST_FILE_CHARS];
    struct text path = {0};
    if (job->count == 0)
        return OK;
    manifest_file_name(job->rank_state->world->rank, name);
    text_add(&path, "%s/%s", folder, name);
    enum status status = write_all(job, identity, path.chars);
    text_free(&path);
    return status;
}

/* ---- rank 0: manifest and publication ---- */

static enum status write_text(const char *folder, const char *name, const struct text *text)
{
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    enum status status = file_write_atomic(path.chars, text->chars, text->length);
    text_free(&path);
    return status;
}

/* Writes the fingerprint of the datasets taken when they were opened. */
static enum status write_fingerprint(struct rank_state *w, const char *folder)
{
    const struct text *fingerprint;
    if (w->run->data == NULL)
        return OK;
    TRY(data_fingerprint(w->run->data, &fingerprint));
    return write_text(folder, "data.json", fingerprint);
}

/* `notes`: those of all ranks, of `words` words each. */
static enum status complete(const struct job *job, const struct save_ticket *ticket, const uint32_t *notes,
                            int words, const char *folder)
{
    struct rank_state *w = job->rank_state;
    static const char recipe_name[] = "recipe.yaml";
    struct manifest manifest = {0};
    struct text text = {0}, resolved = {0};
    recipe_resolved_text(w->run->recipe, &resolved);
    enum status status = write_text(folder, recipe_name, &resolved);
    if (status == OK)
        status = write_fingerprint(w, folder);
    if (status == OK)
        status = manifest_begin(w, &ticket->identity, &manifest);
    if (status == OK) {
        manifest_set_recipe(&manifest, recipe_name, &resolved);
        status = notes_add(&job->tensors, notes, w->world->size, words, folder, &manifest);
    }
    if (status == OK) {
        manifest_text(&manifest, &text);
        status = write_text(folder, "manifest.json", &text);
    }
    if (status == OK)
        status = checkpoint_lock_check(w->run->checkpoint_lock);
    if (status == OK)
        status = folder_publish(w->run->recipe->checkpoint.save, ticket);
    manifest_free(&manifest);
    text_free(&resolved);
    text_free(&text);
    return status;
}

/* ---- all ranks ---- */

/* Broadcasts the ticket of rank 0 as 32-bit words. */
static enum status share_ticket(struct rank_state *w, struct save_ticket *ticket)
{
    enum { HALF = 8, RUN_WORDS = (RUN_CHARS - 1) / HALF, SAVE_WORDS = (SAVE_CHARS - 1) / HALF };
    uint32_t words[RUN_WORDS + SAVE_WORDS + 1] = {0};
    struct save_identity *identity = &ticket->identity;
    for (int i = 0; i < RUN_WORDS + SAVE_WORDS && w->world->rank == 0; i++) {
        char digits[HALF + 1] = {0};
        memcpy(digits, i < RUN_WORDS ? identity->run + i * HALF : identity->save + (i - RUN_WORDS) * HALF,
               HALF);
        words[i] = (uint32_t)strtoul(digits, NULL, 16);
    }
    words[RUN_WORDS + SAVE_WORDS] = (uint32_t)ticket->attempt;
    TRY(rank_share(w, words, RUN_WORDS + SAVE_WORDS + 1));
    for (int i = 0; i < RUN_WORDS + SAVE_WORDS; i++)
        snprintf(i < RUN_WORDS ? identity->run + i * HALF : identity->save + (i - RUN_WORDS) * HALF, HALF + 1,
                 "%08x", words[i]);
    identity->step = w->step;
    ticket->attempt = (int)words[RUN_WORDS + SAVE_WORDS];
    return OK;
}

/* Gathers the notes on rank 0, which publishes the checkpoint. */
static enum status publish_together(struct job *job, const struct save_ticket *ticket, const char *folder)
{
    struct rank_state *w = job->rank_state;
    const int tensors = tensor_list_count(&job->tensors), words = note_words(tensors);
    const size_t ranks = w->world->rank == 0 ? (size_t)w->world->size : 1;
    uint32_t *mine = calloc((size_t)words, sizeof *mine), *all = calloc(ranks * (size_t)words, sizeof *all);
    enum status status = rank_agree(
        w, mine != NULL && all != NULL ? OK : fail(NO_MEMORY, "no memory for the notes of %zu ranks", ranks));
    if (status == OK) {
        note_pack(&job->note, job->has, tensors, mine);
        status = rank_agree(w, notes_gather(w, mine, words, all));
    }
    if (status == OK)
        status = rank_agree(w, w->world->rank == 0 ? complete(job, ticket, all, words, folder) : OK);
    free(mine);
    free(all);
    return status;
}

static enum status write_together(struct rank_state *w, const struct save_ticket *ticket)
{
    struct text folder = {0};
    struct job job;
    folder_of_ticket(w->run->recipe->checkpoint.save, ticket, &folder);
    enum status status = job_create(w, &job);
    if (status == OK)
        status = write_rank_file(&job, &ticket->identity, folder.chars);
    status = rank_agree(w, status);
    if (status == OK)
        status = publish_together(&job, ticket, folder.chars);
    job_free(&job);
    text_free(&folder);
    return status;
}

/* The reason of the failure, with the keys that determine the destination and the size. */
static void explain(const struct rank_state *w, enum status status, struct text *out)
{
    int64_t kept = w->run->recipe->checkpoint.keep_last;
    text_add(out, "%s%s", status == IO_ERROR ? "checkpoint.save: " : "", fail_text());
    if (status == IO_ERROR && kept > 0)
        text_add(out, "; checkpoint.keep_last=%lld needs space for one more checkpoint during a save",
                 (long long)kept);
    else if (status == IO_ERROR)
        text_add(out, "; checkpoint.keep_last=0 keeps all checkpoints");
}

/* Called when no rank is writing any more; keeps the reason of the failure. */
static enum status abandon(struct rank_state *w, const struct save_ticket *ticket, enum status status)
{
    struct text reason = {0};
    explain(w, status, &reason);
    if (w->world->rank == 0)
        folder_abandon(w->run->recipe->checkpoint.save, ticket);
    status = fail(status, "%s", reason.chars);
    text_free(&reason);
    return status;
}

static enum status begin_save(struct rank_state *w, struct save_ticket *ticket)
{
    TRY(checkpoint_lock_check(w->run->checkpoint_lock));
    return folder_begin(w->run->recipe->checkpoint.save, w->step, ticket);
}

enum status checkpoint_save(struct rank_state *w)
{
    const struct recipe *recipe = w->run->recipe;
    bool first = w->world->rank == 0;
    if (!device_computes(w->device))
        return OK;
    if (recipe->checkpoint.save == NULL)
        return fail(BAD_ARGUMENT, "checkpoint.save is none: there is no directory to save to");
    struct save_ticket ticket = {.attempt = 0};
    enum status status = rank_agree(w, first ? begin_save(w, &ticket) : OK);
    if (status == OK)
        status = share_ticket(w, &ticket);
    if (status == OK)
        status = write_together(w, &ticket);
    if (status != OK)
        return abandon(w, &ticket, status);
    if (first)
        folder_prune(recipe->checkpoint.save, &ticket, recipe->checkpoint.keep_last,
                     recipe->checkpoint.save_retain_interval);
    return OK;
}
