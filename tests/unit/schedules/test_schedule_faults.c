// SPDX-License-Identifier: Apache-2.0
/* Every rule of the checker against every family: a valid schedule gets one injected fault, and the
 * checker must report the rank, the action and the reason. A rule that a family cannot violate is listed
 * below with the families: the test also fails if a fault could not be injected, or if one could be where
 * none was expected. */
#include "schedules/edges.h"
#include "tests/unit/schedules/schedule_damage.h"

#include <stdlib.h>

/* A position in the lists, and the error message that the fault there must give. */
struct fault {
    struct schedule *s;
    struct rng rng;
    struct text expected;
};

static PRINTF_LIKE(4, 5) bool expect(struct fault *x, int rank, int position, const char *format, ...)
{
    char words[300];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (position >= 0)
        text_add(&x->expected, "rank %d, action %d: %s", rank, position, words);
    else
        text_add(&x->expected, "rank %d: %s", rank, words);
    return true;
}

/* A random position where `fits` is true. */
static bool choose(struct fault *x, bool (*fits)(const struct schedule *s, int rank, int i), int *rank,
                   int *i)
{
    for (int pass = 0, count = 0, wanted = -1; pass < 2; pass++) {
        if (pass == 1 && count == 0)
            return false;
        if (pass == 1)
            wanted = rng_int(&x->rng, 0, count - 1);
        for (*rank = 0; *rank < x->s->p; ++*rank)
            for (*i = 0; *i < x->s->ranks[*rank].count; ++*i)
                if (fits(x->s, *rank, *i) && (pass == 0 ? count++ < 0 : wanted-- == 0))
                    return true;
    }
    return false;
}

static struct action get(const struct schedule *s, int rank, int i)
{
    return s->ranks[rank].actions[i];
}

static bool any(const struct schedule *s, int rank, int i)
{
    return i < s->ranks[rank].count;
}

static bool computes(const struct schedule *s, int rank, int i)
{
    return action_traits(get(s, rank, i).kind)->computes;
}

static bool transfers(const struct schedule *s, int rank, int i)
{
    return !computes(s, rank, i);
}

static bool is_input(const struct schedule *s, int rank, int i)
{
    return get(s, rank, i).kind == BACKWARD_INPUT;
}

static bool is_weight(const struct schedule *s, int rank, int i)
{
    return get(s, rank, i).kind == BACKWARD_WEIGHT;
}

static bool is_whole(const struct schedule *s, int rank, int i)
{
    return get(s, rank, i).kind == BACKWARD;
}

/* Followed by the same action of the next microbatch; and no action on this rank waits for the output of a
 * whole B. */
static bool has_later_weight(const struct schedule *s, int rank, int i)
{
    struct action a = get(s, rank, i);
    return action_traits(a.kind)->backward_weight && a.microbatch + 1 < s->m &&
           schedule_rank(s, a.stage, a.microbatch + 1) == rank &&
           (a.kind == BACKWARD_WEIGHT || a.stage == 0 || crosses_ranks(s, a.stage - 1, a.microbatch, true));
}

/* ---- each action exactly once ---- */

static bool missing(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    remove_at(x->s, rank, i);
    return expect(x, rank, -1, "%s is missing%s", action_text(a, text),
                  a.kind == BACKWARD ? ", and so are its I and W" : "");
}

static bool duplicate(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    action_list_add(&x->s->ranks[rank], a);
    return expect(x, rank, x->s->ranks[rank].count - 1, "%s is listed twice", action_text(a, text));
}

/* I, B and W of the same stage and microbatch, mixed. */
static bool input_as_whole(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, is_input, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    a->kind = BACKWARD;
    int w = position_of(x->s, rank, BACKWARD_WEIGHT, a->stage, a->microbatch);
    return expect(x, rank, w, "%s is listed twice", action_text(get(x->s, rank, w), text));
}

static bool weight_as_whole(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, is_weight, &rank, &i))
        return false;
    at(x->s, rank, i)->kind = BACKWARD;
    return expect(x, rank, i, "%s is listed twice, as one half", action_text(get(x->s, rank, i), text));
}

static bool whole_as_half(struct fault *x)
{
    int rank, i, half = rng_int(&x->rng, 0, 1);
    if (!choose(x, is_whole, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    a->kind = half == 0 ? BACKWARD_INPUT : BACKWARD_WEIGHT;
    return expect(x, rank, -1, "%d%s%d is missing", a->stage, half == 0 ? "W" : "I", a->microbatch);
}

/* ---- placement ---- */

static bool wrong_rank(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    do
        a->stage = rng_int(&x->rng, 0, x->s->stages - 1);
    while (schedule_rank(x->s, a->stage, a->microbatch) == rank);
    return expect(x, rank, i, "%s belongs to rank %d", action_text(*a, text),
                  schedule_rank(x->s, a->stage, a->microbatch));
}

static bool no_such_stage(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    a->stage = rng_int(&x->rng, 0, 1) == 0 ? -1 : x->s->stages;
    return expect(x, rank, i, "%s: there are stages 0 to %d", action_text(*a, text), x->s->stages - 1);
}

static bool no_such_microbatch(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    a->microbatch = rng_int(&x->rng, 0, 1) == 0 ? -1 : x->s->m;
    return expect(x, rank, i, "%s: there are microbatches 0 to %d", action_text(*a, text), x->s->m - 1);
}

static bool no_such_kind(struct fault *x)
{
    int rank, i;
    if (!choose(x, any, &rank, &i))
        return false;
    at(x->s, rank, i)->kind = ACTION_KIND_COUNT;
    return expect(x, rank, i, "no action has the kind %d", (int)ACTION_KIND_COUNT);
}

/* ---- order ---- */

/* Positions of the inputs of an action in the rank's own list; at most two. Returns their number. */
static int prerequisites(const struct schedule *s, int rank, struct action a, int positions[2])
{
    const struct action_traits *traits = action_traits(a.kind);
    int k = a.microbatch, count = 0;
    int whole = position_of(s, rank, BACKWARD, a.stage, k),
        input = position_of(s, rank, BACKWARD_INPUT, a.stage, k);
    if (traits->receives)
        return 0;
    if (a.kind == SEND_ACTIVATION || traits->backward_input)
        positions[count++] = position_of(s, rank, FORWARD, a.stage, k);
    if (a.kind == SEND_GRADIENT || a.kind == BACKWARD_WEIGHT)
        positions[count++] = whole >= 0 ? whole : input;
    if (!traits->forward && !traits->backward_input)
        return count;
    bool gradient = traits->backward_input;
    int from = stage_before(a.stage, gradient);
    if (from < 0 || from >= s->stages)
        return count;
    int position = position_of(s, rank, gradient ? RECV_GRADIENT : RECV_ACTIVATION, a.stage, k);
    if (position < 0 && !crosses_ranks(s, a.stage, k, gradient)) {
        position = position_of(s, rank, gradient ? BACKWARD_INPUT : FORWARD, from, k);
        position = position < 0 ? position_of(s, rank, BACKWARD, from, k) : position;
    }
    if (position >= 0)
        positions[count++] = position;
    return count;
}

static bool needs_one(const struct schedule *s, int rank, int i)
{
    int positions[2];
    return prerequisites(s, rank, get(s, rank, i), positions) > 0;
}

/* Before its last input, so that this is the missing one. */
static bool just_too_early(struct fault *x)
{
    char text[ACTION_CHARS], other[ACTION_CHARS];
    int rank, i, positions[2];
    if (!choose(x, needs_one, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    int count = prerequisites(x->s, rank, a, positions);
    int to = count == 2 && positions[1] > positions[0] ? positions[1] : positions[0];
    struct action need = get(x->s, rank, to);
    need.kind = need.kind == BACKWARD ? BACKWARD_INPUT : need.kind; // the half that is waited for
    move(x->s, rank, i, to);
    return expect(x, rank, to, "%s runs before %s", action_text(a, text), action_text(need, other));
}

/* Before all its inputs, of which the forward is named first. */
static bool much_too_early(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i, positions[2];
    if (!choose(x, needs_one, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    if (prerequisites(x->s, rank, a, positions) < 2)
        return just_too_early(x);
    int to = positions[1] < positions[0] ? positions[1] : positions[0];
    move(x->s, rank, i, to);
    return expect(x, rank, to, "%s runs before %dF%d", action_text(a, text), a.stage, a.microbatch);
}

/* W (or B) after the one of the next microbatch. */
static bool weights_out_of_order(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, has_later_weight, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    int whole = position_of(x->s, rank, BACKWARD, a.stage, a.microbatch + 1);
    int to = whole >= 0 ? whole : position_of(x->s, rank, BACKWARD_WEIGHT, a.stage, a.microbatch + 1);
    move(x->s, rank, i, to);
    return expect(x, rank, to,
                  "%s runs after microbatch %d: gradients must be accumulated in microbatch order",
                  action_text(a, text), a.microbatch + 1);
}

/* ---- transfers ---- */

static bool transfer_too_soon(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, transfers, &rank, &i))
        return false;
    x->s->has_transfers = false;
    for (rank = 0, i = 0; computes(x->s, rank, i); i++)
        continue; // only the first one is reported
    return expect(x, rank, i, "%s is a transfer, but transfers have not been added yet",
                  action_text(get(x->s, rank, i), text));
}

static bool wrong_peer(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, transfers, &rank, &i))
        return false;
    struct action *a = at(x->s, rank, i);
    const struct action_traits *traits = action_traits(a->kind);
    int right = a->peer,
        other = traits->sends ? transfer_receiver(*a) : stage_before(a->stage, traits->gradient);
    a->peer = (right + 1) % (x->s->p + 1) - (right + 1 == x->s->p ? 1 : 0);
    a->peer = a->peer == right ? -1 : a->peer;
    return expect(x, rank, i, "%s has peer rank %d, but stage %d is on rank %d", action_text(*a, text),
                  a->peer, other, right);
}

/* At the ends of the pipeline, and where a V turns, there is no peer to send to. */
static bool has_no_peer(const struct schedule *s, int rank, int i)
{
    struct action a = get(s, rank, i);
    return a.kind == FORWARD &&
           (a.stage + 1 == s->stages || !crosses_ranks(s, a.stage + 1, a.microbatch, false));
}

static bool transfer_without_peer(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, has_no_peer, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i);
    a.kind = SEND_ACTIVATION;
    action_list_add(&x->s->ranks[rank], a);
    return expect(x, rank, x->s->ranks[rank].count - 1, "%s crosses no boundary between ranks",
                  action_text(a, text));
}

/* The next message of the same edge; -1. */
static int next_on_edge(const struct schedule *s, int rank, int i)
{
    struct action a = get(s, rank, i);
    for (int j = i + 1; action_traits(a.kind)->receives && j < s->ranks[rank].count; j++)
        if (get(s, rank, j).kind == a.kind && get(s, rank, j).peer == a.peer)
            return j;
    return -1;
}

static bool has_next_on_edge(const struct schedule *s, int rank, int i)
{
    return next_on_edge(s, rank, i) >= 0;
}

static bool edge_out_of_order(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i, number = 0;
    if (!choose(x, has_next_on_edge, &rank, &i))
        return false;
    struct action a = get(x->s, rank, i), later = get(x->s, rank, next_on_edge(x->s, rank, i));
    for (int j = 0; j < i; j++)
        number += get(x->s, rank, j).kind == a.kind && get(x->s, rank, j).peer == a.peer ? 1 : 0;
    move(x->s, rank, next_on_edge(x->s, rank, i), i);
    return expect(x, rank, i, "%s is number %d from rank %d, which sends it as number %d",
                  action_text(later, text), number, a.peer, number + 1);
}

/* A RECV and then a SEND with the same rank: in the reverse order both would block in their sends. */
static bool can_cross(const struct schedule *s, int rank, int i)
{
    if (i + 1 >= s->ranks[rank].count)
        return false;
    struct action a = get(s, rank, i), b = get(s, rank, i + 1);
    return action_traits(a.kind)->receives && action_traits(b.kind)->sends && a.peer == b.peer;
}

static bool blocks_if_transfers_do(struct fault *x)
{
    int rank, i;
    if (!choose(x, can_cross, &rank, &i))
        return false;
    move(x->s, rank, i, i + 1);
    simulation_destroy(
        simulated(x->s, (struct cost_table){.chunk = {1, 1, 1}})); // valid where transfers do not block
    text_add(&x->expected, "waits forever for rank");
    return true;
}

/* The last stage runs its second forward before its first backward, and the first stage its first backward
 * before its second forward: each list alone is in order, and together they form a cycle. */
static bool cyclic_wait(struct fault *x)
{
    struct schedule *s = x->s;
    int last = s->stages - 1, top = schedule_rank(s, 0, 0), bottom = schedule_rank(s, last, 0);
    enum action_kind kind = position_of(s, top, BACKWARD, 0, 0) >= 0 ? BACKWARD : BACKWARD_INPUT;
    enum action_kind last_kind = position_of(s, bottom, BACKWARD, last, 0) >= 0 ? BACKWARD : BACKWARD_INPUT;
    int second = position_of(s, bottom, FORWARD, last, 1), first = position_of(s, bottom, last_kind, last, 0);
    if (first < second) {
        int weight = position_of(s, bottom, BACKWARD_WEIGHT, last, 0);
        move(s, bottom, first, second);
        if (weight >= 0 && weight < second)
            move(s, bottom, weight - 1, second);
    }
    move(s, top, position_of(s, top, kind, 0, 0), position_of(s, top, FORWARD, 0, 1));
    text_add(&x->expected, "waits forever for rank");
    return true;
}

/* ---- memory and pairs ---- */

/* Rank 0 runs forwards without inputs ahead of time, until it holds more than the family's limit. */
static bool too_much_held(struct fault *x)
{
    struct schedule *s = x->s;
    int claim = s->family->peak_claim(s, 0);
    for (int k = 0; k < s->m && schedule_rank(s, 0, k) == 0 && schedule_peak(s, 0) <= claim; k++)
        move(s, 0, position_of(s, 0, FORWARD, 0, k), k);
    int peak = schedule_peak(s, 0);
    return peak > claim &&
           expect(x, 0, -1, "holds the activations of %d microbatches at once; %s claims at most %d", peak,
                  s->family->about.name, claim);
}

static bool pair_without_second(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank = rng_int(&x->rng, 0, x->s->p - 1), i = x->s->ranks[rank].count - 1;
    at(x->s, rank, i)->overlaps_next = true;
    return expect(x, rank, i, "%s overlaps the next action, but there is none",
                  action_text(get(x->s, rank, i), text));
}

static bool before_transfer(const struct schedule *s, int rank, int i)
{
    return i + 1 < s->ranks[rank].count && (transfers(s, rank, i) || transfers(s, rank, i + 1));
}

static bool pair_with_transfer(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, before_transfer, &rank, &i))
        return false;
    at(x->s, rank, i)->overlaps_next = true;
    return expect(x, rank, i, "%s cannot overlap the next action: both must compute",
                  action_text(get(x->s, rank, i), text));
}

static bool begins_three(const struct schedule *s, int rank, int i)
{
    return i + 2 < s->ranks[rank].count && computes(s, rank, i) && computes(s, rank, i + 1) &&
           computes(s, rank, i + 2);
}

static bool pair_of_three(struct fault *x)
{
    char text[ACTION_CHARS];
    int rank, i;
    if (!choose(x, begins_three, &rank, &i))
        return false;
    at(x->s, rank, i)->overlaps_next = true;
    at(x->s, rank, i + 1)->overlaps_next = true;
    return expect(x, rank, i, "%s overlaps an action that overlaps another one",
                  action_text(get(x->s, rank, i), text));
}

/* Adjacent actions of which the second consumes the output of the first. */
static bool feeds_next(const struct schedule *s, int rank, int i)
{
    int positions[2];
    if (i + 1 >= s->ranks[rank].count || !computes(s, rank, i) || !computes(s, rank, i + 1))
        return false;
    int count = prerequisites(s, rank, get(s, rank, i + 1), positions);
    return (count > 0 && positions[0] == i) || (count > 1 && positions[1] == i);
}

static bool pair_that_waits_for_itself(struct fault *x)
{
    int rank, i;
    if (!choose(x, feeds_next, &rank, &i))
        return false;
    at(x->s, rank, i)->overlaps_next = true;
    text_add(&x->expected, "waits forever");
    return true;
}

/* ---- the table ---- */

#define FUSED "gpipe looped-bfs 1f1b interleaved"
#define SPLIT "zb-h1 zb-h2 zb-v v-half v-min auto"

static const struct rule {
    const char *name;
    bool (*inject)(struct fault *fault);
    enum { LISTS, TRANSFERS, EITHER } on; // without transfers, with them, or alternating
    const char *not_for;                  // families that cannot violate it
} rules[] = {
    {"missing", missing, EITHER, ""},
    {"doubled", duplicate, EITHER, ""},
    {"I as B", input_as_whole, EITHER, FUSED},
    {"W as B", weight_as_whole, EITHER, FUSED},
    {"B as a half", whole_as_half, EITHER, SPLIT},
    {"wrong rank", wrong_rank, EITHER, ""},
    {"no such stage", no_such_stage, EITHER, ""},
    {"no such microbatch", no_such_microbatch, EITHER, ""},
    {"no such kind", no_such_kind, EITHER, ""},
    {"just too early", just_too_early, EITHER, ""},
    {"much too early", much_too_early, EITHER, ""},
    {"weights out of order", weights_out_of_order, LISTS, ""},
    {"transfer too soon", transfer_too_soon, TRANSFERS, ""},
    {"wrong peer", wrong_peer, TRANSFERS, ""},
    {"transfer without a peer", transfer_without_peer, TRANSFERS, ""},
    {"edge out of order", edge_out_of_order, TRANSFERS, ""},
    {"blocking transfers", blocks_if_transfers_do, TRANSFERS, "gpipe"},
    {"circle", cyclic_wait, LISTS, ""},
    {"memory limit exceeded", too_much_held, LISTS, "gpipe looped-bfs"}, // their limit is all microbatches
    {"pair without second", pair_without_second, LISTS, ""},
    {"pair with transfer", pair_with_transfer, TRANSFERS, ""},
    {"pair of three", pair_of_three, LISTS, ""},
    {"pair that waits", pair_that_waits_for_itself, LISTS, "gpipe looped-bfs"},
};
enum { RULES = sizeof rules / sizeof *rules };

static bool is_among(const char *names, const char *name)
{
    const char *found = strstr(names, name);
    size_t length = strlen(name);
    return found != NULL && (found[length] == 0 || found[length] == ' ') &&
           (found == names || found[-1] == ' ');
}

/* Injects one fault; true if it was possible. */
static bool check_fault(const struct rule *rule, const char *family, uint64_t seed)
{
    struct fault x = {.rng = {.generator = philox_named(seed, rule->name)}};
    int p = 2 * rng_int(&x.rng, 1, 3);
    x.s = build_with((struct schedule_options){
        .name = family,
        .p = p,
        .m = 2 * p + rng_int(&x.rng, 0, 2 * p),
        .memory_limit = is_among("auto", family) ? p : 0, // without one it has no limit
        .without_transfers = rule->on == LISTS || (rule->on == EITHER && rng_int(&x.rng, 0, 1) == 0)});
    forget_pairs(x.s);
    cr_assert_eq(schedule_check(x.s, NULL), OK, "%s", fail_text());
    bool injected = rule->inject(&x);
    if (injected) {
        struct schedule_error why;
        enum status status = schedule_check(x.s, &why);
        cr_assert_eq(status, BAD_SCHEDULE, "%s, %s: accepted, expected: %s", rule->name, family,
                     x.expected.chars);
        bool exact = strncmp(x.expected.chars, "rank", 4) == 0;
        cr_assert(exact ? strcmp(why.text, x.expected.chars) == 0
                        : strstr(why.text, x.expected.chars) != NULL,
                  "%s, %s: reported \"%s\", expected \"%s\"", rule->name, family, why.text, x.expected.chars);
        cr_assert(why.rank >= 0 && why.rank < x.s->p && why.position < x.s->ranks[why.rank].count);
    }
    text_free(&x.expected);
    schedule_destroy(x.s);
    return injected;
}

Test(faults, every_rule_of_every_family)
{
    const int times = fewer_cases() ? 10 : 30;
    int injected = 0;
    for (int r = 0; r < RULES; r++)
        for (int i = 0; schedule_about(i) != NULL; i++) {
            const char *family = schedule_about(i)->name;
            int here = 0;
            for (int n = 0; n < times; n++)
                here += check_fault(&rules[r], family, (uint64_t)(100 * i + n)) ? 1 : 0;
            cr_expect_eq(here == 0, is_among(rules[r].not_for, family), "%s: %d faults in %s", rules[r].name,
                         here, family);
            injected += here;
        }
    cr_log_info("%d faults\n", injected);
}
