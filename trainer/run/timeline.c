// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/timeline.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <stdlib.h>

double timeline_clock_offset(const struct barrier_times *first, const struct barrier_times *rank)
{
    double least = rank->arrived_s[0] - first->left_s[0], most = rank->left_s[0] - first->arrived_s[0];
    for (int i = 1; i < TIMELINE_BARRIERS; i++) {
        double low = rank->arrived_s[i] - first->left_s[i], high = rank->left_s[i] - first->arrived_s[i];
        least = low > least ? low : least;
        most = high < most ? high : most;
    }
    return least <= 0.0 && most >= 0.0 ? 0.0 : 0.5 * (least + most);
}

/* ---- costs ---- */

struct sums {
    double time[ACTION_KIND_COUNT];
    int64_t count[ACTION_KIND_COUNT];
};

static double mean(const struct sums *sums, enum action_kind kind)
{
    return sums->count[kind] > 0 ? sums->time[kind] / (double)sums->count[kind] : 0.0;
}

static void add_times(const struct schedule *s, const struct simulation *measured, int stage,
                      struct sums *out)
{
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            struct action_time time = measured->times[measured->first[rank] + i];
            if (a.stage != stage)
                continue;
            out->time[a.kind] += time.end - time.start;
            out->count[a.kind]++;
        }
}

static struct action_time *producers(const struct schedule *s, const struct simulation *measured,
                                     bool gradient)
{
    struct action_time *made =
        memory_zeroed((size_t)s->stages * (size_t)s->m, sizeof *made, "the times of actions");
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            if (gradient ? traits->backward_input : traits->forward)
                made[(size_t)a.stage * (size_t)s->m + (size_t)a.microbatch] =
                    measured->times[measured->first[rank] + i];
        }
    return made;
}

/* Shortest time from the end of the action that produces a value to its use on another rank; 0 without
 * messages. */
static double shortest_message(const struct schedule *s, const struct simulation *measured)
{
    double shortest = -1.0;
    for (int gradient = 0; gradient < 2; gradient++) {
        struct action_time *made = producers(s, measured, gradient);
        for (int stage = 0; stage < s->stages; stage++)
            for (int j = 0; j < s->m; j++) {
                int from = stage_before(stage, gradient);
                if (from < 0 || from >= s->stages || !crosses_ranks(s, stage, j, gradient))
                    continue;
                double time = made[(size_t)stage * (size_t)s->m + (size_t)j].start -
                              made[(size_t)from * (size_t)s->m + (size_t)j].end;
                shortest = shortest < 0.0 || time < shortest ? time : shortest;
            }
        free(made);
    }
    return shortest > 0.0 ? shortest : 0.0;
}

void timeline_costs(const struct schedule *schedule, const struct simulation *measured,
                    struct stage_cost *of_stage, double *b_of_stage, struct cost_table *out)
{
    for (int stage = 0; stage < schedule->stages; stage++) {
        struct sums sums = {0};
        add_times(schedule, measured, stage, &sums);
        of_stage[stage] = (struct stage_cost){
            .f = mean(&sums, FORWARD), .i = mean(&sums, BACKWARD_INPUT), .w = mean(&sums, BACKWARD_WEIGHT)};
        b_of_stage[stage] = mean(&sums, BACKWARD);
    }
    *out = (struct cost_table){
        .of_stage = of_stage, .b_of_stage = b_of_stage, .latency = shortest_message(schedule, measured)};
}

void timeline_costs_text(const struct schedule *schedule, const struct cost_table *costs, struct text *out)
{
    struct stage_cost whole = {0};
    double b = 0.0;
    for (int stage = 0; stage < schedule->stages; stage++) {
        whole.f += costs->of_stage[stage].f / schedule->p;
        whole.i += costs->of_stage[stage].i / schedule->p;
        whole.w += costs->of_stage[stage].w / schedule->p;
        b += costs->b_of_stage[stage] / schedule->p;
    }
    text_add(out, "f=%.4g", whole.f);
    if (schedule_has_kind(schedule, BACKWARD_INPUT))
        text_add(out, ",i=%.4g,w=%.4g", whole.i, whole.w);
    if (schedule_has_kind(schedule, BACKWARD))
        text_add(out, ",b=%.4g", b);
    text_add(out, ",comm=%.4g", costs->latency);
}
