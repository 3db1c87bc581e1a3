// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include "base/clock.h"
#include "base/progress_slot.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(struct rank_progress) % sizeof(uint64_t) == 0 &&
                   sizeof(struct progress_head) % sizeof(uint64_t) == 0,
               "a slot is copied in words");

static _Thread_local struct progress_writer *mine;
static _Thread_local int64_t waited_ns;

/* ---- copying ---- */

/* The words between `part` and its end. Release and acquire instead of fences, which ThreadSanitizer does not
 * know; on x86 both are plain moves. */
static void publish(const void *part, size_t bytes)
{
    struct progress_slot *slot = mine->slot;
    size_t begin = (size_t)((const char *)part - (const char *)&mine->now) / sizeof(uint64_t);
    size_t count = bytes / sizeof(uint64_t);
    uint64_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, (const char *)part + i * sizeof word, sizeof word);
        atomic_store_explicit(&slot->words[begin + i], word, memory_order_release);
    }
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}

static bool copy_words(const struct progress_slot *slot, size_t bytes, void *out)
{
    enum { TRIES = 1000 };
    for (int tries = 0; tries < TRIES; tries++) {
        uint64_t before = atomic_load_explicit(&slot->version, memory_order_acquire);
        for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
            uint64_t word = atomic_load_explicit(&slot->words[i], memory_order_acquire);
            memcpy((char *)out + i * sizeof word, &word, sizeof word);
        }
        if (before % 2 == 0 && atomic_load_explicit(&slot->version, memory_order_relaxed) == before)
            return true;
    }
    return false;
}

bool progress_read_head(const struct progress_slot *slot, struct progress_head *out)
{
    return copy_words(slot, sizeof *out, out);
}

bool progress_read(const struct progress_slot *slot, struct rank_progress *out)
{
    return copy_words(slot, sizeof *out, out);
}

/* ---- the thread of a rank ---- */

static void publish_head(void)
{
    publish(&mine->now.head, sizeof mine->now.head);
}

/* The counters of progress, which each message changes: the rest of the head is ten times as long. */
static void publish_counters(void)
{
    struct progress_head *head = &mine->now.head;
    publish(&head->count, offsetof(struct progress_head, awaited) - offsetof(struct progress_head, count));
}

void progress_begin(struct progress_writer *writer, struct progress_slot *slot)
{
    memset(writer, 0, sizeof *writer);
    writer->slot = slot;
    mine = writer;
    writer->now.head = (struct progress_head){
        .who = *rank_context(),
        .state = PROGRESS_ACTIVE,
        .process = (int32_t)getpid(),
        .thread = (int32_t)syscall(SYS_gettid),
        .since_ns = clock_ns(),
    };
    publish(&writer->now, sizeof writer->now);
}

bool progress_is_published(void)
{
    return mine != NULL;
}

void progress_end(void)
{
    if (mine == NULL)
        return;
    mine->now.head.state = PROGRESS_ENDED;
    publish_head();
    mine = NULL;
}

void progress_set_context(const struct rank_context *who, struct progress_range awaited, bool made_progress)
{
    if (mine == NULL)
        return;
    struct progress_head *head = &mine->now.head;
    head->who = *who;
    head->awaited = awaited.first;
    if (made_progress) {
        head->count++;
        head->since_ns = clock_ns();
    }
    publish_head();
}

void progress_continue(void)
{
    if (mine == NULL)
        return;
    mine->now.head.count++;
    mine->now.head.since_ns = clock_ns();
    publish_counters();
}

void progress_set_gpu(const struct progress_gpu *gpu)
{
    if (mine == NULL || memcmp(&mine->now.head.gpu, gpu, sizeof *gpu) == 0)
        return;
    mine->now.head.gpu = *gpu;
    mine->now.head.count++;
    mine->now.head.since_ns = clock_ns();
    publish_head();
}

int progress_group(const struct progress_group *group)
{
    if (mine == NULL)
        return -1;
    struct rank_progress *now = &mine->now;
    for (int i = 0; i < now->head.groups; i++)
        if (now->group[i].id == group->id)
            return i;
    if (now->head.groups == PROGRESS_GROUPS)
        return -1;
    int index = now->head.groups++;
    now->group[index] = *group;
    publish(&now->group[index], sizeof now->group[index]);
    publish_head();
    return index;
}

static struct progress_message *message_at(int64_t number)
{
    return &mine->now.message[(number - 1) % PROGRESS_MESSAGES];
}

void progress_queue(struct progress_message message, int64_t calls)
{
    if (mine == NULL)
        return;
    struct rank_progress *now = &mine->now;
    message.number = calls;
    message.queued_ns = clock_ns();
    message.step = now->head.who.step;
    message.scheduled = now->head.who.scheduled;
    snprintf(message.action, sizeof message.action, "%.*s", (int)sizeof message.action - 1,
             now->head.who.action);
    mine->queued++;
    *message_at(mine->queued) = message;
    publish(message_at(mine->queued), sizeof message);
    if (message.group >= 0) {
        now->group[message.group].calls = calls;
        publish(&now->group[message.group], sizeof now->group[message.group]);
    }
    now->head.messages = mine->queued;
    now->head.count++;
    now->head.since_ns = message.queued_ns;
    publish_counters();
}

struct progress_range progress_take(void)
{
    if (mine == NULL || mine->queued == mine->taken)
        return (struct progress_range){0};
    struct progress_range range = {.first = mine->taken + 1, .count = (int32_t)(mine->queued - mine->taken)};
    mine->taken = mine->queued;
    return range;
}

/* Sets one of the times of those that are still in the recorder. */
static void mark(struct progress_range messages, bool done)
{
    int64_t now_ns = clock_ns();
    for (int64_t n = messages.first; n < messages.first + messages.count; n++) {
        if (n + PROGRESS_MESSAGES <= mine->queued)
            continue;
        struct progress_message *message = message_at(n);
        *(done ? &message->done_ns : &message->started_ns) = now_ns;
        publish(message, sizeof *message);
    }
    if (!done)
        return;
    mine->now.head.count++;
    mine->now.head.since_ns = now_ns;
    publish_counters();
}

void progress_started(struct progress_range messages)
{
    if (mine != NULL && messages.count > 0)
        mark(messages, false);
}

void progress_done(struct progress_range messages)
{
    if (mine != NULL && messages.count > 0)
        mark(messages, true);
}

void progress_waited(int64_t ns)
{
    waited_ns += ns;
    if (mine != NULL)
        mine->now.head.waited_ns = waited_ns;
}

int64_t progress_waited_ns(void)
{
    return waited_ns;
}

void progress_step(struct progress_step step)
{
    if (mine == NULL)
        return;
    step.core = sched_getcpu();
    mine->now.head.steps[step.step % PROGRESS_STEPS] = step;
    publish_head();
}

void progress_took(int64_t ns)
{
    if (mine == NULL || ns <= mine->now.head.longest_ns)
        return;
    mine->now.head.longest_ns = ns;
    publish_head();
}
