// SPDX-License-Identifier: Apache-2.0
#include "trainer/text/byte_source.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, WAIT_MS = 200 };

/* Reads bytes of the source itself, and counts them. */
static enum status take(struct byte_source *source, const char **bytes, int64_t *count)
{
    TRY(source->read(source, bytes, count));
    source->taken += *count;
    return OK;
}

enum status source_head(struct byte_source *source)
{
    for (int64_t count = 1; count > 0 && source->head.length < SOURCE_HEAD_BYTES;) {
        const char *bytes;
        TRY(take(source, &bytes, &count));
        text_add_bytes(&source->head, bytes, (size_t)count);
    }
    return OK;
}

enum status source_next(struct byte_source *source, const char **bytes, int64_t *count)
{
    if (source->head.length == 0)
        return take(source, bytes, count);
    *bytes = source->head.chars; // remains there until the head is read again, which it is not
    *count = (int64_t)source->head.length;
    source->head.length = 0;
    return OK;
}

struct file_source {
    struct byte_source bytes;
    int fd;
    int64_t size; // when it was opened; 0: unknown
    enum status (*progress)(void *context, int64_t bytes);
    void *context;
    char chunk[CHUNK_BYTES];
};

/* Waits for input, or the end of it; a pipe may have no writer yet. The caller may stop the wait. */
static enum status wait_for_input(const struct file_source *file)
{
    struct pollfd poll_fd = {.fd = file->fd, .events = POLLIN};
    while (poll(&poll_fd, 1, WAIT_MS) == 0)
        TRY(file->progress(file->context, 0));
    return OK; // also after an error, which read() reports
}

static enum status file_source_read(struct byte_source *source, const char **bytes, int64_t *count)
{
    struct file_source *file = (struct file_source *)source;
    for (;;) {
        TRY(wait_for_input(file));
        const ssize_t got = read(file->fd, file->chunk, CHUNK_BYTES);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s: %s", source->name, strerror(errno));
        if (got == 0 && source->taken < file->size)
            return fail(BAD_DATA,
                        "%s: became shorter while it was read: it ends after byte %" PRId64 " of %" PRId64,
                        source->name, source->taken, file->size);
        *bytes = file->chunk;
        *count = got;
        return got > 0 ? file->progress(file->context, got) : OK;
    }
}

enum status file_source_open(const char *path, enum status (*progress)(void *context, int64_t bytes),
                             void *context, struct file_source **out)
{
    const bool from_standard_input = strcmp(path, "-") == 0;
    struct file_source *file = memory_zeroed(1, sizeof *file, "a file to read");
    file->bytes =
        (struct byte_source){.name = from_standard_input ? "standard input" : path, .read = file_source_read};
    file->size = 0;
    file->progress = progress;
    file->context = context;
    // O_NONBLOCK: opening a pipe must not wait for its writer, which cannot be stopped.
    file->fd = from_standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0) {
        free(file);
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    }
    struct stat info;
    if (!from_standard_input && fstat(file->fd, &info) == 0 && S_ISREG(info.st_mode))
        file->size = info.st_size;
    *out = file;
    return OK;
}

void file_source_close(struct file_source *file)
{
    if (file == NULL)
        return;
    if (file->fd != STDIN_FILENO)
        close(file->fd);
    text_free(&file->bytes.head);
    free(file);
}

struct byte_source *file_source_bytes(struct file_source *file)
{
    return &file->bytes;
}
