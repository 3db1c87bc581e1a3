// SPDX-License-Identifier: Apache-2.0
/* Saving. Values are written a band of rows at a time, through one small host buffer. */
#include "trainer/checkpoint/checkpoint.h"

#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/checkpoint_lock.h"
#include "trainer/checkpoint/checkpoint_state.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAND_ELEMENTS = 1 << 20 };

/* The shards that this rank writes. */
struct job {
    struct rank_state *rank_state;
    struct shard *shards;
    struct slice *slices;
    struct tensor *sources;     // device tensor of each shard, padded
    const void **in_host;       // or its host memory; else NULL
    struct state_tensor *state; // state other than parameters
    int state_count, count;
    float *host; // holds the largest band
};

static void job_free(struct job *job)
{
    free(job->shards);
    free(job->slices);
    free(job->sources);
    free(job->in_host);
    free(job->state);
    free(job->host);
}

/* Adds `slice` of a tensor of these dimensions. The caller sets its source and its name. */
static struct shard *job_add(struct job *job, int ndim, const int64_t *dim, const struct slice *slice)
{
    struct shard *shard = &job->shards[job->count];
    const bool is_narrow = job->sources[job->count].dtype == BF16;
    *shard = (struct shard){.ndim = ndim, .dtype = is_narrow ? SAFETENSORS_BF16 : SAFETENSORS_F32};
    for (int d = 0; d < SHARD_MAX_DIMS; d++) {
        shard->dim[d] = dim[d];
        shard->begin[d] = slice->begin[d];
        shard->count[d] = slice->count[d];
    }
    job->slices[job->count++] = *slice;
    return shard;
}

static void job_add_states(struct job *job, const struct owned *owned, const struct slice *slice)
{
    const struct param *row = owned->held->row;
    for (enum state state = 0; state < STATE_COUNT; state++) {
        if (state_tensor(owned, state).data == NULL)
            continue;
        job->sources[job->count] = state_tensor(owned, state);
        struct shard *shard = job_add(job, row->ndim, row->dim, slice);
        state_name(state, row->name, shard->name);
    }
}

/* All ranks hold the same state: rank 0 writes it. */
static void job_add_state_tensors(struct job *job)
{
    for (int i = 0; i < job->state_count && job->rank_state->world->rank == 0; i++) {
        job->in_host[job->count] = job->state[i].bytes;
        job->shards[job->count++] = job->state[i].shard;
    }
}

/* Number of rows with about BAND_ELEMENTS elements, at least 1. */
static int64_t rows_at_once(const struct slice *slice)
{
    int64_t rows = BAND_ELEMENTS / slice->padded[1];
    return rows > 0 ? rows : 1;
}

static enum status job_create(struct rank_state *w, struct job *job)
{
    int64_t largest = BAND_ELEMENTS;
    *job = (struct job){.rank_state = w};
    TRY(state_list(w, &job->state, &job->state_count));
    size_t most = (size_t)w->weights.owned_count * STATE_COUNT + (size_t)job->state_count + 1;
    job->shards = calloc(most, sizeof *job->shards);
    job->slices = calloc(most, sizeof *job->slices);
    job->sources = calloc(most, sizeof *job->sources);
    job->in_host = calloc(most, sizeof *job->in_host);
    if (!job->shards || !job->slices || !job->sources || !job->in_host)
        return fail(NO_MEMORY, "no memory for the list of checkpoint tensors");
    for (int i = 0; i < w->weights.owned_count; i++) {
        const struct owned *owned = &w->weights.owned[i];
        struct slice slice;
        if (!shard_of_rank(w->run, owned->held->row, w->world->rank, &slice))
            continue;
        slice = owned_slice(owned);
        if (slice_count(&slice) == 0)
            continue; // padding
        job_add_states(job, owned, &slice);
        if (largest < slice.padded[1])
            largest = slice.padded[1];
    }
    job_add_state_tensors(job);
    job->host = malloc((size_t)largest * sizeof *job->host);
    return job->host != NULL ? OK : fail(NO_MEMORY, "no memory to read %lld elements", (long long)largest);
}

/* Writes the elements of one shard without padding, a band of rows at a time. */
static enum status write_shard(struct job *job, int index, struct checkpoint_writer *writer)
{
    const struct shard *shard = &job->shards[index];
    const struct slice *slice = &job->slices[index];
    const char *source = job->sources[index].data; // device address: used for arithmetic only
    const size_t each = safetensors_dtype_bytes(shard->dtype);
    struct stream *stream = job->rank_state->compute;
    if (job->in_host[index] != NULL)
        return checkpoint_writer_append(writer, job->in_host[index], (size_t)shard_elements(shard) * each);
    for (int64_t row = 0, rows = rows_at_once(slice); row < slice->count[0]; row += rows) {
        struct slice band = *slice;
        who_does("save");
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
    checkpoint_writer_destroy(writer);
    return status;
}

static void file_name(int rank, char out[MANIFEST_FILE_CHARS])
{
    snprintf(out, MANIFEST_FILE_CHARS, "rank-%05d.safetensors", rank);
}

static enum status write_rank_file(struct rank_state *w, const struct save_identity *identity,
                                   const char *folder)
{
    struct job job;
    char name[MANIFEST_FILE_CHARS];
    enum status status = job_create(w, &job);
    if (status == OK && job.count > 0) {
        struct text path = {0};
        file_name(w->world->rank, name);
        text_add(&path, "%s/%s", folder, name);
        status = write_all(&job, identity, path.chars);
        text_free(&path);
    }
    job_free(&job);
    return status;
}

/* ---- rank 0: manifest and publication ---- */

static enum status check_all_there(const struct rank_state *w, const struct manifest *manifest,
                                   const char *folder)
{
    enum state states = w->weights.m.data != NULL ? STATE_COUNT : STATE_VALUE + 1;
    for (int i = 0; i < w->params.count; i++)
        for (enum state state = 0; state < states && w->params.rows[i].tie < 0; state++) {
            char name[SHARD_NAME_CHARS];
            int count;
            state_name(state, w->params.rows[i].name, name);
            if (manifest_find(manifest, name, &count) == NULL)
                return fail(BAD_CHECKPOINT, "%s: no rank wrote %s", folder, name);
        }
    return OK;
}

static enum status check_state_there(const struct rank_state *w, const struct manifest *manifest,
                                     const char *folder)
{
    struct state_tensor *state = NULL;
    int state_count, count;
    enum status status = state_list(w, &state, &state_count);
    for (int i = 0; status == OK && i < state_count; i++) {
        if (manifest_find(manifest, state[i].shard.name, &count) == NULL)
            status = fail(BAD_CHECKPOINT, "%s: no rank wrote %s", folder, state[i].shard.name);
    }
    free(state);
    return status;
}

/* With ZeRO a rank may own no elements and has then written no file. A file that was lost is still detected,
 * because the shards then do not tile their tensors. */
static bool has_written(const struct rank_state *w, const char *folder, const char *name, int rank)
{
    if (rank > 0 && (!shard_of_rank_any(w->run, &w->params, rank) || w->weights.zero_stage == 0))
        return shard_of_rank_any(w->run, &w->params, rank);
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    bool there = access(path.chars, F_OK) == 0;
    text_free(&path);
    return there;
}

static enum status gather_manifest(struct rank_state *w, const char *folder, struct manifest *manifest)
{
    for (int rank = 0; rank < w->world->size; rank++) {
        char name[MANIFEST_FILE_CHARS];
        file_name(rank, name);
        if (has_written(w, folder, name, rank))
            TRY(manifest_add_file(manifest, folder, name));
    }
    TRY(manifest_complete(manifest, folder));
    TRY(check_state_there(w, manifest, folder));
    return check_all_there(w, manifest, folder);
}

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

static enum status complete(struct rank_state *w, const struct save_ticket *ticket, const char *folder)
{
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
        status = gather_manifest(w, folder, &manifest);
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

static enum status write_together(struct rank_state *w, const struct save_ticket *ticket)
{
    struct text folder = {0};
    folder_of_ticket(w->run->recipe->checkpoint.save, ticket, &folder);
    enum status status = rank_agree(w, write_rank_file(w, &ticket->identity, folder.chars));
    if (status == OK)
        status = rank_agree(w, w->world->rank == 0 ? complete(w, ticket, folder.chars) : OK);
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
        folder_prune(recipe->checkpoint.save, &ticket, recipe->checkpoint.keep_last);
    return OK;
}
