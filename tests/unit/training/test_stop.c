// SPDX-License-Identifier: Apache-2.0
/* A signal that arrives right before training, when the signal thread has not read it yet: a child process
 * signals itself and starts training at once, on one CPU, where the thread waits for its turn. */
#include "trainer/engine/stop.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void child(int number, const char *checkpoint)
{
    struct stop *stop = NULL;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sched_getcpu(), &cpus);
    (void)sched_setaffinity(0, sizeof cpus, &cpus);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    const struct recipe_names exits = {.list = (char *[]){(char[]){"SIGTERM"}}, .count = 1};
    const struct recipe_names saves = {.list = (char *[]){(char[]){"SIGUSR1"}}, .count = 1};
    MUST(stop_create(&exits, &saves, true, &stop));
    if (checkpoint != NULL)
        stop_set_checkpoint(stop, checkpoint);
    kill(getpid(), number);
    stop_training(stop);
    _exit(stop_requested(stop) ? 100 : 101 + stop_saves(stop));
}

/* The exit status of such a process. */
static int status_of(int number, const char *checkpoint)
{
    int status = 0;
    const pid_t process = fork();
    if (process == 0)
        child(number, checkpoint);
    cr_assert_eq(waitpid(process, &status, 0), process);
    cr_assert(WIFEXITED(status), "%x", (unsigned)status);
    return WEXITSTATUS(status);
}

Test(stop, a_signal_before_training_is_never_one_during_training)
{
    cr_expect_eq(status_of(SIGTERM, NULL), 1);
    cr_expect_eq(status_of(SIGTERM, "step 7 is saved in runs/a"), 75);
    cr_expect_eq(status_of(SIGUSR1, NULL), 102, "a save is requested once");
}
