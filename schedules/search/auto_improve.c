// SPDX-License-Identifier: Apache-2.0
/* Local search. A makespan is determined by a critical path of steps that each wait for the previous one, on
 * their own rank or on another. It cannot become shorter unless a step of this path moves within its rank.
 * The search picks a step of the path that waits for its own rank and moves it before its predecessor, or
 * further; or moves the predecessor after it, or further. Moves that do not increase the makespan are kept,
 * even those that do not decrease it: there are often many critical paths, and each must be broken.
 *
 * Caution: a search that requires every move to decrease the makespan stops in the first local minimum. */
#include "schedules/search/auto_pipe.h"

#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

/* A step of the path that started when the previous step of its rank ended. */
struct pressed {
    int rank, at;
};

struct search {
    struct pipe *pipe;
    pipe_step *steps;   // [p][length]
    int64_t *starts;    // [p][length] of `steps`
    int64_t *tried;     // [p][length] of the tried move
    int *place[2];      // [stages][m] index of F, I in its rank's string
    int *microbatch;    // [p][length]
    struct pressed *on; // critical path
    int on_count;
    struct philox dice;
    uint64_t thrown;
};

static int dice(struct search *z, int sides)
{
    return (int)(philox_word(z->dice, 0, z->thrown++) % (uint32_t)sides);
}

/* Records the index of every F and I, and finds the step that ends last. */
static void note_places(struct search *z, struct pressed *last)
{
    struct pipe *x = z->pipe;
    int64_t latest = -1;
    memset(x->done, 0, (size_t)x->p * (size_t)x->parts * sizeof *x->done);
    for (int rank = 0; rank < x->p; rank++) {
        const pipe_step *list = rank_steps(x, z->steps, rank);
        int *done = x->done + (size_t)rank * (size_t)x->parts;
        for (int at = 0; at < x->length; at++) {
            const struct part *q = pipe_part(x, rank, list[at]);
            int k = done[list[at]]++;
            z->microbatch[(size_t)rank * (size_t)x->length + (size_t)at] = k;
            if (q->kind != PART_W)
                z->place[q->kind][(size_t)q->stage * (size_t)x->m + (size_t)k] = at;
        }
        size_t end = (size_t)(rank + 1) * (size_t)x->length - 1;
        int64_t time = z->starts[end] + pipe_part(x, rank, list[x->length - 1])->time;
        if (time > latest) {
            latest = time;
            *last = (struct pressed){rank, x->length - 1};
        }
    }
}

/* Finds the producer of the input that determined the step's start; returns false if there is none. */
static bool maker_of(const struct search *z, const struct pressed *of, struct pressed *out)
{
    const struct pipe *x = z->pipe;
    size_t at = (size_t)of->rank * (size_t)x->length + (size_t)of->at;
    const struct part *q = pipe_part(x, of->rank, z->steps[at]);
    bool turns = q->kind == PART_I && q->stage == x->stages - 1;
    int stage = turns ? q->stage : q->kind == PART_F ? q->stage - 1 : q->stage + 1;
    if (q->kind == PART_W || stage < 0)
        return false;
    int kind = turns ? PART_F : (int)q->kind;
    out->rank = x->part[x->of_stage[stage]].rank;
    out->at = z->place[kind][(size_t)stage * (size_t)x->m + (size_t)z->microbatch[at]];
    return true;
}

/* Walks back from the step that ends last, and records steps that waited for their own rank. */
static void find_path(struct search *z)
{
    const struct pipe *x = z->pipe;
    struct pressed here;
    note_places(z, &here);
    z->on_count = 0;
    for (bool more = true; more;) {
        size_t at = (size_t)here.rank * (size_t)x->length + (size_t)here.at;
        if (here.at > 0 &&
            z->starts[at] == z->starts[at - 1] + pipe_part(x, here.rank, z->steps[at - 1])->time) {
            z->on[z->on_count++] = here;
            here.at--;
        } else {
            more = maker_of(z, &here, &here);
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
static void throw_move(struct search *z, struct pressed of, int *from, int *to)
{
    int length = z->pipe->length, far = dice(z, 1 << (1 + dice(z, 6)));
    if (dice(z, 2) == 0) {
        *from = of.at - 1;
        *to = of.at + far < length ? of.at + far : length - 1;
    } else {
        *from = of.at;
        *to = of.at - 1 - far > 0 ? of.at - 1 - far : 0;
    }
}

static int64_t descend(struct search *z, int64_t time, int64_t goal, int64_t budget)
{
    struct pipe *x = z->pipe;
    find_path(z);
    for (int64_t left = budget / x->actions; left > 0 && time > goal && z->on_count > 0; left--) {
        struct pressed of = z->on[dice(z, z->on_count)];
        pipe_step *list = rank_steps(x, z->steps, of.rank);
        int from, to;
        throw_move(z, of, &from, &to);
        move(list, from, to);
        int64_t now = steps_allowed(x, of.rank, list) ? pipe_time(x, z->steps, z->tried) : PIPE_NEVER;
        if (now > time) {
            move(list, to, from);
            continue;
        }
        time = now;
        int64_t *starts = z->starts;
        z->starts = z->tried;
        z->tried = starts;
        find_path(z);
    }
    return time;
}

static bool search_init(struct search *z)
{
    const struct pipe *x = z->pipe;
    size_t cells = (size_t)x->stages * (size_t)x->m, all = (size_t)x->actions;
    z->starts = calloc(all, sizeof *z->starts);
    z->tried = calloc(all, sizeof *z->tried);
    z->place[0] = calloc(cells, sizeof *z->place[0]);
    z->place[1] = calloc(cells, sizeof *z->place[1]);
    z->microbatch = calloc(all, sizeof *z->microbatch);
    z->on = calloc(all, sizeof *z->on);
    return z->starts && z->tried && z->place[0] && z->place[1] && z->microbatch && z->on;
}

int64_t improve(struct pipe *x, int64_t known, int64_t goal, int64_t budget, pipe_step *steps)
{
    struct search z = {.pipe = x, .steps = steps, .dice = philox_named(1, "auto.improve")};
    if (search_init(&z) && pipe_time(x, steps, z.starts) == known)
        known = descend(&z, known, goal, budget);
    free(z.starts);
    free(z.tried);
    free(z.place[0]);
    free(z.place[1]);
    free(z.microbatch);
    free(z.on);
    return known;
}
