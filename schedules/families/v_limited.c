// SPDX-License-Identifier: Apache-2.0
/* V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory", 2405.15362): the V of
 * ZB-V with half, or a third, of its activations. A microbatch's life is made short by moving fast:
 *
 *     p 3                 F of chunk 0 goes down `step[0]` units a rank, F of chunk 1 comes up step[1] a
 *     rank 0  0 . . F I   rank, its I goes down again, and I of chunk 0 comes up; between them it turns.
 *     rank 1  . 1 4 . .   The next microbatch follows six units later. Where the four start at different
 *     rank 2  . 2 3 . .   units modulo six on every rank the blocks interlock; two units are left for W.
 *
 * A rank holds as many activations as lives overlap, so steps of 1 give the least, and F and I of a chunk
 * together 3 give half. The blocks of the paper leave room at both ends of a step. So here the block
 * only says which action is next; it is played on a clock, where a rank takes
 *     what is next, if its input is there (and, for an F, an activation less than the limit is held);
 *     else the first of the others that is ready, an F only if `spare` activations stay free;
 *     else the oldest W,
 * and of the few hundred blocks, turns and spares the shortest play is taken. With a limit of c chunks
 * that comes to a bubble of 6p - 3c - 1 units or very little more (f = i = w = 1). V-Min's limit is the even
 * number of chunks from 2p/3 + 4/3 to 2p/3 + 8/3; on rank 0, which has the embedding, no more than 2p/3 + 2.
 *
 * The trap is a play that stops: forwards taken out of turn can fill the memory that an earlier one
 * needs. Such a play is dropped; one microbatch after the other is always possible. */
#include "schedules/families/family.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum kind { F_DOWN, F_UP, I_DOWN, I_UP, KINDS }; // F of chunk 0, of chunk 1; I of chunk 1, of chunk 0
enum { PERIOD = 6, NEVER = INT_MAX / 2 };
enum { SHORT_PIPE = 30, MOST_UNITS = 300000000, FEWEST = 64 };

struct block {
    int step[2][KINDS]; // from a rank to the next: those before rank `split`, and the others
    int split;
    int turn[KINDS - 1];
    int spare[2]; // activations that an F_DOWN, F_UP out of turn leaves free; NEVER: none goes out of turn
    bool reserve; // instead of `spare`: an F_DOWN out of turn leaves free what chunk 1 needs, reserve_of()
    bool drains;  // after its last F of kind `drain` a rank leaves the order of the block, is_draining()
    int drain;
    bool any_input; // an I may go out of turn
};

struct rank_state {
    int start[KINDS]; // of microbatch 0, in the block
    int done[KINDS];  // microbatches
    int held;
    int held_up; // activations of chunk 1 among them
    int idle;    // units without an action before the last one
    int weights; // W done; those of `inputs` are in the order of their I
    int inputs;
};

struct player {
    struct schedule *s;
    int p, m;
    int limit, first_limit; // activations at once, of any rank and of rank 0
    struct rank_state *ranks;
    int *made[2];     // [2p][m] when the activation, the gradient of a stage is there
    int *input_order; // [p][2m] stage·m + microbatch of every I, as each rank did them
    bool emit;        // add the actions to the schedule
};

static int stage_of(const struct player *x, int rank, int kind)
{
    return kind == F_DOWN || kind == I_UP ? rank : 2 * x->p - 1 - rank;
}

/* The units that `kind` takes from rank 0 to `rank`, or back. */
static int way_to(const struct block *b, int rank, int kind)
{
    int before = rank < b->split ? rank : b->split;
    return before * b->step[0][kind] + (rank - before) * b->step[1][kind];
}

/* Puts the block on every rank; false where two of its actions would fall on one unit. */
static bool place_block(struct player *x, const struct block *b)
{
    for (int rank = 0; rank < x->p; rank++) {
        struct rank_state *r = &x->ranks[rank];
        *r = (struct rank_state){.held = 0};
        unsigned taken = 0;
        int begin = 0;
        for (int kind = 0; kind < KINDS; kind++) {
            bool downwards = kind == F_DOWN || kind == I_DOWN;
            int whole = way_to(b, x->p - 1, kind), here = way_to(b, rank, kind);
            r->start[kind] = begin + (downwards ? here : whole - here);
            begin += whole + (kind + 1 < KINDS ? b->turn[kind] : 0);
            unsigned unit = 1U << (r->start[kind] % PERIOD);
            if ((taken & unit) != 0)
                return false;
            taken |= unit;
        }
    }
    return true;
}

static bool ready(const struct player *x, int rank, int kind, int microbatch, int now)
{
    int stage = stage_of(x, rank, kind), last = 2 * x->p - 1;
    const int *f = x->made[0], *i = x->made[1];
    if (kind == F_DOWN || kind == F_UP)
        return stage == 0 || f[(stage - 1) * x->m + microbatch] <= now;
    return f[stage * x->m + microbatch] <= now &&
           (stage == last || i[(stage + 1) * x->m + microbatch] <= now);
}

/* The activations that an F_DOWN out of turn leaves free for chunk 1. While the pipe fills, the first
 * microbatch comes back to the last ranks soonest: rank r has r + 1 activations of chunk 1 for it, at most
 * half of all. A constant spare is too much for rank 0 or too little for the last. */
static int reserve_of(const struct player *x, int rank)
{
    int share = rank + 1 < x->limit / 2 ? rank + 1 : x->limit / 2;
    int free = share - x->ranks[rank].held_up;
    return free > 0 ? free : 0;
}

static int spare_of(const struct player *x, const struct block *b, int rank, int kind)
{
    if (!b->reserve)
        return b->spare[kind];
    return kind == F_DOWN ? reserve_of(x, rank) : 0;
}

/* True on a rank that has done its last F of kind `drain`, F_DOWN or F_UP. From then on it ignores the order
 * of the block: F of chunk 1 goes first, then I of chunk 1, then I of chunk 0, each as soon as it is ready.
 * While the pipe drains, the makespan depends on the remaining path of the last microbatches, and no later F
 * can fill a wait for them. Which of the two starts gives the shorter play depends on p and the limit. */
static bool is_draining(const struct player *x, const struct block *b, const struct rank_state *r)
{
    return b->drains && r->done[b->drain] == x->m;
}

/* What the rank does now, or KINDS: nothing but a W is possible. */
static int choose(const struct player *x, const struct block *b, int rank, int now)
{
    const struct rank_state *r = &x->ranks[rank];
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
        int spare = n == 0 ? 0 : forwards ? spare_of(x, b, rank, kind) : 0;
        bool any_input = b->any_input || drains;
        bool allowed = forwards ? spare < NEVER && r->held + spare < limit : n == 0 || any_input;
        if (allowed && ready(x, rank, kind, r->done[kind], now))
            return kind;
    }
    return KINDS;
}

static void emit(struct player *x, enum action_kind kind, int stage, int microbatch)
{
    if (x->emit)
        schedule_add(x->s, kind, stage, microbatch);
}

/* One unit of one rank; false when it has nothing to do. */
static bool play_unit(struct player *x, const struct block *b, int rank, int now)
{
    struct rank_state *r = &x->ranks[rank];
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
    x->made[forwards ? 0 : 1][cell] = now + 1;
    if (forwards) {
        r->held++;
        r->held_up += kind == F_UP ? 1 : 0;
    } else {
        inputs[r->inputs++] = cell;
    }
    emit(x, forwards ? FORWARD : BACKWARD_INPUT, stage, microbatch);
    return true;
}

/* Counts an idle unit of a rank; true where its work can no longer end by `longest`. */
static bool is_too_late(struct player *x, int rank, int longest)
{
    struct rank_state *r = &x->ranks[rank];
    if (r->weights < 2 * x->m)
        r->idle++;
    return r->idle + PERIOD * x->m > longest;
}

/* The makespan of a block, or NEVER when it stops or takes longer than `longest`. */
static int play(struct player *x, const struct block *b, int longest)
{
    if (!place_block(x, b))
        return NEVER;
    int left = x->p * x->m * PERIOD, now = 0;
    for (int cell = 0; cell < 2 * x->p * x->m; cell++)
        x->made[0][cell] = x->made[1][cell] = NEVER;
    for (; left > 0 && now < longest; now++) {
        int before = left;
        for (int rank = 0; rank < x->p; rank++)
            if (play_unit(x, b, rank, now))
                left--;
            else if (is_too_late(x, rank, longest))
                return NEVER;
        if (left == before)
            return NEVER;
    }
    return left == 0 ? now : NEVER;
}

static const int spares[][2] = {{NEVER, NEVER}, {2, 0}, {1, 0}, {0, 0}, {3, 1}, {1, 1}, {2, 1}};
enum { SPARES = sizeof spares / sizeof *spares, STEPS = 6 };

/* Candidate `index` for F and I of a chunk taking `together` units a rank; false past the last. */
static bool candidate(int index, int together, struct block *b)
{
    enum { TURNS = PERIOD * PERIOD * PERIOD };
    int first = index % 2, second = index / 2 % 2, way = index / 4;
    if (together == 2) { // one step each: nothing to choose
        first = second = 0;
        way = index;
    }
    int turns = way / (2 * SPARES), spare = way / 2 % SPARES;
    if (turns >= TURNS)
        return false;
    *b =
        (struct block){.step = {{together - 1 - first, 1 + second, together - 1 - second, 1 + first}},
                       .split = INT_MAX,
                       .turn = {1 + turns % PERIOD, 1 + turns / PERIOD % PERIOD, 1 + turns / PERIOD / PERIOD},
                       .spare = {spares[spare][0], spares[spare][1]},
                       .any_input = way % 2 == 0};
    return true;
}

/* Returns the makespan with a bubble that no block was observed to beat. */
static int goal_of(const struct player *x)
{
    return PERIOD * x->m + 6 * x->p - 3 * x->limit - 1;
}

/* Finds the block with the shortest play and returns its makespan; NEVER if all plays stop. The search ends
 * at the goal and, in long pipes, when its budget is spent, after at least FEWEST blocks. */
static int find_block(struct player *x, int together, struct block *best)
{
    int shortest = NEVER, goal = goal_of(x);
    int64_t units = 0, each = (int64_t)PERIOD * x->p * x->m;
    struct block b;
    for (int i = 0; shortest > goal && candidate(i, together, &b) && (units < MOST_UNITS || i < FEWEST);
         i++) {
        int makespan = play(x, &b, shortest);
        units += each;
        if (makespan < shortest) {
            shortest = makespan;
            *best = b;
        }
    }
    return shortest;
}

typedef int chunks_of(int p, int rank); // at once, of the activations of a rank in a pipe of p

static void set_pipe(struct player *x, int p, int m, chunks_of *limit)
{
    x->p = p;
    x->m = m;
    x->limit = limit(p, 1);
    x->first_limit = limit(p, 0);
}

/* The best block of a pipe that fills. Which one it is depends on the remainder of p by 6 once p is more than
 * SHORT_PIPE, so a short pipe mostly tells, and the long one is played to see that it did. */
static int find_in_short_pipe(struct player *x, int together, chunks_of *limit, struct block *best)
{
    int p = x->p, m = x->m, short_p = SHORT_PIPE - PERIOD + p % PERIOD;
    if (p <= SHORT_PIPE || m < p)
        return find_block(x, together, best);
    int more = m - p < short_p ? m - p : short_p;
    set_pipe(x, short_p, short_p + more, limit);
    int shortest = find_block(x, together, best), above = shortest - goal_of(x);
    set_pipe(x, p, m, limit);
    if (shortest < NEVER) {
        shortest = play(x, best, NEVER);
        if (shortest - goal_of(x) <= above)
            return shortest;
    }
    struct block other;
    int found = find_block(x, together, &other);
    if (found < shortest)
        *best = other;
    return found < shortest ? found : shortest;
}

static void one_after_the_other(struct schedule *s)
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

/* Frees the player's tables; the player may be only partly made. */
static void free_player(struct player *x)
{
    free(x->input_order);
    free(x->made[1]);
    free(x->made[0]);
    free(x->ranks);
}

static bool make_player(struct player *x, struct schedule *s)
{
    size_t cells = (size_t)s->stages * (size_t)s->m;
    *x = (struct player){.s = s, .p = s->p, .m = s->m};
    x->ranks = calloc((size_t)s->p, sizeof *x->ranks);
    x->made[0] = calloc(cells, sizeof *x->made[0]);
    x->made[1] = calloc(cells, sizeof *x->made[1]);
    x->input_order = calloc(cells, sizeof *x->input_order);
    bool good = x->ranks != NULL && x->made[0] != NULL && x->made[1] != NULL && x->input_order != NULL;
    s->out_of_memory = s->out_of_memory || !good;
    return good;
}

static void limited(struct schedule *s, chunks_of *limit, int together)
{
    struct player x;
    bool good = make_player(&x, s);

    // Once the pipe is full the play repeats, so a short one mostly tells which block is best.
    struct block best;
    set_pipe(&x, s->p, s->m < 2 * s->p ? s->m : 2 * s->p, limit);
    int shortest = good ? find_in_short_pipe(&x, together, limit, &best) : NEVER;
    if (shortest < NEVER && x.m < s->m) {
        int expected = shortest + PERIOD * (s->m - x.m);
        x.m = s->m;
        if (play(&x, &best, NEVER) > expected)
            shortest = find_block(&x, together, &best);
    }
    x.emit = true;
    // So few microbatches that all of them fit at once: the limit is none.
    if (good && 2 * s->m <= x.limit && 2 * s->m <= x.first_limit && zb_v_units(s->p, s->m) < shortest)
        zb_v_lists(s);
    else if (shortest < NEVER)
        play(&x, &best, NEVER);
    else if (good)
        one_after_the_other(s);
    free_player(&x);
}

/* The steps of half a block: `index` of those in which F and I of a chunk take 2 to 4 units together. */
static void set_steps(int index, int *step)
{
    static const int ways[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}, {3, 1}};
    const int *of_0 = ways[index % STEPS], *of_1 = ways[index / STEPS];
    step[F_DOWN] = of_0[0];
    step[I_UP] = of_0[1];
    step[F_UP] = of_1[0];
    step[I_DOWN] = of_1[1];
}

/* The search of a block for any limit. */
struct block_search {
    struct player *x;
    int m, short_m; // microbatches of the pipe, and of the shorter one that is played first
    int in_short;   // the shortest play of short_m
    int shortest;   // and of m
    int goal;       // a makespan that ends the search
    struct block best;
    int64_t units; // left to play
};

static int play_counted(struct block_search *z, const struct block *b, int m, int longest)
{
    z->x->m = m;
    z->units -= (int64_t)PERIOD * z->x->p * m;
    return play(z->x, b, longest);
}

/* Once the pipe is full the play repeats, so the whole pipe is played only where a short one is no longer
 * than the others; of equals only until the whole one is as much longer as it has more microbatches. */
static void try_block(struct block_search *z, const struct block *b)
{
    if (z->short_m < z->m) {
        bool repeats = z->shortest <= z->in_short + PERIOD * (z->m - z->short_m);
        int in_short = play_counted(z, b, z->short_m, repeats ? z->in_short - 1 : z->in_short);
        if (in_short == NEVER)
            return;
        z->in_short = in_short;
    }
    int makespan = play_counted(z, b, z->m, z->shortest);
    if (makespan >= z->shortest)
        return;
    z->shortest = makespan;
    z->best = *b;
}

/* Plays a block with every turn, and with every spare or both drains. */
static void try_turns(struct block_search *z, struct block *b)
{
    enum { TURNS = PERIOD * PERIOD * PERIOD };
    int ways = b->drains ? 4 : b->reserve ? 2 : 2 * SPARES;
    for (int turns = 0; turns < TURNS && z->units > 0 && z->shortest > z->goal; turns++) {
        b->turn[0] = 1 + turns % PERIOD;
        b->turn[1] = 1 + turns / PERIOD % PERIOD;
        b->turn[2] = 1 + turns / PERIOD / PERIOD;
        z->units -= b->reserve ? 1 : z->x->p;
        if (!place_block(z->x, b))
            continue;
        for (int way = 0; way < ways && z->shortest > z->goal; way++) {
            b->drain = way / 2 == 0 ? F_DOWN : F_UP;
            b->spare[0] = spares[way / 2][0];
            b->spare[1] = spares[way / 2][1];
            b->any_input = way % 2 == 0;
            try_block(z, b);
        }
    }
}

/* The steps of block `index`; false past the last. With a reserve those come first in which F of chunk 0 and
 * I of chunk 1 take up to LONGEST_STEP units a rank and the other two take one. Of the others, blocks that
 * drain begin with the shortest steps before the split: these suffice for small limits. */
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

/* For any limit, also an odd one: the blocks of v-half and v-min, and blocks whose steps change at one rank.
 */
bool v_limited_lists(struct schedule *s, int limit, enum block_rule rule, int goal, int64_t units)
{
    struct player x;
    bool good = make_player(&x, s), reserve = rule != WITH_SPARES;
    x.limit = x.first_limit = limit;
    if (reserve && s->m >= s->p && goal_of(&x) > goal)
        goal = goal_of(&x);
    struct block_search z = {.x = &x, .m = s->m, .in_short = NEVER, .shortest = NEVER};
    z.goal = goal;
    z.units = units;
    struct block b = {.split = 1, .reserve = reserve, .drains = rule == WITH_RESERVE_AND_DRAIN};
    z.short_m = reserve && s->m > s->p + 1 ? s->p + 1 : s->m;
    for (int n = 0; good && set_block(n, &b); n++) {
        bool uniform = memcmp(b.step[0], b.step[1], sizeof b.step[0]) == 0; // then a split changes nothing
        int splits = reserve && uniform ? 2 : x.p;
        for (b.split = 1; b.split < splits && z.units > 0 && z.shortest > z.goal; b.split++)
            try_turns(&z, &b);
    }
    x.emit = true;
    x.m = s->m;
    if (z.shortest < NEVER)
        play(&x, &z.best, NEVER);
    free_player(&x);
    return z.shortest < NEVER;
}

static int at_most_all(const struct schedule *s, int limit)
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
    return at_most_all(s, v_half_limit(s->p, rank));
}

static void v_half(struct schedule *s)
{
    limited(s, v_half_limit, 3);
}

static int v_min_limit(int p, int rank)
{
    return rank == 0 ? 2 * p / 3 + 2 : 2 * ((p + 1) / 3) + 2;
}

static int v_min_peak(const struct schedule *s, int rank)
{
    return at_most_all(s, v_min_limit(s->p, rank));
}

static void v_min(struct schedule *s)
{
    limited(s, v_min_limit, 2);
}

const struct family family_v_half = {
    .about = {.name = "v-half",
              .idea = "The V of zb-v with half of its activations, for a bubble about half of 1F1B's.",
              .takes = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .refuses = refuses_other_than_two_chunks,
    .generate = v_half,
    .peak_claim = v_half_peak,
};

const struct family family_v_min = {
    .about = {.name = "v-min",
              .idea = "The V of zb-v with a third of its activations, the least that keeps every rank busy.",
              .takes = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .refuses = refuses_other_than_two_chunks,
    .generate = v_min,
    .peak_claim = v_min_peak,
};
