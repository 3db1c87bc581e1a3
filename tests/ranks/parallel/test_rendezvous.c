// SPDX-License-Identifier: Apache-2.0
/* No schedule deadlocks when every transfer between stages blocks until both ends have reached it, and sends
 * complete only when received: each family on all ranks of the world, with 1 to 3p microbatches and every v
 * up to 3 that it supports. One step of each; its loss and gradient norm are bit-identical to GPipe's. (A
 * deadlock ends in the test's timeout, with the name of the schedule as the last line.) A list with crossed
 * sends, the injected fault, must hang.
 *
 *     test_rendezvous local 4                      4 threads
 *     mpirun -n 8 test_rendezvous mpi 8 15         8 processes, 1 and 16 microbatches */
#include "planner/plan/memory_plan.h"
#include "schedules/schedule.h"
#include "tests/support/tiny.h"
#include "trainer/engine/rank.h"
#include "trainer/engine/step.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_V = 3 };

/* Debug builds check a schedule where it is used: the executor rejects the injected fault. */
#ifdef CHECK_USES
enum { REJECTS_FAULT = true };
#else
enum { REJECTS_FAULT = false };
#endif

struct test {
    struct tiny tiny;
    int p, every;
    bool crossed, blocking; // of the injected fault
    atomic_int runs, failures;
};

static enum status load(const struct test *test, const struct schedule_options *options, struct recipe **out)
{
    char common[500], layout[200];
    snprintf(common, sizeof common,
             "model.num_layers=%d model.hidden_size=8 model.num_attention_heads=2 model.ffn_hidden_size=8 "
             "model.seq_length=3 train.micro_batch_size=1 train.global_batch_size=%d",
             options->p * MAX_V, options->m);
    snprintf(layout, sizeof layout, "pp=%d pipeline.schedule=%s pipeline.virtual_stages=%d%s", options->p,
             options->name, options->v, options->m % 3 == 2 ? " cluster.device=strict" : "");
    return tiny_recipe(&test->tiny, options->m % 2 == 0 ? TINY_GPT : TINY_LLAMA, common, layout, 0, out);
}

/* Two neighbors that both send before they receive: swaps the first RECV_F directly before a SEND_B with
 * it. */
static void cross_sends(struct action_list *list)
{
    for (int i = 0; i + 1 < list->count; i++) {
        struct action *pair = &list->actions[i], first = pair[0];
        if (pair[0].kind != RECV_ACTIVATION || pair[1].kind != SEND_GRADIENT)
            continue;
        pair[0] = pair[1];
        pair[1] = first;
        return;
    }
}

static enum status one_step(struct test *test, const struct schedule_options *options, struct world *world,
                            struct step_result *out)
{
    struct recipe *recipe = NULL;
    struct run run = {0};
    struct rank_state state = {0};
    TRY(load(test, options, &recipe));
    enum status status = run_create(recipe, true, &run);
    if (status == OK && test->crossed)
        cross_sends(&run.schedule->ranks[1]);
    if (status == OK)
        status = memory_plan_create_rank(&run, world, &state);
    if (status == OK)
        status = rank_step(&state, out);
    if (status == OK)
        rank_destroy(&state);
    run_destroy(&run);
    recipe_destroy(recipe);
    return status;
}

static bool same(const struct step_result *a, const struct step_result *b)
{
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 &&
           memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm) == 0;
}

static enum status body(struct world *world, void *argument)
{
    struct test *test = argument;
    world->synchronous = true;
    for (int m = 1; m <= 3 * test->p; m += test->every) {
        struct step_result gpipe = {0};
        for (int i = 0; schedule_about(i) != NULL; i++)
            for (int v = 1; v <= MAX_V; v++) {
                struct schedule_options options = {
                    .name = schedule_about(i)->name, .p = test->p, .m = m, .v = v};
                struct step_result result;
                if (schedule_unsupported(&options) != NULL)
                    continue;
                if (world->rank == 0) {
                    printf("%s p %d m %d v %d\n", options.name, options.p, options.m, options.v);
                    fflush(stdout);
                }
                TRY(one_step(test, &options, world, &result));
                if (i == 0)
                    gpipe = result;
                // DualPipe adds gradients in another order.
                bool good =
                    strcmp(options.name, "dualpipe") == 0 ? result.loss == gpipe.loss : same(&result, &gpipe);
                atomic_fetch_add(&test->runs, 1);
                atomic_fetch_add(&test->failures, good ? 0 : 1);
                if (!good)
                    printf("FAILED  loss %.17g and %.17g, gradient norm %.17g and %.17g\n", result.loss,
                           gpipe.loss, result.grad_norm, gpipe.grad_norm);
            }
    }
    return OK;
}

/* ---- a list that is valid only with buffered sends ---- */

static enum status crossed_body(struct world *world, void *argument)
{
    struct test *test = argument;
    struct schedule_options options = {.name = "1f1b", .p = 2, .m = 3, .v = 1};
    struct step_result result;
    world->synchronous = test->blocking;
    return one_step(test, &options, world, &result);
}

/* Whether every thread sleeps until an event. A thread that another program keeps off the processor does
 * not: the system reports it runnable. */
static bool all_threads_sleep(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *tasks = opendir(path);
    bool sleep = tasks != NULL;
    for (struct dirent *task; sleep && (task = readdir(tasks)) != NULL;) {
        struct text stat = {0};
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%.20s/stat", (long)pid, task->d_name);
        sleep = file_read(path, &stat) == OK && strstr(text_chars(&stat), ") S ") != NULL;
        text_free(&stat);
    }
    if (tasks != NULL)
        closedir(tasks);
    return sleep;
}

/* Kills the child once its threads have slept for a fifth of a second. True: it had to be killed.
 * (ThreadSanitizer has a thread of its own that wakes now and then, for less than a millisecond.) */
static bool hangs(pid_t pid)
{
    enum { LOOKS = 20 };
    clockid_t clock;
    struct timespec used, before = {0};
    CHECK(clock_getcpuclockid(pid, &clock) == 0);
    for (int still = 0, status; still < LOOKS;) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        if (waitpid(pid, &status, WNOHANG) == pid)
            return false;
        CHECK(clock_gettime(clock, &used) == 0);
        int64_t used_ns = (used.tv_sec - before.tv_sec) * (int64_t)1000000000 + used.tv_nsec - before.tv_nsec;
        still = used_ns < 1000000 && all_threads_sleep(pid) ? still + 1 : 0;
        before = used;
    }
    kill(pid, SIGKILL);
    return waitpid(pid, NULL, 0) == pid;
}

/* It must complete where transfers do not block, and hang where they do. */
static int check_injected(const struct tiny *tiny)
{
    struct test test = {.tiny = *tiny, .p = 2, .crossed = true, .blocking = true};
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(world_run("local", 2, crossed_body, &test) == OK ? 0 : 1);
    bool hung = hangs(child);
    test.blocking = false;
    bool ran = world_run("local", 2, crossed_body, &test) == OK;
    if (!hung || !ran)
        printf("FAILED  crossed sends %s where transfers block, and %s where they do not\n",
               hung ? "hang" : "do not hang", ran ? "run" : fail_text());
    return !hung || !ran;
}

int main(int argc, char **argv)
{
    int64_t p = 0, every = 1;
    if (argc < 3 || !integer_parse(argv[2], &p) || (argc > 3 && !integer_parse(argv[3], &every)) || p < 2 ||
        p > 64 || every < 1 || every > 64) {
        fprintf(stderr, "usage: %s TRANSPORT RANKS [EVERY]\n", argv[0]);
        return 2;
    }
    struct test test = {.p = (int)p, .every = (int)every};
    MUST(tiny_create(&test.tiny));
    // (A launcher's process must not fork.)
    test.failures = strcmp(argv[1], "local") == 0 && !REJECTS_FAULT ? check_injected(&test.tiny) : 0;
    enum status status = world_run(argv[1], test.p, body, &test);
    tiny_destroy(&test.tiny);
    printf("%d runs, %d failures%s%s\n", (int)test.runs, (int)test.failures, status == OK ? "" : ": ",
           status == OK ? "" : fail_text());
    return status != OK || test.failures != 0 || test.runs == 0;
}
