// SPDX-License-Identifier: Apache-2.0
/* Files are verified with the checksums in their headers while they are read. */
#include "trainer/checkpoint/reader.h"

#include "base/memory.h"
#include "kernels/numbers/narrow.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/format/tiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_FILES = 32, WORD_BITS = 32 };

void reader_nodes_free(struct reader_nodes *nodes)
{
    free(nodes->has);
    free(nodes->reader);
    *nodes = (struct reader_nodes){.words = 0};
}

bool reader_nodes_has(const struct reader_nodes *nodes, int rank, int file)
{
    const uint32_t *has = nodes->has + (size_t)nodes->node_of[rank] * (size_t)nodes->words;
    return (has[file / WORD_BITS] >> file % WORD_BITS & 1) != 0;
}

static void close_files(struct checkpoint_reader *s)
{
    for (int i = 0; s->files != NULL && i < s->manifest.file_count; i++) {
        checkpoint_file_close(s->files[i].open);
        s->files[i].open = NULL;
    }
    s->open_count = 0;
}

void checkpoint_reader_close(struct checkpoint_reader *source)
{
    close_files(source);
    for (int i = 0; source->files != NULL && i < source->manifest.file_count; i++)
        free(source->files[i].shards);
    free(source->files);
    free(source->found);
    free(source->chunk);
    free(source->narrow);
    manifest_free(&source->manifest);
}

void checkpoint_reader_from(const char *folder, const struct manifest *manifest, int first_rank,
                            struct checkpoint_reader *out)
{
    *out = (struct checkpoint_reader){.folder = folder, .first_rank = first_rank, .manifest = *manifest};
    for (int i = 0; i < READER_RECENT; i++)
        out->recent[i] = -1;
    out->files =
        memory_zeroed((size_t)out->manifest.file_count, sizeof *out->files, "the files of a checkpoint");
    out->chunk = memory_resized(NULL, READER_CHUNK_ELEMENTS, sizeof *out->chunk, "a chunk of a checkpoint");
    out->narrow = memory_resized(NULL, READER_CHUNK_ELEMENTS, sizeof *out->narrow, "a chunk of a checkpoint");
}

enum status checkpoint_reader_open(const char *folder, int first_rank, struct checkpoint_reader *out)
{
    struct manifest manifest;
    *out = (struct checkpoint_reader){.folder = folder, .first_rank = first_rank};
    TRY(manifest_read(folder, &manifest));
    checkpoint_reader_from(folder, &manifest, first_rank, out);
    return OK;
}

/* ---- files ---- */

static enum status check_header(const struct manifest *m, const struct manifest_file *entry,
                                const struct checkpoint_file *file, const char *path)
{
    const struct safetensors *tensors = checkpoint_file_tensors(file);
    if (!identity_equal(checkpoint_file_identity(file), &m->identity))
        return fail(BAD_CHECKPOINT, "%s: step %lld of run %s, but the manifest is of step %lld of run %s",
                    path, (long long)checkpoint_file_identity(file)->step,
                    checkpoint_file_identity(file)->run, (long long)m->identity.step, m->identity.run);
    if (safetensors_file_bytes(tensors) == entry->bytes &&
        safetensors_header_checksum(tensors) == entry->checksum)
        return OK;
    return fail(BAD_CHECKPOINT, "%s: the checksum of the header differs from the manifest: corrupt", path);
}

/* A file whose header is not that of the manifest is closed, so that it is checked again when it is next
 * needed. */
static enum status open_file(struct checkpoint_reader *s, int index)
{
    const struct manifest_file *entry = &s->manifest.files[index];
    struct checkpoint_file *file = NULL;
    struct text path = {0};
    text_add(&path, "%s/%s", s->folder, entry->name);
    enum status status = checkpoint_file_open(path.chars, &file);
    s->opened += status == OK;
    if (status == IO_ERROR && s->manifest.in_memory && access(path.chars, F_OK) != 0)
        status = fail(BAD_CHECKPOINT,
                      "%s: missing: a checkpoint in memory is spread over the nodes; copy their files to one "
                      "folder",
                      path.chars);
    if (status == OK)
        status = check_header(&s->manifest, entry, file, path.chars);
    text_free(&path);
    if (status != OK) {
        checkpoint_file_close(file);
        return status;
    }
    s->files[index].open = file;
    s->open_count++;
    return OK;
}

/* Keeps a block of the recent files only. */
static void set_newest(struct checkpoint_reader *s, int index)
{
    int at = 0;
    while (at < READER_RECENT - 1 && s->recent[at] != index)
        at++;
    const int oldest = s->recent[at];
    if (oldest >= 0 && oldest != index && s->files[oldest].open != NULL)
        checkpoint_file_free_block(s->files[oldest].open);
    memmove(&s->recent[1], &s->recent[0], (size_t)at * sizeof s->recent[0]);
    s->recent[0] = index;
}

/* Keeps only a few files open: a checkpoint of a thousand ranks must not need a thousand descriptors per
 * rank. */
static enum status file_of(struct checkpoint_reader *s, int index, struct checkpoint_file **out)
{
    set_newest(s, index);
    if (s->files[index].open == NULL) {
        if (s->open_count == OPEN_FILES)
            close_files(s);
        TRY(open_file(s, index));
    }
    *out = s->files[index].open;
    return OK;
}

static enum status tensor_of(struct checkpoint_reader *s, const struct shard *shard,
                             struct checkpoint_file **file, const struct safetensors_tensor **out)
{
    TRY(file_of(s, shard->file, file));
    const struct safetensors_tensor *tensor = safetensors_find(checkpoint_file_tensors(*file), shard->name);
    const char *name = s->manifest.files[shard->file].name;
    if (tensor == NULL)
        return fail(BAD_CHECKPOINT, "%s/%s: no tensor %s, but the manifest lists it", s->folder, name,
                    shard->name);
    bool same = tensor->ndim == shard->slice.ndim && tensor->dtype == shard->dtype;
    for (int d = 0; same && d < shard->slice.ndim; d++)
        same = tensor->dim[d] == shard->slice.count[d];
    if (!same)
        return fail(BAD_CHECKPOINT, "%s/%s: shape or dtype of %s differs from the manifest", s->folder, name,
                    shard->name);
    *out = tensor;
    return OK;
}

static enum status wrong_dtype(const struct checkpoint_reader *s, const struct shard *shard,
                               const struct safetensors_tensor *tensor, const char *works)
{
    return fail(BAD_CHECKPOINT, "%s/%s: %s is %s; expected %s", s->folder,
                s->manifest.files[shard->file].name, shard->name, safetensors_dtype_name(tensor->dtype),
                works);
}

/* ---- finding ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

/* Reads the shards of a file from its header, once. */
static enum status read_header(struct checkpoint_reader *s, int index)
{
    struct reader_file *file = &s->files[index];
    struct checkpoint_file *open = NULL;
    if (file->shards != NULL)
        return OK;
    TRY(file_of(s, index, &open));
    const struct safetensors *tensors = checkpoint_file_tensors(open);
    const size_t count = (size_t)safetensors_count(tensors);
    AUTO_FREE struct shard *list = memory_zeroed(count + 1, sizeof *list, "the shards of a file");
    for (size_t i = 0; i < count; i++) {
        TRY(checkpoint_file_shard(open, safetensors_at(tensors, (int)i), &list[i]));
        list[i].file = index;
    }
    qsort(list, count, sizeof *list, by_name);
    file->count = (int)count;
    file->shards = list;
    list = NULL; // the reader's
    return OK;
}

enum status checkpoint_reader_shards(struct checkpoint_reader *source, int file, const struct shard **shards,
                                     int *count)
{
    TRY(read_header(source, file));
    *shards = source->files[file].shards;
    *count = source->files[file].count;
    return OK;
}

void checkpoint_reader_set_shards(struct checkpoint_reader *source, int file, struct shard *shards, int count)
{
    CHECK(source->files[file].shards == NULL);
    for (int i = 0; i < count; i++)
        shards[i].file = file;
    if (count > 0)
        qsort(shards, (size_t)count, sizeof *shards, by_name);
    source->files[file].shards = shards;
    source->files[file].count = count;
}

bool checkpoint_reader_tensor(const struct checkpoint_reader *source, const char *name, struct shard *out)
{
    const struct manifest_tensor *tensor = manifest_tensor(&source->manifest, name);
    *out = (struct shard){.name = ""};
    if (tensor == NULL)
        return false;
    *out = (struct shard){.dtype = tensor->dtype, .slice = slice_whole(tensor->ndim, tensor->dim)};
    memcpy(out->name, tensor->name, sizeof out->name);
    memcpy(out->dim, tensor->dim, sizeof out->dim);
    return true;
}

/* Appends the shard to s->found if it overlaps `want`; *left: elements of `want` that were not found
 * yet. */
static void take(struct checkpoint_reader *s, const struct shard *shard, const struct slice *want, int *count,
                 int64_t *left)
{
    struct slice part;
    if (!slice_intersect(&shard->slice, want, &part))
        return;
    if (*count == s->found_capacity) {
        s->found_capacity = *count > 0 ? 2 * *count : 16;
        s->found =
            memory_resized(s->found, (size_t)s->found_capacity, sizeof *s->found, "the shards of a tensor");
    }
    s->found[(*count)++] = *shard;
    *left -= slice_count(&part);
}

static const struct shard *shard_in(const struct reader_file *file, const char *name)
{
    struct shard key = {.file = 0};
    snprintf(key.name, sizeof key.name, "%s", name);
    return file->count == 0 ? NULL
                            : bsearch(&key, file->shards, (size_t)file->count, sizeof *file->shards, by_name);
}

/* Takes the shard of the tensor in a file that is in its ranges of ranks. */
static enum status take_from(struct checkpoint_reader *s, int file, const struct shard *whole,
                             const struct slice *want, int *count, int64_t *left)
{
    TRY(read_header(s, file));
    const struct shard *shard = shard_in(&s->files[file], whole->name);
    const char *name = s->manifest.files[file].name;
    if (shard == NULL)
        return fail(BAD_CHECKPOINT, "%s/%s: no tensor %s, but the manifest lists it", s->folder, name,
                    whole->name);
    if (shard->slice.ndim != whole->slice.ndim || shard->dtype != whole->dtype ||
        memcmp(shard->dim, whole->dim, sizeof shard->dim) != 0 || !shard_is_sound(shard))
        return fail(BAD_CHECKPOINT, "%s/%s: shape or dtype of %s differs from the manifest", s->folder, name,
                    whole->name);
    take(s, shard, want, count, left);
    return OK;
}

const struct shard *checkpoint_reader_shard_in(const struct checkpoint_reader *source, int file,
                                               const char *name)
{
    return shard_in(&source->files[file], name);
}

int checkpoint_reader_root(const struct checkpoint_reader *source)
{
    return source->nodes != NULL && manifest_file_of(&source->manifest, 0) == 0 ? source->nodes->reader[0]
                                                                                : 0;
}

bool checkpoint_reader_file_has(struct checkpoint_reader *source, int rank, const char *name,
                                const struct slice *part)
{
    const int file = manifest_file_of(&source->manifest, rank);
    if (file < 0 || read_header(source, file) != OK)
        return false;
    const struct shard *shard = shard_in(&source->files[file], name);
    return shard != NULL && slice_equal(&shard->slice, part);
}

/* Searches the file of this rank, and then those of the others in their order. */
static enum status search(struct checkpoint_reader *s, const struct shard *whole, const struct slice *want,
                          int *count, int64_t *left)
{
    const struct manifest *m = &s->manifest;
    const struct manifest_tensor *tensor = manifest_tensor(m, whole->name);
    int own = -1;
    for (int i = tensor->range; i < tensor->range + tensor->range_count; i++)
        if (m->ranges[i].first <= s->first_rank && s->first_rank <= m->ranges[i].last)
            own = manifest_file_of(m, s->first_rank);
    if (own >= 0)
        TRY(take_from(s, own, whole, want, count, left));
    for (int i = tensor->range; i < tensor->range + tensor->range_count; i++) {
        int first = manifest_file_of(m, m->ranges[i].first), last = manifest_file_of(m, m->ranges[i].last);
        for (int file = first; file <= last && *left > 0; file++)
            if (file != own)
                TRY(take_from(s, file, whole, want, count, left));
    }
    return OK;
}

/* Checks that what was found covers `want` exactly once. */
static enum status check_cover(struct checkpoint_reader *s, const struct shard *whole,
                               const struct slice *want, int count)
{
    AUTO_FREE struct shard *parts = memory_zeroed((size_t)count + 1, sizeof *parts, "the parts of a tensor");
    for (int i = 0; i < count; i++) { // as shards of a tensor that is `want`
        parts[i] = s->found[i];
        CHECK(slice_intersect(&s->found[i].slice, want, &parts[i].slice));
        for (int d = 0; d < SHARD_MAX_DIMS; d++) {
            parts[i].slice.begin[d] -= want->begin[d];
            parts[i].dim[d] = want->count[d];
        }
    }
    return count > 0 ? shards_tile(parts, count, s->folder)
                     : fail(BAD_CHECKPOINT, "%s: no file contains %s", s->folder, whole->name);
}

enum status checkpoint_reader_find(struct checkpoint_reader *source, const char *name,
                                   const struct slice *want, const struct shard **list, int *count)
{
    struct shard whole;
    int64_t left = slice_count(want);
    *count = 0;
    if (!checkpoint_reader_tensor(source, name, &whole))
        return fail(BAD_CHECKPOINT, "%s: holds no %s", source->folder, name);
    TRY(search(source, &whole, want, count, &left));
    if (slice_count(want) > 0)
        TRY(check_cover(source, &whole, want, *count));
    *list = source->found;
    return OK;
}

/* ---- shards ---- */

/* Reads an F32 shard straight to where it belongs. */
static enum status read_in_place(struct checkpoint_file *file, const struct safetensors_tensor *tensor,
                                 float *local)
{
    enum { BYTES = 16 * CHECKPOINT_BLOCK_BYTES };
    for (int64_t at = 0; at < tensor->bytes; at += BYTES) {
        const int64_t bytes = tensor->bytes - at < BYTES ? tensor->bytes - at : BYTES;
        rank_context_set_action("load a checkpoint");
        TRY(checkpoint_file_read(file, tensor, at, (size_t)bytes, (char *)local + at));
    }
    return OK;
}

enum status checkpoint_reader_read(struct checkpoint_reader *source, const struct shard *shard,
                                   bool may_be_narrow, const struct slice *want, float *local)
{
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    int64_t elements = slice_count(&shard->slice);
    TRY(tensor_of(source, shard, &file, &tensor));
    bool is_narrow = tensor->dtype == SAFETENSORS_BF16;
    if (tensor->dtype != SAFETENSORS_F32 && !(may_be_narrow && is_narrow))
        return wrong_dtype(source, shard, tensor, may_be_narrow ? "F32 or BF16" : "F32");
    if (!is_narrow && slice_equal(&shard->slice, want) && want->padded[1] == want->count[1])
        return read_in_place(file, tensor, local);
    void *read = is_narrow ? (void *)source->narrow : source->chunk;
    size_t each = safetensors_dtype_bytes(tensor->dtype);
    for (int64_t at = 0; at < elements; at += READER_CHUNK_ELEMENTS) {
        int64_t count = elements - at < READER_CHUNK_ELEMENTS ? elements - at : READER_CHUNK_ELEMENTS;
        size_t bytes = (size_t)count * each;
        rank_context_set_action("load a checkpoint");
        TRY(checkpoint_file_read(file, tensor, at * (int64_t)each, bytes, read));
        if (is_narrow)
            widen_floats(BF16, source->narrow, source->chunk, count);
        (void)shard_copy(shard, at, count, source->chunk, want, local);
    }
    return OK;
}

enum status checkpoint_reader_read_bytes(struct checkpoint_reader *source, const struct shard *shard,
                                         const struct slice *want, char *out)
{
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    const struct slice *from = &shard->slice;
    struct slice part;
    TRY(tensor_of(source, shard, &file, &tensor));
    CHECK(slice_intersect(from, want, &part));
    const int64_t each = (int64_t)safetensors_dtype_bytes(tensor->dtype);
    const int64_t column = part.begin[1] - from->begin[1], to_column = part.begin[1] - want->begin[1];
    // Rows that are consecutive in both are read at once.
    bool whole_rows = part.count[1] == from->count[1] && part.count[1] == want->count[1];
    const int64_t rows = whole_rows ? part.count[0] : 1, end = part.begin[0] + part.count[0];
    for (int64_t row = part.begin[0]; row < end; row += rows)
        TRY(checkpoint_file_read(file, tensor, ((row - from->begin[0]) * from->count[1] + column) * each,
                                 (size_t)(rows * part.count[1] * each),
                                 out + ((row - want->begin[0]) * want->count[1] + to_column) * each));
    return OK;
}

enum status checkpoint_reader_read_whole(struct checkpoint_reader *source, const char *name,
                                         const struct slice *want, char *out)
{
    const struct shard *shards;
    int count;
    TRY(checkpoint_reader_find(source, name, want, &shards, &count));
    for (int i = 0; i < count; i++)
        TRY(checkpoint_reader_read_bytes(source, &shards[i], want, out));
    return OK;
}

enum status checkpoint_reader_verify_file(struct checkpoint_reader *source, int index, int64_t *bytes)
{
    struct checkpoint_file *file = NULL;
    TRY(file_of(source, index, &file));
    const struct safetensors *tensors = checkpoint_file_tensors(file);
    const size_t most = READER_CHUNK_ELEMENTS * sizeof *source->chunk;
    for (int t = 0; t < safetensors_count(tensors); t++) {
        const struct safetensors_tensor *tensor = safetensors_at(tensors, t);
        for (int64_t at = 0; at < tensor->bytes; at += (int64_t)most) {
            size_t length = (size_t)(tensor->bytes - at) < most ? (size_t)(tensor->bytes - at) : most;
            TRY(checkpoint_file_read(file, tensor, at, length, source->chunk));
        }
        *bytes += tensor->bytes;
    }
    return OK;
}

enum status checkpoint_reader_read_f64(struct checkpoint_reader *source, const char *name, double *out,
                                       int count, bool *found)
{
    int shards;
    struct shard whole;
    struct checkpoint_file *file = NULL;
    const struct safetensors_tensor *tensor = NULL;
    const struct shard *list;
    *found = checkpoint_reader_tensor(source, name, &whole);
    if (!*found)
        return OK;
    TRY(checkpoint_reader_find(source, name, &whole.slice, &list, &shards));
    if (shards != 1 || slice_count(&whole.slice) != count)
        return fail(BAD_CHECKPOINT, "%s: %s has %lld elements, not %d", source->folder, name,
                    (long long)slice_count(&whole.slice), count);
    TRY(tensor_of(source, list, &file, &tensor));
    if (tensor->dtype != SAFETENSORS_F64)
        return wrong_dtype(source, list, tensor, "F64");
    return checkpoint_file_read(file, tensor, 0, (size_t)count * sizeof *out, out);
}
