// SPDX-License-Identifier: Apache-2.0
/* Writes the data first, after the space reserved for the header; then the header; then renames the file. A
 * truncated file begins with zeros and has only its temporary name. */
#include "trainer/checkpoint/format/safetensors_writer.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_writer {
    struct text path;
    struct file_temporary file;
    struct safetensors_tensor *list; // names are copies
    int count;
    int64_t header_bytes; // before the data, including the 8 bytes of the length
    int64_t bytes;        // of all data
    int64_t written;      // bytes written so far
    uint64_t checksum;    // of the header, once it is written
};

static int64_t dims_product(const struct safetensors_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->dim[d];
    return count;
}

static void add_tensor(struct text *out, const struct safetensors_tensor *tensor)
{
    text_add_json(out, tensor->name);
    text_add(out, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->ndim; d++)
        text_add(out, "%s%lld", d > 0 ? "," : "", (long long)tensor->dim[d]);
    text_add(out, "],\"data_offsets\":[%lld,%lld]}", (long long)tensor->offset_bytes,
             (long long)(tensor->offset_bytes + tensor->bytes));
}

static void header_text(const struct safetensors_writer *w, const struct safetensors_pair *metadata,
                        int count, struct text *out)
{
    text_add(out, "{\"__metadata__\":{");
    for (int i = 0; i < count; i++) {
        text_add(out, i > 0 ? "," : "");
        text_add_json(out, metadata[i].key);
        text_add(out, ":");
        text_add_json(out, metadata[i].value);
    }
    text_add(out, "}");
    for (int i = 0; i < w->count; i++) {
        text_add(out, ",");
        add_tensor(out, &w->list[i]);
    }
    text_add(out, "}");
}

static void copy_list(struct safetensors_writer *w, const struct safetensors_tensor *list, int count)
{
    w->list = memory_zeroed((size_t)count + 1, sizeof *w->list, "the tensors of a file");
    for (int i = 0; i < count; i++) {
        struct safetensors_tensor *tensor = &w->list[i];
        *tensor = list[i];
        tensor->name = text_copy(list[i].name);
        w->count++;
        tensor->offset_bytes = w->bytes;
        tensor->bytes = dims_product(tensor) * (int64_t)safetensors_dtype_bytes(tensor->dtype);
        w->bytes += tensor->bytes;
    }
}

static enum status failed(const struct safetensors_writer *w)
{
    return fail(IO_ERROR, "%s: %s", w->path.chars, strerror(errno));
}

static enum status begin(struct safetensors_writer *w, const char *path,
                         const struct safetensors_tensor *list, int count, size_t metadata_bytes)
{
    text_add(&w->path, "%s", path);
    copy_list(w, list, count);
    AUTO(text) header = {0};
    header_text(w, NULL, 0, &header);
    int64_t wanted = 8 + (int64_t)header.length + (int64_t)metadata_bytes;
    w->header_bytes =
        (wanted + SAFETENSORS_ALIGN_BYTES - 1) / SAFETENSORS_ALIGN_BYTES * SAFETENSORS_ALIGN_BYTES;
    return file_temporary_create(path, &w->file);
}

enum status safetensors_create(const char *path, const struct safetensors_tensor *list, int count,
                               size_t metadata_bytes, struct safetensors_writer **out)
{
    struct safetensors_writer *w = memory_zeroed(1, sizeof *w, "a safetensors file");
    w->file.fd = -1;
    enum status status = begin(w, path, list, count, metadata_bytes);
    if (status == OK)
        *out = w;
    else
        safetensors_writer_destroy(w);
    return status;
}

static enum status write_at(struct safetensors_writer *w, const char *bytes, size_t length, int64_t offset)
{
    return file_temporary_write(&w->file, bytes, length, offset) ? OK : failed(w);
}

_Static_assert(SAFETENSORS_ALIGN_BYTES % FILE_DIRECT_BYTES == 0, "data cannot bypass the page cache");

enum status safetensors_append(struct safetensors_writer *writer, const void *bytes, size_t length)
{
    CHECK((int64_t)length <= writer->bytes - writer->written);
    TRY(write_at(writer, bytes, length, writer->header_bytes + writer->written));
    writer->written += (int64_t)length;
    return OK;
}

static enum status write_header(struct safetensors_writer *w, const struct safetensors_pair *metadata,
                                int count)
{
    AUTO(text) header = {0};
    uint64_t length = (uint64_t)w->header_bytes - 8;
    text_add_bytes(&header, (const char *)&length, sizeof length);
    header_text(w, metadata, count, &header);
    CHECK((int64_t)header.length <= w->header_bytes);
    text_add(&header, "%*s", (int)(w->header_bytes - (int64_t)header.length), "");
    w->checksum = checksum_of(header.chars, header.length);
    return write_at(w, header.chars, header.length, 0);
}

enum status safetensors_finish(struct safetensors_writer *writer, const struct safetensors_pair *metadata,
                               int count)
{
    CHECK(writer->written == writer->bytes);
    TRY(write_header(writer, metadata, count));
    return file_temporary_commit(&writer->file, writer->path.chars);
}

int64_t safetensors_writer_bytes(const struct safetensors_writer *writer)
{
    return writer->header_bytes + writer->bytes;
}

uint64_t safetensors_writer_checksum(const struct safetensors_writer *writer)
{
    return writer->checksum;
}

void safetensors_writer_destroy(struct safetensors_writer *writer)
{
    if (writer == NULL)
        return;
    file_temporary_discard(&writer->file);
    for (int i = 0; i < writer->count; i++)
        free((void *)(uintptr_t)writer->list[i].name);
    free(writer->list);
    text_free(&writer->path);
    free(writer);
}
