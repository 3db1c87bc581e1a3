// SPDX-License-Identifier: Apache-2.0
/* In version 2 files are verified with the checksums in their headers while they are read. In version 1 a
 * piece is always read in full, since only the whole piece has a checksum. */
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

static enum status tensor_of(struct source *s, const struct piece *piece, struct checkpoint_file **file,
                             const struct safetensors_tensor **out)
{
    TRY(file_of(s, piece->file, file));
    const struct safetensors_tensor *tensor = safetensors_find(checkpoint_file_tensors(*file), piece->name);
    const char *name = s->manifest.files[piece->file].name;
    if (tensor == NULL)
        return fail(BAD_CHECKPOINT, "%s/%s: no tensor %s, but the manifest lists it", s->folder, name,
                    piece->name);
    bool same = tensor->ndim == piece->ndim && (s->manifest.version == 1 || tensor->dtype == piece->dtype);
    for (int d = 0; same && d < piece->ndim; d++)
        same = tensor->dim[d] == piece->count[d];
    if (!same)
        return fail(BAD_CHECKPOINT, "%s/%s: shape or dtype of %s differs from the manifest", s->folder, name,
                    piece->name);
    *out = tensor;
    return OK;
}

static enum status wrong_dtype(const struct source *s, const struct piece *piece,
                               const struct safetensors_tensor *tensor, const char *works)
{
    return fail(BAD_CHECKPOINT, "%s/%s: %s is %s; expected %s", s->folder,
                s->manifest.files[piece->file].name, piece->name, safetensors_dtype_name(tensor->dtype),
                works);
}

/* ---- pieces ---- */

enum status source_read(struct source *s, const struct piece *piece, bool may_be_narrow,
                        const struct slice *want, float *local, int64_t *given)
{
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    struct checksum_v1 sum;
    int64_t elements = piece_elements(piece);
    TRY(tensor_of(s, piece, &file, &tensor));
    bool is_narrow = tensor->dtype == SAFETENSORS_BF16;
    if (tensor->dtype != SAFETENSORS_F32 && !(may_be_narrow && is_narrow))
        return wrong_dtype(s, piece, tensor, may_be_narrow ? "F32 or BF16" : "F32");
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
        *given += piece_give(piece, at, count, s->chunk, want, local);
    }
    if (s->manifest.version == 1 && checksum_v1_end(&sum) != piece->checksum)
        return fail(BAD_CHECKPOINT, "%s/%s: the checksum of %s differs from the manifest: corrupt", s->folder,
                    s->manifest.files[piece->file].name, piece->name);
    return OK;
}

enum status source_read_f64(struct source *s, const char *name, double *out, int count, bool *found)
{
    int pieces;
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    const struct piece *piece = manifest_find(&s->manifest, name, &pieces);
    *found = piece != NULL;
    if (piece == NULL)
        return OK;
    if (pieces != 1 || piece_elements(piece) != count)
        return fail(BAD_CHECKPOINT, "%s: %s has %lld elements, not %d", s->folder, name,
                    (long long)(piece->dim[0] * piece->dim[1]), count);
    TRY(tensor_of(s, piece, &file, &tensor));
    if (tensor->dtype != SAFETENSORS_F64)
        return wrong_dtype(s, piece, tensor, "F64");
    return checkpoint_file_read(file, tensor, 0, (size_t)count * sizeof *out, out);
}
