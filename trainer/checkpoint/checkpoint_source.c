// SPDX-License-Identifier: Apache-2.0
/* In version 2 files are verified with the checksums in their headers while they are read. In version 1 a
 * shard is always read in full, since only the whole shard has a checksum. */
#include "trainer/checkpoint/checkpoint_source.h"

#include "kernels/narrow.h"
#include "trainer/files/checksum_v1.h"

#include <stdlib.h>
#include <string.h>

enum { OPEN_FILES = 32 };

static void close_files(struct source *s)
{
    for (int i = 0; s->open != NULL && i < s->manifest.file_count; i++) {
        checkpoint_file_close(s->open[i]);
        s->open[i] = NULL;
    }
    s->open_count = 0;
}

void source_close(struct source *s)
{
    close_files(s);
    free(s->open);
    free(s->chunk);
    free(s->narrow);
    manifest_free(&s->manifest);
}

enum status source_open(const char *folder, struct source *s)
{
    *s = (struct source){.folder = folder};
    TRY(manifest_read(folder, &s->manifest));
    s->open = calloc((size_t)s->manifest.file_count, sizeof *s->open);
    s->chunk = malloc(SOURCE_CHUNK_ELEMENTS * sizeof *s->chunk);
    s->narrow = malloc(SOURCE_CHUNK_ELEMENTS * sizeof *s->narrow);
    return s->open != NULL && s->chunk != NULL && s->narrow != NULL
               ? OK
               : fail(NO_MEMORY, "%s: no memory to read it", folder);
}

/* ---- files ---- */

static enum status check_header(const struct manifest *m, const struct manifest_file *entry,
                                const struct checkpoint_file *file, const char *path)
{
    const struct safetensors *tensors = checkpoint_file_tensors(file);
    uint64_t sum =
        m->version == 1 ? safetensors_header_checksum_v1(tensors) : safetensors_header_checksum(tensors);
    if (m->version > 1 && !identity_equal(checkpoint_file_identity(file), &m->identity))
        return fail(BAD_CHECKPOINT, "%s: step %lld of run %s, but the manifest is of step %lld of run %s",
                    path, (long long)checkpoint_file_identity(file)->step,
                    checkpoint_file_identity(file)->run, (long long)m->identity.step, m->identity.run);
    if (safetensors_file_bytes(tensors) == entry->bytes && sum == entry->checksum)
        return OK;
    return fail(BAD_CHECKPOINT, "%s: the checksum of the header differs from the manifest: corrupt", path);
}

/* Keeps only a few files open: a checkpoint of a thousand ranks must not need a thousand descriptors per
 * rank. */
static enum status file_of(struct source *s, int index, struct checkpoint_file **out)
{
    if (s->open[index] == NULL) {
        if (s->open_count == OPEN_FILES)
            close_files(s);
        struct text path = {0};
        text_add(&path, "%s/%s", s->folder, s->manifest.files[index].name);
        enum status status = checkpoint_file_open(path.chars, s->manifest.version, &s->open[index]);
        if (status == OK) {
            s->open_count++;
            status = check_header(&s->manifest, &s->manifest.files[index], s->open[index], path.chars);
        }
        text_free(&path);
        TRY(status);
    }
    *out = s->open[index];
    return OK;
}

static enum status tensor_of(struct source *s, const struct shard *shard, struct checkpoint_file **file,
                             const struct safetensors_tensor **out)
{
    TRY(file_of(s, shard->file, file));
    const struct safetensors_tensor *tensor = safetensors_find(checkpoint_file_tensors(*file), shard->name);
    const char *name = s->manifest.files[shard->file].name;
    if (tensor == NULL)
        return fail(BAD_CHECKPOINT, "%s/%s: no tensor %s, but the manifest lists it", s->folder, name,
                    shard->name);
    bool same = tensor->ndim == shard->ndim && (s->manifest.version == 1 || tensor->dtype == shard->dtype);
    for (int d = 0; same && d < shard->ndim; d++)
        same = tensor->dim[d] == shard->count[d];
    if (!same)
        return fail(BAD_CHECKPOINT, "%s/%s: shape or dtype of %s differs from the manifest", s->folder, name,
                    shard->name);
    *out = tensor;
    return OK;
}

static enum status wrong_dtype(const struct source *s, const struct shard *shard,
                               const struct safetensors_tensor *tensor, const char *works)
{
    return fail(BAD_CHECKPOINT, "%s/%s: %s is %s; expected %s", s->folder,
                s->manifest.files[shard->file].name, shard->name, safetensors_dtype_name(tensor->dtype),
                works);
}

/* ---- shards ---- */

enum status source_read(struct source *s, const struct shard *shard, bool may_be_narrow,
                        const struct slice *want, float *local, int64_t *given)
{
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    struct checksum_v1 sum;
    int64_t elements = shard_elements(shard);
    TRY(tensor_of(s, shard, &file, &tensor));
    bool is_narrow = tensor->dtype == SAFETENSORS_BF16;
    if (tensor->dtype != SAFETENSORS_F32 && !(may_be_narrow && is_narrow))
        return wrong_dtype(s, shard, tensor, may_be_narrow ? "F32 or BF16" : "F32");
    void *read = is_narrow ? (void *)s->narrow : s->chunk;
    size_t each = safetensors_dtype_bytes(tensor->dtype);
    checksum_v1_begin(&sum);
    for (int64_t at = 0; at < elements; at += SOURCE_CHUNK_ELEMENTS) {
        int64_t count = elements - at < SOURCE_CHUNK_ELEMENTS ? elements - at : SOURCE_CHUNK_ELEMENTS;
        size_t bytes = (size_t)count * each;
        who_does("load a checkpoint");
        TRY(checkpoint_file_read(file, tensor, at * (int64_t)each, bytes, read));
        if (s->manifest.version == 1)
            checksum_v1_add(&sum, read, bytes);
        if (is_narrow)
            widen_floats(BF16, s->narrow, s->chunk, count);
        *given += shard_copy(shard, at, count, s->chunk, want, local);
    }
    if (s->manifest.version == 1 && checksum_v1_end(&sum) != shard->checksum)
        return fail(BAD_CHECKPOINT, "%s/%s: the checksum of %s differs from the manifest: corrupt", s->folder,
                    s->manifest.files[shard->file].name, shard->name);
    return OK;
}

enum status source_read_f64(struct source *s, const char *name, double *out, int count, bool *found)
{
    int shards;
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    const struct shard *shard = manifest_find(&s->manifest, name, &shards);
    *found = shard != NULL;
    if (shard == NULL)
        return OK;
    if (shards != 1 || shard_elements(shard) != count)
        return fail(BAD_CHECKPOINT, "%s: %s has %lld elements, not %d", s->folder, name,
                    (long long)(shard->dim[0] * shard->dim[1]), count);
    TRY(tensor_of(s, shard, &file, &tensor));
    if (tensor->dtype != SAFETENSORS_F64)
        return wrong_dtype(s, shard, tensor, "F64");
    return checkpoint_file_read(file, tensor, 0, (size_t)count * sizeof *out, out);
}
