// SPDX-License-Identifier: Apache-2.0
/* Values are written a band of rows at a time, through one small host buffer where they have padding or lie
 * in the memory of a device. */
#include "trainer/checkpoint/writer.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 20 };

void rank_writer_free(struct rank_writer *writer)
{
    tensor_list_free(&writer->tensors);
    save_plan_free(&writer->plan);
    free(writer->shards);
    free(writer->sources);
    free(writer->in_host);
    free(writer->has);
    free(writer->host);
    checkpoint_writer_destroy(writer->file);
    *writer = (struct rank_writer){.count = 0};
}

/* Adds a shard of tensor `index`. */
static void add_shard(struct rank_writer *writer, int index, const struct slice *slice, const void *source,
                      const void *in_host)
{
    struct shard *shard = &writer->shards[writer->count];
    CHECK(tensor_list_at(&writer->tensors, index, shard));
    if (slice != NULL)
        shard->slice = *slice;
    writer->sources[writer->count] = source;
    writer->in_host[writer->count] = in_host;
    writer->has[index] = 1;
    cover_add(&writer->note.cover, shard);
    writer->count++;
}

static void add_part(struct rank_writer *writer, const struct save_part *part)
{
    const struct owned_param *owned = weights_owned(&writer->rank_state->weights, part->param);
    CHECK(owned != NULL); // the plan of a rank is among the parameters that it owns
    int64_t skipped = (part->slice.begin[0] - owned_slice(owned).begin[0]) * part->slice.padded[1];
    for (enum state state = 0; state < writer->tensors.states; state++) {
        struct tensor source = state_tensor(owned, state);
        if (source.data != NULL)
            add_shard(writer, tensor_list_index(&writer->tensors, part->param, state), &part->slice,
                      (const char *)source.data + (size_t)skipped * dtype_bytes(source.dtype), NULL);
    }
}

/* All ranks hold the same state: rank 0 writes it. */
static void add_replicated(struct rank_writer *writer)
{
    for (int i = 0; i < writer->tensors.replicated_count && writer->rank_state->world->rank == 0; i++)
        add_shard(writer, tensor_list_replicated(&writer->tensors, i), NULL, NULL,
                  writer->tensors.replicated[i].bytes);
}

/* Number of rows with about BAND_ELEMENTS elements, at least 1. */
static int64_t rows_at_once(const struct slice *slice)
{
    int64_t rows = BAND_ELEMENTS / slice->padded[1];
    return rows > 0 ? rows : 1;
}

static void allocate(struct rank_writer *writer)
{
    int64_t largest = BAND_ELEMENTS;
    size_t most = (size_t)writer->plan.count * STATE_COUNT + (size_t)writer->tensors.replicated_count + 1;
    writer->shards = memory_zeroed(most, sizeof *writer->shards, "the shards of a checkpoint");
    writer->sources = memory_zeroed(most, sizeof *writer->sources, "the shards of a checkpoint");
    writer->in_host = memory_zeroed(most, sizeof *writer->in_host, "the shards of a checkpoint");
    writer->has = memory_zeroed((size_t)tensor_list_count(&writer->tensors) + 1, 1, "a checkpoint's tensors");
    for (int i = 0; i < writer->plan.count; i++)
        if (largest < writer->plan.parts[i].slice.padded[1])
            largest = writer->plan.parts[i].slice.padded[1];
    writer->host = memory_resized(NULL, (size_t)largest, sizeof *writer->host, "a band of a checkpoint");
}

void rank_writer_create(struct rank_state *state, struct rank_writer *out)
{
    const struct recipe *recipe = state->run->recipe;
    *out = (struct rank_writer){
        .rank_state = state,
        .is_host_memory =
            device_traits(recipe->cluster.device)->synchronous && !recipe->memory.offload_optimizer,
    };
    tensor_list_create(state, &out->tensors);
    save_plan_of_rank(state->run, &state->params, &state->weights, state->world->rank, &out->plan);
    allocate(out);
    for (int i = 0; i < out->plan.count; i++)
        add_part(out, &out->plan.parts[i]);
    add_replicated(out);
    out->staged_from = out->count;
}

static size_t shard_bytes(const struct shard *shard)
{
    return (size_t)slice_count(&shard->slice) * safetensors_dtype_bytes(shard->dtype);
}

size_t rank_writer_bytes(const struct rank_writer *writer)
{
    size_t bytes = 0;
    for (int i = 0; i < writer->count; i++)
        bytes += shard_bytes(&writer->shards[i]);
    return bytes;
}

/* Bytes of a row in the file. */
static size_t row_bytes(const struct rank_writer *writer, int index)
{
    return (size_t)writer->shards[index].slice.count[1] *
           safetensors_dtype_bytes(writer->shards[index].dtype);
}

/* ---- staging ---- */

void rank_writer_stage(struct rank_writer *writer, void *memory, size_t bytes, struct stream *copies)
{
    writer->staging = memory;
    writer->copies = copies;
    writer->staged_bytes = 0;
    writer->staged_row = 0;
    for (writer->staged_from = writer->count; writer->staged_from > 0; writer->staged_from--) {
        const size_t next = shard_bytes(&writer->shards[writer->staged_from - 1]);
        if (next > bytes - writer->staged_bytes)
            break;
        writer->staged_bytes += next;
    }
    const int split = writer->staged_from - 1;
    if (split < 0 || writer->in_host[split] != NULL)
        return;
    const int64_t rows = (int64_t)((bytes - writer->staged_bytes) / row_bytes(writer, split));
    if (rows == 0)
        return;
    writer->staged_from = split;
    writer->staged_row = writer->shards[split].slice.count[0] - rows;
    writer->staged_bytes += (size_t)rows * row_bytes(writer, split);
}

/* Copies to memory of the host: without a stream if it is there already, since the calling thread may be the
 * one that saves in the background, while the rank uses its streams. */
static enum status to_host(struct rank_writer *writer, void *to, const char *from, size_t bytes)
{
    if (writer->is_host_memory) {
        memcpy(to, from, bytes);
        return OK;
    }
    TRY(copy_to_host(writer->rank_state->compute, to, from, bytes));
    return stream_sync(writer->rank_state->compute);
}

/* Copies rows without padding, which need not be complete when it returns. */
static enum status copy_dense(struct rank_writer *writer, void *to, const void *from, size_t bytes)
{
    if (writer->copies != NULL && !writer->is_host_memory)
        return copy_to_host(writer->copies, to, from, bytes);
    return to_host(writer, to, from, bytes);
}

/* Copies rows with padding, a band at a time, through the host buffer. */
static enum status copy_padded(struct rank_writer *writer, int index, int64_t first, char *to)
{
    const struct slice *slice = &writer->shards[index].slice;
    const size_t each = safetensors_dtype_bytes(writer->shards[index].dtype);
    const size_t columns = row_bytes(writer, index), stride = (size_t)slice->padded[1] * each;
    const int64_t end = slice->count[0], rows = rows_at_once(slice);
    for (int64_t row = first; row < end; row += rows) {
        struct slice band = *slice;
        band.count[0] = end - row < rows ? end - row : rows;
        TRY(to_host(writer, writer->host, writer->sources[index] + (size_t)row * stride,
                    (size_t)band.count[0] * stride));
        shard_remove_padding(&band, writer->host, each);
        memcpy(to + (size_t)(row - first) * columns, writer->host, (size_t)band.count[0] * columns);
    }
    return OK;
}

/* Copies a shard from row `first` on without padding. */
static enum status copy_rows(struct rank_writer *writer, int index, int64_t first, char *to)
{
    const struct slice *slice = &writer->shards[index].slice;
    const size_t columns = row_bytes(writer, index);
    const size_t stride = (size_t)slice->padded[1] * safetensors_dtype_bytes(writer->shards[index].dtype);
    if (!writer->is_host_memory)
        rank_context_set_action("save");
    if (stride != columns)
        return copy_padded(writer, index, first, to);
    return copy_dense(writer, to, writer->sources[index] + (size_t)first * stride,
                      (size_t)(slice->count[0] - first) * stride);
}

static enum status copy_staged(struct rank_writer *writer)
{
    char *to = writer->staging;
    for (int i = writer->staged_from; i < writer->count; i++) {
        const int64_t first = i == writer->staged_from ? writer->staged_row : 0;
        if (writer->in_host[i] != NULL)
            memcpy(to, writer->in_host[i], shard_bytes(&writer->shards[i]));
        else
            TRY(copy_rows(writer, i, first, to));
        to += shard_bytes(&writer->shards[i]) -
              (writer->in_host[i] == NULL ? (size_t)first * row_bytes(writer, i) : 0);
    }
    return OK;
}

/* ---- writing ---- */

/* Writes a band of rows of a shard without padding. */
static enum status write_band(struct rank_writer *writer, const struct slice *band, const char *source,
                              size_t each)
{
    const size_t bytes = (size_t)slice_count(band) * each;
    const size_t padded_bytes = (size_t)(band->count[0] * band->padded[1]) * each;
    if (writer->is_host_memory && bytes == padded_bytes)
        return checkpoint_writer_append(writer->file, source, bytes);
    TRY(to_host(writer, writer->host, source, padded_bytes));
    shard_remove_padding(band, writer->host, each);
    return checkpoint_writer_append(writer->file, writer->host, bytes);
}

/* Writes the rows of one shard before `end`. */
static enum status write_rows(struct rank_writer *writer, int index, int64_t end)
{
    const struct slice *slice = &writer->shards[index].slice;
    const char *source = writer->sources[index];
    const size_t each = safetensors_dtype_bytes(writer->shards[index].dtype);
    for (int64_t row = 0, rows = rows_at_once(slice); row < end; row += rows) {
        struct slice band = *slice;
        rank_context_set_action("save");
        atomic_fetch_add(&writer->parts, 1);
        band.count[0] = end - row < rows ? end - row : rows;
        TRY(write_band(writer, &band, source + (size_t)(row * band.padded[1]) * each, each));
    }
    return OK;
}

static enum status write_unstaged(struct rank_writer *writer)
{
    for (int i = 0; i < writer->staged_from; i++) {
        if (writer->in_host[i] != NULL)
            TRY(checkpoint_writer_append(writer->file, writer->in_host[i], shard_bytes(&writer->shards[i])));
        else
            TRY(write_rows(writer, i, writer->shards[i].slice.count[0]));
    }
    return writer->staged_row > 0 ? write_rows(writer, writer->staged_from, writer->staged_row) : OK;
}

enum status rank_writer_begin(struct rank_writer *writer, const struct save_identity *identity,
                              const char *folder)
{
    char name[MANIFEST_FILE_CHARS];
    struct text path = {0};
    if (writer->count == 0)
        return OK;
    manifest_file_name(writer->rank_state->world->rank, name);
    text_add(&path, "%s/%s", folder, name);
    enum status status =
        checkpoint_writer_create(path.chars, identity, writer->shards, writer->count, &writer->file);
    text_free(&path);
    if (status == OK)
        status = write_unstaged(writer);
    return status == OK ? copy_staged(writer) : status;
}

static enum status write_staged(struct rank_writer *writer)
{
    const size_t part = CHECKPOINT_WRITE_BYTES;
    for (size_t at = 0; at < writer->staged_bytes; at += part) {
        const size_t left = writer->staged_bytes - at;
        TRY(checkpoint_writer_append(writer->file, writer->staging + at, left < part ? left : part));
        atomic_fetch_add(&writer->parts, 1);
    }
    return OK;
}

enum status rank_writer_finish(struct rank_writer *writer)
{
    if (writer->file == NULL)
        return OK;
    enum status status = write_staged(writer);
    if (status == OK)
        status = checkpoint_writer_finish(writer->file);
    if (status == OK) {
        writer->note.bytes = checkpoint_writer_bytes(writer->file);
        writer->note.checksum = checkpoint_writer_checksum(writer->file);
    }
    checkpoint_writer_destroy(writer->file);
    writer->file = NULL;
    return status;
}

enum status rank_writer_write(struct rank_writer *writer, const struct save_identity *identity,
                              const char *folder)
{
    TRY(rank_writer_begin(writer, identity, folder));
    return rank_writer_finish(writer);
}
