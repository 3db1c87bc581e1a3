// SPDX-License-Identifier: Apache-2.0
/* Saving. Values go to the file a band of rows at a time, through one small piece of host memory. */
#include "trainer/checkpoint.h"

#include "trainer/checkpoint_agree.h"
#include "trainer/checkpoint_folder.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/checksum.h"
#include "trainer/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAND_ELEMENTS = 1 << 20 };

/* What this rank writes. */
struct job {
    struct worker *worker;
    struct piece *pieces;
    struct slice *slices;
    struct tensor *sources;             // where each piece is, padded
    const float **at_hand;              // or where it is in the host's memory; NULL: it is not
    struct safetensors_tensor *tensors; // as the file lists them
    struct safetensors_pair *metadata;
    char (*texts)[PIECE_TEXT_CHARS];
    int count;
    float *host; // room for the largest band
};

static void job_free(struct job *job)
{
    free(job->pieces);
    free(job->slices);
    free(job->sources);
    free(job->at_hand);
    free(job->tensors);
    free(job->metadata);
    free(job->texts);
    free(job->host);
}

/* `slice` of a whole tensor of these dimensions; its source is there, and its name is given by the caller. */
static struct piece *job_add(struct job *job, int ndim, const int64_t *dim, const struct slice *slice)
{
    struct piece *piece = &job->pieces[job->count];
    struct safetensors_tensor *tensor = &job->tensors[job->count];
    *piece = (struct piece){.ndim = ndim};
    const bool is_narrow = job->sources[job->count].dtype == BF16;
    *tensor = (struct safetensors_tensor){
        .name = piece->name, .dtype = is_narrow ? SAFETENSORS_BF16 : SAFETENSORS_F32, .ndim = ndim};
    for (int d = 0; d < SHARD_MAX_DIMS; d++) {
        piece->dim[d] = dim[d];
        piece->begin[d] = slice->begin[d];
        piece->count[d] = tensor->dim[d] = slice->count[d];
    }
    job->slices[job->count++] = *slice;
    return piece;
}

static void job_add_states(struct job *job, const struct owned *owned, const struct slice *slice)
{
    const struct param *row = owned->held->row;
    for (enum state state = 0; state < STATE_COUNT; state++) {
        if (state_tensor(owned, state).data == NULL)
            continue;
        job->sources[job->count] = state_tensor(owned, state);
        struct piece *piece = job_add(job, row->ndim, row->dim, slice);
        state_name(state, row->name, piece->name);
    }
}

/* All ranks have the same histories: the first one writes them. */
static void job_add_amax(struct job *job)
{
    const struct worker *w = job->worker;
    for (int row = 0; row < w->params.count && w->world->rank == 0; row++) {
        int64_t dim[SHARD_MAX_DIMS] = {OPERAND_COUNT, 0};
        const float *history = amax_history_of(w->amax, row, &dim[1]);
        if (history == NULL)
            continue;
        struct slice whole = {.ndim = 2, .count = {dim[0], dim[1]}, .padded = {dim[0], dim[1]}};
        job->at_hand[job->count] = history;
        struct piece *piece = job_add(job, 2, dim, &whole);
        amax_name(w->params.rows[row].name, piece->name);
    }
}

/* As many rows as have about BAND_ELEMENTS, and at least one. */
static int64_t rows_at_once(const struct slice *slice)
{
    int64_t rows = BAND_ELEMENTS / slice->padded[1];
    return rows > 0 ? rows : 1;
}

static enum status job_create(struct worker *w, struct job *job)
{
    size_t most = (size_t)w->weights.owned_count * STATE_COUNT + (size_t)w->params.count + 1;
    int64_t largest = BAND_ELEMENTS;
    *job = (struct job){
        .worker = w,
        .pieces = calloc(most, sizeof *job->pieces),
        .slices = calloc(most, sizeof *job->slices),
        .sources = calloc(most, sizeof *job->sources),
        .at_hand = calloc(most, sizeof *job->at_hand),
        .tensors = calloc(most, sizeof *job->tensors),
        .metadata = calloc(most, sizeof *job->metadata),
        .texts = calloc(most, sizeof *job->texts),
    };
    if (!job->pieces || !job->slices || !job->sources || !job->at_hand || !job->tensors || !job->metadata ||
        !job->texts)
        return fail(NO_MEMORY, "no memory for the list of what a checkpoint holds");
    for (int i = 0; i < w->weights.owned_count; i++) {
        const struct owned *owned = &w->weights.owned[i];
        struct slice slice;
        if (!piece_of_rank(w->run, owned->held->row, w->world->rank, &slice))
            continue;
        slice = owned_slice(owned);
        if (slice_count(&slice) == 0)
            continue; // padding
        job_add_states(job, owned, &slice);
        if (largest < slice.padded[1])
            largest = slice.padded[1];
    }
    job_add_amax(job);
    job->host = malloc((size_t)largest * sizeof *job->host);
    return job->host != NULL ? OK : fail(NO_MEMORY, "no memory to read %lld elements", (long long)largest);
}

/* The bytes that metadata will take: the checksum is not known yet, and as long as any. */
static size_t metadata_room(struct job *job)
{
    size_t room = 0;
    for (int i = 0; i < job->count; i++) {
        piece_text(&job->pieces[i], job->texts[i]);
        room += strlen(job->pieces[i].name) + strlen(job->texts[i]) + 6;
    }
    return room;
}

static enum status write_at_hand(struct job *job, int index, struct safetensors_writer *writer)
{
    size_t bytes = (size_t)piece_elements(&job->pieces[index]) * sizeof **job->at_hand;
    job->pieces[index].checksum = checksum_of(job->at_hand[index], bytes);
    return safetensors_append(writer, job->at_hand[index], bytes);
}

/* The real elements of one piece, without the padding around them: some rows at a time. */
static enum status write_piece(struct job *job, int index, struct safetensors_writer *writer)
{
    const struct slice *slice = &job->slices[index];
    const char *source = job->sources[index].data; // the device's: counted on, never looked into
    const size_t each = dtype_bytes(job->sources[index].dtype);
    struct stream *stream = job->worker->compute;
    struct checksum sum;
    checksum_begin(&sum);
    if (job->at_hand[index] != NULL)
        return write_at_hand(job, index, writer);
    for (int64_t row = 0, rows = rows_at_once(slice); row < slice->count[0]; row += rows) {
        struct slice band = *slice;
        who_does("save");
        band.count[0] = slice->count[0] - row < rows ? slice->count[0] - row : rows;
        size_t padded_bytes = (size_t)(band.count[0] * band.padded[1]) * each;
        TRY(copy_to_host(stream, job->host, source + (size_t)(row * band.padded[1]) * each, padded_bytes));
        TRY(stream_sync(stream));
        piece_close_gaps(&band, job->host, each);
        size_t bytes = (size_t)slice_count(&band) * each;
        checksum_add(&sum, job->host, bytes);
        TRY(safetensors_append(writer, job->host, bytes));
    }
    job->pieces[index].checksum = checksum_end(&sum);
    return OK;
}

static enum status write_all(struct job *job, const char *path)
{
    struct safetensors_writer *writer = NULL;
    TRY(safetensors_create(path, job->tensors, job->count, metadata_room(job), &writer));
    enum status status = OK;
    for (int i = 0; status == OK && i < job->count; i++) {
        status = write_piece(job, i, writer);
        job->metadata[i] =
            (struct safetensors_pair){job->pieces[i].name, piece_text(&job->pieces[i], job->texts[i])};
    }
    if (status == OK)
        status = safetensors_finish(writer, job->metadata, job->count);
    safetensors_writer_destroy(writer);
    return status;
}

static void file_name(int rank, char out[MANIFEST_FILE_CHARS])
{
    snprintf(out, MANIFEST_FILE_CHARS, "rank-%05d.safetensors", rank);
}

static enum status write_rank_file(struct worker *w, const char *folder)
{
    struct job job;
    char name[MANIFEST_FILE_CHARS];
    enum status status = job_create(w, &job);
    if (status == OK && job.count > 0) {
        struct text path = {0};
        file_name(w->world->rank, name);
        text_add(&path, "%s/%s", folder, name);
        status = write_all(&job, path.chars);
        text_free(&path);
    }
    job_free(&job);
    return status;
}

/* ---- the first rank: what makes it a checkpoint ---- */

static enum status check_all_there(const struct worker *w, const struct manifest *manifest,
                                   const char *folder)
{
    enum state states = w->weights.m.data != NULL ? STATE_COUNT : STATE_VALUE + 1;
    for (int i = 0; i < w->params.count; i++)
        for (enum state state = 0; state < states && w->params.rows[i].tie < 0; state++) {
            char name[PIECE_NAME_CHARS];
            int count;
            state_name(state, w->params.rows[i].name, name);
            if (manifest_find(manifest, name, &count) == NULL)
                return fail(BAD_CHECKPOINT, "%s: no rank wrote %s", folder, name);
        }
    return OK;
}

static enum status check_amax_there(const struct worker *w, const struct manifest *manifest,
                                    const char *folder)
{
    for (int i = 0; i < w->params.count; i++) {
        char name[PIECE_NAME_CHARS];
        int count;
        int64_t steps;
        amax_name(w->params.rows[i].name, name);
        if (amax_history_of(w->amax, i, &steps) != NULL && manifest_find(manifest, name, &count) == NULL)
            return fail(BAD_CHECKPOINT, "%s: no rank wrote %s", folder, name);
    }
    return OK;
}

/* With ZeRO a rank may own nothing that counts, and has written no file. A file that is lost all the same is
 * noticed when the pieces do not make up their tensors. */
static bool has_written(const struct worker *w, const char *folder, const char *name, int rank)
{
    if (rank == 0 && w->amax != NULL)
        return true;
    if (!piece_of_rank_any(w->run, &w->params, rank) || w->weights.zero_stage == 0)
        return piece_of_rank_any(w->run, &w->params, rank);
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    bool there = access(path.chars, F_OK) == 0;
    text_free(&path);
    return there;
}

static enum status gather_manifest(struct worker *w, const char *folder, struct manifest *manifest)
{
    TRY(manifest_begin(w, manifest));
    for (int rank = 0; rank < w->world->size; rank++) {
        char name[MANIFEST_FILE_CHARS];
        file_name(rank, name);
        if (has_written(w, folder, name, rank))
            TRY(manifest_add_file(manifest, folder, name));
    }
    TRY(manifest_complete(manifest, folder));
    TRY(check_amax_there(w, manifest, folder));
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

static enum status complete(struct worker *w, const char *folder)
{
    struct manifest manifest = {0};
    struct text text = {0}, resolved = {0};
    recipe_resolved_text(w->run->recipe, &resolved);
    enum status status = write_text(folder, "recipe.yaml", &resolved);
    if (status == OK)
        status = gather_manifest(w, folder, &manifest);
    if (status == OK) {
        manifest_text(&manifest, &text);
        status = write_text(folder, "manifest.json", &text);
    }
    if (status == OK)
        status = folder_publish(w->run->recipe->checkpoint.save, w->step);
    manifest_free(&manifest);
    text_free(&resolved);
    text_free(&text);
    return status;
}

/* ---- all ranks ---- */

static enum status write_together(struct worker *w)
{
    struct text folder = {0};
    folder_of_step(w->run->recipe->checkpoint.save, w->step, ".partial", &folder);
    enum status status = worker_agree(w, write_rank_file(w, folder.chars));
    if (status == OK)
        status = worker_agree(w, w->world->rank == 0 ? complete(w, folder.chars) : OK);
    text_free(&folder);
    return status;
}

/* The reason, with the keys that say where and how much is written. */
static void explain(const struct worker *w, enum status status, struct text *out)
{
    int64_t kept = w->run->recipe->checkpoint.keep_last;
    text_add(out, "%s%s", status == IO_ERROR ? "checkpoint.save: " : "", fail_text());
    if (status == IO_ERROR && kept > 0)
        text_add(out, "; checkpoint.keep_last %lld, and one more is there while it is written",
                 (long long)kept);
    else if (status == IO_ERROR)
        text_add(out, "; checkpoint.keep_last 0 keeps all of them");
}

/* Nobody writes any more; what failed keeps its reason. */
static enum status abandon(struct worker *w, enum status status)
{
    struct text reason = {0};
    explain(w, status, &reason);
    if (w->world->rank == 0)
        folder_abandon(w->run->recipe->checkpoint.save, w->step);
    status = fail(status, "%s", reason.chars);
    text_free(&reason);
    return status;
}

enum status checkpoint_save(struct worker *w)
{
    const struct recipe *recipe = w->run->recipe;
    bool first = w->world->rank == 0;
    if (!device_computes(w->device))
        return OK;
    if (recipe->checkpoint.save == NULL)
        return fail(BAD_ARGUMENT, "checkpoint.save is none: there is no folder to save in");
    TRY(worker_agree(w, first ? folder_begin(recipe->checkpoint.save, w->step) : OK));
    enum status status = write_together(w);
    if (status != OK)
        return abandon(w, status);
    if (first && recipe->checkpoint.keep_last > 0)
        folder_prune(recipe->checkpoint.save, w->step, recipe->checkpoint.keep_last);
    return OK;
}
