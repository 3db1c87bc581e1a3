// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/store_lock.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/lock_owner.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RENEW_MS = 10000, EXPIRES_MS = 60000, POLL_MS = 100, NS_PER_MS = 1000000, MAX_TRIES = 100 };

struct store_lock {
    struct text save, path; // the folder, and its owner.json
    struct text key, value; // that set the folder
    struct lock_owner self;
    int fd;       // of SAVE/owner.lock; -1: none
    bool flocked; // owner.lock is locked
    bool created; // this run has created it
    int64_t renew_ms, expires_ms;
    atomic_bool lost;
    bool renews; // the renewal thread is running
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t ends;
    bool ending;
};

/* ---- other owners ---- */

static enum status taken_by(const struct store_lock *l, const struct lock_owner *owner)
{
    AUTO(text) who = {0};
    lock_owner_describe(owner, &who);
    return fail(BAD_RECIPE,
                "%s: another run is writing in %s: %s; wait for it, or use another directory, "
                "such as %s=%s-2",
                l->key.chars, l->save.chars, who.chars, l->key.chars, l->value.chars);
}

static void pause_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS}, NULL);
}

/* The current time of the file system: that of a new file. */
static enum status file_system_now(const struct store_lock *l, int64_t *out)
{
    struct file_temporary file;
    struct stat info;
    TRY(file_temporary_create(l->path.chars, &file));
    enum status status =
        fstat(file.fd, &info) == 0 ? OK : fail(IO_ERROR, "%s: %s", l->path.chars, strerror(errno));
    file_temporary_discard(&file);
    *out = info.st_mtim.tv_sec * INT64_C(1000000000) + info.st_mtim.tv_nsec;
    return status;
}

/* For an owner on another machine: it is active if it renews its lease before it expires. */
static enum status wait_for_expiry(const struct store_lock *l, const struct lock_owner *owner)
{
    int64_t now, waited_ms = 0;
    struct text who = {0};
    TRY(file_system_now(l, &now));
    int64_t age_ms = (now - owner->renewed_ns) / NS_PER_MS;
    int64_t left_ms = age_ms < 0 ? l->expires_ms : l->expires_ms - age_ms;
    if (left_ms <= 0)
        return OK;
    lock_owner_describe(owner, &who);
    fprintf(stderr,
            "%s: last used by %s, which has not released it; waiting up to %lld s for its lease to expire\n",
            l->save.chars, who.chars, (long long)((left_ms + 999) / 1000));
    text_free(&who);
    for (; waited_ms < left_ms; waited_ms += POLL_MS) {
        struct lock_owner again;
        pause_ms(POLL_MS);
        TRY(lock_owner_read(l->path.chars, &again));
        if (again.token[0] == 0)
            return OK; // released
        if (again.renewed_ns != owner->renewed_ns || strcmp(again.token, owner->token) != 0)
            return taken_by(l, &again);
    }
    return OK;
}

/* When the flock is held, an owner on this machine has exited. */
static enum status wait_for(const struct store_lock *l, const struct lock_owner *owner)
{
    if (owner->token[0] == 0)
        return OK;
    if (!lock_owner_is_local(owner))
        return wait_for_expiry(l, owner);
    return !l->flocked && lock_owner_is_alive(owner) ? taken_by(l, owner) : OK;
}

/* ---- the lease ---- */

/* Removes the lease that was read. A lease placed since then is restored. */
static enum status remove_seen(const struct store_lock *l, const struct lock_owner *seen)
{
    AUTO(text) aside = {0};
    struct lock_owner moved;
    text_add(&aside, "%s.%s", l->path.chars, l->self.token);
    enum status status = OK;
    if (rename(l->path.chars, aside.chars) != 0) {
        if (errno != ENOENT)
            status = fail(IO_ERROR, "%s: %s", l->path.chars, strerror(errno));
    } else {
        status = lock_owner_read(aside.chars, &moved);
        if (status == OK && strcmp(moved.token, seen->token) != 0) {
            status = link(aside.chars, l->path.chars) == 0 || errno == EEXIST
                         ? taken_by(l, &moved)
                         : fail(IO_ERROR, "%s: %s", l->path.chars, strerror(errno));
        }
        unlink(aside.chars);
    }
    return status;
}

/* *mine: the name was free. link() may have succeeded even if a network file system reports an error. */
static enum status create_owner_file(const struct store_lock *l, bool *mine)
{
    struct file_temporary file;
    AUTO(text) text = {0};
    struct stat info = {0};
    TRY(file_temporary_create(l->path.chars, &file));
    lock_owner_text(&l->self, &text);
    bool good = write(file.fd, text.chars, text.length) == (ssize_t)text.length && fsync(file.fd) == 0;
    bool linked = good && link(file.path.chars, l->path.chars) == 0;
    int why = errno;
    *mine = linked || (good && fstat(file.fd, &info) == 0 && info.st_nlink == 2);
    enum status status =
        good && (*mine || why == EEXIST) ? OK : fail(IO_ERROR, "%s: %s", l->path.chars, strerror(why));
    file_temporary_discard(&file);
    return status;
}

static enum status take_lease(const struct store_lock *l)
{
    struct lock_owner owner = {.pid = 0};
    file_temporary_sweep(l->path.chars);
    for (int i = 0; i < MAX_TRIES; i++) {
        bool mine = false;
        struct stat info;
        TRY(lock_owner_read(l->path.chars, &owner));
        TRY(wait_for(l, &owner));
        if (lstat(l->path.chars, &info) == 0)
            TRY(remove_seen(l, &owner));
        TRY(create_owner_file(l, &mine));
        if (mine)
            return OK;
    }
    return taken_by(l, &owner);
}

/* ---- renewal ---- */

static bool is_mine(const struct store_lock *l, struct lock_owner *owner)
{
    return lock_owner_read(l->path.chars, owner) == OK && strcmp(owner->token, l->self.token) == 0;
}

static void renew(struct store_lock *l)
{
    struct lock_owner owner;
    if (is_mine(l, &owner))
        (void)utimensat(AT_FDCWD, l->path.chars, NULL, AT_SYMLINK_NOFOLLOW);
    else if (owner.token[0] != 0)
        atomic_store(&l->lost, true);
}

static void *renew_loop(void *argument)
{
    struct store_lock *l = argument;
    pthread_mutex_lock(&l->mutex);
    while (!l->ending) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + l->renew_ms * NS_PER_MS;
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        if (pthread_cond_timedwait(&l->ends, &l->mutex, &until) == ETIMEDOUT)
            renew(l);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* This thread blocks all signals: another thread receives them. */
static enum status start_renewing(struct store_lock *l)
{
    sigset_t all, before;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->ends, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&l->thread, NULL, renew_loop, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->renews = why == 0;
    return why == 0 ? OK : fail(NO_MEMORY, "cannot start a thread: %s", strerror(why));
}

/* ---- the run ---- */

static enum status of_another_run(const struct store_lock *l, const char *run_dir)
{
    return fail(
        BAD_RECIPE,
        "checkpoint.save: %s belongs to another run than logging.run_dir %s; set another checkpoint.save "
        "(checkpoint.load=%s starts from its checkpoints), or remove %s/run.json to give it to this run",
        l->save.chars, run_dir, l->save.chars, l->save.chars);
}

/* For a folder that is compared with the identity of the run. */
static enum status agree_on_identity(const struct store_lock *l, const char *run)
{
    struct run_record folder;
    TRY(run_record_read(l->save.chars, &folder));
    if (folder.run[0] != 0)
        return strcmp(folder.run, run) == 0
                   ? OK
                   : fail(
                         BAD_RECIPE,
                         "%s: %s holds checkpoints of another run; remove it, or use another directory, such "
                         "as %s=%s-2",
                         l->key.chars, l->save.chars, l->key.chars, l->value.chars);
    memcpy(folder.run, run, sizeof folder.run);
    return run_record_write(l->save.chars, &folder);
}

/* The default place of a run's checkpoints. */
static bool is_inside(const char *folder, const char *run_dir)
{
    const size_t length = strlen(run_dir);
    return strncmp(folder, run_dir, length) == 0 && folder[length] == '/';
}

/* Names the key of the run directory, not that of the folder that is locked. */
static enum status of_run_dir(enum status status)
{
    return status != IO_ERROR ? status
                              : fail(BAD_RECIPE,
                                     "logging.run_dir: %s; set logging.run_dir to a directory that can be "
                                     "written",
                                     fail_text());
}

/* The folder and logging.run_dir share one identity; that of the run directory is written first. If that
 * record is lost, checkpoints inside the run directory are its own. */
static enum status agree_on_run(const struct store_lock *l, const char *run_dir)
{
    struct run_record folder, run;
    TRY(run_record_read(l->save.chars, &folder));
    if (run_dir == NULL)
        return OK;
    TRY(of_run_dir(run_record_read(run_dir, &run)));
    if (folder.run[0] != 0 && run.run[0] == 0 && is_inside(l->save.chars, run_dir)) {
        memcpy(run.run, folder.run, sizeof run.run);
        return of_run_dir(run_record_write(run_dir, &run));
    }
    if (folder.run[0] != 0)
        return strcmp(folder.run, run.run) == 0 ? OK : of_another_run(l, run_dir);
    if (run.run[0] == 0) {
        TRY(random_hex(run.run, RUN_CHARS - 1));
        TRY(of_run_dir(run_record_write(run_dir, &run)));
    }
    memcpy(folder.run, run.run, sizeof run.run);
    return run_record_write(l->save.chars, &folder);
}

/* ---- acquiring ---- */

static enum status lock_file(struct store_lock *l, bool without_flock)
{
    struct text path = {0};
    struct lock_owner owner;
    text_add(&path, "%s/owner.lock", l->save.chars);
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    l->fd = open(path.chars, flags | O_EXCL, 0660); // not for others: who can open a file can lock it
    l->created = l->fd >= 0;
    if (l->fd < 0 && errno == EEXIST)
        l->fd = open(path.chars, flags, 0660);
    enum status status =
        l->fd >= 0       ? OK
        : errno == ELOOP ? fail(BAD_RECIPE, "%s: %s is a symbolic link; remove it", l->key.chars, path.chars)
                         : fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    text_free(&path);
    TRY(status);
    const enum file_lock lock = without_flock ? FILE_WITHOUT_LOCKS : file_lock(l->fd);
    l->flocked = lock == FILE_LOCKED;
    if (lock != FILE_IN_USE)
        return OK;
    TRY(lock_owner_read(l->path.chars, &owner));
    return taken_by(l, &owner);
}

static enum status take(struct store_lock *l, const struct store_lock_options *options)
{
    text_add(&l->save, "%s", options->save);
    text_add(&l->path, "%s/owner.json", options->save);
    text_add(&l->key, "%s", options->key != NULL ? options->key : "checkpoint.save");
    text_add(&l->value, "%s", options->value != NULL ? options->value : options->save);
    TRY(folder_make(options->save));
    TRY(lock_owner_self(&l->self));
    TRY(lock_file(l, options->without_flock));
    TRY(take_lease(l));
    TRY(start_renewing(l));
    TRY(options->run != NULL ? agree_on_identity(l, options->run) : agree_on_run(l, options->run_dir));
    return store_clean(options->save);
}

enum status store_lock_acquire(const struct store_lock_options *options, struct store_lock **out)
{
    struct store_lock *l = memory_zeroed(1, sizeof *l, "the lock of a checkpoint folder");
    l->fd = -1;
    l->renew_ms = options->renew_ms > 0 ? options->renew_ms : RENEW_MS;
    l->expires_ms = options->expires_ms > 0 ? options->expires_ms : EXPIRES_MS;
    enum status status = take(l, options);
    if (status == OK) {
        *out = l;
        return OK;
    }
    if (status == IO_ERROR)
        status = fail(status, "%s: %s; set %s to a directory that can be written", l->key.chars, fail_text(),
                      l->key.chars);
    AUTO(text) why = {0}, path = {0};
    text_add(&why, "%s", fail_text());
    text_add(&path, "%s/owner.lock", l->save.chars);
    if (l->created && l->flocked)
        (void)unlink(path.chars);
    store_lock_release(l);
    return fail(status, "%s", why.chars);
}

enum status store_lock_check(const struct store_lock *lock)
{
    struct lock_owner owner;
    bool mine = false;
    if (lock == NULL || (is_mine(lock, &owner) && !atomic_load(&lock->lost)))
        return OK;
    TRY(lock_owner_read(lock->path.chars, &owner));
    if (owner.token[0] == 0 && !atomic_load(&lock->lost)) { // removed by hand
        TRY(remove_seen(lock, &owner));
        TRY(create_owner_file(lock, &mine));
    }
    if (mine)
        return OK;
    TRY(lock_owner_read(lock->path.chars, &owner));
    AUTO(text) who = {0};
    lock_owner_describe(&owner, &who);
    return fail(IO_ERROR,
                "%s has been taken by another run, %s, while this process was stopped or its "
                "file system did not answer; this run no longer writes there",
                lock->save.chars, who.chars);
}

void store_lock_release(struct store_lock *lock)
{
    struct lock_owner owner;
    if (lock == NULL)
        return;
    if (lock->renews) {
        pthread_mutex_lock(&lock->mutex);
        lock->ending = true;
        pthread_cond_signal(&lock->ends);
        pthread_mutex_unlock(&lock->mutex);
        pthread_join(lock->thread, NULL);
        pthread_mutex_destroy(&lock->mutex);
        pthread_cond_destroy(&lock->ends);
    }
    if (lock->self.token[0] != 0 && is_mine(lock, &owner))
        unlink(lock->path.chars);
    if (lock->fd >= 0)
        close(lock->fd);
    text_free(&lock->save);
    text_free(&lock->path);
    text_free(&lock->key);
    text_free(&lock->value);
    free(lock);
}

enum status store_lock_holder(const char *save, struct lock_owner *out)
{
    struct text path = {0};
    text_add(&path, "%s/owner.json", save);
    enum status status = lock_owner_read(path.chars, out);
    text_free(&path);
    TRY(status);
    const int64_t age_ms = (int64_t)time(NULL) * 1000 - out->renewed_ns / NS_PER_MS;
    if (lock_owner_is_local(out) ? !lock_owner_is_alive(out) : age_ms > EXPIRES_MS)
        *out = (struct lock_owner){.pid = 0};
    return OK;
}
