// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/step_stats.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* The time of an action is that of its ops if nothing disturbs them; so of several, the shortest counts. */
static double sum_of_fastest(const struct schedule *schedule, const struct action_list *list,
                             const struct timed_action *actions)
{
    double sum_s = 0.0;
    double(*fastest_s)[ACTION_KIND_COUNT] =
        memory_zeroed((size_t)schedule->chunks, sizeof *fastest_s, "the times of a step");
    for (int i = 0; i < list->count; i++) {
        const struct action action = list->actions[i];
        double *fastest = &fastest_s[schedule_chunk(schedule, action.stage, action.microbatch)][action.kind];
        if (action_traits(action.kind)->computes && (!(*fastest > 0.0) || actions[i].compute_s < *fastest)) {
            sum_s += actions[i].compute_s - *fastest;
            *fastest = actions[i].compute_s;
        }
    }
    free(fastest_s);
    return sum_s;
}

void step_stats_set_times(struct step_stats *stats, const struct schedule *schedule, int pp_rank,
                          const struct timed_action *actions, double lost_s)
{
    const struct action_list *list = &schedule->ranks[pp_rank];
    double waited_s = 0.0;
    stats->busy_s = 0.0;
    for (int i = 0; i < list->count; i++) {
        stats->busy_s += actions[i].end_s - actions[i].begin_s;
        waited_s += actions[i].waited_s;
    }
    stats->span_s = list->count > 0 ? lost_s + actions[list->count - 1].end_s : 0.0;
    stats->compute_s = fmax(stats->busy_s - waited_s, 0.0);
    stats->fastest_s = sum_of_fastest(schedule, list, actions);
}

static void extend(struct step_range *range, double value, bool is_first)
{
    range->least = is_first || value < range->least ? value : range->least;
    range->most = is_first || value > range->most ? value : range->most;
}

static void raise(int64_t *most, int64_t value)
{
    *most = value > *most ? value : *most;
}

static void raise_memory(struct step_summary *out, const struct step_stats *rank)
{
    raise(&out->peak_total_bytes, rank->peak_total_bytes);
    for (int part = 0; part < PART_COUNT; part++)
        raise(&out->peak_bytes[part], rank->peak_bytes[part]);
    for (int kind = 0; kind < SLOT_LIFETIMES; kind++) {
        raise(&out->slots[kind].slots, rank->slots[kind].slots);
        raise(&out->slots[kind].bytes, rank->slots[kind].bytes);
    }
}

void step_stats_summarize(const struct step_stats *of_rank, int count, struct step_summary *out)
{
    double longest_s = 0.0;
    *out = (struct step_summary){.slowest = of_rank[0].rank};
    for (int i = 0; i < count; i++) {
        const struct step_stats *rank = &of_rank[i];
        const double idle_s = fmax(rank->span_s - rank->busy_s, 0.0);
        out->request = rank->request > out->request ? rank->request : out->request;
        out->writes = out->writes || rank->writes != 0;
        if (idle_s > longest_s) {
            longest_s = idle_s;
            out->bubble_fraction = idle_s / rank->span_s;
        }
        if (i > 0 && rank->compute_s > out->compute_s.most)
            out->slowest = rank->rank;
        extend(&out->compute_s, rank->compute_s, i == 0);
        extend(&out->wait_s, rank->wait_s, i == 0);
        extend(&out->data_s, rank->data_s, i == 0);
        raise_memory(out, rank);
    }
    out->has_times = out->compute_s.most > 0.0;
}
