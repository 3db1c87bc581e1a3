// SPDX-License-Identifier: Apache-2.0
/* The page of a node, and the processes that it names, when another user of the machine got there first;
 * the report of ranks that are not in it. */
#include "trainer/progress/hang_report.h"
#include "trainer/progress/page.h"
#include "trainer/progress/process.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OTHER_USER = 65534 };

/* A page of two processes of which one has opened it, so that its file remains. */
static struct page_options options_of(char job[64])
{
    snprintf(job, 64, "page test %d", (int)getpid());
    return (struct page_options){.job = job, .node = "n", .processes = 2, .slots = 2};
}

/* The path of the page of a job that is not running. */
static void find_path(const struct page_options *options, char out[PATH_MAX])
{
    struct page *page = NULL;
    cr_assert_eq(page_open(options, &page), OK, "%s", fail_text());
    snprintf(out, PATH_MAX, "%s", page_path(page));
    page_close(page);
    cr_assert_neq(access(out, F_OK), 0);
}

static void expect_refused(const struct page_options *options, const char *path, const char *what)
{
    struct page *page = NULL;
    struct stat info;
    const double begin_s = clock_s();
    cr_expect_eq(page_open(options, &page), IO_ERROR, "%s", what);
    cr_expect_not_null(strstr(fail_text(), path), "%s: %s", what, fail_text());
    cr_expect_lt(clock_s() - begin_s, 0.4, "%s: without waiting for its lock", what);
    cr_expect_null(page);
    cr_expect_eq(lstat(path, &info), 0, "%s: is not removed", what);
}

static void make_file(const char *path, mode_t mode)
{
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert_geq(file, 0);
    cr_assert(fchmod(file, mode) == 0 && ftruncate(file, 1 << 20) == 0);
    close(file);
}

Test(page, files_that_are_not_private_are_refused)
{
    char job[64], path[PATH_MAX], other[64];
    const struct page_options options = options_of(job);
    cr_assert_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
    find_path(&options, path);
    snprintf(other, sizeof other, "/dev/shm/page-test-%d", (int)getpid());
    make_file(path, 0620);
    expect_refused(&options, path, "a file that others may write");
    cr_assert_eq(rename(path, other), 0);
    cr_assert_eq(chmod(other, 0600), 0);
    cr_assert_eq(symlink(other, path), 0);
    expect_refused(&options, path, "a symbolic link");
    cr_assert(unlink(path) == 0 && link(other, path) == 0);
    expect_refused(&options, path, "another file of this user");
    cr_assert(unlink(path) == 0 && unlink(other) == 0 && mkfifo(path, 0600) == 0);
    expect_refused(&options, path, "a pipe");
    cr_assert_eq(unlink(path), 0);
}

/* Locks both bytes of a file that it owns, as a process that opens the page for ever. */
static pid_t plant(const char *path)
{
    int ends[2];
    char byte = 1;
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (setgid(OTHER_USER) != 0 || setuid(OTHER_USER) != 0)
            _exit(1);
        const int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
        byte = file >= 0 && fchmod(file, 0666) == 0 && ftruncate(file, 1 << 20) == 0 &&
               fcntl(file, F_OFD_SETLK, &all) == 0;
        (void)!write(ends[1], &byte, 1);
        pause();
        _exit(0);
    }
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    cr_assert_eq(byte, 1);
    return child;
}

static void need_root(void)
{
    if (getuid() != 0)
        cr_skip("needs root, to be two users");
}

Test(page, one_of_another_user_is_refused)
{
    char job[64], path[PATH_MAX];
    const struct page_options options = options_of(job);
    need_root();
    cr_assert_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
    find_path(&options, path);
    const pid_t other = plant(path);
    expect_refused(&options, path, "a file of another user");
    kill(other, SIGKILL);
    cr_assert_eq(waitpid(other, NULL, 0), other);
    expect_refused(&options, path, "a file of another user, who is gone");
    cr_assert_eq(unlink(path), 0);
}

/* Processes of a job with other numbers than the page has may not use it: its parts lie elsewhere. */
Test(page, other_counts_are_refused)
{
    char job[64];
    const struct page_options options = options_of(job);
    struct page_options others = options;
    struct page *page = NULL, *second = NULL;
    cr_assert_eq(page_open(&options, &page), OK);
    others.processes = 1;
    others.slots = 3;
    cr_expect_eq(page_open(&others, &second), IO_ERROR);
    page_close(page);
}

Test(page, a_private_folder_in_memory_is_preferred)
{
    char job[64], folder[] = "/dev/shm/cuboid-page-XXXXXX";
    const struct page_options options = options_of(job);
    struct page *page = NULL;
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
    for (int shared = 0; shared < 2; shared++) {
        cr_assert_eq(chmod(folder, shared != 0 ? 0755 : 0700), 0);
        cr_assert_eq(page_open(&options, &page), OK);
        cr_expect_eq(strncmp(page_path(page), folder, strlen(folder)) == 0, shared == 0, "%s",
                     page_path(page));
        page_close(page);
    }
    cr_expect_eq(rmdir(folder), 0);
}

/* ---- signals ---- */

/* A process that waits, as this user or as another one. */
static pid_t start(bool as_other)
{
    int ends[2];
    char byte;
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        byte = !as_other || setuid(OTHER_USER) == 0;
        (void)!write(ends[1], &byte, 1);
        pause();
        _exit(0);
    }
    cr_assert(read(ends[0], &byte, 1) == 1 && byte == 1);
    close(ends[0]);
    close(ends[1]);
    return child;
}

/* Whether process_signal() has killed it; else the signal that follows does. */
static bool is_killed(pid_t child, uint64_t started)
{
    int status = 0;
    process_signal(child, started, SIGKILL);
    kill(child, SIGTERM);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status));
    return WTERMSIG(status) == SIGKILL;
}

Test(process, only_that_of_the_job_gets_a_signal)
{
    pid_t child = start(false);
    cr_expect(process_is_own(child));
    cr_expect(!is_killed(child, process_started(child) + 1), "an id that is used again");
    child = start(false);
    cr_expect(is_killed(child, process_started(child)), "the process of the job");
    cr_expect(!is_killed(start(false), 0), "a start that is unknown");
}

Test(process, one_of_another_user_gets_none)
{
    need_root();
    const pid_t child = start(true);
    cr_expect(!process_is_own(child));
    cr_expect(!is_killed(child, process_started(child)), "a process of another user");
}

Test(page, names_the_ranks_that_have_not_connected)
{
    const bool connected[] = {true, false, true, false, true};
    AUTO(text) one = {0}, two = {0};
    hang_report_missing(connected, 3, "", 60.4, &one);
    cr_assert_str_eq(text_chars(&one),
                     "1 of 3 processes has not connected after 60 s: rank 1; see whether they run, or are "
                     "stopped (state T of ps); if they only start late, set "
                     "resilience.heartbeat_timeout_seconds above 60");
    hang_report_missing(connected, 5, "to node b ", 60.4, &two);
    const char begin[] = "2 of 5 processes have not connected to node b after 60 s: ranks 1, 3; ";
    cr_assert_eq(strncmp(text_chars(&two), begin, strlen(begin)), 0, "%s", text_chars(&two));
}
