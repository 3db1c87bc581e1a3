// SPDX-License-Identifier: Apache-2.0
/* A preloaded library that counts the calls that change files below a folder whose path contains
 * FAULT_FOLDER (and FAULT_NAME, if it is set), and fails one of them.
 *
 *     FAULT_CALL   the number of the call, from 1; 0: none
 *     FAULT_KIND   kill     the process is killed before the call
 *                  half     a write transfers half of its bytes, and the process is killed; other calls: kill
 *                  power    kill, and what was not synced is lost: files are empty, and new names and renames
 *                           in folders that were not synced are undone, the last one first
 *                  nospace, error    the call fails with ENOSPC or EIO, and so do all later ones up to
 *                           FAULT_LAST (default: only this call)
 *                  nolocks  only flock() fails, each time, with ENOLCK
 *                  slow     the call takes FAULT_MS (50) longer, and so do all later ones up to FAULT_LAST
 *     FAULT_COUNT  a file that gets the number of calls when the process exits
 *
 * Threads may call; calls are counted in the order in which they begin. */
#undef _FILE_OFFSET_BITS // open and open64 are two symbols here
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_CHARS = 400, MAX_EVENTS = 4096 };
enum kind { CREATED, RENAMED, EXCHANGED, WRITTEN };

/* Something that is not durable yet. */
struct event {
    enum kind kind;
    bool synced;
    char path[PATH_CHARS], from[PATH_CHARS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event events[MAX_EVENTS];
static int event_count;
static long call_count;

static bool is_kind(const char *name)
{
    const char *kind = getenv("FAULT_KIND");
    return kind != NULL && strcmp(kind, name) == 0;
}

static long number(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static bool is_watched(const char *path)
{
    const char *folder = getenv("FAULT_FOLDER"), *name = getenv("FAULT_NAME");
    return folder != NULL && strstr(path, folder) != NULL && (name == NULL || strstr(path, name) != NULL);
}

static bool path_of(int fd, char out[PATH_CHARS])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_CHARS - 1);
    out[length > 0 ? length : 0] = 0;
    return length > 0 && is_watched(out);
}

static void add_event(enum kind kind, const char *path, const char *from)
{
    if (event_count == MAX_EVENTS)
        return;
    struct event *event = &events[event_count++];
    event->kind = kind;
    event->synced = false;
    snprintf(event->path, sizeof event->path, "%s", path);
    snprintf(event->from, sizeof event->from, "%s", from);
}

static bool is_parent(const char *folder, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && (size_t)(slash - path) == strlen(folder) &&
           strncmp(folder, path, (size_t)(slash - path)) == 0;
}

static void add_sync(const char *path)
{
    for (int i = 0; i < event_count; i++)
        if (events[i].kind == WRITTEN ? strcmp(events[i].path, path) == 0 : is_parent(path, events[i].path))
            events[i].synced = true;
}

/* The file of an event after the renames that follow it. */
static void current_name(int index, char out[PATH_CHARS])
{
    snprintf(out, PATH_CHARS, "%s", events[index].path);
    for (int i = index + 1; i < event_count; i++) {
        size_t length = strlen(events[i].from);
        if (events[i].kind != RENAMED || strncmp(out, events[i].from, length) != 0)
            continue;
        char moved[2 * PATH_CHARS];
        snprintf(moved, sizeof moved, "%s%s", events[i].path, out + length);
        snprintf(out, PATH_CHARS, "%.*s", PATH_CHARS - 1, moved);
    }
}

static void lose_power(void)
{
    int (*do_rename)(const char *, const char *) = (int (*)(const char *, const char *))real("rename");
    int (*do_unlink)(const char *) = (int (*)(const char *))real("unlink");
    for (int i = 0; i < event_count; i++)
        if (events[i].kind == WRITTEN && !events[i].synced) {
            char path[PATH_CHARS];
            current_name(i, path);
            int ignored = truncate(path, 0);
            (void)ignored;
        }
    for (int i = event_count - 1; i >= 0; i--) {
        if (events[i].synced)
            continue;
        if (events[i].kind == RENAMED)
            do_rename(events[i].path, events[i].from);
        else if (events[i].kind == CREATED)
            do_unlink(events[i].path);
    }
}

/* Counts a call; returns 0, or the error that it fails with. */
static int fault(bool *half)
{
    long at = number("FAULT_CALL", 0), last = number("FAULT_LAST", at), now = ++call_count;
    if (at == 0 || now < at || now > last)
        return 0;
    if (is_kind("nospace"))
        return ENOSPC;
    if (is_kind("error"))
        return EIO;
    if (is_kind("slow")) {
        usleep(1000 * (unsigned)number("FAULT_MS", 50));
        return 0;
    }
    if (is_kind("half") && half != NULL) {
        *half = true;
        return 0;
    }
    if (is_kind("power"))
        lose_power();
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* ---- calls on files ---- */

typedef ssize_t write_call(int, const void *, size_t, off_t);

static ssize_t write_at(const char *name, int fd, const void *bytes, size_t length, off_t offset)
{
    char path[PATH_CHARS];
    bool half = false;
    write_call *next = (write_call *)real(name);
    if (!path_of(fd, path))
        return next(fd, bytes, length, offset);
    pthread_mutex_lock(&lock);
    errno = fault(&half);
    if (errno == 0)
        add_event(WRITTEN, path, "");
    pthread_mutex_unlock(&lock);
    if (errno != 0)
        return -1;
    ssize_t written = next(fd, bytes, half ? length / 2 : length, offset);
    if (half)
        kill(getpid(), SIGKILL);
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
    return write_at("pwrite", fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset)
{
    return write_at("pwrite64", fd, bytes, length, offset);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
    return write_at("write", fd, bytes, length, 0); // the last argument is ignored
}

int flock(int fd, int operation)
{
    char path[PATH_CHARS];
    int (*next)(int, int) = (int (*)(int, int))real("flock");
    if (!is_kind("nolocks") || !path_of(fd, path))
        return next(fd, operation);
    errno = ENOLCK;
    return -1;
}

int fsync(int fd)
{
    char path[PATH_CHARS];
    int (*next)(int) = (int (*)(int))real("fsync");
    if (!path_of(fd, path))
        return next(fd);
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? next(fd) : -1;
    if (status == 0)
        add_sync(path);
    pthread_mutex_unlock(&lock);
    return status;
}

static int truncate_file(const char *name, int fd, off_t bytes)
{
    char path[PATH_CHARS];
    int (*next)(int, off_t) = (int (*)(int, off_t))real(name);
    if (!path_of(fd, path))
        return next(fd, bytes);
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? next(fd, bytes) : -1;
    if (status == 0)
        add_event(WRITTEN, path, "");
    pthread_mutex_unlock(&lock);
    return status;
}

int ftruncate(int fd, off_t bytes)
{
    return truncate_file("ftruncate", fd, bytes);
}

int ftruncate64(int fd, off_t bytes)
{
    return truncate_file("ftruncate64", fd, bytes);
}

/* ---- calls on names ---- */

static int open_file(const char *name, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))real(name);
    if ((flags & O_CREAT) == 0 || !is_watched(path))
        return next(path, flags, mode);
    pthread_mutex_lock(&lock);
    bool exists = access(path, F_OK) == 0;
    errno = fault(NULL);
    int fd = errno == 0 ? next(path, flags, mode) : -1;
    char full[PATH_CHARS];
    if (fd >= 0 && !exists && path_of(fd, full))
        add_event(CREATED, full, "");
    pthread_mutex_unlock(&lock);
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_file("open", path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_file("open64", path, flags, mode);
}

/* The absolute name of a path whose parent exists. */
static void absolute(const char *path, char out[PATH_CHARS])
{
    char folder[PATH_CHARS] = "", joined[2 * PATH_CHARS + 1];
    bool relative = path[0] != '/' && getcwd(folder, sizeof folder) != NULL;
    snprintf(joined, sizeof joined, "%s%s%s", relative ? folder : "", relative ? "/" : "", path);
    snprintf(out, PATH_CHARS, "%.*s", PATH_CHARS - 1, joined);
}

static int on_names(const char *from, const char *to, enum kind kind, int (*call)(const char *, const char *))
{
    char old[PATH_CHARS], new[PATH_CHARS];
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? call(from, to) : -1;
    absolute(from, old);
    absolute(to, new);
    if (status == 0)
        add_event(kind, new, old);
    pthread_mutex_unlock(&lock);
    return status;
}

int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = (int (*)(const char *, const char *))real("rename");
    return is_watched(to) ? on_names(from, to, RENAMED, next) : next(from, to);
}

int link(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = (int (*)(const char *, const char *))real("link");
    return is_watched(to) ? on_names(from, to, CREATED, next) : next(from, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    int (*next)(int, const char *, int, const char *, unsigned) =
        (int (*)(int, const char *, int, const char *, unsigned))real("renameat2");
    if (!is_watched(to))
        return next(from_fd, from, to_fd, to, flags);
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? next(from_fd, from, to_fd, to, flags) : -1;
    if (status == 0)
        add_event(EXCHANGED, to, from);
    pthread_mutex_unlock(&lock);
    return status;
}

static int on_name(const char *path, int (*call)(const char *))
{
    if (!is_watched(path))
        return call(path);
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? call(path) : -1;
    pthread_mutex_unlock(&lock);
    return status;
}

int unlink(const char *path)
{
    return on_name(path, (int (*)(const char *))real("unlink"));
}

int rmdir(const char *path)
{
    return on_name(path, (int (*)(const char *))real("rmdir"));
}

int mkdir(const char *path, mode_t mode)
{
    int (*next)(const char *, mode_t) = (int (*)(const char *, mode_t))real("mkdir");
    if (!is_watched(path))
        return next(path, mode);
    pthread_mutex_lock(&lock);
    errno = fault(NULL);
    int status = errno == 0 ? next(path, mode) : -1;
    pthread_mutex_unlock(&lock);
    return status;
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("FAULT_COUNT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%ld\n", call_count);
    fclose(file);
}
