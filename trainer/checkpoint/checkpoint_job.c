// SPDX-License-Identifier: Apache-2.0
/* Values are read a band of rows at a time, through one small host buffer. */
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
    free(job->snapshot);
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
    return OK;
}

/* Copies one shard without padding, a band of rows at a time. Memory of the host is copied without a
 * stream. */
static enum status copy_shard(struct save_job *job, int index, char *to)
{
    const struct slice *slice = &job->slices[index];
    const size_t each = safetensors_dtype_bytes(job->shards[index].dtype);
    struct stream *stream = job->rank_state->compute;
    const size_t columns = (size_t)slice->count[1] * each, stride = (size_t)slice->padded[1] * each;
    const int64_t rows = stride == columns ? slice->count[0] : rows_at_once(slice);
    for (int64_t row = 0; row < slice->count[0] && job->is_host_memory; row++)
        memcpy(to + (size_t)row * columns, job->sources[index] + (size_t)row * stride, columns);
    for (int64_t row = 0; row < slice->count[0] && !job->is_host_memory; row += rows) {
        struct slice band = *slice;
        band.count[0] = slice->count[0] - row < rows ? slice->count[0] - row : rows;
        rank_context_set_action("save");
        void *host = stride == columns ? (void *)to : job->host;
        TRY(copy_to_host(stream, host, job->sources[index] + (size_t)row * stride,
                         (size_t)band.count[0] * stride));
        TRY(stream_sync(stream));
        if (stride != columns) {
            shard_remove_padding(&band, job->host, each);
            memcpy(to + (size_t)row * columns, job->host, (size_t)band.count[0] * columns);
        }
    }
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

enum status save_job_allocate_snapshot(struct save_job *job)
{
    size_t at = 0;
    job->snapshot_bytes = save_job_bytes(job);
    job->snapshot = malloc(job->snapshot_bytes + 1);
    if (job->snapshot == NULL)
        return fail(NO_MEMORY, "checkpoint.async_save: no memory for a copy of %zu bytes; set it to false",
                    job->snapshot_bytes);
    for (int i = 0; i < job->count; i++) {
        if (job->in_host[i] != NULL)
            memcpy(job->snapshot + at, job->in_host[i], shard_bytes(&job->shards[i]));
        job->in_host[i] = job->snapshot + at;
        at += shard_bytes(&job->shards[i]);
    }
    return OK;
}

enum status save_job_snapshot(struct save_job *job)
{
    size_t at = 0;
    for (int i = 0; i < job->count; i++) {
        if (job->sources[i] != NULL)
            TRY(copy_shard(job, i, job->snapshot + at));
        at += shard_bytes(&job->shards[i]);
    }
    return OK;
}

/* Writes the elements of one shard without padding, a band of rows at a time. */
static enum status write_shard(struct save_job *job, int index, struct checkpoint_writer *writer)
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

static enum status write_all(struct save_job *job, const struct save_identity *identity, const char *path)
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
enum status save_job_write(struct save_job *job, const struct save_identity *identity, const char *folder)
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
