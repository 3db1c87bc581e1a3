// SPDX-License-Identifier: Apache-2.0
/* V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory", 2405.15362): the V of ZB-V
 * with half, or a third, of its activations. Memory is saved by keeping the lifetime of a microbatch short:
 *
 *     p 3                 F of chunk 0 proceeds down the ranks, step[0] units per rank; F of chunk 1 comes
 *     rank 0  0 . . F I   back up, step[1] units per rank; I of chunk 1 goes down again and I of chunk 0
 *     rank 1  . 1 4 . .   comes up. Between two passes there is a turnaround. The next microbatch follows
 *     rank 2  . 2 3 . .   six units later.
 *
 * If the four passes start at different units modulo six on every rank, the blocks of successive microbatches
 * interlock and leave two units for W. A rank holds as many activations as lifetimes overlap: steps of 1 give
 * the minimum; F and I of a chunk that take 3 together give half.
 *
 * The paper's blocks leave units unused at both ends of a step. Here a block therefore only defines the order
 * of the actions, and a simulation with unit times fixes their start. In each unit a rank runs
 *     the next action of the block, if its input is available (and, for an F, the limit permits it);
 *     else the first other action that is ready; an F only if `headroom` activations remain free;
 *     else the oldest W.
 * The shortest of a few hundred combinations of block, turnarounds and headroom is used. With a limit of c
 * chunks its bubble is 6p - 3c - 1 units or slightly more (f = i = w = 1). V-Min's limit is the even number
 * of chunks from 2p/3 + 4/3 to 2p/3 + 8/3; on rank 0, which has the embedding, at most 2p/3 + 2.
 *
 * Caution: a simulation can deadlock, if forwards that ran out of order fill the memory that an earlier one
 * needs. Such combinations are discarded. Running one microbatch at a time is always possible. */
#include "schedules/families/family.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum kind { F_DOWN, F_UP, I_DOWN, I_UP, KINDS }; // F of chunk 0, of chunk 1; I of chunk 1, of chunk 0
enum { PERIOD = 6, NEVER = INT_MAX / 2 };
enum { SHORT_PIPE = 30, MAX_UNITS = 300000000, MIN_BLOCKS = 64 };

struct block {
    int step[2][KINDS]; // units per rank: for ranks before `split`, and for the others
    int split;
    int turnaround[KINDS - 1]; // units between two passes
    int headroom[2];           // activations left free by an F_DOWN, F_UP out of order; NEVER: none runs
    bool reserve;              // instead of `headroom`: an F_DOWN leaves free what chunk 1 needs
    bool drains;               // after its last F of kind `drain` a rank abandons the block's order
    int drain;
    bool input_out_of_order; // an I may run out of order
};

struct rank_progress {
    int start[KINDS]; // of microbatch 0, in the block
    int done[KINDS];  // microbatches
    int held;         // activations
    int held_up;      // of these, of chunk 1
    int idle;         // idle units before the last W
    int weights;      // W done, in the order of `inputs`
    int inputs;       // I done
};

struct pipeline {
    struct schedule *s;
    int p, m;
    int limit, first_limit; // activations held at once, by any rank and by rank 0
    struct rank_progress *ranks;
    int *available[2]; // [2p][m] time when the activation, the gradient of a stage is available
    int *input_order;  // [p][2m] stage·m + microbatch of every I, in the order of the rank
    bool emit;         // append the actions to the schedule
};

static int stage_of(const struct pipeline *x, int rank, int kind)
{
    return kind == F_DOWN || kind == I_UP ? rank : 2 * x->p - 1 - rank;
}

/* Returns the units that `kind` takes from rank 0 to `rank`, or back. */
static int units_to(const struct block *b, int rank, int kind)
{
    int before = rank < b->split ? rank : b->split;
    return before * b->step[0][kind] + (rank - before) * b->step[1][kind];
}

/* Places the block on every rank; returns false if two of its actions fall on the same unit. */
static bool place_block(struct pipeline *x, const struct block *b)
{
    for (int rank = 0; rank < x->p; rank++) {
        struct rank_progress *r = &x->ranks[rank];
        *r = (struct rank_progress){.held = 0};
        unsigned occupied = 0;
        int begin = 0;
        for (int kind = 0; kind < KINDS; kind++) {
            bool downwards = kind == F_DOWN || kind == I_DOWN;
            int whole = units_to(b, x->p - 1, kind), here = units_to(b, rank, kind);
            r->start[kind] = begin + (downwards ? here : whole - here);
            begin += whole + (kind + 1 < KINDS ? b->turnaround[kind] : 0);
            unsigned unit = 1U << (r->start[kind] % PERIOD);
            if ((occupied & unit) != 0)
                return false;
            occupied |= unit;
        }
    }
    return true;
}

static bool ready(const struct pipeline *x, int rank, int kind, int microbatch, int now)
{
    int stage = stage_of(x, rank, kind), last = 2 * x->p - 1;
    const int *f = x->available[0], *i = x->available[1];
    if (kind == F_DOWN || kind == F_UP)
        return stage == 0 || f[(stage - 1) * x->m + microbatch] <= now;
    return f[stage * x->m + microbatch] <= now &&
           (stage == last || i[(stage + 1) * x->m + microbatch] <= now);
}

/* Returns the activations that an F_DOWN out of order leaves free for chunk 1. During the fill the first
 * microbatch returns to the last ranks first: rank r reserves r + 1 activations of chunk 1, at most half of
 * all. A constant headroom is too large for rank 0 or too small for the last rank. */
static int reserve_of(const struct pipeline *x, int rank)
{
    int share = rank + 1 < x->limit / 2 ? rank + 1 : x->limit / 2;
    int free = share - x->ranks[rank].held_up;
    return free > 0 ? free : 0;
}

static int headroom_of(const struct pipeline *x, const struct block *b, int rank, int kind)
{
    if (!b->reserve)
        return b->headroom[kind];
    return kind == F_DOWN ? reserve_of(x, rank) : 0;
}

/* Returns true on a rank that has run its last F of kind `drain`, F_DOWN or F_UP. From then on it ignores the
 * order of the block: F of chunk 1 has priority, then I of chunk 1, then I of chunk 0. During the drain the
 * makespan depends on the remaining path of the last microbatches, and no later F can fill a wait. Which kind
 * gives the shorter schedule depends on p and the limit. */
static bool is_draining(const struct pipeline *x, const struct block *b, const struct rank_progress *r)
{
    return b->drains && r->done[b->drain] == x->m;
}

/* Returns the action that the rank runs now; KINDS if only a W is possible. */
static int choose(const struct pipeline *x, const struct block *b, int rank, int now)
{
    const struct rank_progress *r = &x->ranks[rank];
    int order[KINDS], due[KINDS], count = 0, limit = rank == 0 ? x->first_limit : x->limit;
    bool drains = is_draining(x, b, r);
    for (int kind = 0; kind < KINDS; kind++) {
        if (r->done[kind] == x->m)
            continue;
        int at = count++;
        due[kind] = drains ? kind : r->start[kind] + PERIOD * r->done[kind];
        for (; at > 0 && due[order[at - 1]] > due[kind]; at--)
            order[at] = order[at - 1];
        order[at] = kind;
    }
    for (int n = 0; n < count; n++) {
        int kind = order[n];
        bool forwards = kind == F_DOWN || kind == F_UP;
        int headroom = n == 0 ? 0 : forwards ? headroom_of(x, b, rank, kind) : 0;
        bool input_out_of_order = b->input_out_of_order || drains;
        bool allowed =
            forwards ? headroom < NEVER && r->held + headroom < limit : n == 0 || input_out_of_order;
        if (allowed && ready(x, rank, kind, r->done[kind], now))
            return kind;
    }
    return KINDS;
}

static void emit(struct pipeline *x, enum action_kind kind, int stage, int microbatch)
{
    if (x->emit)
        schedule_add(x->s, kind, stage, microbatch);
}

/* Simulates one unit of one rank; returns false if it is idle. */
static bool run_unit(struct pipeline *x, const struct block *b, int rank, int now)
{
    struct rank_progress *r = &x->ranks[rank];
    int *inputs = x->input_order + (size_t)rank * 2 * (size_t)x->m;
    int kind = choose(x, b, rank, now);
    if (kind == KINDS) {
        if (r->weights == r->inputs)
            return false;
        int cell = inputs[r->weights++];
        r->held--;
        r->held_up -= cell / x->m < x->p ? 0 : 1;
        emit(x, BACKWARD_WEIGHT, cell / x->m, cell % x->m);
        return true;
    }
    int stage = stage_of(x, rank, kind), microbatch = r->done[kind]++, cell = stage * x->m + microbatch;
    bool forwards = kind == F_DOWN || kind == F_UP;
    x->available[forwards ? 0 : 1][cell] = now + 1;
    if (forwards) {
        r->held++;
        r->held_up += kind == F_UP ? 1 : 0;
    } else {
        inputs[r->inputs++] = cell;
    }
    emit(x, forwards ? FORWARD : BACKWARD_INPUT, stage, microbatch);
    return true;
}

/* Counts an idle unit of a rank; returns true if its work can no longer end by `longest`. */
static bool is_too_late(struct pipeline *x, int rank, int longest)
{
    struct rank_progress *r = &x->ranks[rank];
    if (r->weights < 2 * x->m)
        r->idle++;
    return r->idle + PERIOD * x->m > longest;
}

/* Returns the makespan of a block; NEVER if it deadlocks or takes longer than `longest`. */
static int run_block(struct pipeline *x, const struct block *b, int longest)
{
    if (!place_block(x, b))
        return NEVER;
    int left = x->p * x->m * PERIOD, now = 0;
    for (int cell = 0; cell < 2 * x->p * x->m; cell++)
        x->available[0][cell] = x->available[1][cell] = NEVER;
    for (; left > 0 && now < longest; now++) {
        int before = left;
        for (int rank = 0; rank < x->p; rank++)
            if (run_unit(x, b, rank, now))
                left--;
            else if (is_too_late(x, rank, longest))
                return NEVER;
        if (left == before)
            return NEVER;
    }
    return left == 0 ? now : NEVER;
}

static const int headrooms[][2] = {{NEVER, NEVER}, {2, 0}, {1, 0}, {0, 0}, {3, 1}, {1, 1}, {2, 1}};
enum { HEADROOMS = sizeof headrooms / sizeof *headrooms, STEPS = 6 };

/* Candidate `index` for blocks in which F and I of a chunk take `step_sum` units per rank together; returns
 * false after the last. */
static bool candidate(int index, int step_sum, struct block *b)
{
    enum { TURNAROUNDS = PERIOD * PERIOD * PERIOD };
    int first = index % 2, second = index / 2 % 2, variant = index / 4;
    if (step_sum == 2) { // one unit each: there is only one choice
        first = second = 0;
        variant = index;
    }
    int turnarounds = variant / (2 * HEADROOMS), headroom = variant / 2 % HEADROOMS;
    if (turnarounds >= TURNAROUNDS)
        return false;
    *b = (struct block){.step = {{step_sum - 1 - first, 1 + second, step_sum - 1 - second, 1 + first}},
                        .split = INT_MAX,
                        .turnaround = {1 + turnarounds % PERIOD, 1 + turnarounds / PERIOD % PERIOD,
                                       1 + turnarounds / PERIOD / PERIOD},
                        .headroom = {headrooms[headroom][0], headrooms[headroom][1]},
                        .input_out_of_order = variant % 2 == 0};
    return true;
}

/* Returns the makespan with a bubble that no block was observed to beat. */
static int goal_of(const struct pipeline *x)
{
    return PERIOD * x->m + 6 * x->p - 3 * x->limit - 1;
}

/* Finds the block with the shortest makespan and returns it; NEVER if all deadlock. The search ends at the
 * goal and, in long pipes, when its budget is spent, after at least MIN_BLOCKS blocks. */
static int find_block(struct pipeline *x, int step_sum, struct block *best)
{
    int shortest = NEVER, goal = goal_of(x);
    int64_t units = 0, each = (int64_t)PERIOD * x->p * x->m;
    struct block b;
    for (int i = 0; shortest > goal && candidate(i, step_sum, &b) && (units < MAX_UNITS || i < MIN_BLOCKS);
         i++) {
        int makespan = run_block(x, &b, shortest);
        units += each;
        if (makespan < shortest) {
            shortest = makespan;
            *best = b;
        }
    }
    return shortest;
}

typedef int chunk_limit(int p, int rank); // chunks whose activations a rank may hold at once

static void set_pipe(struct pipeline *x, int p, int m, chunk_limit *limit)
{
    x->p = p;
    x->m = m;
    x->limit = limit(p, 1);
    x->first_limit = limit(p, 0);
}

/* Finds the best block of a pipe that fills. For p above SHORT_PIPE it depends only on p modulo 6, so it is
 * mostly found in a short pipe; a simulation of the long pipe confirms it. */
static int find_block_in_short_pipe(struct pipeline *x, int step_sum, chunk_limit *limit, struct block *best)
{
    int p = x->p, m = x->m, short_p = SHORT_PIPE - PERIOD + p % PERIOD;
    if (p <= SHORT_PIPE || m < p)
        return find_block(x, step_sum, best);
    int more = m - p < short_p ? m - p : short_p;
    set_pipe(x, short_p, short_p + more, limit);
    int shortest = find_block(x, step_sum, best), excess = shortest - goal_of(x);
    set_pipe(x, p, m, limit);
    if (shortest < NEVER) {
        shortest = run_block(x, best, NEVER);
        if (shortest - goal_of(x) <= excess)
            return shortest;
    }
    struct block other;
    int found = find_block(x, step_sum, &other);
    if (found < shortest)
        *best = other;
    return found < shortest ? found : shortest;
}

static void one_microbatch_at_a_time(struct schedule *s)
{
    for (int k = 0; k < s->m; k++) {
        for (int stage = 0; stage < s->stages; stage++)
            schedule_add(s, FORWARD, stage, k);
        for (int stage = s->stages - 1; stage >= 0; stage--) {
            schedule_add(s, BACKWARD_INPUT, stage, k);
            schedule_add(s, BACKWARD_WEIGHT, stage, k);
        }
    }
}

/* Frees the tables; accepts a partly constructed pipe. */
static void pipe_free(struct pipeline *x)
{
    free(x->input_order);
    free(x->available[1]);
    free(x->available[0]);
    free(x->ranks);
}

static void pipe_init(struct pipeline *x, struct schedule *s)
{
    static const char what[] = "a search for building blocks";
    size_t cells = (size_t)s->stages * (size_t)s->m;
    *x = (struct pipeline){.s = s, .p = s->p, .m = s->m};
    x->ranks = memory_zeroed((size_t)s->p, sizeof *x->ranks, what);
    x->available[0] = memory_zeroed(cells, sizeof *x->available[0], what);
    x->available[1] = memory_zeroed(cells, sizeof *x->available[1], what);
    x->input_order = memory_zeroed(cells, sizeof *x->input_order, what);
}

static void v_limited(struct schedule *s, chunk_limit *limit, int step_sum)
{
    struct pipeline x;
    pipe_init(&x, s);

    // The steady state is periodic, so few microbatches mostly suffice to find the best block.
    struct block best;
    set_pipe(&x, s->p, s->m < 2 * s->p ? s->m : 2 * s->p, limit);
    int shortest = find_block_in_short_pipe(&x, step_sum, limit, &best);
    if (shortest < NEVER && x.m < s->m) {
        int expected = shortest + PERIOD * (s->m - x.m);
        x.m = s->m;
        if (run_block(&x, &best, NEVER) > expected)
            shortest = find_block(&x, step_sum, &best);
    }
    x.emit = true;
    // All microbatches fit at once: the limit has no effect.
    if (2 * s->m <= x.limit && 2 * s->m <= x.first_limit && zb_v_units(s->p, s->m) < shortest)
        zb_v_lists(s);
    else if (shortest < NEVER)
        run_block(&x, &best, NEVER);
    else
        one_microbatch_at_a_time(s);
    pipe_free(&x);
}

/* Sets the steps of half a block: number `index` of those in which F and I of a chunk together take 2 to 4
 * units. */
static void set_steps(int index, int *step)
{
    static const int variants[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}, {3, 1}};
    const int *chunk_0 = variants[index % STEPS], *chunk_1 = variants[index / STEPS];
    step[F_DOWN] = chunk_0[0];
    step[I_UP] = chunk_0[1];
    step[F_UP] = chunk_1[0];
    step[I_DOWN] = chunk_1[1];
}

/* State of the search for a block for any limit. */
struct block_search {
    struct pipeline *x;
    int m, short_m;     // microbatches of the step, and of the short simulation that precedes it
    int shortest_short; // shortest makespan of short_m microbatches
    int shortest;       // shortest makespan of m microbatches
    int goal;           // makespan that ends the search
    struct block best;
    int64_t units; // left to simulate
};

static int run_counted(struct block_search *z, const struct block *b, int m, int longest)
{
    z->x->m = m;
    z->units -= (int64_t)PERIOD * z->x->p * m;
    return run_block(z->x, b, longest);
}

/* The steady state is periodic, so all m microbatches are simulated only if short_m of them take no longer
 * than with earlier blocks; strictly less if the best block so far adds just one period per microbatch. */
static void try_block(struct block_search *z, const struct block *b)
{
    if (z->short_m < z->m) {
        bool repeats = z->shortest <= z->shortest_short + PERIOD * (z->m - z->short_m);
        int shortest_short =
            run_counted(z, b, z->short_m, repeats ? z->shortest_short - 1 : z->shortest_short);
        if (shortest_short == NEVER)
            return;
        z->shortest_short = shortest_short;
    }
    int makespan = run_counted(z, b, z->m, z->shortest);
    if (makespan >= z->shortest)
        return;
    z->shortest = makespan;
    z->best = *b;
}

/* Tries a block with all turnarounds, and with all headrooms or both drains. */
static void try_turnarounds(struct block_search *z, struct block *b)
{
    enum { TURNAROUNDS = PERIOD * PERIOD * PERIOD };
    int variants = b->drains ? 4 : b->reserve ? 2 : 2 * HEADROOMS;
    for (int turnarounds = 0; turnarounds < TURNAROUNDS && z->units > 0 && z->shortest > z->goal;
         turnarounds++) {
        b->turnaround[0] = 1 + turnarounds % PERIOD;
        b->turnaround[1] = 1 + turnarounds / PERIOD % PERIOD;
        b->turnaround[2] = 1 + turnarounds / PERIOD / PERIOD;
        z->units -= b->reserve ? 1 : z->x->p;
        if (!place_block(z->x, b))
            continue;
        for (int variant = 0; variant < variants && z->shortest > z->goal; variant++) {
            b->drain = variant / 2 == 0 ? F_DOWN : F_UP;
            b->headroom[0] = headrooms[variant / 2][0];
            b->headroom[1] = headrooms[variant / 2][1];
            b->input_out_of_order = variant % 2 == 0;
            try_block(z, b);
        }
    }
}

/* Sets the steps of block `index`; returns false after the last. With a reserve, blocks in which F of chunk
 * 0 and I of chunk 1 take up to LONGEST_STEP units per rank and the other two take one come first. Of the
 * others, blocks with a drain start with the shortest steps before the split: these suffice for small
 * limits. */
static bool set_block(int index, struct block *b)
{
    enum { LONGEST_STEP = 5, ALIKE = LONGEST_STEP * LONGEST_STEP };
    if (b->reserve && index < ALIKE) {
        for (int half = 0; half < 2; half++) {
            int *step = b->step[half], units = 1 + (half == 0 ? index % LONGEST_STEP : index / LONGEST_STEP);
            step[F_DOWN] = step[I_DOWN] = units;
            step[F_UP] = step[I_UP] = 1;
        }
        return true;
    }
    index -= b->reserve ? ALIKE : 0;
    if (index >= STEPS * STEPS * STEPS * STEPS)
        return false;
    set_steps(index % (STEPS * STEPS), b->step[b->drains ? 1 : 0]);
    set_steps(index / (STEPS * STEPS), b->step[b->drains ? 0 : 1]);
    return true;
}

/* Supports any limit, including odd ones: tries the blocks of v-half and v-min, and blocks whose steps change
 * at one rank. */
bool v_limited_lists(struct schedule *schedule, int limit, enum block_rule rule, int goal, int64_t units)
{
    struct pipeline x;
    const bool reserve = rule != WITH_HEADROOM;
    pipe_init(&x, schedule);
    x.limit = x.first_limit = limit;
    if (reserve && schedule->m >= schedule->p && goal_of(&x) > goal)
        goal = goal_of(&x);
    struct block_search z = {.x = &x, .m = schedule->m, .shortest_short = NEVER, .shortest = NEVER};
    z.goal = goal;
    z.units = units;
    struct block b = {.split = 1, .reserve = reserve, .drains = rule == WITH_RESERVE_AND_DRAIN};
    z.short_m = reserve && schedule->m > schedule->p + 1 ? schedule->p + 1 : schedule->m;
    for (int n = 0; set_block(n, &b); n++) {
        bool uniform = memcmp(b.step[0], b.step[1], sizeof b.step[0]) == 0; // then a split has no effect
        int splits = reserve && uniform ? 2 : x.p;
        for (b.split = 1; b.split < splits && z.units > 0 && z.shortest > z.goal; b.split++)
            try_turnarounds(&z, &b);
    }
    x.emit = true;
    x.m = schedule->m;
    if (z.shortest < NEVER)
        run_block(&x, &z.best, NEVER);
    pipe_free(&x);
    return z.shortest < NEVER;
}

static int clamp_to_all(const struct schedule *s, int limit)
{
    return limit < 2 * s->m ? limit : 2 * s->m;
}

static int v_half_limit(int p, int rank)
{
    (void)rank;
    return p + 2;
}

static int v_half_peak(const struct schedule *s, int rank)
{
    return clamp_to_all(s, v_half_limit(s->p, rank));
}

static void v_half(struct schedule *s)
{
    v_limited(s, v_half_limit, 3);
}

static int v_min_limit(int p, int rank)
{
    return rank == 0 ? 2 * p / 3 + 2 : 2 * ((p + 1) / 3) + 2;
}

static int v_min_peak(const struct schedule *s, int rank)
{
    return clamp_to_all(s, v_min_limit(s->p, rank));
}

static void v_min(struct schedule *s)
{
    v_limited(s, v_min_limit, 2);
}

const struct family family_v_half = {
    .about = {.name = "v-half",
              .summary = "zb-v with half of its activations; the bubble is about half of 1F1B's.",
              .supports = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .restriction = restriction_two_chunks,
    .generate = v_half,
    .peak_claim = v_half_peak,
};

const struct family family_v_min = {
    .about = {.name = "v-min",
              .summary = "zb-v with a third of its activations, the minimum that keeps every rank busy.",
              .supports = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .restriction = restriction_two_chunks,
    .generate = v_min,
    .peak_claim = v_min_peak,
};
