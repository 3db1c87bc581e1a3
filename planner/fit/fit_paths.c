// SPDX-License-Identifier: Apache-2.0
#include "planner/fit/fit_rows.h"

#include "base/memory.h"

#include <stdlib.h>

/* A kind of op or message. */
struct kind {
    const struct op_record *op; // NULL: a message
    struct message_kind message;
};

/* How often a kind is on a path, and by how much messages lengthen that: times s for ops that run next to
 * messages from begin to end, s/(1+s) for messages next to ops, with s the profile's overlap_slowdown. */
struct term {
    double count, overlapped;
};

struct path {
    struct term *terms; // [kind_count]
    int kind_count;     // of the list of kinds, when the path was added
    double share;       // the time of a step is this fraction of it, if consecutive steps overlap
};

struct fit_paths {
    const struct step_plan *plan;
    struct kind *kinds;
    int kind_count;
    int **op_kind; // [plan->count][op_count of the tape]
    struct path *paths;
    int path_count;
    double *seconds; // [kind_count] with the profile of the last call
};

/* A critical span of ops, and a message of the same rank that is transferred next to them. */
struct overlap {
    int ops, message; // spans
    double seconds;
};

/* What a path is collected from. */
struct collector {
    struct fit_paths *paths;
    const struct prediction *step;
    struct cost_options options;
    struct term *terms;
    int term_count;
    struct overlap *overlaps;
    size_t overlap_count;
    double *next_to; // [span_count] sum of the overlaps of a span of ops
};

/* ---- kinds ---- */

static void *grown(void *list, size_t count, size_t each)
{
    const bool full = (count & (count - 1)) == 0;
    return full ? memory_resized(list, count > 0 ? 2 * count : 1, each, "a critical path") : list;
}

static bool same_message(const struct message_kind *a, const struct message_kind *b)
{
    return a->call == b->call && a->bytes == b->bytes && a->group == b->group &&
           a->shape.ranks == b->shape.ranks && a->shape.nodes == b->shape.nodes &&
           a->shape.per_node == b->shape.per_node && a->shape.ring == b->shape.ring;
}

static bool same_kind(const struct kind *a, const struct kind *b)
{
    if (a->op != NULL || b->op != NULL)
        return a->op != NULL && b->op != NULL && op_record_equals(a->op, b->op);
    return same_message(&a->message, &b->message);
}

/* Returns the index of the kind, added at its first use. */
static int kind_of(struct fit_paths *paths, struct kind kind)
{
    for (int i = 0; i < paths->kind_count; i++)
        if (same_kind(&paths->kinds[i], &kind))
            return i;
    paths->kinds = grown(paths->kinds, (size_t)paths->kind_count, sizeof *paths->kinds);
    paths->seconds = grown(paths->seconds, (size_t)paths->kind_count, sizeof *paths->seconds);
    paths->kinds[paths->kind_count] = kind;
    return paths->kind_count++;
}

struct fit_paths *fit_paths_create(const struct step_plan *plan)
{
    struct fit_paths *paths = memory_zeroed(1, sizeof *paths, "a critical path");
    paths->plan = plan;
    paths->op_kind = memory_zeroed((size_t)plan->count, sizeof *paths->op_kind, "a critical path");
    for (int r = 0; r < plan->count; r++) {
        const struct tape *tape = plan->tapes[r];
        paths->op_kind[r] =
            memory_zeroed((size_t)tape->op_count + 1, sizeof **paths->op_kind, "a critical path");
        for (int i = 0; i < tape->op_count; i++)
            paths->op_kind[r][i] = kind_of(paths, (struct kind){.op = &tape->ops[i]});
    }
    return paths;
}

void fit_paths_destroy(struct fit_paths *paths)
{
    if (paths == NULL)
        return;
    for (int r = 0; r < paths->plan->count; r++)
        free(paths->op_kind[r]);
    for (int i = 0; i < paths->path_count; i++)
        free(paths->paths[i].terms);
    free(paths->op_kind);
    free(paths->paths);
    free(paths->kinds);
    free(paths->seconds);
    free(paths);
}

/* ---- collecting a path ---- */

static void add_term(struct collector *c, int kind, double count, double overlapped)
{
    while (kind >= c->term_count) {
        c->terms = grown(c->terms, (size_t)c->term_count, sizeof *c->terms);
        c->terms[c->term_count++] = (struct term){.count = 0.0};
    }
    c->terms[kind].count += count;
    c->terms[kind].overlapped += overlapped;
}

static const struct tape_item *items_of(const struct collector *c, const struct predicted_span *span)
{
    return &c->paths->plan->tapes[span->rank]->lanes[span->lane].items[span->first];
}

static bool is_message(const struct collector *c, const struct predicted_span *span)
{
    return items_of(c, span)->kind == TAPE_MESSAGE;
}

/* The longest message of an exchange; *seconds: its time. */
static int longest_message(struct collector *c, const struct predicted_span *span, double *seconds)
{
    const struct tape *tape = c->paths->plan->tapes[span->rank];
    int longest = -1;
    *seconds = 0.0;
    for (int i = 0; i < span->count; i++) {
        const struct tape_message *message = &tape->messages[items_of(c, span)[i].index];
        const struct message_kind kind = predict_message_kind(&c->options, tape, message);
        const double s = predict_message_s(&c->options, &kind);
        if (longest < 0 || s > *seconds) {
            longest = kind_of(c->paths, (struct kind){.message = kind});
            *seconds = s;
        }
    }
    return longest;
}

/* Time of the span's ops alone. */
static double alone_s(const struct collector *c, const struct predicted_span *span)
{
    const int *kind = c->paths->op_kind[span->rank];
    double seconds = 0.0;
    for (int i = 0; i < span->count; i++)
        seconds += c->paths->seconds[kind[items_of(c, span)[i].index]];
    return seconds;
}

static void add_ops(struct collector *c, const struct predicted_span *span, double count, double overlapped)
{
    for (int i = 0; i < span->count; i++)
        add_term(c, c->paths->op_kind[span->rank][items_of(c, span)[i].index], count, overlapped);
}

/* ---- ops next to messages ---- */

/* Notes that both spans are in progress from `from`. */
static void meet(struct collector *c, int ops, int message, double from)
{
    const struct predicted_span *a = &c->step->spans[ops], *b = &c->step->spans[message];
    const double to = a->end_s < b->end_s ? a->end_s : b->end_s;
    if (to <= from)
        return;
    c->overlaps = grown(c->overlaps, c->overlap_count, sizeof *c->overlaps);
    c->overlaps[c->overlap_count++] = (struct overlap){ops, message, to - from};
    c->next_to[ops] += to - from;
}

/* Finds the messages next to critical ops. `current`: the last span of each lane of each rank. */
static void find_overlaps(struct collector *c, int *current, const int *first_lane)
{
    for (int i = 0; i < (int)c->step->span_count; i++) {
        const struct predicted_span *span = &c->step->spans[i];
        const int *lanes = &current[first_lane[span->rank]];
        current[first_lane[span->rank] + span->lane] = i;
        if (is_message(c, span)) {
            if (span->lane != 0 && lanes[0] >= 0 && c->step->spans[lanes[0]].critical &&
                !is_message(c, &c->step->spans[lanes[0]]))
                meet(c, lanes[0], i, span->begin_s);
            continue;
        }
        for (int l = 1;
             span->lane == 0 && span->critical && l < c->paths->plan->tapes[span->rank]->lane_count; l++)
            if (lanes[l] >= 0 && is_message(c, &c->step->spans[lanes[l]]))
                meet(c, i, lanes[l], span->begin_s);
    }
}

static void list_overlaps(struct collector *c)
{
    const struct step_plan *plan = c->paths->plan;
    int lanes = 0;
    AUTO_FREE int *first_lane = memory_zeroed((size_t)plan->count, sizeof *first_lane, "a critical path");
    for (int r = 0; r < plan->count; r++) {
        first_lane[r] = lanes;
        lanes += plan->tapes[r]->lane_count;
    }
    AUTO_FREE int *current = memory_zeroed((size_t)lanes + 1, sizeof *current, "a critical path");
    c->next_to = memory_zeroed((size_t)c->step->span_count + 1, sizeof *c->next_to, "a critical path");
    for (int i = 0; i < lanes; i++)
        current[i] = -1;
    find_overlaps(c, current, first_lane);
}

/* The part of the span's time by which messages slowed down its ops. */
static double slower_s(const struct predicted_span *span, double alone)
{
    const double slower = span->end_s - span->begin_s - alone - span->shared_s - span->paused_s;
    return slower > 1e-9 * alone ? slower : 0.0;
}

/* Whether messages are in progress from begin to end of the ops. */
static bool is_covered(const struct predicted_span *span, double slower, double slowdown)
{
    return slower * (1.0 + slowdown) / slowdown > 0.999 * (span->end_s - span->begin_s);
}

static void add_span(struct collector *c, int index)
{
    const struct predicted_span *span = &c->step->spans[index];
    const double slowdown = c->options.profile->model.overlap_slowdown;
    double message_s;
    if (is_message(c, span)) {
        const int kind = longest_message(c, span, &message_s);
        add_term(c, kind, message_s > 0.0 ? (span->end_s - span->begin_s) / message_s : 1.0, 0.0);
        return;
    }
    const double alone = alone_s(c, span), slower = slower_s(span, alone);
    const bool of_ops = slower > 0.0 && (c->next_to[index] <= 0.0 || is_covered(span, slower, slowdown));
    const double on_cores = alone > 0.0 ? span->shared_s / alone : 0.0;
    add_ops(c, span, 1.0 + on_cores, of_ops && slowdown > 0.0 ? slower / (alone * slowdown) : 0.0);
}

/* Ops that outlast the messages next to them are slowed, or on a CPU pause, for as long as the messages
 * take. */
static void add_overlap(struct collector *c, const struct overlap *overlap)
{
    const struct predicted_span *span = &c->step->spans[overlap->ops];
    const double slowdown = c->options.profile->model.overlap_slowdown, alone = alone_s(c, span),
                 slower = slower_s(span, alone);
    const bool slows = slower > 0.0 && !is_covered(span, slower, slowdown);
    double message_s;
    if (!slows && span->paused_s <= 0.0)
        return;
    const int kind = longest_message(c, &c->step->spans[overlap->message], &message_s);
    const double share = overlap->seconds / c->next_to[overlap->ops];
    if (message_s > 0.0)
        add_term(c, kind, share * span->paused_s / message_s,
                 slows ? share * slower * (1.0 + slowdown) / slowdown / message_s : 0.0);
}

static void collect(struct collector *c)
{
    struct fit_paths *paths = c->paths;
    list_overlaps(c);
    for (int i = c->step->last_span; i >= 0; i = c->step->spans[i].cause)
        add_span(c, i);
    for (size_t i = 0; i < c->overlap_count; i++)
        add_overlap(c, &c->overlaps[i]);
    paths->paths =
        memory_resized(paths->paths, (size_t)paths->path_count + 1, sizeof *paths->paths, "a critical path");
    free(c->overlaps);
    free(c->next_to);
    const double step_s = c->step->step_s;
    paths->paths[paths->path_count++] =
        (struct path){c->terms, c->term_count, step_s / (step_s + c->step->overlap_s)};
}

/* ---- the function ---- */

static struct cost_options options_with(const struct fit_paths *paths, const struct cluster_profile *profile)
{
    struct cost_options options = paths->plan->cost;
    options.profile = profile;
    return options;
}

/* Sets the time of each kind. */
static void set_seconds(const struct fit_paths *paths, const struct cost_options *options)
{
    for (int k = 0; k < paths->kind_count; k++) {
        const struct kind *kind = &paths->kinds[k];
        const struct op_time time =
            kind->op != NULL ? cost_of_op(options, kind->op)
                             : (struct op_time){.run_s = predict_message_s(options, &kind->message)};
        paths->seconds[k] = time.run_s + time.launch_s;
    }
}

static double length_of(const struct fit_paths *paths, const struct path *path,
                        const struct cluster_profile *profile)
{
    const double slowdown = profile->model.overlap_slowdown;
    double length = 0.0;
    for (int k = 0; k < path->kind_count; k++) {
        const struct term *term = &path->terms[k];
        const double factor = paths->kinds[k].op != NULL ? slowdown : slowdown / (1.0 + slowdown);
        length += paths->seconds[k] * (term->count + term->overlapped * factor);
    }
    return length * path->share + profile->model.step_overhead_s;
}

/* Removes the paths that are longer than the step. */
static void remove_longer(struct fit_paths *paths, const struct cluster_profile *profile, double seconds)
{
    int kept = 0;
    for (int p = 0; p < paths->path_count; p++)
        if (length_of(paths, &paths->paths[p], profile) > seconds * (1.0 + 1e-9))
            free(paths->paths[p].terms);
        else
            paths->paths[kept++] = paths->paths[p];
    paths->path_count = kept;
}

enum status fit_paths_simulate(struct fit_paths *paths, const struct cluster_profile *profile,
                               double *seconds)
{
    struct collector collector = {.paths = paths, .options = options_with(paths, profile)};
    struct prediction *step = NULL;
    TRY(predict_timeline(&collector.options, paths->plan->tapes, paths->plan->count, &step));
    collector.step = step;
    *seconds = step->step_s + profile->model.step_overhead_s;
    set_seconds(paths, &collector.options);
    remove_longer(paths, profile, *seconds);
    collect(&collector);
    prediction_destroy(step);
    return OK;
}

double fit_paths_seconds(const struct fit_paths *paths, const struct cluster_profile *profile)
{
    const struct cost_options options = options_with(paths, profile);
    double longest = 0.0;
    set_seconds(paths, &options);
    for (int p = 0; p < paths->path_count; p++) {
        const double length = length_of(paths, &paths->paths[p], profile);
        longest = length > longest ? length : longest;
    }
    return longest;
}
