// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/dataset_writer.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/data/dataset_mask.h"
#include "trainer/files/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TYPE_I32 = 4, TYPE_U16 = 8, CHUNK = 4096 };

struct dataset_writer {
    struct text bin_path, idx_path;
    struct file_temporary bin_file, idx_file;
    FILE *bin, *idx; // on duplicated descriptors; NULL if not open
    struct mask_writer mask;
    int type;
    int64_t vocab_size;
    int32_t *lengths; // of each document so far
    int64_t documents, capacity;
    int64_t length, tokens; // of the current document; of all documents
};

static enum status io_failure(const struct text *path)
{
    int why = errno;
    return fail(IO_ERROR, "%s: %s%s", path->chars, strerror(why),
                why == ENOSPC || why == EDQUOT ? "; no dataset was created" : "");
}

/* Syncs and closes; only the sync guarantees that all bytes are on disk. */
static enum status close_file(FILE **file, const struct text *path)
{
    bool good = fflush(*file) == 0 && fsync(fileno(*file)) == 0;
    enum status status = good ? OK : io_failure(path);
    if (fclose(*file) != 0 && status == OK)
        status = io_failure(path);
    *file = NULL;
    return status;
}

static enum status make_folder_of(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    if (slash == NULL || slash == prefix)
        return OK;
    AUTO(text) folder = {0};
    text_add_bytes(&folder, prefix, (size_t)(slash - prefix));
    return folder_make(folder.chars);
}

static enum status open_file(const char *path, struct file_temporary *file, FILE **out)
{
    file_temporary_sweep(path);
    TRY(file_temporary_create(path, file));
    int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    *out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (*out != NULL)
        return OK;
    enum status status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

static enum status create_files(struct dataset_writer *w, const char *prefix)
{
    TRY(make_folder_of(prefix));
    text_add(&w->bin_path, "%s.bin", prefix);
    text_add(&w->idx_path, "%s.idx", prefix);
    TRY(open_file(w->bin_path.chars, &w->bin_file, &w->bin));
    return open_file(w->idx_path.chars, &w->idx_file, &w->idx);
}

enum status dataset_writer_create(const char *prefix, int64_t vocab_size, struct dataset_writer **out)
{
    if (*prefix == 0 || prefix[strlen(prefix) - 1] == '/')
        return fail(BAD_USAGE, "\"%s\" is not a prefix: PREFIX.bin and PREFIX.idx would have no name",
                    prefix);
    struct dataset_writer *w = memory_zeroed(1, sizeof *w, "the writer of a dataset");
    w->vocab_size = vocab_size;
    w->bin_file.fd = w->idx_file.fd = w->mask.file.fd = -1;
    w->type = vocab_size < 65500 ? TYPE_U16 : TYPE_I32;
    enum status status = create_files(w, prefix);
    if (status == OK)
        *out = w;
    else
        dataset_writer_destroy(w);
    return status;
}

/* Writes ids[0..count) in the id type of the file; count is at most CHUNK. */
static enum status write_chunk(struct dataset_writer *w, const int32_t *ids, int64_t count)
{
    uint16_t narrow[CHUNK];
    const void *bytes = ids;
    size_t id_bytes = sizeof *ids;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= w->vocab_size)
            return fail(BAD_ARGUMENT, "%s: token id %d is outside the vocabulary of %" PRId64,
                        w->bin_path.chars, ids[i], w->vocab_size);
        narrow[i] = (uint16_t)ids[i];
    }
    if (w->type == TYPE_U16) {
        bytes = narrow;
        id_bytes = sizeof *narrow;
    }
    if (fwrite(bytes, id_bytes, (size_t)count, w->bin) != (size_t)count)
        return io_failure(&w->bin_path);
    return OK;
}

enum status dataset_writer_add(struct dataset_writer *writer, const int32_t *ids, int64_t count)
{
    if (count > INT32_MAX - writer->length)
        return fail(BAD_DATA,
                    "%s: document %" PRId64 " has more than %d tokens, the limit of the format; "
                    "split the text into smaller documents",
                    writer->bin_path.chars, writer->documents, INT32_MAX);
    for (int64_t i = 0; i < count; i += CHUNK)
        TRY(write_chunk(writer, ids + i, count - i < CHUNK ? count - i : CHUNK));
    writer->length += count;
    writer->tokens += count;
    return OK;
}

enum status dataset_writer_with_mask(struct dataset_writer *writer, const char *chat_template)
{
    CHECK(writer->tokens == 0);
    const struct text *bin = &writer->bin_path;
    AUTO(text) prefix = {0};
    text_add_bytes(&prefix, bin->chars, bin->length - strlen(".bin"));
    return mask_writer_create(prefix.chars, chat_template, &writer->mask);
}

enum status dataset_writer_add_masked(struct dataset_writer *writer, const int32_t *ids,
                                      const uint8_t *counts, int64_t count)
{
    TRY(dataset_writer_add(writer, ids, count));
    return mask_writer_add(&writer->mask, counts, count);
}

enum status dataset_writer_end_document(struct dataset_writer *writer)
{
    if (writer->documents == writer->capacity) {
        writer->capacity = writer->capacity < 1024 ? 1024 : writer->capacity * 2;
        writer->lengths = memory_resized(writer->lengths, (size_t)writer->capacity, sizeof *writer->lengths,
                                         "the lengths of a dataset's documents");
    }
    writer->lengths[writer->documents++] = (int32_t)writer->length;
    writer->length = 0;
    return OK;
}

/* The format is in dataset.h. The stream records errors; they are checked once at the end. */
static enum status write_index(struct dataset_writer *w)
{
    const uint64_t version = 1, sequences = (uint64_t)w->documents, boundaries = sequences + 1;
    const unsigned char type = (unsigned char)w->type;
    fwrite("MMIDIDX\0\0", 1, 9, w->idx);
    fwrite(&version, sizeof version, 1, w->idx);
    fwrite(&type, 1, 1, w->idx);
    fwrite(&sequences, sizeof sequences, 1, w->idx);
    fwrite(&boundaries, sizeof boundaries, 1, w->idx);
    fwrite(w->lengths, sizeof *w->lengths, (size_t)w->documents, w->idx);
    int64_t pointer = 0;
    for (int64_t i = 0; i < w->documents; i++) {
        fwrite(&pointer, sizeof pointer, 1, w->idx);
        pointer += w->lengths[i] * (w->type == TYPE_U16 ? 2 : 4);
    }
    for (int64_t i = 0; i <= w->documents; i++)
        fwrite(&i, sizeof i, 1, w->idx);
    return ferror(w->idx) ? io_failure(&w->idx_path) : OK;
}

/* Completes the mask: its header has the checksums of the two files, which have their temporary names. */
static enum status complete_mask(struct dataset_writer *w)
{
    struct dataset_mask_of of = {.tokens = w->tokens};
    AUTO(text) idx = {0};
    int bin = open(w->bin_file.path.chars, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    enum status status =
        bin < 0 ? io_failure(&w->bin_path)
                : dataset_ids_checksum(bin, w->bin_path.chars, w->tokens * (w->type == TYPE_U16 ? 2 : 4),
                                       &of.ids_checksum);
    if (bin >= 0)
        close(bin);
    if (status == OK)
        status = file_read(w->idx_file.path.chars, &idx);
    if (status == OK) {
        of.index_checksum = checksum_of(idx.chars, idx.length);
        status = mask_writer_complete(&w->mask, &of);
    }
    return status;
}

/* Gives the mask its final name, or removes that of an older dataset. */
static enum status commit_mask(struct dataset_writer *w)
{
    if (w->mask.stream != NULL)
        return file_temporary_commit(&w->mask.file, w->mask.path.chars);
    AUTO(text) path = {0};
    text_add_bytes(&path, w->bin_path.chars, w->bin_path.length - strlen(".bin"));
    text_add(&path, ".mask");
    return unlink(path.chars) == 0 || errno == ENOENT ? OK : io_failure(&path);
}

/* Gives the files their final names, the index last. */
static enum status commit_all(struct dataset_writer *w)
{
    TRY(commit_mask(w));
    TRY(file_temporary_commit(&w->bin_file, w->bin_path.chars));
    return file_temporary_commit(&w->idx_file, w->idx_path.chars);
}

static void remove_renamed(const struct file_temporary *file, const struct text *path)
{
    if (file->path.length == 0)
        unlink(path->chars);
}

enum status dataset_writer_finish(struct dataset_writer *writer)
{
    CHECK(writer->length == 0); // the last document was ended
    if (writer->tokens == 0)
        return fail(BAD_DATA, "%s: no tokens to write", writer->bin_path.chars);
    TRY(write_index(writer));
    TRY(close_file(&writer->bin, &writer->bin_path));
    TRY(close_file(&writer->idx, &writer->idx_path));
    if (writer->mask.stream != NULL)
        TRY(complete_mask(writer));

    // Removes the index of an older pair first: an index can never be opened with the ids of another dataset.
    if (unlink(writer->idx_path.chars) != 0 && errno != ENOENT)
        return io_failure(&writer->idx_path);
    enum status status = commit_all(writer);
    if (status == OK)
        return OK;
    remove_renamed(&writer->bin_file, &writer->bin_path);
    remove_renamed(&writer->idx_file, &writer->idx_path);
    if (writer->mask.stream != NULL)
        remove_renamed(&writer->mask.file, &writer->mask.path);
    return status;
}

void dataset_writer_destroy(struct dataset_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->bin != NULL)
        fclose(writer->bin);
    if (writer->idx != NULL)
        fclose(writer->idx);
    mask_writer_destroy(&writer->mask);
    file_temporary_discard(&writer->bin_file);
    file_temporary_discard(&writer->idx_file);
    text_free(&writer->bin_path);
    text_free(&writer->idx_path);
    free(writer->lengths);
    free(writer);
}
