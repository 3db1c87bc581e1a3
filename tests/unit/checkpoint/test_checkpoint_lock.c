// SPDX-License-Identifier: Apache-2.0
/* Write access to a checkpoint folder: with flock() and without, after kills, and after machines stop
 * responding. Leases of other machines are written by the test. */
#include "trainer/checkpoint/store_lock.h"

#include "tests/unit/checkpoint/checkpoint_by_hand.h"
#include "trainer/checkpoint/lock_owner.h"
#include "trainer/checkpoint/run_record.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct store_lock_options kinds[] = {
    {.save = "s", .renew_ms = 20, .expires_ms = 400},
    {.save = "s", .renew_ms = 20, .expires_ms = 400, .without_flock = true},
};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void write_owner(const char *host, const char *machine, int64_t pid, int64_t started)
{
    struct lock_owner owner = {.pid = pid, .started = started, .token = "0123456789abcdef"};
    struct text text = {0};
    snprintf(owner.host, sizeof owner.host, "%s", host);
    snprintf(owner.machine, sizeof owner.machine, "%s", machine);
    snprintf(owner.job, sizeof owner.job, "%s", "SLURM_JOB_ID 55");
    lock_owner_text(&owner, &text);
    cr_assert_eq(folder_make("s"), OK);
    write_in("s", "owner.json", text.chars, text.length);
    text_free(&text);
}

static void expect_rejected(const struct store_lock_options *options, const char *words)
{
    struct store_lock *lock = NULL;
    cr_expect_eq(store_lock_acquire(options, &lock), BAD_RECIPE);
    cr_expect_not_null(strstr(fail_text(), words), "%s", fail_text());
    store_lock_release(lock);
}

static void expect_acquired(const struct store_lock_options *options)
{
    struct store_lock *lock = NULL;
    cr_expect_eq(store_lock_acquire(options, &lock), OK, "%s", fail_text());
    cr_expect_eq(store_lock_check(lock), OK, "%s", fail_text());
    store_lock_release(lock);
}

Test(checkpoint_lock, rejects_a_second_run)
{
    char folder[32], words[200], host[100] = "";
    struct text names = {0};
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "checkpoint.save: another run is writing in s: pid %d on %s", (int)getpid(),
             host);
    for (int kind = 0; kind < 2; kind++) {
        struct store_lock *lock = NULL;
        enter(folder);
        cr_assert_eq(store_lock_acquire(&kinds[kind], &lock), OK, "%s", fail_text());
        expect_rejected(&kinds[kind], words);
        expect_rejected(&kinds[1], words);
        usleep(50000); // it is renewed meanwhile
        expect_rejected(&kinds[kind], "checkpoint.save=s-2");
        cr_expect_eq(store_lock_check(lock), OK);
        store_lock_release(lock);
        expect_acquired(&kinds[kind]);
        cr_expect_str_eq(list("s", &names), "owner.lock");
        leave(folder);
    }
    text_free(&names);
}

Test(checkpoint_lock, a_killed_run_can_restart_immediately)
{
    char folder[32], byte;
    for (int kind = 0; kind < 2; kind++) {
        int pipes[2];
        enter(folder);
        cr_assert_eq(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            struct store_lock *lock = NULL;
            bool good = store_lock_acquire(&kinds[kind], &lock) == OK;
            if (write(pipes[1], good ? "+" : "-", 1) == 1)
                pause();
            _exit(1);
        }
        cr_assert(read(pipes[0], &byte, 1) == 1 && byte == '+');
        expect_rejected(&kinds[kind], "another run is writing");
        cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        int64_t before = now_ms();
        struct store_lock_options patient = kinds[kind];
        patient.expires_ms = 60000;
        expect_acquired(&patient);
        cr_expect_lt(now_ms() - before, 20000);
        close(pipes[0]);
        close(pipes[1]);
        leave(folder);
    }
}

/* Another process has the pid of the exited one. */
Test(checkpoint_lock, pids_can_be_reused)
{
    char folder[32];
    struct lock_owner self;
    cr_assert_eq(lock_owner_self(&self), OK);
    cr_assert(lock_owner_is_local(&self) && lock_owner_is_alive(&self));
    enter(folder);
    write_owner("here", self.machine, self.pid, self.started + 1);
    expect_acquired(&kinds[1]);
    write_owner("here", self.machine, self.pid, self.started);
    expect_rejected(&kinds[1], "on here, SLURM_JOB_ID 55; wait for it");
    expect_acquired(&kinds[0]); // the lock shows that the process is not running
    leave(folder);
}

Test(checkpoint_lock, the_lease_of_another_machine_expires_unless_it_is_renewed, .init = silence)
{
    char folder[32];
    for (int kind = 0; kind < 2; kind++) {
        enter(folder);
        struct store_lock_options patient = kinds[kind];
        patient.expires_ms = 60000;
        int64_t before = now_ms();
        write_owner("node7", "elsewhere", 1, 1);
        expect_acquired(&kinds[kind]); // waits for the rest of 400 ms
        cr_expect_geq(now_ms() - before, 300);

        write_owner("node7", "elsewhere", 1, 1);
        pid_t child = fork();
        if (child == 0)
            for (;;) {
                usleep(20000);
                utimensat(AT_FDCWD, "s/owner.json", NULL, 0);
            }
        expect_rejected(&patient, "pid 1 on node7, SLURM_JOB_ID 55");
        cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);

        const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
        cr_assert_eq(utimensat(AT_FDCWD, "s/owner.json", old, 0), 0);
        before = now_ms();
        expect_acquired(&patient);
        cr_expect_lt(now_ms() - before, 20000);
        leave(folder);
    }
}

/* Several processes at once, without flock, in some rounds with the lease of a killed process. */
Test(checkpoint_lock, exactly_one_of_many_acquires_it, .timeout = 60)
{
    enum { ROUNDS = 12, MANY = 6 };
    char folder[32];
    struct lock_owner self;
    cr_assert_eq(lock_owner_self(&self), OK);
    for (int round = 0; round < ROUNDS; round++) {
        int ready[2], go[2], got = 0;
        char byte;
        pid_t children[MANY];
        enter(folder);
        if (round % 2 == 0)
            write_owner("here", self.machine, self.pid, self.started + 1);
        cr_assert(folder_make("s") == OK && pipe(ready) == 0 && pipe(go) == 0);
        for (int i = 0; i < MANY; i++)
            if ((children[i] = fork()) == 0) {
                struct store_lock *lock = NULL;
                close(go[1]);
                while (read(go[0], &byte, 1) > 0)
                    ;
                bool good = store_lock_acquire(&kinds[1], &lock) == OK;
                if (write(ready[1], good ? "+" : "-", 1) == 1)
                    pause();
                _exit(1);
            }
        close(go[0]);
        close(go[1]);
        for (int i = 0; i < MANY; i++)
            got += read(ready[0], &byte, 1) == 1 && byte == '+';
        cr_expect_eq(got, 1, "round %d: %d", round, got);
        for (int i = 0; i < MANY; i++)
            cr_assert(kill(children[i], SIGKILL) == 0 && waitpid(children[i], NULL, 0) == children[i]);
        close(ready[0]);
        close(ready[1]);
        leave(folder);
    }
}

Test(checkpoint_lock, a_suspended_process_detects_a_lost_lease)
{
    char folder[32];
    enter(folder);
    struct store_lock *lock = NULL;
    cr_assert_eq(store_lock_acquire(&kinds[0], &lock), OK, "%s", fail_text());
    cr_assert_eq(unlink("s/owner.json"), 0); // by hand
    cr_expect_eq(store_lock_check(lock), OK, "%s", fail_text());
    write_in("s", "owner.json", "{", 1);
    cr_expect_eq(store_lock_check(lock), OK, "%s", fail_text());
    write_owner("node7", "elsewhere", 7, 1);
    cr_expect_eq(store_lock_check(lock), IO_ERROR);
    cr_expect_not_null(strstr(fail_text(), "s has been taken by another run, pid 7 on node7"), "%s",
                       fail_text());
    store_lock_release(lock);
    cr_expect_eq(access("s/owner.json", F_OK), 0); // not ours to remove
    leave(folder);
}

Test(checkpoint_lock, a_folder_belongs_to_one_run, .init = silence)
{
    char folder[32];
    struct run_record first, second;
    enter(folder);
    cr_assert(mkdir("a", 0777) == 0 && mkdir("b", 0777) == 0);
    struct store_lock_options a = {.save = "a/s", .run_dir = "a"}, b = {.save = "a/s", .run_dir = "b"};
    expect_acquired(&a);
    expect_acquired(&a);
    expect_rejected(&b, "checkpoint.save: a/s belongs to another run than logging.run_dir b; ");
    b.save = "b/s";
    expect_acquired(&b);
    b.save = "a/s";
    expect_rejected(&b, "remove a/s/run.json to give it to this run");
    cr_assert_eq(unlink("a/s/run.json"), 0);
    expect_acquired(&b);
    cr_assert(run_record_read("a/s", &first) == OK && run_record_read("b", &second) == OK);
    cr_expect_str_eq(first.run, second.run);
    // One folder may be both the run's folder and the checkpoint folder.
    struct store_lock_options both = {.save = "d", .run_dir = "d"};
    cr_assert_eq(mkdir("d", 0777), 0);
    int run_lock = open("d/lock", O_RDWR | O_CREAT, 0666); // as the run has it
    cr_assert(run_lock >= 0 && flock(run_lock, LOCK_EX | LOCK_NB) == 0);
    expect_acquired(&both);
    expect_acquired(&both);
    close(run_lock);
    // Moved and copied together they stay together.
    cr_assert_eq(rename("b", "c"), 0);
    struct store_lock_options c = {.save = "c/s", .run_dir = "c"};
    expect_acquired(&c);
    leave(folder);
}

/* Files left by a killed run are removed when the next one takes the folder. */
Test(checkpoint_lock, unfinished_saves_are_removed)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    begin("s", 3);
    expect_acquired(&kinds[0]);
    cr_expect_str_eq(list("s", &names), "owner.lock run.json");
    text_free(&names);
    leave(folder);
}
