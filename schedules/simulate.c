// SPDX-License-Identifier: Apache-2.0
#include "schedules/simulate.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <stdlib.h>

/* When a value was produced, and by which action; at < 0: not yet. */
struct timestamp {
    double at;
    int64_t by; // index of the producer in times[]
};

/* State of a message: when each end reached it (< 0: not yet), and the indices of these actions. */
struct message {
    double sent, posted, arrives;
    int64_t send, recv;
    int64_t sent_by, posted_by; // actions that determined these two times
};

struct simulator {
    const struct schedule *s;
    const struct cost_table *costs;
    struct simulation *sim;
    struct edges *edges;
    int *at;                 // [p] index of the next action of each rank
    struct timestamp *clock; // [p] end of the rank's current action, and its index
    struct timestamp *last;  // [p] start of its latest computing action, and the action that determined it
    struct timestamp *edge_free;   // [edges]
    struct timestamp *produced[2]; // [stages][m] end of F; end of I or B
    struct message *messages[2];   // [stages][m] by receiving stage
    int *queue;                    // [p] ring buffer of ranks that may continue
    bool *queued;
    int queue_first, queue_count;
};

static size_t cell(const struct schedule *s, int stage, int microbatch)
{
    return (size_t)stage * (size_t)s->m + (size_t)microbatch;
}

static void wake(struct simulator *x, int rank)
{
    if (x->queued[rank])
        return;
    x->queued[rank] = true;
    x->queue[(x->queue_first + x->queue_count++) % x->s->p] = rank;
}

static int64_t index_of(const struct simulator *x, int rank, int position)
{
    return x->sim->first[rank] + position;
}

/* Returns when the activation (or gradient) consumed by `a` arrives on its rank; at < 0: not yet known. */
static struct timestamp input_of(const struct simulator *x, struct action a, bool gradient)
{
    const struct schedule *s = x->s;
    int from = stage_before(a.stage, gradient);
    if (from < 0 || from >= s->stages)
        return (struct timestamp){.at = 0.0, .by = -1};
    struct timestamp source = x->produced[gradient][cell(s, from, a.microbatch)];
    if (!crosses_ranks(s, a.stage, a.microbatch, gradient))
        return source;
    if (s->has_transfers) {
        const struct message *message = &x->messages[gradient][cell(s, a.stage, a.microbatch)];
        return (struct timestamp){.at = message->arrives, .by = message->recv};
    }
    if (source.at >= 0.0)
        source.at += x->costs->latency + x->costs->wire;
    return source;
}

/* Raises `start` to the time of `need`; returns false if that is not known yet. */
static bool wait_until(struct timestamp *start, struct timestamp need)
{
    if (need.at > start->at)
        *start = need;
    return need.at >= 0.0;
}

static bool inputs_ready(const struct simulator *x, struct action a, struct timestamp *start)
{
    const struct action_traits *traits = action_traits(a.kind);
    size_t at = cell(x->s, a.stage, a.microbatch);
    if (traits->forward)
        return wait_until(start, input_of(x, a, false));
    if (!wait_until(start, x->produced[false][at]))
        return false;
    if (traits->backward_input)
        return wait_until(start, input_of(x, a, true));
    return wait_until(start, x->produced[true][at]);
}

static double duration(const struct simulator *x, struct action a)
{
    const struct action_traits *traits = action_traits(a.kind);
    const struct cost_table *costs = x->costs;
    struct stage_cost cost = costs->of_stage != NULL ? costs->of_stage[a.stage] : costs->chunk;
    if (traits->backward_input && traits->backward_weight && costs->b_of_stage != NULL)
        return costs->b_of_stage[a.stage];
    double whole = (traits->forward ? cost.f : 0.0) + (traits->backward_input ? cost.i : 0.0) +
                   (traits->backward_weight ? cost.w : 0.0);
    return traits->backward_input && traits->backward_weight && costs->b > 0.0 ? whole * costs->b : whole;
}

/* Records the result of an action, and wakes the rank that may be waiting for it. */
static void finish(struct simulator *x, struct action a, struct timestamp end)
{
    const struct action_traits *traits = action_traits(a.kind);
    bool gradient = !traits->forward;
    if (!traits->forward && !traits->backward_input)
        return;
    x->produced[gradient][cell(x->s, a.stage, a.microbatch)] = end;
    int next = gradient ? a.stage - 1 : a.stage + 1;
    if (next >= 0 && next < x->s->stages)
        wake(x, schedule_rank(x->s, next, a.microbatch));
}

/* Runs the computing action at `position`, and its partner if it overlaps the next; returns false if an input
 * is missing. */
static bool compute(struct simulator *x, int rank, int position)
{
    const struct action_list *list = &x->s->ranks[rank];
    struct action a = list->actions[position];
    bool pair = a.overlaps_next && position + 1 < list->count &&
                action_traits(list->actions[position + 1].kind)->computes;
    struct timestamp start = x->clock[rank];
    if (!inputs_ready(x, a, &start) || (pair && !inputs_ready(x, list->actions[position + 1], &start)))
        return false;

    double time = duration(x, a);
    if (pair) {
        double other = duration(x, list->actions[position + 1]);
        double less = other < time ? other : time;
        time = time + other - x->costs->pair_overlap * less;
    }
    struct timestamp end = {.at = start.at + time, .by = index_of(x, rank, position)};
    struct rank_time *totals = &x->sim->ranks[rank];
    totals->busy += time;
    if (totals->first_start < 0.0)
        totals->first_start = start.at;
    totals->last_end = end.at;

    for (int i = position; i <= position + (pair ? 1 : 0); i++) {
        end.by = index_of(x, rank, i);
        x->sim->times[end.by] = (struct action_time){.start = start.at, .end = end.at, .cause = start.by};
        finish(x, list->actions[i], end);
    }
    x->last[rank] = start;
    x->clock[rank] = end;
    x->at[rank] = position + (pair ? 2 : 1);
    return true;
}

/* Computes the transfer time of a message that both ends have reached. */
static void send_message(struct simulator *x, struct action a, struct message *message)
{
    const struct cost_table *costs = x->costs;
    struct timestamp start = {.at = message->sent, .by = message->sent_by};
    wait_until(&start, (struct timestamp){.at = message->posted, .by = message->posted_by});
    int edge = edge_of(x->edges, x->s, a);
    if (!costs->blocking && edge >= 0)
        wait_until(&start, x->edge_free[edge]);
    message->arrives = start.at + costs->latency + costs->wire;
    struct action_time time = {.start = start.at, .end = message->arrives, .cause = start.by};
    x->sim->times[message->send] = time;
    x->sim->times[message->recv] = time;
    if (edge >= 0)
        x->edge_free[edge] = (struct timestamp){.at = start.at + costs->wire, .by = message->recv};
}

/* Processes the transfer at `position`; returns false if it blocks and its peer has not reached it. */
static bool transfer(struct simulator *x, int rank, int position)
{
    struct action a = x->s->ranks[rank].actions[position];
    const struct action_traits *traits = action_traits(a.kind);
    struct message *message = &x->messages[traits->gradient][cell(x->s, transfer_receiver(a), a.microbatch)];
    bool blocking = x->costs->blocking;

    // An overlapping receive can accept data from the start of the previous computing action.
    if (traits->sends) {
        message->sent = x->clock[rank].at;
        message->sent_by = x->clock[rank].by;
        message->send = index_of(x, rank, position);
    } else {
        message->posted = blocking ? x->clock[rank].at : x->last[rank].at;
        message->posted_by = blocking ? x->clock[rank].by : x->last[rank].by;
        message->recv = index_of(x, rank, position);
    }
    if (message->sent >= 0.0 && message->posted >= 0.0) {
        if (message->arrives < 0.0)
            send_message(x, a, message);
        wake(x, a.peer);
    } else if (blocking) {
        return false;
    }
    if (blocking)
        x->clock[rank] = (struct timestamp){.at = message->arrives, .by = index_of(x, rank, position)};
    x->at[rank] = position + 1;
    return true;
}

static bool step(struct simulator *x, int rank)
{
    int position = x->at[rank];
    if (position == x->s->ranks[rank].count)
        return false;
    if (action_traits(x->s->ranks[rank].actions[position].kind)->computes)
        return compute(x, rank, position);
    return transfer(x, rank, position);
}

/* Returns the missing input of a computing action, as the action that produces it. */
static struct action missing_input(const struct simulator *x, struct action a)
{
    const struct action_traits *traits = action_traits(a.kind);
    struct action missing = {.kind = FORWARD, .stage = a.stage, .microbatch = a.microbatch};
    if (!traits->forward && x->produced[false][cell(x->s, a.stage, a.microbatch)].at < 0.0)
        return missing;
    missing.kind = traits->forward ? FORWARD : BACKWARD_INPUT;
    if (traits->forward || traits->backward_input)
        missing.stage = stage_before(a.stage, !traits->forward);
    return missing;
}

/* Returns the rank that a stalled rank waits for; the rank itself if its own list should have produced
 * `missing`. Either action of an overlapped pair may be waiting. */
static int waits_for(const struct simulator *x, int rank, struct action *missing)
{
    const struct action *a = &x->s->ranks[rank].actions[x->at[rank]];
    struct timestamp unused = {.at = 0.0};
    if (!action_traits(a->kind)->computes)
        return a->peer;
    if (a->overlaps_next && inputs_ready(x, *a, &unused))
        a++;
    *missing = missing_input(x, *a);
    return schedule_rank(x->s, missing->stage, missing->microbatch);
}

/* Formats the current action of a rank, or an overlapped pair, as in a file: "(0F3;1B2)". */
static void add_current_action(const struct simulator *x, int rank, struct text *out)
{
    const struct action_list *list = &x->s->ranks[rank];
    int position = x->at[rank];
    bool pair = list->actions[position].overlaps_next && position + 1 < list->count;
    char text[ACTION_CHARS];
    text_add(out, "%s%s", pair ? "(" : "", action_text(list->actions[position], text));
    if (pair)
        text_add(out, ";%s)", action_text(list->actions[position + 1], text));
}

/* Reports the cycle of waiting ranks, starting with the first rank that does not finish. */
static enum status report_deadlock(const struct simulator *x, int rank, struct schedule_error *why)
{
    char own[ACTION_CHARS];
    struct text text = {0};
    struct action missing;
    why->rank = rank;
    why->position = x->at[rank];
    text_add(&text, "rank %d, action %d: ", rank, x->at[rank]);
    add_current_action(x, rank, &text);
    for (int i = 0, from = rank; i < 4; i++) {
        int on = waits_for(x, from, &missing);
        text_add(&text, i == 0 ? " waits forever for" : ", which waits for");
        if (on == from) {
            text_add(&text, " its own %s", action_text(missing, own));
            break;
        }
        text_add(&text, " rank %d", on);
        if (x->at[on] >= x->s->ranks[on].count) {
            text_add(&text, ", which has finished");
            break;
        }
        text_add(&text, " at ");
        add_current_action(x, on, &text);
        if (on == rank)
            break;
        from = on;
    }
    snprintf(why->text, sizeof why->text, "%s", text_chars(&text));
    text_free(&text);
    return fail(BAD_SCHEDULE, "%s", why->text);
}

static enum status run(struct simulator *x, struct schedule_error *why)
{
    for (int rank = 0; rank < x->s->p; rank++)
        wake(x, rank);
    while (x->queue_count > 0) {
        int rank = x->queue[x->queue_first];
        x->queue_first = (x->queue_first + 1) % x->s->p;
        x->queue_count--;
        x->queued[rank] = false;
        while (step(x, rank))
            continue;
    }
    for (int rank = 0; rank < x->s->p; rank++)
        if (x->at[rank] < x->s->ranks[rank].count)
            return report_deadlock(x, rank, why);
    return OK;
}

static void summarize(const struct schedule *s, struct simulation *sim)
{
    for (int rank = 0; rank < s->p; rank++) {
        struct rank_time *r = &sim->ranks[rank];
        r->peak = schedule_peak(s, rank);
        if (r->first_start < 0.0)
            r->first_start = 0.0;
        double span = r->last_end - r->first_start;
        r->bubble = span - r->busy;
        if (r->bubble < 1e-9 * span) // rounding error of sums
            r->bubble = 0.0;
        if (r->bubble > sim->bubble)
            sim->bubble = r->bubble;
    }
    for (int64_t i = 0; i < sim->first[s->p]; i++)
        if (sim->times[i].end > sim->makespan)
            sim->makespan = sim->times[i].end;
}

/* Marks the critical path, backwards from the action that ended last, by the cause of each start. */
static void mark_path(const struct schedule *s, struct simulation *sim)
{
    for (int64_t i = 0; i < sim->first[s->p]; i++)
        if (sim->last < 0 || sim->times[i].end > sim->times[sim->last].end)
            sim->last = i;
    for (int64_t i = sim->last; i >= 0 && !sim->times[i].critical; i = sim->times[i].cause)
        sim->times[i].critical = true;
}

void simulation_total(const struct schedule *schedule, struct simulation *simulation)
{
    for (int rank = 0; rank < schedule->p; rank++) {
        struct rank_time *r = &simulation->ranks[rank];
        for (int i = 0; i < schedule->ranks[rank].count; i++) {
            const struct action_time *time = &simulation->times[simulation->first[rank] + i];
            if (!action_traits(schedule->ranks[rank].actions[i].kind)->computes)
                continue;
            if (r->first_start < 0.0)
                r->first_start = time->start;
            r->busy += time->end - time->start;
            r->last_end = time->end;
        }
    }
    summarize(schedule, simulation);
}

int schedule_peak(const struct schedule *schedule, int rank)
{
    int held = 0, peak = 0;
    for (int i = 0; i < schedule->ranks[rank].count; i++) {
        const struct action_traits *traits = action_traits(schedule->ranks[rank].actions[i].kind);
        held += traits->forward ? 1 : 0;
        peak = held > peak ? held : peak;
        held -= traits->backward_weight ? 1 : 0;
    }
    return peak;
}

struct simulation *simulation_create(const struct schedule *schedule)
{
    struct simulation *sim = memory_zeroed(1, sizeof *sim, "a simulation");
    sim->p = schedule->p;
    sim->last = -1;
    sim->ranks = memory_zeroed((size_t)schedule->p, sizeof *sim->ranks, "the ranks of a simulation");
    sim->first = memory_zeroed((size_t)schedule->p + 1, sizeof *sim->first, "the ranks of a simulation");
    for (int rank = 0; rank < schedule->p; rank++) {
        sim->first[rank + 1] = sim->first[rank] + schedule->ranks[rank].count;
        sim->ranks[rank].first_start = -1.0;
    }
    sim->times =
        memory_zeroed((size_t)sim->first[schedule->p], sizeof *sim->times, "the actions of a simulation");
    return sim;
}

void simulation_destroy(struct simulation *simulation)
{
    if (simulation == NULL)
        return;
    free(simulation->ranks);
    free(simulation->first);
    free(simulation->times);
    free(simulation);
}

static void simulator_fini(struct simulator *x)
{
    edges_destroy(x->edges);
    free(x->at);
    free(x->clock);
    free(x->last);
    free(x->edge_free);
    free(x->queue);
    free(x->queued);
    for (int gradient = 0; gradient < 2; gradient++) {
        free(x->produced[gradient]);
        free(x->messages[gradient]);
    }
}

static void simulator_init(struct simulator *x)
{
    static const char what[] = "a simulation";
    const struct schedule *s = x->s;
    const size_t cells = (size_t)s->stages * (size_t)s->m, p = (size_t)s->p;
    x->edges = edges_create(s);
    x->at = memory_zeroed(p, sizeof *x->at, what);
    x->clock = memory_zeroed(p, sizeof *x->clock, what);
    x->last = memory_zeroed(p, sizeof *x->last, what);
    x->queue = memory_zeroed(p, sizeof *x->queue, what);
    x->queued = memory_zeroed(p, sizeof *x->queued, what);
    x->edge_free = memory_zeroed((size_t)x->edges->count + 1, sizeof *x->edge_free, what);
    for (int gradient = 0; gradient < 2; gradient++) {
        const size_t messages = s->has_transfers ? cells : 0;
        x->produced[gradient] = memory_zeroed(cells, sizeof *x->produced[gradient], what);
        x->messages[gradient] = memory_zeroed(messages, sizeof *x->messages[gradient], what);
        for (size_t i = 0; i < cells; i++)
            x->produced[gradient][i] = (struct timestamp){.at = -1.0, .by = -1};
        for (size_t i = 0; i < messages; i++)
            x->messages[gradient][i] = (struct message){.sent = -1.0, .posted = -1.0, .arrives = -1.0};
    }
    for (size_t rank = 0; rank < p; rank++) {
        x->clock[rank].by = -1;
        x->last[rank].by = -1;
    }
    for (int edge = 0; edge < x->edges->count; edge++)
        x->edge_free[edge].by = -1;
}

enum status simulate(const struct schedule *schedule, const struct cost_table *costs,
                     struct schedule_error *why, struct simulation **out)
{
    struct schedule_error unused;
    struct simulator x = {.s = schedule, .costs = costs, .sim = simulation_create(schedule)};
    simulator_init(&x);
    enum status status = run(&x, why != NULL ? why : &unused);
    if (status == OK) {
        summarize(schedule, x.sim);
        mark_path(schedule, x.sim);
        *out = x.sim;
    } else {
        simulation_destroy(x.sim);
    }
    simulator_fini(&x);
    return status;
}
