// SPDX-License-Identifier: Apache-2.0
/* Schedule checker: one pass per rule, from rules about a single action to global ones. Every (stage,
 * microbatch) is a cell with one bit for each required action. The first passes check that each bit is set
 * exactly once, the next ones the order, and the last one simulates all ranks with blocking transfers, since
 * no rule about single lists can exclude a cyclic wait.
 *
 * Caution: the order of the rules matters: each relies on the earlier ones. */
#include "schedules/edges.h"

#include "base/memory.h"
#include "schedules/families/family.h"
#include "schedules/simulate.h"

#include <string.h>

enum bits {
    DONE_F = 1,
    DONE_I = 2,
    DONE_W = 4,
    SENT_F = 8,
    RECEIVED_F = 16,
    SENT_B = 32,
    RECEIVED_B = 64,
};

static const struct {
    unsigned sets;  // bits that the action sets in its cell
    unsigned needs; // bits that must be set in that cell before; receives only across ranks
} rules[] = {
    [FORWARD] = {.sets = DONE_F, .needs = RECEIVED_F},
    [BACKWARD] = {.sets = DONE_I | DONE_W, .needs = DONE_F | RECEIVED_B},
    [BACKWARD_INPUT] = {.sets = DONE_I, .needs = DONE_F | RECEIVED_B},
    [BACKWARD_WEIGHT] = {.sets = DONE_W, .needs = DONE_I},
    [SEND_ACTIVATION] = {.sets = SENT_F, .needs = DONE_F},
    [RECV_ACTIVATION] = {.sets = RECEIVED_F},
    [SEND_GRADIENT] = {.sets = SENT_B, .needs = DONE_I},
    [RECV_GRADIENT] = {.sets = RECEIVED_B},
};
_Static_assert(sizeof rules / sizeof *rules == ACTION_KIND_COUNT, "one row for each kind of action");

/* Names a bit in an error message: by the action that sets it. */
static const struct {
    unsigned bit;
    enum action_kind kind;
} names[] = {
    {DONE_F, FORWARD},           {DONE_I, BACKWARD_INPUT},      {DONE_W, BACKWARD_WEIGHT},
    {SENT_F, SEND_ACTIVATION},   {RECEIVED_F, RECV_ACTIVATION}, {SENT_B, SEND_GRADIENT},
    {RECEIVED_B, RECV_GRADIENT},
};
enum { NAME_COUNT = sizeof names / sizeof *names };

struct checker {
    const struct schedule *s;
    struct schedule_error *why;
    unsigned char *done; // [stages][m] of enum bits
};

static PRINTF_LIKE(4, 5) enum status
    report_error(const struct checker *c, int rank, int position, const char *format, ...)
{
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    c->why->rank = rank;
    c->why->position = position;
    if (position >= 0)
        snprintf(c->why->text, sizeof c->why->text, "rank %d, action %d: %s", rank, position, message);
    else
        snprintf(c->why->text, sizeof c->why->text, "rank %d: %s", rank, message);
    return fail(BAD_SCHEDULE, "%s", c->why->text);
}

static size_t cell(const struct schedule *s, int stage, int microbatch)
{
    return (size_t)stage * (size_t)s->m + (size_t)microbatch;
}

/* Formats the action of kind `kind` for the same stage and microbatch. */
static const char *sibling(struct action a, enum action_kind kind, char out[ACTION_CHARS])
{
    a.kind = kind;
    return action_text(a, out);
}

/* Returns the bits required of a cell. */
static unsigned required(const struct schedule *s, int stage, int microbatch)
{
    unsigned bits = DONE_F | DONE_I | DONE_W;
    if (!s->has_transfers)
        return bits;
    if (crosses_ranks(s, stage, microbatch, false))
        bits |= RECEIVED_F;
    if (crosses_ranks(s, stage, microbatch, true))
        bits |= RECEIVED_B;
    if (stage + 1 < s->stages && crosses_ranks(s, stage + 1, microbatch, false))
        bits |= SENT_F;
    if (stage > 0 && crosses_ranks(s, stage - 1, microbatch, true))
        bits |= SENT_B;
    return bits;
}

/* The kind, stage and microbatch exist, and the rank holds the stage. */
static enum status check_range(const struct checker *c, int rank, int position)
{
    const struct schedule *s = c->s;
    struct action a = s->ranks[rank].actions[position];
    char text[ACTION_CHARS];
    if (a.kind < 0 || a.kind >= ACTION_KIND_COUNT)
        return report_error(c, rank, position, "no action has the kind %d", (int)a.kind);
    if (a.stage < 0 || a.stage >= s->stages)
        return report_error(c, rank, position, "%s: there are stages 0 to %d", action_text(a, text),
                            s->stages - 1);
    if (a.microbatch < 0 || a.microbatch >= s->m)
        return report_error(c, rank, position, "%s: there are microbatches 0 to %d", action_text(a, text),
                            s->m - 1);
    int owner = schedule_rank(s, a.stage, a.microbatch);
    if (owner != rank)
        return report_error(c, rank, position, "%s belongs to rank %d", action_text(a, text), owner);
    return OK;
}

/* A transfer crosses a boundary between two ranks and names the peer. */
static enum status check_transfer(const struct checker *c, int rank, int position)
{
    const struct schedule *s = c->s;
    struct action a = s->ranks[rank].actions[position];
    char text[ACTION_CHARS];
    if (!s->has_transfers)
        return report_error(c, rank, position, "%s is a transfer, but transfers have not been added yet",
                            action_text(a, text));
    if ((required(s, a.stage, a.microbatch) & rules[a.kind].sets) == 0)
        return report_error(c, rank, position, "%s crosses no boundary between ranks", action_text(a, text));
    const struct action_traits *traits = action_traits(a.kind);
    int other = traits->sends ? transfer_receiver(a) : stage_before(a.stage, traits->gradient);
    int peer = schedule_rank(s, other, a.microbatch);
    if (a.peer != peer)
        return report_error(c, rank, position, "%s has peer rank %d, but stage %d is on rank %d",
                            action_text(a, text), a.peer, other, peer);
    return OK;
}

/* A pair consists of two adjacent computing actions, and pairs do not overlap. */
static enum status check_overlap(const struct checker *c, int rank, int position)
{
    const struct action_list *list = &c->s->ranks[rank];
    struct action a = list->actions[position];
    char text[ACTION_CHARS];
    if (position + 1 == list->count)
        return report_error(c, rank, position, "%s overlaps the next action, but there is none",
                            action_text(a, text));
    struct action next = list->actions[position + 1];
    bool known = next.kind >= 0 && next.kind < ACTION_KIND_COUNT;
    if (!action_traits(a.kind)->computes || (known && !action_traits(next.kind)->computes))
        return report_error(c, rank, position, "%s cannot overlap the next action: both must compute",
                            action_text(a, text));
    if (next.overlaps_next)
        return report_error(c, rank, position, "%s overlaps an action that overlaps another one",
                            action_text(a, text));
    return OK;
}

static enum status check_single_actions(const struct checker *c)
{
    for (int rank = 0; rank < c->s->p; rank++)
        for (int i = 0; i < c->s->ranks[rank].count; i++) {
            struct action a = c->s->ranks[rank].actions[i];
            TRY(check_range(c, rank, i));
            if (!action_traits(a.kind)->computes)
                TRY(check_transfer(c, rank, i));
            if (a.overlaps_next)
                TRY(check_overlap(c, rank, i));
        }
    return OK;
}

static enum status fail_missing(const struct checker *c, int stage, int microbatch, unsigned missing)
{
    int rank = schedule_rank(c->s, stage, microbatch);
    char text[ACTION_CHARS];
    struct action a = {.kind = BACKWARD, .stage = stage, .microbatch = microbatch};
    if ((missing & DONE_F) == 0 && (missing & DONE_I) != 0 && (missing & DONE_W) != 0)
        return report_error(c, rank, -1, "%s is missing, and so are its I and W", action_text(a, text));
    for (int i = 0; i < NAME_COUNT; i++)
        if ((missing & names[i].bit) != 0)
            return report_error(c, rank, -1, "%s is missing", sibling(a, names[i].kind, text));
    return OK;
}

static enum status check_each_once(const struct checker *c)
{
    const struct schedule *s = c->s;
    char text[ACTION_CHARS];
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            unsigned char *done = &c->done[cell(s, a.stage, a.microbatch)];
            unsigned twice = *done & rules[a.kind].sets;
            if (twice != 0)
                return report_error(c, rank, i, "%s is listed twice%s", action_text(a, text),
                                    a.kind == BACKWARD && twice != (DONE_I | DONE_W) ? ", as one half" : "");
            *done = (unsigned char)(*done | rules[a.kind].sets);
        }
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < s->m; k++) {
            unsigned missing = required(s, stage, k) & ~(unsigned)c->done[cell(s, stage, k)];
            if (missing != 0)
                return fail_missing(c, stage, k, missing);
        }
    return OK;
}

/* The inputs of an action were computed or received earlier on its own rank. */
static enum status check_needs(const struct checker *c, int rank, int position)
{
    const struct schedule *s = c->s;
    struct action a = s->ranks[rank].actions[position];
    const struct action_traits *traits = action_traits(a.kind);
    char text[ACTION_CHARS], other[ACTION_CHARS];
    unsigned needs = rules[a.kind].needs & required(s, a.stage, a.microbatch);
    unsigned missing = needs & ~(unsigned)c->done[cell(s, a.stage, a.microbatch)];
    for (int i = 0; i < NAME_COUNT; i++)
        if ((missing & names[i].bit) != 0)
            return report_error(c, rank, position, "%s runs before %s", action_text(a, text),
                                sibling(a, names[i].kind, other));

    // If the stage that produces the input is on this rank too, there is no receive.
    bool gradient = traits->backward_input;
    int from = stage_before(a.stage, gradient);
    if ((!traits->forward && !traits->backward_input) || from < 0 || from >= s->stages ||
        crosses_ranks(s, a.stage, a.microbatch, gradient))
        return OK;
    struct action maker = {
        .kind = gradient ? BACKWARD_INPUT : FORWARD, .stage = from, .microbatch = a.microbatch};
    if ((c->done[cell(s, from, a.microbatch)] & rules[maker.kind].sets) == 0)
        return report_error(c, rank, position, "%s runs before %s", action_text(a, text),
                            action_text(maker, other));
    return OK;
}

/* Weight gradients of a chunk accumulate in microbatch order. */
static enum status check_weight_order(const struct checker *c, int rank, int position, int *latest)
{
    struct action a = c->s->ranks[rank].actions[position];
    char text[ACTION_CHARS];
    int chunk = schedule_chunk(c->s, a.stage, a.microbatch);
    if (a.microbatch < latest[chunk])
        return report_error(c, rank, position,
                            "%s runs after microbatch %d: gradients must be accumulated in microbatch order",
                            action_text(a, text), latest[chunk]);
    latest[chunk] = a.microbatch;
    return OK;
}

static enum status check_order(const struct checker *c, int *latest)
{
    const struct schedule *s = c->s;
    for (int rank = 0; rank < s->p; rank++) {
        for (int chunk = 0; chunk < s->chunks; chunk++)
            latest[chunk] = -1;
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            TRY(check_needs(c, rank, i));
            if (action_traits(a.kind)->backward_weight)
                TRY(check_weight_order(c, rank, i, latest));
            unsigned char *done = &c->done[cell(s, a.stage, a.microbatch)];
            *done = (unsigned char)(*done | rules[a.kind].sets);
        }
    }
    return OK;
}

/* Numbers the sends of every edge, and checks that the receives have the same order. */
static enum status check_edges(const struct checker *c, const struct edges *edges, int *count, int *number)
{
    const struct schedule *s = c->s;
    size_t cells = (size_t)s->stages * (size_t)s->m;
    for (int receiving = 0; receiving < 2; receiving++) {
        for (int edge = 0; edge < edges->count; edge++)
            count[edge] = 0;
        for (int rank = 0; rank < s->p; rank++)
            for (int i = 0; i < s->ranks[rank].count; i++) {
                struct action a = s->ranks[rank].actions[i];
                const struct action_traits *traits = action_traits(a.kind);
                if (traits->computes || traits->receives != (receiving != 0))
                    continue;
                size_t at = (traits->gradient ? cells : 0) + cell(s, transfer_receiver(a), a.microbatch);
                int sequence = count[edge_of(edges, s, a)]++;
                char text[ACTION_CHARS];
                if (receiving == 0)
                    number[at] = sequence;
                else if (number[at] != sequence)
                    return report_error(c, rank, i,
                                        "%s is number %d from rank %d, which sends it as number %d",
                                        action_text(a, text), sequence, a.peer, number[at]);
            }
    }
    return OK;
}

static enum status check_edge_order(const struct checker *c)
{
    struct edges *edges = edges_create(c->s);
    const size_t cells = (size_t)c->s->stages * (size_t)c->s->m;
    AUTO_FREE int *count = memory_zeroed((size_t)edges->count, sizeof *count, "the check of a schedule");
    AUTO_FREE int *number = memory_zeroed(2 * cells, sizeof *number, "the check of a schedule");
    const enum status status = check_edges(c, edges, count, number);
    edges_destroy(edges);
    return status;
}

static enum status check_runs(const struct checker *c)
{
    static const struct cost_table blocking = {.chunk = {1.0, 1.0, 1.0}, .blocking = true};
    struct simulation *sim = NULL;
    TRY(simulate(c->s, &blocking, c->why, &sim));
    simulation_destroy(sim);
    return OK;
}

static enum status check_peak(const struct checker *c)
{
    const struct schedule *s = c->s;
    if (s->family->peak_claim == NULL)
        return OK;
    for (int rank = 0; rank < s->p; rank++) {
        int peak = schedule_peak(s, rank), claim = s->family->peak_claim(s, rank);
        if (peak > claim)
            return report_error(c, rank, -1,
                                "holds the activations of %d microbatches at once; %s claims at most %d",
                                peak, s->family->about.name, claim);
    }
    return OK;
}

enum status schedule_check(const struct schedule *schedule, struct schedule_error *why)
{
    struct schedule_error unused;
    struct checker c = {.s = schedule, .why = why != NULL ? why : &unused};
    const size_t cells = (size_t)schedule->stages * (size_t)schedule->m;
    *c.why = (struct schedule_error){.rank = -1, .position = -1};
    AUTO_FREE unsigned char *done = memory_zeroed(cells, 1, "the check of a schedule");
    AUTO_FREE int *latest =
        memory_zeroed((size_t)schedule->chunks, sizeof *latest, "the check of a schedule");
    c.done = done;
    TRY(check_single_actions(&c));
    TRY(check_each_once(&c));
    memset(done, 0, cells);
    TRY(check_order(&c, latest));
    TRY(check_edge_order(&c));
    TRY(check_runs(&c));
    return check_peak(&c);
}
