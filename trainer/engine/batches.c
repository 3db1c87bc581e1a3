// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/batches.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Layout of one microbatch: array after array, the widest elements first, which aligns all of them. */
struct offsets {
    size_t sample, token, label, position, document, sample_offset, loss_mask, bytes;
};

static struct offsets offsets_of(int64_t tokens)
{
    size_t n = (size_t)tokens, wide = n * sizeof(int64_t), narrow = n * sizeof(int32_t);
    struct offsets at = {.sample = 0, .token = wide};
    at.label = at.token + narrow;
    at.position = at.label + narrow;
    at.document = at.position + narrow;
    at.sample_offset = at.document + narrow;
    at.loss_mask = at.sample_offset + narrow;
    at.bytes = (at.loss_mask + narrow + 63) / 64 * 64;
    return at;
}

enum status batches_create(struct device *device, int count, int64_t rows, int64_t seq_length,
                           struct batches *out)
{
    struct offsets at = offsets_of(rows * seq_length);
    *out = (struct batches){.count = count, .rows = rows, .seq_length = seq_length, .batch_bytes = at.bytes};
    out->list = memory_zeroed((size_t)count, sizeof *out->list, "the microbatches of a step");
    if (device_computes(device)) {
        out->host = memory_zeroed((size_t)count, at.bytes, "the microbatches of a step");
        out->scratch = batch_create(rows, seq_length);
    } else // an address to copy from, which nothing reads
        out->host = memory_resized(NULL, 1, at.bytes, "the microbatches of a step");
    TRY(buffer_alloc(device, PART_DATA, (size_t)count * at.bytes, &out->device));
    for (int j = 0; j < count; j++) {
        const char *base = (const char *)out->device.data + (size_t)j * at.bytes;
        out->list[j] = (struct batch){
            .token = (const int32_t *)(base + at.token),
            .label = (const int32_t *)(base + at.label),
            .position = (const int32_t *)(base + at.position),
            .document = (const int32_t *)(base + at.document),
            .loss_mask = (const float *)(base + at.loss_mask),
            .sample = (const int64_t *)(base + at.sample),
            .sample_offset = (const int32_t *)(base + at.sample_offset),
        };
    }
    return OK;
}

void batches_destroy(struct batches *batches)
{
    buffer_free(&batches->device);
    batch_free(&batches->scratch);
    free(batches->list);
    free(batches->host);
    *batches = (struct batches){0};
}

static char *host_of(const struct batches *batches, int j)
{
    return batches->host + (size_t)j * batches->batch_bytes;
}

void batches_pack(struct batches *batches, int j, bool with_documents)
{
    const struct batch_tokens *from = &batches->scratch;
    int64_t tokens = batches->rows * batches->seq_length;
    struct offsets at = offsets_of(tokens);
    char *base = host_of(batches, j);
    size_t narrow = (size_t)tokens * sizeof(int32_t);
    memcpy(base + at.token, from->tokens, narrow);
    memcpy(base + at.label, from->labels, narrow);
    memcpy(base + at.position, from->positions, narrow);
    memcpy(base + at.document, from->documents, narrow);
    memcpy(base + at.loss_mask, from->loss_mask, narrow);
    int64_t *sample = (int64_t *)(base + at.sample);
    int32_t *sample_offset = (int32_t *)(base + at.sample_offset);
    for (int64_t t = 0; t < tokens; t++) {
        sample[t] = (int64_t)from->samples[t / batches->seq_length];
        sample_offset[t] = (int32_t)(t % batches->seq_length);
    }
    const char *device = (const char *)batches->device.data + (size_t)j * batches->batch_bytes;
    batches->list[j].document = with_documents ? (const int32_t *)(device + at.document) : NULL;
}

enum status batches_send(const struct batches *batches, struct stream *stream, int count)
{
    return copy_to_device(stream, batches->device.data, batches->host, (size_t)count * batches->batch_bytes);
}

enum status batches_load(struct batches *batches, struct stream *stream, struct data *data,
                         enum data_split split, const struct batch_coord *coord, bool with_documents)
{
    for (int j = 0; data != NULL && j < batches->count; j++) {
        struct batch_coord at = *coord;
        at.microbatch = j;
        TRY(data_batch(data, split, &at, &batches->scratch));
        batches_pack(batches, j, with_documents);
    }
    return batches_send(batches, stream, batches->count);
}

void batches_count_tokens(const struct batches *batches, int j, double *out)
{
    int64_t tokens = batches->rows * batches->seq_length;
    if (batches->scratch.tokens == NULL) {
        memset(out, 0, (size_t)batches->rows * sizeof *out);
        return;
    }
    const float *mask = (const float *)(const void *)(host_of(batches, j) + offsets_of(tokens).loss_mask);
    for (int64_t row = 0; row < batches->rows; row++) {
        out[row] = 0.0;
        for (int64_t t = row * batches->seq_length; t < (row + 1) * batches->seq_length; t++)
            out[row] += (double)mask[t];
    }
}
