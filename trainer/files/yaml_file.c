// SPDX-License-Identifier: Apache-2.0
/* Reads a YAML file without blocking on a FIFO or reading a device without end. */
#include "trainer/files/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SILENCE_MS = 10000 }; // of a pipe, while a file is read from it

/* Whether a pipe is a FIFO with a path, which may never have a writer; a pipe made by a shell has no path. */
static bool is_named(int fd)
{
    char link[32], target[16] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, target, sizeof target - 1) < 0 || strncmp(target, "pipe:", 5) != 0;
}

static const char *kind_fault(int fd, const struct stat *about)
{
    if (S_ISREG(about->st_mode) || (S_ISFIFO(about->st_mode) && !is_named(fd)))
        return NULL;
    return S_ISDIR(about->st_mode) ? "is a directory, not a file; use the file in it"
           : S_ISFIFO(about->st_mode)
               ? "is a named pipe, not a regular file; use a file, or <(COMMAND) in bash"
               : "is a device, not a regular file; use a file";
}

/* Reads up to one byte more than the limit of a file. */
static const char *read_bounded(int fd, struct text *out)
{
    char block[8192];
    while (out->length <= YAML_MAX_BYTES) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait, 1, SILENCE_MS);
        if (ready == 0)
            return "is a pipe to which nothing was written for 10 s; use a file";
        ssize_t got = ready < 0 ? -1 : read(fd, block, sizeof block);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return got == 0 ? NULL : strerror(errno);
        text_add_bytes(out, block, (size_t)got);
    }
    return NULL;
}

const char *yaml_file_read(const char *path, struct text *out, dev_t *device, ino_t *inode)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return strerror(errno);
    const char *fault = fstat(fd, &about) != 0 ? strerror(errno) : kind_fault(fd, &about);
    if (fault == NULL) {
        *device = about.st_dev;
        *inode = about.st_ino;
        fault = read_bounded(fd, out);
    }
    close(fd);
    return fault;
}
