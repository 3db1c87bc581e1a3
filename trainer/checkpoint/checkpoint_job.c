// SPDX-License-Identifier: Apache-2.0
/* Values are written a band of rows at a time, through one small host buffer where they have padding or lie
 * in the memory of a device. */
#include "trainer/checkpoint/checkpoint_job.h"

#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 20 };

void save_job_free(struct save_job *job)
{
    tensor_list_free(&job->tensors);
    share_free(&job->share);
    free(job->shards);
    free(job->slices);
    free(job->sources);
    free(job->in_host);
    free(job->has);
    free(job->host);
    checkpoint_writer_destroy(job->writer);
    *job = (struct save_job){.count = 0};
}

/* Adds a shard of tensor `index`. */
static void job_add(struct save_job *job, int index, const struct slice *slice, const void *source,
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

static void job_add_part(struct save_job *job, const struct share_part *part)
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
static void job_add_replicated(struct save_job *job)
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

static enum status job_allocate(struct save_job *job)
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

enum status save_job_create(struct rank_state *w, struct save_job *job)
{
    const struct recipe *recipe = w->run->recipe;
    *job = (struct save_job){
        .rank_state = w,
        .is_host_memory =
            device_traits(recipe->cluster.device)->synchronous && !recipe->memory.offload_optimizer,
    };
    TRY(tensor_list_create(w, &job->tensors));
    TRY(share_of_rank(w->run, &w->params, &w->weights, w->world->rank, &job->share));
    TRY(job_allocate(job));
    for (int i = 0; i < job->share.count; i++)
        job_add_part(job, &job->share.parts[i]);
    job_add_replicated(job);
    job->staged_from = job->count;
    return OK;
}

static size_t shard_bytes(const struct shard *shard)
{
    return (size_t)shard_elements(shard) * safetensors_dtype_bytes(shard->dtype);
}

size_t save_job_bytes(const struct save_job *job)
{
    size_t bytes = 0;
    for (int i = 0; i < job->count; i++)
        bytes += shard_bytes(&job->shards[i]);
    return bytes;
}

/* Bytes of a row in the file. */
static size_t row_bytes(const struct save_job *job, int index)
{
    return (size_t)job->slices[index].count[1] * safetensors_dtype_bytes(job->shards[index].dtype);
}

/* ---- staging ---- */

void save_job_stage(struct save_job *job, void *memory, size_t bytes, struct stream *copies)
{
    job->staging = memory;
    job->copies = copies;
    job->staged_bytes = 0;
    job->staged_row = 0;
    for (job->staged_from = job->count; job->staged_from > 0; job->staged_from--) {
        const size_t next = shard_bytes(&job->shards[job->staged_from - 1]);
        if (next > bytes - job->staged_bytes)
            break;
        job->staged_bytes += next;
    }
    const int split = job->staged_from - 1;
    if (split < 0 || job->in_host[split] != NULL)
        return;
    const int64_t rows = (int64_t)((bytes - job->staged_bytes) / row_bytes(job, split));
    if (rows == 0)
        return;
    job->staged_from = split;
    job->staged_row = job->slices[split].count[0] - rows;
    job->staged_bytes += (size_t)rows * row_bytes(job, split);
}

/* Copies to memory of the host: without a stream if it is there already, since the calling thread may be the
 * one that saves in the background, while the rank uses its streams. */
static enum status to_host(struct save_job *job, void *to, const char *from, size_t bytes)
{
    if (job->is_host_memory) {
        memcpy(to, from, bytes);
        return OK;
    }
    TRY(copy_to_host(job->rank_state->compute, to, from, bytes));
    return stream_sync(job->rank_state->compute);
}

/* Copies rows without padding, which need not be complete when it returns. */
static enum status copy_dense(struct save_job *job, void *to, const void *from, size_t bytes)
{
    if (job->copies != NULL && !job->is_host_memory)
        return copy_to_host(job->copies, to, from, bytes);
    return to_host(job, to, from, bytes);
}

/* Copies rows with padding, a band at a time, through the host buffer. */
static enum status copy_padded(struct save_job *job, int index, int64_t first, char *to)
{
    const struct slice *slice = &job->slices[index];
    const size_t each = safetensors_dtype_bytes(job->shards[index].dtype);
    const size_t columns = row_bytes(job, index), stride = (size_t)slice->padded[1] * each;
    const int64_t end = slice->count[0], rows = rows_at_once(slice);
    for (int64_t row = first; row < end; row += rows) {
        struct slice band = *slice;
        band.count[0] = end - row < rows ? end - row : rows;
        TRY(to_host(job, job->host, job->sources[index] + (size_t)row * stride,
                    (size_t)band.count[0] * stride));
        shard_remove_padding(&band, job->host, each);
        memcpy(to + (size_t)(row - first) * columns, job->host, (size_t)band.count[0] * columns);
    }
    return OK;
}

/* Copies a shard from row `first` on without padding. */
static enum status copy_rows(struct save_job *job, int index, int64_t first, char *to)
{
    const struct slice *slice = &job->slices[index];
    const size_t columns = row_bytes(job, index);
    const size_t stride = (size_t)slice->padded[1] * safetensors_dtype_bytes(job->shards[index].dtype);
    if (!job->is_host_memory)
        rank_context_set_action("save");
    if (stride != columns)
        return copy_padded(job, index, first, to);
    return copy_dense(job, to, job->sources[index] + (size_t)first * stride,
                      (size_t)(slice->count[0] - first) * stride);
}

static enum status copy_staged(struct save_job *job)
{
    char *to = job->staging;
    for (int i = job->staged_from; i < job->count; i++) {
        const int64_t first = i == job->staged_from ? job->staged_row : 0;
        if (job->in_host[i] != NULL)
            memcpy(to, job->in_host[i], shard_bytes(&job->shards[i]));
        else
            TRY(copy_rows(job, i, first, to));
        to +=
            shard_bytes(&job->shards[i]) - (job->in_host[i] == NULL ? (size_t)first * row_bytes(job, i) : 0);
    }
    return OK;
}

/* ---- writing ---- */

/* Writes a band of rows of a shard without padding. */
static enum status write_band(struct save_job *job, const struct slice *band, const char *source, size_t each)
{
    const size_t bytes = (size_t)slice_count(band) * each;
    const size_t padded_bytes = (size_t)(band->count[0] * band->padded[1]) * each;
    if (job->is_host_memory && bytes == padded_bytes)
        return checkpoint_writer_append(job->writer, source, bytes);
    TRY(to_host(job, job->host, source, padded_bytes));
    shard_remove_padding(band, job->host, each);
    return checkpoint_writer_append(job->writer, job->host, bytes);
}

/* Writes the rows of one shard before `end`. */
static enum status write_rows(struct save_job *job, int index, int64_t end)
{
    const struct slice *slice = &job->slices[index];
    const char *source = job->sources[index];
    const size_t each = safetensors_dtype_bytes(job->shards[index].dtype);
    for (int64_t row = 0, rows = rows_at_once(slice); row < end; row += rows) {
        struct slice band = *slice;
        rank_context_set_action("save");
        atomic_fetch_add(&job->parts, 1);
        band.count[0] = end - row < rows ? end - row : rows;
        TRY(write_band(job, &band, source + (size_t)(row * band.padded[1]) * each, each));
    }
    return OK;
}

static enum status write_unstaged(struct save_job *job)
{
    for (int i = 0; i < job->staged_from; i++) {
        if (job->in_host[i] != NULL)
            TRY(checkpoint_writer_append(job->writer, job->in_host[i], shard_bytes(&job->shards[i])));
        else
            TRY(write_rows(job, i, job->slices[i].count[0]));
    }
    return job->staged_row > 0 ? write_rows(job, job->staged_from, job->staged_row) : OK;
}

enum status save_job_begin(struct save_job *job, const struct save_identity *identity, const char *folder)
{
    char name[MANIFEST_FILE_CHARS];
    struct text path = {0};
    if (job->count == 0)
        return OK;
    manifest_file_name(job->rank_state->world->rank, name);
    text_add(&path, "%s/%s", folder, name);
    enum status status =
        checkpoint_writer_create(path.chars, identity, job->shards, job->count, &job->writer);
    text_free(&path);
    if (status == OK)
        status = write_unstaged(job);
    return status == OK ? copy_staged(job) : status;
}

static enum status write_staged(struct save_job *job)
{
    const size_t part = CHECKPOINT_WRITE_BYTES;
    for (size_t at = 0; at < job->staged_bytes; at += part) {
        const size_t left = job->staged_bytes - at;
        TRY(checkpoint_writer_append(job->writer, job->staging + at, left < part ? left : part));
        atomic_fetch_add(&job->parts, 1);
    }
    return OK;
}

enum status save_job_finish(struct save_job *job)
{
    if (job->writer == NULL)
        return OK;
    enum status status = write_staged(job);
    if (status == OK)
        status = checkpoint_writer_finish(job->writer);
    if (status == OK) {
        job->note.bytes = checkpoint_writer_bytes(job->writer);
        job->note.checksum = checkpoint_writer_checksum(job->writer);
    }
    checkpoint_writer_destroy(job->writer);
    job->writer = NULL;
    return status;
}

enum status save_job_write(struct save_job *job, const struct save_identity *identity, const char *folder)
{
    TRY(save_job_begin(job, identity, folder));
    return save_job_finish(job);
}
