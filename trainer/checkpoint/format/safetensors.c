// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/safetensors.h"

#include "base/memory.h"
#include "trainer/files/checksum.h"
#include "trainer/files/json_read.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [SAFETENSORS_F32] = {"F32", 4},         [SAFETENSORS_F64] = {"F64", 8},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1}, [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_I16] = {"I16", 2},         [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_U64] = {"U64", 8},         [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1},
};
_Static_assert(sizeof dtypes / sizeof *dtypes == SAFETENSORS_DTYPES, "one row for each dtype");

struct safetensors {
    struct text path;
    int file;                         // -1: none
    int64_t file_bytes, header_bytes; // header_bytes: before the data
    uint64_t header_checksum;
    json_t *header; // owns names and metadata
    struct safetensors_tensor *list;
    int count;
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t safetensors_dtype_bytes(enum safetensors_dtype dtype)
{
    return dtypes[dtype].bytes;
}

bool safetensors_dtype_parse(const char *name, enum safetensors_dtype *out)
{
    for (int d = 0; d < SAFETENSORS_DTYPES; d++)
        if (strcmp(dtypes[d].name, name) == 0) {
            *out = (enum safetensors_dtype)d;
            return true;
        }
    return false;
}

/* ---- one entry of the header ---- */

/* Names appear in messages and other files: no spaces, no control characters. */
static bool name_is_plain(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] <= ' ' || (unsigned char)name[i] >= 0x7F)
            return false;
    return length > 0 && length < SAFETENSORS_NAME_CHARS;
}

static enum status parse_dtype(const char *path, const json_t *entry, struct safetensors_tensor *tensor)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (name == NULL)
        return fail(BAD_CHECKPOINT, "%s: tensor %s has no dtype", path, tensor->name);
    if (safetensors_dtype_parse(name, &tensor->dtype))
        return OK;
    AUTO(text) known = {0};
    for (int d = 0; d < SAFETENSORS_DTYPES; d++)
        text_add(&known, "%s%s", d > 0 ? ", " : "", dtypes[d].name);
    return fail(BAD_CHECKPOINT, "%s: tensor %s has the unknown dtype \"%s\"; known are %s", path,
                tensor->name, name_is_plain(name) ? name : "?", known.chars);
}

/* Parses the shape and computes its size in bytes. */
static enum status parse_shape(const char *path, const json_t *entry, struct safetensors_tensor *tensor)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return fail(BAD_CHECKPOINT, "%s: tensor %s needs a shape of at most %d dimensions", path,
                    tensor->name, SAFETENSORS_MAX_DIMS);
    tensor->ndim = (int)json_array_size(shape);
    tensor->bytes = (int64_t)dtypes[tensor->dtype].bytes;
    for (int d = 0; d < tensor->ndim; d++) {
        const json_t *dim = json_array_get(shape, (size_t)d);
        tensor->dim[d] = json_integer_value(dim);
        if (!json_is_integer(dim) || tensor->dim[d] < 0 ||
            __builtin_mul_overflow(tensor->bytes, tensor->dim[d], &tensor->bytes))
            return fail(BAD_CHECKPOINT, "%s: dimension %d of tensor %s is not a size that fits", path, d,
                        tensor->name);
    }
    return OK;
}

static enum status parse_offsets(const struct safetensors *f, const json_t *entry,
                                 struct safetensors_tensor *tensor)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return fail(BAD_CHECKPOINT, "%s: tensor %s needs data_offsets [begin, end]", f->path.chars,
                    tensor->name);
    int64_t from = json_integer_value(begin), to = json_integer_value(end);
    int64_t available = f->file_bytes - f->header_bytes;
    if (from < 0 || to < from || to > available)
        return fail(BAD_CHECKPOINT,
                    "%s: tensor %s occupies bytes %lld to %lld of %lld: the file is truncated or corrupt",
                    f->path.chars, tensor->name, (long long)from, (long long)to, (long long)available);
    if (to - from != tensor->bytes)
        return fail(BAD_CHECKPOINT, "%s: tensor %s has %lld bytes, but its shape needs %lld: corrupt",
                    f->path.chars, tensor->name, (long long)(to - from), (long long)tensor->bytes);
    tensor->offset_bytes = from;
    return OK;
}

/* ---- the header ---- */

static int by_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); // empty tensors first
}

/* Checks that each tensor begins where the previous one ended, and that the last one ends with the file. */
static enum status check_no_holes(const struct safetensors *f)
{
    int64_t end = 0;
    for (int i = 0; i < f->count; i++) {
        const struct safetensors_tensor *tensor = &f->list[i];
        if (tensor->offset_bytes != end)
            return fail(BAD_CHECKPOINT,
                        "%s: tensor %s begins at byte %lld, but the previous one ended at %lld: corrupt",
                        f->path.chars, tensor->name, (long long)tensor->offset_bytes, (long long)end);
        end += tensor->bytes;
    }
    int64_t available = f->file_bytes - f->header_bytes;
    if (end != available)
        return fail(BAD_CHECKPOINT, "%s: the tensors end at byte %lld, but the file has %lld bytes: corrupt",
                    f->path.chars, (long long)end, (long long)available);
    return OK;
}

static enum status check_metadata(const struct safetensors *f, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return fail(BAD_CHECKPOINT, "%s: __metadata__ is not an object", f->path.chars);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return fail(BAD_CHECKPOINT, "%s: a value of __metadata__ is not text", f->path.chars);
    }
    return OK;
}

static enum status parse_entries(struct safetensors *f)
{
    const char *path = f->path.chars, *name;
    json_t *entry;
    f->list = memory_zeroed(json_object_size(f->header) + 1, sizeof *f->list, "the tensors of a file");
    json_object_foreach(f->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(f, entry));
            continue;
        }
        if (!name_is_plain(name))
            return fail(BAD_CHECKPOINT, "%s: entry %d of the header: a name is 1 to %d printable characters",
                        path, f->count + 1, SAFETENSORS_NAME_CHARS - 1);
        if (!json_is_object(entry))
            return fail(BAD_CHECKPOINT, "%s: the entry of %s is not an object", path, name);
        struct safetensors_tensor *tensor = &f->list[f->count];
        tensor->name = name;
        TRY(parse_dtype(path, entry, tensor));
        TRY(parse_shape(path, entry, tensor));
        TRY(parse_offsets(f, entry, tensor));
        f->count++;
    }
    qsort(f->list, (size_t)f->count, sizeof *f->list, by_offset);
    return check_no_holes(f);
}

static enum status read_at(const struct safetensors *f, void *out, size_t length, int64_t offset)
{
    char *at = out;
    while (length > 0) {
        ssize_t got = pread(f->file, at, length, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s: %s", f->path.chars, strerror(errno));
        if (got == 0)
            return fail(BAD_CHECKPOINT, "%s: the file was truncated while it was read", f->path.chars);
        at += got;
        length -= (size_t)got;
        offset += got;
    }
    return OK;
}

static enum status parse_header(struct safetensors *f, const char *bytes, size_t length)
{
    json_error_t error;
    f->header = json_read(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (f->header == NULL && json_error_code(&error) == json_error_duplicate_key)
        return fail(BAD_CHECKPOINT, "%s, byte %d: duplicate name in the header", f->path.chars,
                    error.position + 8);
    if (f->header == NULL)
        return fail(BAD_CHECKPOINT, "%s, byte %d: the header is not JSON: corrupt, or not a safetensors file",
                    f->path.chars, error.position + 8);
    if (!json_is_object(f->header))
        return fail(BAD_CHECKPOINT, "%s: the header is not an object: not a safetensors file", f->path.chars);
    return parse_entries(f);
}

static enum status read_header(struct safetensors *f)
{
    // The limit of the format: a header of this size can still be read into memory.
    const uint64_t most = 100000000;
    uint64_t length = 0;
    if (f->file_bytes < 8)
        return fail(BAD_CHECKPOINT, "%s: %lld bytes: truncated, or not a safetensors file", f->path.chars,
                    (long long)f->file_bytes);
    TRY(read_at(f, &length, sizeof length, 0));
    if (length > most || length > (uint64_t)f->file_bytes - 8)
        return fail(
            BAD_CHECKPOINT,
            "%s: a header of %llu bytes in a file of %lld: truncated, corrupt, or not a safetensors file",
            f->path.chars, (unsigned long long)length, (long long)f->file_bytes);
    f->header_bytes = 8 + (int64_t)length;
    AUTO_FREE char *bytes = malloc((size_t)f->header_bytes);
    if (bytes == NULL)
        return fail(NO_MEMORY, "%s: no memory for a header of %llu bytes", f->path.chars,
                    (unsigned long long)length);
    TRY(read_at(f, bytes, (size_t)f->header_bytes, 0));
    f->header_checksum = checksum_of(bytes, (size_t)f->header_bytes);
    return parse_header(f, bytes + 8, (size_t)length);
}

static enum status open_file(struct safetensors *f, const char *path)
{
    text_add(&f->path, "%s", path);
    f->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a pipe must not block
    struct stat info;
    if (f->file < 0 || fstat(f->file, &info) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return fail(IO_ERROR, "%s: not a regular file", path);
    f->file_bytes = info.st_size;
    return read_header(f);
}

enum status safetensors_open(const char *path, struct safetensors **out)
{
    struct safetensors *f = memory_zeroed(1, sizeof *f, "a safetensors file");
    f->file = -1;
    enum status status = open_file(f, path);
    if (status == OK)
        *out = f;
    else
        safetensors_close(f);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL)
        return;
    if (file->file >= 0)
        close(file->file);
    json_decref(file->header);
    free(file->list);
    text_free(&file->path);
    free(file);
}

/* ---- contents ---- */

int safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, int index)
{
    CHECK(index >= 0 && index < file->count);
    return &file->list[index];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->list[i].name, name) == 0)
            return &file->list[i];
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

int64_t safetensors_file_bytes(const struct safetensors *file)
{
    return file->file_bytes;
}

int64_t safetensors_data_bytes(const struct safetensors *file)
{
    return file->file_bytes - file->header_bytes;
}

uint64_t safetensors_header_checksum(const struct safetensors *file)
{
    return file->header_checksum;
}

enum status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                             int64_t from, size_t length, void *out)
{
    CHECK(from >= 0 && from <= tensor->bytes && length <= (size_t)(tensor->bytes - from));
    return read_at(file, out, length, file->header_bytes + tensor->offset_bytes + from);
}

enum status safetensors_read_data(const struct safetensors *file, int64_t from, size_t length, void *out)
{
    CHECK(from >= 0 && from <= safetensors_data_bytes(file) &&
          length <= (size_t)(safetensors_data_bytes(file) - from));
    return read_at(file, out, length, file->header_bytes + from);
}
