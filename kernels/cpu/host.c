// SPDX-License-Identifier: Apache-2.0
/* Offload memory (PART_HOST). On a CPU it would be the same memory as the device's, so it is an unlinked file
 * instead: its pages can be written back, which reduces resident memory at the cost of disk space. */
#include "kernels/cpu/host.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_nameless(const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/cuboid-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

enum status cpu_host_alloc(struct device *device, size_t bytes, void **out)
{
    (void)device;
    const char *folder = getenv("TMPDIR");
    folder = folder != NULL && *folder != 0 ? folder : "/tmp";
    char size[NUMBER_CHARS];
    bytes_text((int64_t)bytes, size);
    int fd = open_nameless(folder);
    if (fd < 0)
        return fail(IO_ERROR,
                    "cannot create a file in %s for %s of offloaded memory: %s; set TMPDIR to another "
                    "folder",
                    folder, size, strerror(errno));
    // Allocate now: on a full disk, writing to an unallocated page would raise SIGBUS.
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    void *data = error == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    error = error == 0 && data == MAP_FAILED ? errno : error;
    close(fd);
    if (error != 0)
        return fail(NO_MEMORY, "%s has no space for %s of offloaded memory: %s; set TMPDIR to another folder",
                    folder, size, strerror(error));
    *out = data;
    return OK;
}

void cpu_host_free(struct device *device, void *data, size_t bytes)
{
    (void)device;
    munmap(data, bytes);
}

void cpu_host_page_out(void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data;
    uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
    if (first < last)
        madvise((void *)first, last - first, MADV_DONTNEED); // shared file mapping: contents are preserved
}
