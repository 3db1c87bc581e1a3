// SPDX-License-Identifier: Apache-2.0
/* DualPipe (DeepSeek-V3, 2412.19437) and DualPipeV, its half. Every rank processes two streams of
 * microbatches and runs the forward of one concurrently with the backward of the other, so that the
 * communication of one is hidden by the computation of the other (overlaps_next).
 *
 *     DualPipe, p 4:   down: 0 1 2 3      every stage twice, on ranks s and p-1-s; half of the
 *                      up:   3 2 1 0      microbatches enter at either end
 *     DualPipeV, p 2:  rank 0: 0 3        DualPipe cut in the middle: the second stream has the same
 *                      rank 1: 1 2        microbatches, in the opposite direction
 *
 * Both use the same list. A rank is `from_middle` ranks away from the rank where the streams turn (or meet),
 * of `half` ranks; stream 0 reaches it first. The figures are for at least 2·half microbatches per stream;
 * with fewer, the actions of missing microbatches are omitted. */
#include "schedules/families/family.h"

#include <stdlib.h>

struct streams {
    struct schedule *s;
    int stage[2];
    int first[2], count[2];      // the microbatches of each stream
    int f[2], b[2];              // forwards and backwards done
    struct action_list deferred; // W of microbatches whose I ran separately, oldest first
    int done;                    // of `deferred`
};

static struct action next(struct streams *x, enum action_kind kind, int stream)
{
    int k = kind == FORWARD ? x->f[stream]++ : x->b[stream]++;
    return (struct action){.kind = kind,
                           .stage = x->stage[stream],
                           .microbatch = k < x->count[stream] ? x->first[stream] + k : -1,
                           .peer = -1};
}

static void add(struct streams *x, struct action a)
{
    if (a.microbatch >= 0)
        schedule_add(x->s, a.kind, a.stage, a.microbatch);
}

static void forward(struct streams *x, int stream)
{
    add(x, next(x, FORWARD, stream));
}

/* Appends a B; with `split` an I, whose W a later weight() appends. */
static void backward(struct streams *x, int stream, bool split)
{
    struct action a = next(x, split ? BACKWARD_INPUT : BACKWARD, stream);
    add(x, a);
    a.kind = BACKWARD_WEIGHT;
    if (split)
        action_list_add(&x->deferred, a);
}

static void weight(struct streams *x)
{
    if (x->done < x->deferred.count)
        add(x, x->deferred.actions[x->done++]);
}

static void forward_with_backward(struct streams *x, int stream)
{
    struct action f = next(x, FORWARD, stream), b = next(x, BACKWARD, 1 - stream);
    if (f.microbatch >= 0 && b.microbatch >= 0)
        schedule_add_overlapping(x->s, FORWARD, f.stage, f.microbatch);
    else
        add(x, f);
    add(x, b);
}

/* The last backwards of both streams. From the middle on they are split: the previous ranks wait for I. */
static void drain_both(struct streams *x, int count)
{
    bool split = false;
    for (int k = 0; k < count; k++) {
        bool middle = k == count / 2;
        split = split || (middle && count % 2 == 0);
        backward(x, 1, split);
        split = split || middle;
        backward(x, 0, split);
    }
}

static void two_streams(struct streams *x, int half, int from_middle)
{
    int outer = from_middle, inner = half - from_middle;
    int longest = x->count[0] > x->count[1] ? x->count[0] : x->count[1];
    int count = longest > 2 * half ? longest : 2 * half;

    // Fill.
    for (int k = 0; k < 2 * outer; k++)
        forward(x, 0);
    for (int k = 0; k < inner; k++) {
        forward(x, 0);
        forward(x, 1);
    }
    for (int k = 0; k < outer; k++) {
        backward(x, 1, true);
        weight(x);
        forward(x, 1);
    }

    // Steady state: everything overlaps, except where the streams turn, which waits for the first B.
    for (int k = 0; k < count - 2 * half + inner; k++) {
        if (k == 0 && outer == 0) {
            forward(x, 0);
            backward(x, 1, false);
        } else {
            forward_with_backward(x, 0);
        }
        forward_with_backward(x, 1);
    }

    // Drain.
    for (int k = 0; k < outer; k++) {
        backward(x, 1, false);
        forward_with_backward(x, 1);
    }
    drain_both(x, inner);
    for (int k = 0; k < outer; k++) {
        weight(x);
        backward(x, 0, true);
    }
    while (x->done < x->deferred.count)
        weight(x);
    free(x->deferred.actions);
}

static void dualpipev(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        struct streams x = {.s = s, .count = {s->m, s->m}};
        for (int stream = 0; stream < 2; stream++)
            x.stage[stream] = schedule_stage(s, rank, stream);
        two_streams(&x, s->p, s->p - 1 - rank);
    }
}

static void dualpipe(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        bool upper = rank >= s->p / 2; // reached first by the stream that starts at the last rank
        struct streams x = {.s = s};
        for (int direction = 0; direction < 2; direction++) {
            int stream = upper ? 1 - direction : direction;
            x.stage[stream] = schedule_stage(s, rank, direction);
            x.first[stream] = direction == 0 ? 0 : s->second_from;
            x.count[stream] = direction == 0 ? s->second_from : s->m - s->second_from;
        }
        two_streams(&x, s->p / 2, upper ? rank - s->p / 2 : s->p / 2 - 1 - rank);
    }
}

static int dualpipev_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return 2 * s->p + 1 < 2 * s->m ? 2 * s->p + 1 : 2 * s->m;
}

static int dualpipe_peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->p + 1 < s->m ? s->p + 1 : s->m;
}

static const char *restriction_even_p(const struct schedule_options *o)
{
    if (o->v != 1)
        return "each rank holds one stage per direction";
    return o->p % 2 == 0 ? NULL : "the two directions must meet between two ranks";
}

const struct family family_dualpipev = {
    .about = {.name = "dualpipev",
              .summary = "Forwards overlap backwards of earlier microbatches, two chunks in a V.",
              .supports = "any p, any m, v = 2"},
    .placement = PLACE_V,
    .default_v = 2,
    .restriction = restriction_two_chunks,
    .generate = dualpipev,
    .peak_claim = dualpipev_peak,
};

const struct family family_dualpipe = {
    .about = {.name = "dualpipe",
              .summary =
                  "Microbatches enter at both ends and overlap where they meet; weights are held twice.",
              .supports = "an even p, any m, v = 1"},
    .placement = PLACE_TWO_WAY,
    .default_v = 1,
    .restriction = restriction_even_p,
    .generate = dualpipe,
    .peak_claim = dualpipe_peak,
};
