// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/page.h"

#include "base/memory.h"
#include "base/progress_slot.h"
#include "base/text.h"
#include "trainer/progress/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const uint64_t magic = UINT64_C(0x6375626f69645031); // "cuboidP1"

/* Locked bytes of the file: one by the process that is opening the page, one shared by all that use it. */
enum { LOCK_OPENING, LOCK_USING, FOLDER_CHARS = 100 };

struct shared {
    uint64_t magic, bytes;
    int32_t processes, slots;
    atomic_int claimed_processes, claimed_slots;
    atomic_int reported, ending;
};

struct page {
    struct shared *shared;
    struct page_process *process; // [processes]
    struct progress_slot *slot;   // [slots]
    int processes, slots;         // as in the options: `shared` is not asked again
    size_t bytes;
    int mine, file; // file -1: private
    struct text path;
};

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t bytes_of(const struct page_options *options)
{
    return aligned(sizeof(struct shared)) +
           aligned((size_t)options->processes * sizeof(struct page_process)) +
           (size_t)options->slots * sizeof(struct progress_slot);
}

/* ---- the file ---- */

static bool lock(int file, int byte, short kind, bool wait)
{
    struct flock region = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(file, wait ? F_OFD_SETLKW : F_OFD_SETLK, &region);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

/* Locks a byte for this process alone; false after half a second. */
static bool lock_in_time(int file, int byte)
{
    enum { TRIES = 100, TRY_MS = 5 };
    for (int i = 0; i < TRIES; i++) {
        if (lock(file, byte, F_WRLCK, false))
            return true;
        poll(NULL, 0, TRY_MS);
    }
    return false;
}

static enum status cannot(const struct page *page, const char *what)
{
    return fail(IO_ERROR, "%s: %s: %s", page->path.chars, what, strerror(errno));
}

static enum status map(struct page *page)
{
    int flags = page->file >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
    void *memory = mmap(NULL, page->bytes, PROT_READ | PROT_WRITE, flags, page->file, 0);
    if (memory == MAP_FAILED)
        return page->file >= 0 ? cannot(page, "mmap")
                               : fail(NO_MEMORY, "no memory for the progress of ranks");
    page->shared = memory;
    return OK;
}

static void initialize(struct page *page, const struct page_options *options)
{
    page->shared->magic = magic;
    page->shared->bytes = page->bytes;
    page->shared->processes = options->processes;
    page->shared->slots = options->slots;
}

/* Called with the opening lock held. A file that no process uses is new, or left by killed processes. */
static enum status enter(struct page *page, const struct page_options *options)
{
    struct stat info;
    bool unused = lock(page->file, LOCK_USING, F_WRLCK, false);
    if (unused) {
        if (ftruncate(page->file, 0) != 0)
            return cannot(page, "ftruncate");
        errno = posix_fallocate(page->file, 0, (off_t)page->bytes);
        if (errno != 0)
            return cannot(page, "posix_fallocate");
    }
    if (!lock(page->file, LOCK_USING, F_RDLCK, true))
        return cannot(page, "lock");
    if (fstat(page->file, &info) != 0 || (size_t)info.st_size != page->bytes)
        return fail(IO_ERROR, "%s belongs to another version of cuboid, or to another job", page->path.chars);
    TRY(map(page));
    if (unused)
        initialize(page, options);
    return page->shared->magic == magic && page->shared->processes == options->processes &&
                   page->shared->slots == options->slots
               ? OK
               : fail(IO_ERROR, "%s belongs to another version of cuboid", page->path.chars);
}

/* Whether only this user can have placed a file, and only this user can change it: another one could keep it
 * locked, truncate it under the map, or name processes to be ended. */
static bool is_private(const struct stat *info)
{
    return S_ISREG(info->st_mode) && info->st_uid == geteuid() && (info->st_mode & 077) == 0 &&
           info->st_nlink <= 1;
}

static enum status refuse(struct page *page, const struct stat *info)
{
    close(page->file);
    page->file = -1; // so that it is not removed
    return fail(IO_ERROR, "%s is no private file of this user (owner %u, mode %o, %u links); have it removed",
                page->path.chars, (unsigned)info->st_uid, (unsigned)info->st_mode, (unsigned)info->st_nlink);
}

/* Opens the file, again if another process has removed it meanwhile. */
static enum status open_locked(struct page *page)
{
    enum { TRIES = 100, FLAGS = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK };
    for (int i = 0; i < TRIES; i++) {
        struct stat info;
        page->file = open(page->path.chars, FLAGS, 0600);
        if (page->file < 0 || fstat(page->file, &info) != 0)
            return cannot(page, "open");
        if (!is_private(&info))
            return refuse(page, &info);
        if (!lock_in_time(page->file, LOCK_OPENING))
            return fail(PEER_LOST, "%s: another process is opening it", page->path.chars);
        if (fstat(page->file, &info) == 0 && info.st_nlink > 0)
            return OK;
        close(page->file);
        page->file = -1;
    }
    return fail(IO_ERROR, "%s cannot be opened", page->path.chars);
}

/* The folder of pages: the user's own if it is in memory, where no other user can take a name; else that of
 * all users. */
static void find_folder(char out[FOLDER_CHARS])
{
    const char *own = getenv("XDG_RUNTIME_DIR");
    char path[PATH_MAX];
    struct stat info;
    struct statfs system;
    const bool is_usable = own != NULL && realpath(own, path) != NULL && strlen(path) < FOLDER_CHARS &&
                           stat(path, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) == 0 &&
                           statfs(path, &system) == 0 && system.f_type == TMPFS_MAGIC;
    snprintf(out, FOLDER_CHARS, "%.*s", FOLDER_CHARS - 1, is_usable ? path : "/dev/shm");
}

/* Removes pages that no process uses: those of nodes whose processes were killed before all had started. */
static void sweep(void)
{
    char prefix[40], path[FOLDER_CHARS + 260], folder[FOLDER_CHARS];
    find_folder(folder);
    DIR *list = opendir(folder);
    snprintf(prefix, sizeof prefix, "cuboid-%u-", (unsigned)getuid());
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        struct stat info;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0)
            continue;
        if (fstat(file, &info) == 0 && is_private(&info) && lock(file, LOCK_OPENING, F_WRLCK, false) &&
            lock(file, LOCK_USING, F_WRLCK, false))
            unlink(path);
        close(file);
    }
    if (list != NULL)
        closedir(list);
}

uint64_t page_hash(const char *job, const char *node)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *at = job; *at != 0; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    for (const char *at = node; *at != 0; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return hash;
}

static void name_file(const struct page_options *options, struct text *out)
{
    char folder[FOLDER_CHARS];
    find_folder(folder);
    text_add(out, "%s/cuboid-%u-%016llx", folder, (unsigned)getuid(),
             (unsigned long long)page_hash(options->job, options->node));
}

/* ---- opening ---- */

static void find_parts(struct page *page)
{
    char *at = (char *)page->shared + aligned(sizeof *page->shared);
    page->process = (struct page_process *)(void *)at;
    at += aligned((size_t)page->processes * sizeof *page->process);
    page->slot = (struct progress_slot *)(void *)at;
}

static enum status add_process(struct page *page)
{
    page->mine = atomic_fetch_add(&page->shared->claimed_processes, 1);
    if (page->mine < 0 || page->mine >= page->processes)
        return fail(IO_ERROR, "%d processes on a node for %d", page->mine + 1, page->processes);
    struct page_process *process = &page->process[page->mine];
    atomic_store(&process->started, process_started((int)getpid()));
    atomic_store(&process->id, (int)getpid());
    return OK;
}

static enum status open_page(struct page *page, const struct page_options *options)
{
    if (options->job == NULL) {
        TRY(map(page));
        initialize(page, options);
    } else {
        name_file(options, &page->path);
        sweep();
        TRY(open_locked(page));
        TRY(enter(page, options));
    }
    find_parts(page);
    TRY(add_process(page));
    if (page->file >= 0 && page->mine + 1 == page->processes)
        unlink(page->path.chars);
    if (page->file >= 0 && !lock(page->file, LOCK_OPENING, F_UNLCK, true))
        return cannot(page, "unlock");
    return OK;
}

enum status page_open(const struct page_options *options, struct page **out)
{
    struct page *page = memory_zeroed(1, sizeof *page, "a page of progress");
    page->file = -1;
    page->processes = options->processes;
    page->slots = options->slots;
    page->bytes = bytes_of(options);
    enum status status = open_page(page, options);
    if (status == OK)
        *out = page;
    else
        page_close(page);
    return status;
}

void page_remove(struct page *page)
{
    struct stat info;
    if (page->file >= 0 && fstat(page->file, &info) == 0 && info.st_nlink > 0)
        unlink(page->path.chars);
}

void page_close(struct page *page)
{
    if (page == NULL)
        return;
    page_remove(page);
    if (page->shared != NULL)
        munmap(page->shared, page->bytes);
    if (page->file >= 0)
        close(page->file);
    text_free(&page->path);
    free(page);
}

/* ---- its parts ---- */

const char *page_path(const struct page *page)
{
    return page->file >= 0 ? text_chars(&page->path) : NULL;
}

int page_processes(const struct page *page)
{
    return page->processes;
}

struct page_process *page_process(const struct page *page, int index)
{
    return &page->process[index];
}

int page_own_index(const struct page *page)
{
    return page->mine;
}

int page_slots(const struct page *page)
{
    return page->slots;
}

struct progress_slot *page_slot(const struct page *page, int index)
{
    return &page->slot[index];
}

struct progress_slot *page_claim_slot(struct page *page)
{
    int index = atomic_fetch_add(&page->shared->claimed_slots, 1);
    return index >= 0 && index < page->slots ? &page->slot[index] : NULL;
}

bool page_claim_report(struct page *page)
{
    int none = 0;
    return atomic_compare_exchange_strong(&page->shared->reported, &none, 1);
}

bool page_is_reported(const struct page *page)
{
    return atomic_load(&page->shared->reported) != 0;
}

void page_end(struct page *page)
{
    atomic_store(&page->shared->ending, 1);
}

bool page_is_ending(const struct page *page)
{
    return atomic_load(&page->shared->ending) != 0;
}
