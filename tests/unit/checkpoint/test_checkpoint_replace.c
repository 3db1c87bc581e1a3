// SPDX-License-Identifier: Apache-2.0
/* Saving a step again on a file system without RENAME_EXCHANGE: after a kill at any moment a complete
 * checkpoint of the step is found, and the next start removes the rest. The calls that change a folder are
 * replaced by functions of this program: renameat2() is not supported, and the process can be killed before
 * any call. fsync() does nothing: it has no effect on what another process sees. */

#include "tests/unit/checkpoint/checkpoint_by_hand.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- calls ---- */

/* calls_left: the process is killed before the call at which it is 0; below 0 it is not killed.
 * volatile: clang 14 replaces reads of a compound literal at file scope by its initializer. */
struct file_system {
    volatile int errno_of_exchange; // 0: supported
    volatile int calls_left;
    const char *volatile failing_name; // a rename to this name fails
};
static struct file_system *const file_system = &(struct file_system){ENOSYS, -1, NULL};

static void count_call(void)
{
    if (file_system->calls_left == 0)
        raise(SIGKILL);
    file_system->calls_left -= file_system->calls_left > 0;
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    count_call();
    if (file_system->errno_of_exchange == 0)
        return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    errno = file_system->errno_of_exchange;
    return -1;
}

int rename(const char *from, const char *to)
{
    count_call();
    if (file_system->failing_name != NULL && strcmp(to, file_system->failing_name) == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char *name, int flags)
{
    count_call();
    return (int)syscall(SYS_unlinkat, folder, name, flags);
}

int rmdir(const char *path)
{
    count_call();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- helpers ---- */

static const char usual[] = "run.json step-00000001 step-00000002 step-00000002.old step-00000002.replaced";

/* Two checkpoints, and two folders of the user's with names that a save could choose. */
static void make_folder(void)
{
    save_one("s", 1);
    save_one("s", 2);
    cr_assert_eq(mkdir("s/step-00000002.old", 0777) || mkdir("s/step-00000002.replaced", 0777), 0);
}

static void expect_step_2(int calls)
{
    char *found = NULL;
    struct manifest manifest;
    cr_assert_eq(store_find("s", &found), OK, "%s", fail_text());
    cr_assert_not_null(found);
    cr_assert_eq(manifest_read(found, &manifest), OK, "%s", fail_text());
    cr_expect_eq(manifest.identity.step, 2, "killed after %d calls: %s", calls, found);
    manifest_free(&manifest);
    free(found);
}

/* Publishes in a process that is killed after this many calls; false: it finished before. */
static bool publish_and_kill(const struct save_ticket *ticket, int calls)
{
    int how = 0;
    pid_t child = fork();
    if (child == 0) {
        file_system->calls_left = calls;
        if (store_publish("s", ticket) == OK)
            store_prune("s", ticket, 0, 0, -1);
        _exit(0);
    }
    cr_assert(child > 0 && waitpid(child, &how, 0) == child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL;
}

/* ---- tests ---- */

Test(checkpoint_replace, a_kill_at_any_call_keeps_a_checkpoint_and_leaves_no_files, .init = silence)
{
    static const int errors[] = {0, ENOSYS, EINVAL};
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        bool killed = true;
        int calls = 0;
        for (; killed; calls++) {
            char folder[32];
            struct text names = {0};
            struct run_record record;
            enter(folder);
            make_folder();
            struct save_ticket ticket = begin("s", 2);
            file_system->errno_of_exchange = errors[e];
            killed = publish_and_kill(&ticket, calls);
            expect_step_2(calls);
            cr_assert_eq(store_clean("s"), OK, "%s", fail_text());
            expect_step_2(calls);
            save_one("s", 1); // removes a temporary run.json, too
            cr_expect_str_eq(list("s", &names), usual, "killed after %d calls: %s", calls, names.chars);
            cr_assert_eq(run_record_read("s", &record), OK);
            cr_expect(record.count == 0 && record.replaced[0] == 0);
            text_free(&names);
            leave(folder);
        }
        cr_expect_gt(calls, 6);
    }
}

/* The old one is removed, without a message. */
Test(checkpoint_replace, the_new_checkpoint_has_the_name)
{
    char folder[32], output[8];
    struct text names = {0};
    struct manifest manifest;
    int ends[2];
    enter(folder);
    cr_assert_eq(pipe2(ends, O_NONBLOCK), 0);
    dup2(ends[1], STDERR_FILENO);
    make_folder();
    struct save_ticket ticket = begin("s", 2);
    cr_assert_eq(store_publish("s", &ticket), OK, "%s", fail_text());
    store_prune("s", &ticket, 0, 0, -1);
    cr_expect_str_eq(list("s", &names), usual);
    cr_assert_eq(manifest_read("s/step-00000002", &manifest), OK, "%s", fail_text());
    cr_expect_str_eq(manifest.identity.save, ticket.identity.save);
    cr_expect_eq(read(ends[0], output, sizeof output), -1, "%.*s", (int)sizeof output, output);
    manifest_free(&manifest);
    text_free(&names);
    leave(folder);
}

Test(checkpoint_replace, a_failed_rename_keeps_the_old_checkpoint, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    make_folder();
    struct save_ticket ticket = begin("s", 2);
    file_system->failing_name = "s/step-00000002"; // back to it fails, too
    cr_expect_eq(store_publish("s", &ticket), IO_ERROR);
    store_abandon("s", &ticket);
    expect_step_2(-1);
    struct save_ticket other;
    cr_expect_eq(store_begin("s", 3, &other), IO_ERROR);
    cr_expect_str_eq(fail_text(),
                     "s/step-00000002.replaced-2: cannot be renamed to s/step-00000002: Input/output error");
    file_system->failing_name = NULL;
    expect_step_2(-1);
    cr_assert_eq(store_clean("s"), OK, "%s", fail_text());
    cr_expect_str_eq(list("s", &names), usual);
    expect_step_2(-1);
    text_free(&names);
    leave(folder);
}

/* The entry in place of the replaced checkpoint is no checkpoint: neither is removed. */
Test(checkpoint_replace, the_replaced_checkpoint_is_kept_until_the_new_one_is_complete, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    make_folder();
    cr_assert_eq(run_record_set_replaced("s", "step-00000002.replaced-2"), OK);
    cr_assert_eq(rename("s/step-00000002", "s/step-00000002.replaced-2"), 0);
    cr_assert_eq(mkdir("s/step-00000002", 0777), 0);
    write_in("s/step-00000002", "mine", "x", 1);
    expect_step_2(-1);
    cr_expect_eq(store_clean("s"), IO_ERROR);
    cr_expect_str_eq(fail_text(),
                     "s/step-00000002.replaced-2: cannot be renamed to s/step-00000002: Directory not empty");
    expect_step_2(-1);
    cr_expect_str_eq(list("s/step-00000002", &names), "mine");
    text_free(&names);
    leave(folder);
}
