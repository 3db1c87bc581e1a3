// SPDX-License-Identifier: Apache-2.0
#include "schedules/csv/csv.h"
#include "schedules/simulate.h"

static void add_cell(const struct action_list *list, int position, struct text *out)
{
    char text[ACTION_CHARS];
    struct action a = list->actions[position];
    if (!a.overlaps_next) {
        text_add(out, "%s", action_text(a, text));
        return;
    }
    struct action next = list->actions[position + 1];
    text_add(out, "(%s;", action_text(a, text));
    text_add(out, "%s)", action_text(next, text));
    // PyTorch requires this suffix for pairs.
    if (a.kind == FORWARD && next.kind == BACKWARD)
        text_add(out, "OVERLAP_F_B");
}

/* Returns the total number of empty cells if the column of a cell is its start time. */
static int64_t idle_cells(const struct schedule *s, const struct simulation *sim)
{
    int64_t idle = 0;
    for (int rank = 0; rank < s->p; rank++)
        idle += (int64_t)(sim->ranks[rank].last_end - sim->ranks[rank].busy);
    return idle;
}

enum status schedule_write_csv(const struct schedule *schedule, struct text *out)
{
    enum { MAX_IDLE = 1 << 24 };
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}, .b = 0.5, .pair_overlap = 1.0};
    struct simulation *sim = NULL;
    TRY(simulate(schedule, &units, NULL, &sim));
    bool aligned = idle_cells(schedule, sim) <= MAX_IDLE;
    for (int rank = 0; rank < schedule->p; rank++) {
        const struct action_list *list = &schedule->ranks[rank];
        int64_t column = 0, cells = 0;
        for (int i = 0; i < list->count; i++) {
            bool second = i > 0 && list->actions[i - 1].overlaps_next;
            if (second || !action_traits(list->actions[i].kind)->computes)
                continue;
            int64_t start = aligned ? (int64_t)sim->times[sim->first[rank] + i].start : cells;
            for (; column < start; column++)
                text_add_bytes(out, ",", 1);
            add_cell(list, i, out);
            cells++;
        }
        text_add_bytes(out, "\n", 1);
    }
    simulation_destroy(sim);
    return OK;
}
