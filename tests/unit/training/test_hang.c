// SPDX-License-Identifier: Apache-2.0
/* Who waits for whom, from snapshots written by hand; and a snapshot that is written and read back. */
#include "base/clock.h"
#include "parallel/comm.h"
#include "tests/unit/schedules/schedule_tools.h"
#include "trainer/progress/control/control_view.h"
#include "trainer/progress/control/control_wire.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/hang_report.h"
#include "trainer/progress/page.h"
#include "trainer/progress/straggler.h"
#include "trainer/progress/watch.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two pipeline ranks, two tensor ranks: rank = 2 pp + tp. */
enum { RANKS = 4, TP = 0, EDGE = 1 };
static const double limit_s = 40.0;

static void open_snapshot(struct hang *hang)
{
    hang_create(RANKS, hang);
    hang->limit_s = limit_s;
    for (int r = 0; r < RANKS; r++) {
        struct hang_rank *rank = &hang->ranks[r];
        struct progress_head *head = &rank->progress.head;
        *head = (struct progress_head){
            .who = {.rank = r, .pp = r / 2, .tp = r % 2, .step = 12}, .state = PROGRESS_ACTIVE, .groups = 2};
        snprintf(rank->node, sizeof rank->node, "b");
        rank->process = PROCESS_SLEEPS;
        rank->stalled_s = 40.5;
        rank->progress.group[TP] = (struct progress_group){
            .name = "tp", .id = 100 + r / 2, .first = r - r % 2, .stride = 1, .size = 2};
        rank->progress.group[EDGE] = (struct progress_group){
            .name = "pp 1>0 gradient", .id = 200 + r % 2, .first = 2 + r % 2, .stride = -2, .size = 2};
    }
}

static void does(struct hang *hang, int rank, const char *action)
{
    struct rank_context *who = &hang->ranks[rank].progress.head.who;
    snprintf(who->action, sizeof who->action, "%s", action);
}

/* Records the next call on a group. */
static struct progress_message *call(struct hang *hang, int rank, int group, enum call kind, int64_t count)
{
    struct rank_progress *progress = &hang->ranks[rank].progress;
    struct progress_message *m = &progress->message[progress->head.messages++];
    *m = (struct progress_message){.number = ++progress->group[group].calls,
                                   .bytes = count * 4,
                                   .queued_ns = 1,
                                   .done_ns = 2,
                                   .group = group,
                                   .peer = -1,
                                   .call = (uint8_t)kind,
                                   .dtype = F32};
    if (group == EDGE)
        m->peer = kind == CALL_SEND ? rank - 2 : rank + 2;
    return m;
}

/* The last call of the rank has not completed. */
static void waits(struct hang *hang, int rank)
{
    struct rank_progress *progress = &hang->ranks[rank].progress;
    struct progress_message *m = &progress->message[progress->head.messages - 1];
    m->done_ns = 0;
    progress->head.awaited = progress->head.messages;
    snprintf(progress->head.who.waiting_for, sizeof progress->head.who.waiting_for, "%s %s",
             m->group == EDGE ? "exchange" : call_name((enum call)m->call), progress->group[m->group].name);
}

static void expect(const struct hang *hang, enum hang_kind kind, int culprit, const char *report)
{
    struct hang_finding finding = {0};
    struct text text = {0};
    cr_assert_eq(hang_find(hang, &finding), OK);
    hang_report(hang, &finding, &text);
    cr_assert_eq(finding.kind, kind, "kind %d, not %d: %s", (int)finding.kind, (int)kind, text_chars(&text));
    cr_assert_eq(finding.culprit, culprit, "culprit %d: %s", finding.culprit, text_chars(&text));
    cr_assert_str_eq(text_chars(&text), report);
    hang_finding_free(&finding);
    text_free(&text);
}

/* Rank 3 does not take part in the all-reduce of its tensor group, so rank 2 does not send to rank 0. */
static void stall(struct hang *hang)
{
    open_snapshot(hang);
    does(hang, 3, "1W2");
    hang->ranks[3].process = PROCESS_IS_STOPPED;
    hang->ranks[3].stalled_s = 41.0;
    call(hang, 2, TP, CALL_ALL_REDUCE, 16);
    waits(hang, 2);
    does(hang, 2, "1I3");
    call(hang, 0, EDGE, CALL_RECEIVE, 8);
    waits(hang, 0);
    does(hang, 0, "0I3");
    snprintf(hang->ranks[0].needs, sizeof hang->ranks[0].needs, "1I3");
    call(hang, 1, TP, CALL_ALL_REDUCE, 16);
    waits(hang, 1);
}

static const char stalled[] =
    "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: its process is stopped "
    "(T); rank 2 waits "
    "for it in all_reduce tp; rank 0 waits for rank 2; rank 1 waits for rank 0";

Test(hang, names_the_culprit_and_those_who_wait)
{
    struct hang hang;
    stall(&hang);
    expect(&hang, HANG_CULPRIT, 3, stalled);
    hang.ranks[3].process = PROCESS_RUNS;
    hang.ranks[2].stalled_s = 39.0; // waits for less than the timeout
    expect(&hang, HANG_CULPRIT, 3,
           "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: its thread is running "
           "(R); rank 2 "
           "waits for it in all_reduce tp; rank 0 waits for rank 2; rank 1 waits for rank 0; if 1W2 is only "
           "slow, set resilience.heartbeat_timeout_seconds above 40");
    hang_free(&hang);
}

/* All hosts wait for the all-reduce at the end of a step, and GPU 3 has not come to it. */
Test(hang, names_the_action_of_a_gpu)
{
    static const char report[] =
        "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 40.5 s: its thread sleeps in a system "
        "call (S), and its GPU executes 1W2 after 1I2; rank 2 waits for it in "
        "all_reduce tp; if 1W2 is only slow, set resilience.heartbeat_timeout_seconds above 40";
    struct hang hang;
    open_snapshot(&hang);
    for (int r = 0; r < RANKS; r++) {
        does(&hang, r, "optimizer");
        call(&hang, r, TP, CALL_ALL_REDUCE, 16);
        hang.ranks[r].progress.message[0].step = 12;
        snprintf(hang.ranks[r].progress.message[0].action, 18, "optimizer");
        if (r >= 2)
            waits(&hang, r);
        else
            hang.ranks[r].stalled_s = 1.0;
    }
    struct progress_gpu *gpu = &hang.ranks[3].progress.head.gpu;
    snprintf(gpu->current, sizeof gpu->current, "1W2");
    snprintf(gpu->completed, sizeof gpu->completed, "1I2");
    expect(&hang, HANG_CULPRIT, 3, report);
    // A message of that action is in flight: the GPU may wait for it.
    snprintf(hang.ranks[3].progress.message[0].action, 18, "1W2");
    struct hang_finding finding = {0};
    cr_assert_eq(hang_find(&hang, &finding), OK);
    cr_assert_eq(finding.waits_for[3], -1);
    cr_assert_eq(finding.culprit, 2, "both wait: the first is named");
    hang_finding_free(&finding);
    hang_free(&hang);
}

/* A stopped rank of the first stage: its neighbour names the action that it waits for. */
Test(hang, names_the_action_that_is_missing)
{
    struct hang hang;
    stall(&hang);
    hang.ranks[3].process = PROCESS_SLEEPS;
    hang.ranks[3].stalled_s = 0.0;
    hang.ranks[2].process = PROCESS_IS_STOPPED;
    expect(&hang, HANG_CULPRIT, 2,
           "step 12: rank 2 (pp 1 dp 0 tp 0, node b) stalled in 1I3 for 40.5 s: its process is stopped "
           "(T); rank 0 "
           "waits for its 1I3; rank 1 waits for rank 0");
    hang_free(&hang);
}

/* 0RECV_B2 needs the input gradients of stage 1; set by hand before: "1I3". */
Test(hang, finds_the_action_that_a_receive_needs)
{
    struct hang hang;
    struct schedule *s = build("zb-h1", 2, 4, 1);
    stall(&hang);
    hang.ranks[0].progress.message[0].scheduled = (struct scheduled_action){true, RECV_GRADIENT, 0, 2};
    hang_set_needs(&hang, s);
    cr_assert_str_eq(hang.ranks[0].needs, "1I2");
    schedule_destroy(s);
    hang_free(&hang);
}

Test(hang, a_slow_rank_is_none)
{
    struct hang hang;
    stall(&hang);
    hang.ranks[3].process = PROCESS_RUNS;
    hang.ranks[3].stalled_s = 1.0;
    expect(&hang, HANG_NONE, -1, "");
    hang.ranks[3].process = PROCESS_IS_STOPPED; // not for long
    expect(&hang, HANG_NONE, -1, "");
    hang_free(&hang);
}

Test(hang, a_process_that_is_gone_needs_no_timeout)
{
    struct hang hang;
    stall(&hang);
    hang.limit_s = 0.0;
    hang.ranks[3].stalled_s = 0.1;
    hang.ranks[3].process = PROCESS_IS_GONE;
    expect(&hang, HANG_CULPRIT, 3,
           "step 12: rank 3 (pp 1 dp 0 tp 1, node b) was in 1W2: its process is gone; rank 2 waits for it in "
           "all_reduce tp; rank 0 waits for rank 2; rank 1 waits for rank 0");
    hang_free(&hang);
}

/* A node that does not answer: nothing is known of its messages. */
Test(hang, names_a_silent_node)
{
    struct hang hang;
    stall(&hang);
    for (int r = 2; r < RANKS; r++) {
        hang.ranks[r].process = PROCESS_NODE_SILENT;
        hang.ranks[r].progress.head.groups = 0;
        hang.ranks[r].progress.head.messages = 0;
    }
    expect(
        &hang, HANG_CULPRIT, 3,
        "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: its node is silent, like that "
        "of rank 2; rank 0 waits for rank 2; rank 1 waits for rank 0");
    hang_free(&hang);
}

Test(hang, names_calls_that_differ)
{
    struct hang hang;
    stall(&hang);
    hang.ranks[3].process = PROCESS_SLEEPS;
    call(&hang, 3, TP, CALL_ALL_GATHER, 16);
    waits(&hang, 3);
    expect(&hang, HANG_MISMATCH, 3,
           "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: rank 3 called "
           "all_gather f32[16] as "
           "its 1st on tp, rank 2 all_reduce f32[16]; rank 2 waits for it in all_reduce tp; rank 0 "
           "waits for rank 2; "
           "rank 1 waits for rank 0");
    for (int r = 2; r < RANKS; r++) { // broadcasts from different ranks
        struct progress_message *m = &hang.ranks[r].progress.message[0];
        m->call = CALL_BROADCAST;
        m->peer = r;
    }
    expect(&hang, HANG_MISMATCH, 3,
           "step 12: rank 3 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: rank 3 called "
           "broadcast f32[16] from rank 3 as its 1st on tp, rank 2 broadcast f32[16] from rank 2; rank 2 "
           "waits for it in all_reduce tp; rank 0 waits for rank 2; rank 1 waits for rank 0");
    hang_free(&hang);
}

/* Each end of an edge waits for the other. */
Test(hang, names_a_deadlock)
{
    struct hang hang;
    open_snapshot(&hang);
    does(&hang, 0, "0B7");
    call(&hang, 0, EDGE, CALL_RECEIVE, 8);
    waits(&hang, 0);
    does(&hang, 2, "1F7");
    hang.ranks[2].progress.group[EDGE] =
        (struct progress_group){.name = "pp 0>1", .id = 300, .first = 0, .stride = 2, .size = 2};
    call(&hang, 2, EDGE, CALL_RECEIVE, 8)->peer = 0;
    waits(&hang, 2);
    hang.ranks[1].progress.head.state = hang.ranks[3].progress.head.state = PROGRESS_NONE;
    expect(&hang, HANG_DEADLOCK, 0,
           "step 12: rank 0 (pp 0 dp 0 tp 0, node b) stalled in 0B7 for 40.5 s: a deadlock; rank 0 in "
           "0B7 waits for "
           "exchange pp 1>0 gradient (its call 1 there); rank 2 in 1F7 waits for exchange pp 0>1 (its "
           "call 1 there); "
           "rank 2 waits for it in exchange pp 0>1");
    hang_free(&hang);
}

Test(hang, is_written_and_read_back)
{
    char path[] = "/tmp/test_hang-XXXXXX";
    int file = mkstemp(path);
    struct hang hang, copy;
    struct text written = {0}, report = {0};
    cr_assert_geq(file, 0);
    close(file);
    stall(&hang);
    for (int i = 0; i < 2 * PROGRESS_MESSAGES; i++) { // older ones are overwritten
        struct rank_progress *progress = &hang.ranks[3].progress;
        progress->message[progress->head.messages++ % PROGRESS_MESSAGES] = (struct progress_message){
            .number = 7 + i, .group = EDGE, .peer = 1, .call = CALL_SEND, .dtype = BF16};
    }
    hang_dump_text(&hang, "a report", &written);
    cr_assert_eq(file_write_atomic(path, written.chars, written.length), OK);
    cr_assert_eq(hang_dump_read(path, &copy, &report), OK, "%s", fail_text());
    cr_assert_str_eq(text_chars(&report), "a report");
    cr_assert_eq(copy.count, RANKS);
    expect(&copy, HANG_CULPRIT, 3, stalled);
    cr_assert_null(hang_message(&copy.ranks[3], PROGRESS_MESSAGES));
    const struct progress_message *m = hang_message(&copy.ranks[3], PROGRESS_MESSAGES + 1);
    cr_assert_eq(m->number, 7 + PROGRESS_MESSAGES);
    cr_assert_eq(m->dtype, BF16);
    cr_assert_eq(file_write_atomic(path, "{\"format\": 2}", 13), OK);
    cr_assert_eq(hang_dump_read(path, &copy, &report), BAD_DATA);
    cr_assert_eq(file_write_atomic(path, "model: {}\n", 10), OK);
    cr_assert_eq(hang_dump_read(path, &copy, &report), BAD_DATA);
    cr_assert_not_null(strstr(fail_text(), " (is this a hang-STEP.json?)"), "%s", fail_text());
    cr_assert_eq(file_write_atomic(path, "{\"format\": 1, \"ranks\": [{}, 1]}", 31), OK);
    cr_assert_eq(hang_dump_read(path, &copy, &report), BAD_DATA);
    cr_assert_not_null(strstr(fail_text(), ": rank 1 is no object: damaged"), "%s", fail_text());
    unlink(path);
    text_free(&written);
    text_free(&report);
    hang_free(&hang);
    hang_free(&copy);
}

/* A thread that is two ranks: rank 0 waits for an all-reduce in which rank 1 does not take part. */
struct two_ranks {
    struct page *page;
    struct progress_writer writers[2];
    sem_t ready, end, ended, leave;
};

static void *run_two_ranks(void *argument)
{
    struct two_ranks *two = argument;
    const struct progress_group tp = {.name = "tp", .id = 5, .stride = 1, .size = 2};
    for (int rank = 0; rank < 2; rank++) {
        *rank_context() = (struct rank_context){.rank = rank, .action = "1F3"};
        progress_begin(&two->writers[rank], page_claim_slot(two->page));
        if (rank == 0) {
            progress_queue((struct progress_message){.group = progress_group(&tp), .peer = -1}, 1);
            rank_context_set_wait_for("all_reduce tp", progress_take());
        }
    }
    sem_post(&two->ready);
    sem_wait(&two->end);
    progress_end(); // rank 1
    sem_post(&two->ended);
    sem_wait(&two->leave);
    return NULL;
}

/* A thread that waits for a processor would not count as stalled. */
static void expect_asleep(const struct hang_rank *rank)
{
    enum { TRIES = 10000 };
    const struct progress_head *head = &rank->progress.head;
    for (int i = 0; i < TRIES && process_read_state(head->process, head->thread) != PROCESS_SLEEPS; i++)
        poll(NULL, 0, 1);
}

static void snapshot(const struct two_ranks *two, const struct watched *watched, enum hang_kind kind)
{
    struct hang hang;
    struct hang_finding finding = {0};
    hang_create(2, &hang);
    hang.limit_s = limit_s;
    bool ended;
    watch_snapshot(two->page, watched, "b", &ended, hang.ranks);
    expect_asleep(&hang.ranks[0]);
    cr_assert_eq(watch_snapshot(two->page, watched, "b", &ended, hang.ranks), 2);
    cr_assert_eq(hang_find(&hang, &finding), OK);
    cr_assert_eq(finding.kind, kind, "kind %d after %.1f s", (int)finding.kind, hang.ranks[0].stalled_s);
    hang_finding_free(&finding);
    hang_free(&hang);
}

/* Rank 1 ends between a poll of the monitor and the snapshot for the report: rank 0 waits for a rank that has
 * ended, but not for longer than the timeout. */
Test(watch, a_rank_that_ends_after_a_poll_restarts_the_time_of_the_others)
{
    struct two_ranks *two = calloc(1, sizeof *two);
    const struct page_options options = {.node = "b", .processes = 1, .slots = 2};
    const int64_t passed_ns = (int64_t)(2e9 * limit_s);
    struct watched watched[2] = {{.seen = 0}};
    pthread_t thread;
    cr_assert_not_null(two);
    cr_assert_eq(page_open(&options, &two->page), OK);
    sem_init(&two->ready, 0, 0);
    sem_init(&two->end, 0, 0);
    sem_init(&two->ended, 0, 0);
    sem_init(&two->leave, 0, 0);
    cr_assert_eq(pthread_create(&thread, NULL, run_two_ranks, two), 0);
    sem_wait(&two->ready);
    watch_poll(two->page, passed_ns, watched);
    watch_poll(two->page, passed_ns, watched);
    snapshot(two, watched, HANG_CULPRIT);
    sem_post(&two->end);
    sem_wait(&two->ended);
    snapshot(two, watched, HANG_NONE);
    watch_poll(two->page, passed_ns, watched);
    snapshot(two, watched, HANG_NONE);
    watch_poll(two->page, passed_ns, watched);
    snapshot(two, watched, HANG_CULPRIT); // it still waits
    sem_post(&two->leave);
    pthread_join(thread, NULL);
    page_close(two->page);
    free(two);
}

/* A rank of another process, which announces its end, and exits before it publishes that its rank has
 * ended. */
static void leave(struct page *page, struct progress_writer *writer)
{
    const int process = fork();
    cr_assert_geq(process, 0);
    if (process == 0) {
        atomic_store(&page_process(page, 1)->id, (int)getpid());
        *rank_context() = (struct rank_context){.rank = 1, .action = "connect"};
        progress_begin(writer, page_slot(page, 1));
        atomic_store(&page_process(page, 1)->leaving, 1);
        _exit(1);
    }
    cr_assert_eq(waitpid(process, NULL, 0), process);
}

Test(watch, a_process_that_announces_its_end_is_not_lost)
{
    struct progress_writer *writer = calloc(1, sizeof *writer);
    const struct page_options options = {.node = "b", .processes = 2, .slots = 2};
    struct watched watched[2] = {{.seen = 0}};
    struct hang hang;
    struct hang_finding finding;
    struct page *page;
    bool ended;
    cr_assert_not_null(writer);
    cr_assert_eq(page_open(&options, &page), OK);
    leave(page, writer);
    watch_poll(page, 1, watched);
    cr_assert(!watched_is_active(&watched[1]));
    hang_create(2, &hang);
    hang.limit_s = limit_s;
    hang.count = watch_snapshot(page, watched, "b", &ended, hang.ranks);
    cr_assert_eq(hang.count, 1);
    cr_assert_eq(hang.ranks[0].process, PROCESS_IS_GONE);
    cr_assert_eq(hang_find(&hang, &finding), OK);
    cr_assert_eq(finding.kind, HANG_NONE);
    hang_finding_free(&finding);
    hang_free(&hang);
    page_close(page);
    free(writer);
}

Test(process, is_parsed)
{
    uint64_t started = 0;
    const char *stat = "17 (a) b) T 1 17 17 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
    cr_assert_eq(process_parse(stat, &started), PROCESS_IS_STOPPED);
    cr_assert_eq(started, 98765);
    cr_assert_eq(process_parse("nothing", &started), PROCESS_UNKNOWN);
    cr_assert_eq(process_read_state((int)getpid(), 0), PROCESS_RUNS);
    cr_assert_geq(process_ran_ns((int)getpid(), (int)getpid()), 0);
    cr_assert_eq(process_ran_ns(-1, -1), -1);
    cr_assert(!process_is_gone((int)getpid(), process_started((int)getpid())));
    cr_assert(process_is_gone((int)getpid(), 1));
}

/* Steps until a rank is named, and how often; noise: of a single step. */
static int steps_until_named(double slower, double noise, int steps, int *times)
{
    struct straggler ranks[6] = {0};
    int first = -1;
    *times = 0;
    unsigned state = 7; // of rand_r()
    for (int step = 1; step <= steps; step++) {
        for (int r = 0; r < 6; r++) {
            ranks[r].rank = r;
            ranks[r].pp = r / 3; // the second stage has twice the work
            double time_ns = 1e7 * (1 + r / 3) * (1.0 + noise * ((double)rand_r(&state) / RAND_MAX - 0.5));
            ranks[r].compute_ns = (int64_t)(r == 4 ? slower * time_ns : time_ns);
        }
        int found = straggler_step(ranks, 6);
        cr_assert(found == -1 || found == 4);
        first = found >= 0 && first < 0 ? step : first;
        *times += found >= 0;
    }
    return first;
}

Test(straggler, is_named_once_and_nobody_else)
{
    int times;
    cr_assert_eq(steps_until_named(1.2, 0.0, 100, &times), STRAGGLER_STEPS);
    cr_assert_eq(times, 1);
    cr_assert_leq(steps_until_named(1.2, 0.05, 100, &times), STRAGGLER_STEPS + 5);
    cr_assert_eq(steps_until_named(1.1, 0.0, 100, &times), STRAGGLER_STEPS);
    cr_assert_eq(steps_until_named(1.0, 0.3, 5000, &times), -1);
    cr_assert_eq(steps_until_named(1.08, 0.0, 5000, &times), -1);
}

/* Ranks 0 and 1 share a core that is slow; rank 3 is slow itself, on the other core. */
Test(straggler, a_slow_core_is_not_a_slow_rank)
{
    struct straggler ranks[4] = {0};
    int named[4] = {0};
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 4; r++) {
            ranks[r].core = r / 2;
            ranks[r].compute_ns = r < 2 || (r == 3 && step >= 50) ? 13000000 : 10000000;
        }
        const int found = straggler_step(ranks, 4);
        if (found >= 0)
            named[found] = step + 1;
    }
    cr_assert_eq(named[0] + named[1] + named[2], 0);
    cr_assert_eq(named[3], 0); // half of the ranks are as slow
    for (int r = 0; r < 2; r++)
        ranks[r] = (struct straggler){.core = 1};
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 4; r++)
            ranks[r].compute_ns = r == 3 ? 13000000 : 10000000;
        const int found = straggler_step(ranks, 4);
        cr_assert(found == -1 || found == 3);
        named[3] += found == 3;
    }
    cr_assert_eq(named[3], 1);
}

/* Two nodes in one process: each call of one end is followed by one of the other. A greeting needs an answer
 * while it waits, so here the hello is sent by hand. */
Test(control, needs_the_secret)
{
    struct control *first = NULL;
    struct control_address address = {.node = "a", .host = "127.0.0.1", .secret = {1, 2, 3}};
    struct {
        char name[HANG_NODE_CHARS];
        uint8_t secret[CONTROL_SECRET / 2];
        uint64_t bytes_of_rank, bytes_of_all;
    } hello = {.name = "b",
               .secret = {1, 2, 4},
               .bytes_of_rank = sizeof(struct control_rank),
               .bytes_of_all = sizeof(struct hang_rank)};
    struct control_rank rank = {.head = {.who = {.rank = 5}, .state = PROGRESS_ACTIVE}, .stalled_ns = 7};
    struct wire_message message;
    cr_assert_eq(control_open(false, &first), OK);
    address.ports[0] = control_port(first);
    control_start(first, &address, "a");
    for (int right = 0; right < 2; right++) {
        hello.secret[2] = right != 0 ? 3 : 4;
        int file = wire_connect(address.host, address.ports[0]);
        cr_assert_geq(file, 0);
        cr_assert(wire_send(file, WIRE_HELLO, &hello, sizeof hello));
        control_serve(first, NULL, 0, 1);
        cr_assert_eq(control_nodes(first), right);
        cr_assert_eq(wire_receive(file, CONTROL_SECRET / 2, &message), right != 0);
        wire_free(&message);
        if (right != 0) {
            cr_assert(wire_send(file, WIRE_RANKS, &rank, sizeof rank));
            control_serve(first, NULL, 0, 1);
            cr_assert_eq(control_ranks(first), 1);
            cr_assert_eq(control_node(first, 0)->ranks[0].head.who.rank, 5);
            control_serve(first, NULL, 0, 100); // nothing is heard
            cr_assert_eq(control_summarize(first).max_stalled_ns, 107);
        }
        close(file);
    }
    control_close(first);
}

/* The costs of a message and an action in processor time, for docs/hangs.md; the limits are far above. */
Test(progress, is_cheap_and_readable)
{
    enum { CALLS = 20000 };
    static const double most_s = 20e-6;
    const struct page_options options = {.node = "", .processes = 1, .slots = 1};
    struct page *page = NULL;
    struct progress_writer *writer = calloc(1, sizeof *writer);
    struct progress_head head;
    cr_assert_eq(page_open(&options, &page), OK);
    progress_begin(writer, page_claim_slot(page));
    const struct progress_group tp = {.name = "tp", .id = 5, .size = 2};
    int64_t begin_ns = clock_thread_ns();
    for (int i = 1; i <= CALLS; i++) {
        progress_queue((struct progress_message){.group = progress_group(&tp), .bytes = 64}, i);
        struct progress_range range = progress_take();
        progress_started(range);
        progress_done(range);
    }
    int64_t messages_ns = clock_thread_ns() - begin_ns;
    begin_ns = clock_thread_ns();
    for (int i = 0; i < CALLS; i++)
        rank_context_set_action("1F3");
    int64_t actions_ns = clock_thread_ns() - begin_ns;
    cr_log_info("%.0f ns for a message, %.0f ns for an action", (double)messages_ns / CALLS,
                (double)actions_ns / CALLS);
    cr_assert(progress_read_head(page_slot(page, 0), &head));
    cr_assert_eq(head.messages, CALLS);
    cr_assert_eq(head.count, 3 * CALLS);
    cr_assert_str_eq(head.who.action, "1F3");
    cr_assert_lt((double)messages_ns / CALLS, 1e9 * most_s);
    progress_end();
    page_close(page);
    free(writer);
}
