// SPDX-License-Identifier: Apache-2.0
/* Numbers first, behind the room kept for the header; then the header; then the name. A file that was cut off
 * anywhere begins with zeros and has no name. */
#include "trainer/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_writer {
    struct text path, temporary;
    struct safetensors_tensor *list; // the names are copies
    int count;
    int64_t header_bytes; // before the numbers, the 8 of the length among them
    int64_t bytes;        // of all numbers
    int64_t written;      // of them
    int file;             // -1: none
    bool there;           // something lies under the temporary name
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

static enum status copy_list(struct safetensors_writer *w, const struct safetensors_tensor *list, int count)
{
    w->list = calloc((size_t)count + 1, sizeof *w->list);
    if (w->list == NULL)
        return fail(NO_MEMORY, "%s: no memory for a table of %d tensors", w->path.chars, count);
    for (int i = 0; i < count; i++) {
        struct safetensors_tensor *tensor = &w->list[i];
        *tensor = list[i];
        tensor->name = strdup(list[i].name);
        w->count++;
        if (tensor->name == NULL)
            return fail(NO_MEMORY, "%s: no memory for the name of a tensor", w->path.chars);
        tensor->offset_bytes = w->bytes;
        tensor->bytes = dims_product(tensor) * (int64_t)safetensors_dtype_bytes(tensor->dtype);
        w->bytes += tensor->bytes;
    }
    return OK;
}

static enum status failed(const struct safetensors_writer *w)
{
    return fail(IO_ERROR, "%s: %s", w->path.chars, strerror(errno));
}

static enum status begin(struct safetensors_writer *w, const char *path,
                         const struct safetensors_tensor *list, int count, size_t metadata_bytes)
{
    text_add(&w->path, "%s", path);
    text_add(&w->temporary, "%s.tmp.%ld", path, (long)getpid());
    TRY(copy_list(w, list, count));
    struct text header = {0};
    header_text(w, NULL, 0, &header);
    int64_t wanted = 8 + (int64_t)header.length + (int64_t)metadata_bytes;
    w->header_bytes =
        (wanted + SAFETENSORS_ALIGN_BYTES - 1) / SAFETENSORS_ALIGN_BYTES * SAFETENSORS_ALIGN_BYTES;
    text_free(&header);
    w->file = open(w->temporary.chars, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->file < 0)
        return failed(w);
    w->there = true;
    return OK;
}

enum status safetensors_create(const char *path, const struct safetensors_tensor *list, int count,
                               size_t metadata_bytes, struct safetensors_writer **out)
{
    struct safetensors_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return fail(NO_MEMORY, "%s: no memory to write it", path);
    w->file = -1;
    enum status status = begin(w, path, list, count, metadata_bytes);
    if (status == OK)
        *out = w;
    else
        safetensors_writer_destroy(w);
    return status;
}

static enum status write_at(const struct safetensors_writer *w, const char *bytes, size_t length,
                            int64_t offset)
{
    while (length > 0) {
        ssize_t put = pwrite(w->file, bytes, length, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return failed(w);
        bytes += put;
        length -= (size_t)put;
        offset += put;
    }
    return OK;
}

enum status safetensors_append(struct safetensors_writer *w, const void *bytes, size_t length)
{
    CHECK((int64_t)length <= w->bytes - w->written);
    TRY(write_at(w, bytes, length, w->header_bytes + w->written));
    w->written += (int64_t)length;
    return OK;
}

static enum status write_header(const struct safetensors_writer *w, const struct safetensors_pair *metadata,
                                int count)
{
    struct text header = {0};
    uint64_t length = (uint64_t)w->header_bytes - 8;
    text_add_bytes(&header, (const char *)&length, sizeof length);
    header_text(w, metadata, count, &header);
    CHECK((int64_t)header.length <= w->header_bytes);
    text_add(&header, "%*s", (int)(w->header_bytes - (int64_t)header.length), "");
    enum status status = write_at(w, header.chars, header.length, 0);
    text_free(&header);
    return status;
}

enum status safetensors_finish(struct safetensors_writer *w, const struct safetensors_pair *metadata,
                               int count)
{
    CHECK(w->written == w->bytes);
    TRY(write_header(w, metadata, count));
    // A full disk may be noticed only here, or on closing.
    if (fsync(w->file) != 0)
        return failed(w);
    int file = w->file;
    w->file = -1;
    if (close(file) != 0 || rename(w->temporary.chars, w->path.chars) != 0)
        return failed(w);
    w->there = false;
    return OK;
}

void safetensors_writer_destroy(struct safetensors_writer *w)
{
    if (w == NULL)
        return;
    if (w->file >= 0)
        close(w->file);
    if (w->there)
        unlink(w->temporary.chars);
    for (int i = 0; i < w->count; i++)
        free((void *)(uintptr_t)w->list[i].name);
    free(w->list);
    text_free(&w->path);
    text_free(&w->temporary);
    free(w);
}
