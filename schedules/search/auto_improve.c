// SPDX-License-Identifier: Apache-2.0
/* Local search. A makespan is determined by a critical path of steps that each wait for the previous one, on
 * their own rank or on another. It cannot become shorter unless a step of this path moves within its rank.
 * The search picks a step of the path that waits for its own rank and moves it before its predecessor, or
 * further; or moves the predecessor after it, or further. Moves that do not increase the makespan are kept,
 * even those that do not decrease it: there are often many critical paths, and each must be broken.
 *
 * Caution: a search that requires every move to decrease the makespan stops in the first local minimum. */
#include "schedules/search/auto.h"

#include "base/memory.h"
#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

/* A step of the path that started when the previous step of its rank ended. */
struct path_step {
    int rank, at;
};

struct search {
    struct pipeline *pipe;
    pipe_step *steps;       // [p][length]
    int64_t *starts;        // [p][length] of `steps`
    int64_t *trial_starts;  // [p][length] after the tried move
    int *index[2];          // [stages][m] index of F, I in its rank's string
    int *microbatch;        // [p][length]
    struct path_step *path; // the critical path, without steps that waited for another rank
    int path_count;
    struct philox rng;
    uint64_t draws;
};

static int random_below(struct search *z, int bound)
{
    return (int)(philox_word(z->rng, 0, z->draws++) % (uint32_t)bound);
}

/* Records the index of every F and I, and finds the step that ends last. */
static void index_steps(struct search *z, struct path_step *last)
{
    struct pipeline *x = z->pipe;
    int64_t latest = -1;
    memset(x->done, 0, (size_t)x->p * (size_t)x->tasks * sizeof *x->done);
    for (int rank = 0; rank < x->p; rank++) {
        const pipe_step *list = rank_steps(x, z->steps, rank);
        int *done = x->done + (size_t)rank * (size_t)x->tasks;
        for (int at = 0; at < x->length; at++) {
            const struct task *q = pipe_task(x, rank, list[at]);
            int k = done[list[at]]++;
            z->microbatch[(size_t)rank * (size_t)x->length + (size_t)at] = k;
            if (q->kind != TASK_W)
                z->index[q->kind][(size_t)q->stage * (size_t)x->m + (size_t)k] = at;
        }
        size_t end = (size_t)(rank + 1) * (size_t)x->length - 1;
        int64_t time = z->starts[end] + pipe_task(x, rank, list[x->length - 1])->time;
        if (time > latest) {
            latest = time;
            *last = (struct path_step){rank, x->length - 1};
        }
    }
}

/* Finds the producer of the input that determined the step's start; returns false if there is none. */
static bool producer_of(const struct search *z, const struct path_step *of, struct path_step *out)
{
    const struct pipeline *x = z->pipe;
    size_t at = (size_t)of->rank * (size_t)x->length + (size_t)of->at;
    const struct task *q = pipe_task(x, of->rank, z->steps[at]);
    bool turns = q->kind == TASK_I && q->stage == x->stages - 1;
    int stage = turns ? q->stage : q->kind == TASK_F ? q->stage - 1 : q->stage + 1;
    if (q->kind == TASK_W || stage < 0)
        return false;
    int kind = turns ? TASK_F : (int)q->kind;
    out->rank = x->task[x->of_stage[stage]].rank;
    out->at = z->index[kind][(size_t)stage * (size_t)x->m + (size_t)z->microbatch[at]];
    return true;
}

/* Walks back from the step that ends last, and records the steps that waited for their own rank. */
static void find_path(struct search *z)
{
    const struct pipeline *x = z->pipe;
    struct path_step here;
    index_steps(z, &here);
    z->path_count = 0;
    for (bool more = true; more;) {
        size_t at = (size_t)here.rank * (size_t)x->length + (size_t)here.at;
        if (here.at > 0 &&
            z->starts[at] == z->starts[at - 1] + pipe_task(x, here.rank, z->steps[at - 1])->time) {
            z->path[z->path_count++] = here;
            here.at--;
        } else {
            more = producer_of(z, &here, &here);
        }
    }
}

/* Moves the step at `from` to `to`. */
static void move(pipe_step *list, int from, int to)
{
    pipe_step step = list[from];
    if (from < to)
        memmove(list + from, list + from + 1, (size_t)(to - from) * sizeof *list);
    else
        memmove(list + to + 1, list + to, (size_t)(from - to) * sizeof *list);
    list[to] = step;
}

/* Picks a random move of a step on the path, or of its predecessor. */
static void random_move(struct search *z, struct path_step of, int *from, int *to)
{
    int length = z->pipe->length, far = random_below(z, 1 << (1 + random_below(z, 6)));
    if (random_below(z, 2) == 0) {
        *from = of.at - 1;
        *to = of.at + far < length ? of.at + far : length - 1;
    } else {
        *from = of.at;
        *to = of.at - 1 - far > 0 ? of.at - 1 - far : 0;
    }
}

static int64_t descend(struct search *z, int64_t time, int64_t goal, int64_t budget)
{
    struct pipeline *x = z->pipe;
    find_path(z);
    for (int64_t left = budget / x->actions; left > 0 && time > goal && z->path_count > 0; left--) {
        struct path_step of = z->path[random_below(z, z->path_count)];
        pipe_step *list = rank_steps(x, z->steps, of.rank);
        int from, to;
        random_move(z, of, &from, &to);
        move(list, from, to);
        int64_t now = steps_allowed(x, of.rank, list) ? pipe_time(x, z->steps, z->trial_starts) : PIPE_NEVER;
        if (now > time) {
            move(list, to, from);
            continue;
        }
        time = now;
        int64_t *starts = z->starts;
        z->starts = z->trial_starts;
        z->trial_starts = starts;
        find_path(z);
    }
    return time;
}

static void search_init(struct search *z)
{
    static const char what[] = "a search for a schedule";
    const struct pipeline *x = z->pipe;
    size_t cells = (size_t)x->stages * (size_t)x->m, all = (size_t)x->actions;
    z->starts = memory_zeroed(all, sizeof *z->starts, what);
    z->trial_starts = memory_zeroed(all, sizeof *z->trial_starts, what);
    z->index[0] = memory_zeroed(cells, sizeof *z->index[0], what);
    z->index[1] = memory_zeroed(cells, sizeof *z->index[1], what);
    z->microbatch = memory_zeroed(all, sizeof *z->microbatch, what);
    z->path = memory_zeroed(all, sizeof *z->path, what);
}

int64_t local_search(struct pipeline *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps)
{
    struct search z = {.pipe = pipe, .steps = steps, .rng = philox_named(1, "auto.improve")};
    search_init(&z);
    if (pipe_time(pipe, steps, z.starts) == known)
        known = descend(&z, known, goal, budget);
    free(z.starts);
    free(z.trial_starts);
    free(z.index[0]);
    free(z.index[1]);
    free(z.microbatch);
    free(z.path);
    return known;
}
