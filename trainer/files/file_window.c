// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/file_window.h"

#include "base/machine.h"

#include <linux/magic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>

enum { WINDOW_BYTES = 4 * HUGE_PAGE_BYTES };
enum { RESERVED_BYTES = WINDOW_BYTES + HUGE_PAGE_BYTES };

bool file_window_move(struct file_window *w, int fd, int64_t file_bytes, int64_t from)
{
    const int64_t at = from / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES,
                  bytes = file_bytes - at < WINDOW_BYTES ? file_bytes - at : WINDOW_BYTES;
    w->bytes = 0;
    if (w->reserved == NULL) {
        w->reserved =
            mmap(NULL, RESERVED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        w->reserved = w->reserved != MAP_FAILED ? w->reserved : NULL;
    }
    if (w->reserved == NULL)
        return false;
    // Huge pages are mapped as such only at multiples of their size.
    w->data = w->reserved + (HUGE_PAGE_BYTES - (uintptr_t)w->reserved % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (mmap(w->data, (size_t)bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)at) == MAP_FAILED) {
        w->reserved = NULL; // they may be in use for something else now
        return false;
    }
    w->at = at;
    w->bytes = bytes;
    return true;
}

void file_window_close(struct file_window *w)
{
    if (w->reserved != NULL)
        munmap(w->reserved, RESERVED_BYTES);
    *w = (struct file_window){.reserved = NULL};
}

/* No call tells; a huge page has one fault, and small ones have one for every 16 pages. */
static bool is_huge(const char *page)
{
    enum { EACH = 1 << 16, FEW_FAULTS = 8 };
    const volatile char *at = page;
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < HUGE_PAGE_BYTES; i += EACH)
        (void)at[i];
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt < FEW_FAULTS;
}

bool file_window_open_huge(struct file_window *w, int fd, int64_t file_bytes)
{
    struct statfs system;
    if (file_bytes < HUGE_PAGE_BYTES || fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC ||
        !file_window_move(w, fd, file_bytes, 0))
        return false;
    if (is_huge(w->data))
        return true;
    file_window_close(w);
    return false;
}
