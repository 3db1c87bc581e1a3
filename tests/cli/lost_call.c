// SPDX-License-Identifier: Apache-2.0
/* Injected faults of communication, for docs/debugging.md: the environment variable INJECT names the call
 * that is omitted.
 *
 *     sum    data rank 1 omits the second all-reduce over tp of action 0F0, in every run: wrong results
 *     send   pipeline rank 0 omits action 0SEND_F2 of step 2: a hang
 *
 * And those of tests/cli/hangs, at a call of rank INJECT_RANK in step INJECT_STEP:
 *
 *     loop   it never returns, and computes
 *     read   it never returns, and waits in a system call
 *     slow   each call of that step takes 80 ms longer
 *     doze   each call takes 3 s longer, from that step on
 *     drag   the ops of its actions take INJECT_PERCENT longer, from that step on
 *     count  the first all-reduce has one element less
 *
 * And those of tests/cli/hangs/test_early_stops.py, when the process of rank INJECT_RANK starts:
 *
 *     halt_in        it is stopped while it opens the page of its node, which no other can open meanwhile
 *     halt           it is stopped when it has opened the page, before it is monitored
 *     halt_entered   it is stopped when it is monitored
 *     halt_ended     it is stopped when its rank has ended, before the processes end together
 *
 * With INJECT_HASTE, a minute in which the processes connect is only 2 s long.
 *
 * And those of tests/cli/check_timeline.py, in every step:
 *
 *     unmarked  the end of one span is not marked
 *     early     the marks of both ends of a reduction are set before it */
#include "parallel/group.h"

#include "base/clock.h"
#include "base/text.h"
#include "trainer/engine/stage_ops.h"
#include "trainer/progress/monitor.h"
#include "trainer/progress/process.h"
#include "trainer/progress/watch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum status real_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                            enum reduction how) __asm__("__real_group_all_reduce");
enum status faulty_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                              enum reduction how) __asm__("__wrap_group_all_reduce");
enum status real_exchange(struct group *group, struct stream *stream, const struct message *messages,
                          int count) __asm__("__real_group_exchange");
enum status faulty_exchange(struct group *group, struct stream *stream, const struct message *messages,
                            int count) __asm__("__wrap_group_exchange");
enum status real_stage_ops_run(const struct stage_ops *ops,
                               struct graph **graph) __asm__("__real_stage_ops_run");
enum status faulty_stage_ops_run(const struct stage_ops *ops,
                                 struct graph **graph) __asm__("__wrap_stage_ops_run");

enum status real_marks_set(struct time_marks *marks, int index,
                           struct stream *stream) __asm__("__real_time_marks_set");
enum status faulty_marks_set(struct time_marks *marks, int index,
                             struct stream *stream) __asm__("__wrap_time_marks_set");

enum status real_page_open(const struct page_options *options, struct page **out) __asm__("__real_page_open");
enum status faulty_page_open(const struct page_options *options,
                             struct page **out) __asm__("__wrap_page_open");
uint64_t real_process_started(int process) __asm__("__real_process_started");
uint64_t faulty_process_started(int process) __asm__("__wrap_process_started");
double real_connecting_s(const struct page *page,
                         const struct watched *watched) __asm__("__real_watch_connecting_s");
double faulty_connecting_s(const struct page *page,
                           const struct watched *watched) __asm__("__wrap_watch_connecting_s");

void real_monitor_enter(struct monitor *monitor) __asm__("__real_monitor_enter");
void faulty_monitor_enter(struct monitor *monitor) __asm__("__wrap_monitor_enter");
void real_monitor_leave(struct monitor *monitor) __asm__("__real_monitor_leave");
void faulty_monitor_leave(struct monitor *monitor) __asm__("__wrap_monitor_leave");

static bool injected(const char *fault)
{
    const char *name = getenv("INJECT");
    return name != NULL && strcmp(name, fault) == 0;
}

static int64_t number_of(const char *name)
{
    const char *text = getenv(name);
    int64_t value = -1;
    return text != NULL && integer_parse(text, &value) ? value : -1;
}

/* Whether the fault is one of this rank, now. */
static bool is_mine(const char *fault)
{
    const struct rank_context *me = rank_context();
    return injected(fault) && me->rank == number_of("INJECT_RANK") && me->step >= number_of("INJECT_STEP");
}

/* Computes for that long. */
static void burn(int64_t ns)
{
    for (const int64_t end_ns = clock_thread_ns() + ns; clock_thread_ns() < end_ns;)
        ;
}

static void delay(void)
{
    enum { SLOW_NS = 80000000, DOZE_S = 3 };
    int ends[2];
    char byte;
    if (is_mine("slow") && rank_context()->step == number_of("INJECT_STEP"))
        nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
    if (is_mine("doze"))
        nanosleep(&(struct timespec){.tv_sec = DOZE_S}, NULL);
    if (is_mine("loop"))
        for (volatile int i = 0;; i = i ^ 1)
            ;
    if (is_mine("read") && pipe(ends) == 0)
        (void)!read(ends[0], &byte, 1);
}

enum status faulty_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                              enum reduction how)
{
    enum { LOST = 2 };
    static _Thread_local int sums; // of this rank, in its first 0F0
    const struct rank_context *me = rank_context();
    bool counted = injected("sum") && strcmp(group->name, "tp") == 0 && strcmp(me->action, "0F0") == 0;
    sums += counted;
    delay();
    if (is_mine("count") && group->size > 1 && data.ndim == 1 && data.dim[0] > 1)
        data.dim[0]--;
    return counted && me->dp == 1 && sums == LOST ? OK : real_all_reduce(group, stream, data, how);
}

enum status faulty_exchange(struct group *group, struct stream *stream, const struct message *messages,
                            int count)
{
    const struct rank_context *me = rank_context();
    delay();
    bool lost = injected("send") && me->step == 2 && strcmp(me->action, "0SEND_F2") == 0;
    return lost ? OK : real_exchange(group, stream, messages, count);
}

enum status faulty_stage_ops_run(const struct stage_ops *ops, struct graph **graph)
{
    const struct device *device = ops->pass->context->weights->device;
    const int64_t begin_ns = device_compute_ns(device);
    enum status status = real_stage_ops_run(ops, graph);
    if (is_mine("drag"))
        burn((device_compute_ns(device) - begin_ns) * number_of("INJECT_PERCENT") / 100);
    return status;
}

/* Whether the fault is one of this process, which is not a rank yet. */
static bool is_of_process(const char *fault)
{
    return injected(fault) && number_of("OMPI_COMM_WORLD_RANK") == number_of("INJECT_RANK");
}

enum status faulty_page_open(const struct page_options *options, struct page **out)
{
    enum status status = real_page_open(options, out);
    if (is_of_process("halt"))
        raise(SIGSTOP);
    return status;
}

void faulty_monitor_enter(struct monitor *monitor)
{
    real_monitor_enter(monitor);
    if (is_of_process("halt_entered"))
        raise(SIGSTOP);
}

void faulty_monitor_leave(struct monitor *monitor)
{
    real_monitor_leave(monitor);
    if (is_of_process("halt_ended"))
        raise(SIGSTOP);
}

/* The time at which a process started is noted in the page while it is being opened. */
uint64_t faulty_process_started(int process)
{
    if (is_of_process("halt_in"))
        raise(SIGSTOP);
    return real_process_started(process);
}

double faulty_connecting_s(const struct page *page, const struct watched *watched)
{
    return real_connecting_s(page, watched) * (getenv("INJECT_HASTE") != NULL ? 30.0 : 1.0);
}

/* The marks of spans: pairs of a begin and an end. */
enum status faulty_marks_set(struct time_marks *marks, int index, struct stream *stream)
{
    enum { LOST = 9 };
    const bool is_end = index % 2 == 1;
    if (injected("unmarked") && index == LOST)
        return OK;
    if (!injected("early") || strcmp(stream->name, "buckets") != 0)
        return real_marks_set(marks, index, stream);
    if (is_end)
        return OK;
    TRY(real_marks_set(marks, index, stream));
    return real_marks_set(marks, index + 1, stream);
}
