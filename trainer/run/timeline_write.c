// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/timeline_write.h"

#include "base/clock.h"
#include "base/memory.h"
#include "schedules/families/family.h"
#include "trainer/engine/agree.h"
#include "trainer/run/timeline.h"
#include "trainer/run/timeline_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Data gathered from every rank: its barrier times, then its timeline, padded to the longest list; and its
 * spans, padded by those without a name. */
struct gathered {
    int64_t columns;
    double *rows; // [world][columns]
    int64_t span_count;
    struct span *spans; // [world][span_count]
};

bool timeline_wanted(const struct recipe *recipe, int64_t step)
{
    const struct recipe_profile *profile = &recipe->profile;
    return profile->timeline && step >= profile->profile_step_start &&
           step <= recipe_last_profiled_step(recipe);
}

/* ---- one row per rank ---- */

enum { BARRIER_COLUMNS = sizeof(struct barrier_times) / sizeof(double) };

static enum status fill_row(struct rank_state *state, double *row)
{
    struct barrier_times barriers;
    for (int i = 0; i < TIMELINE_BARRIERS; i++) {
        barriers.arrived_s[i] = clock_s();
        TRY(group_barrier(state->groups->world, state->compute));
        TRY(stream_sync(state->compute)); // a GPU has only enqueued it
        barriers.left_s[i] = clock_s();
    }
    memcpy(row, &barriers, sizeof barriers);
    double lost_s;
    const struct timed_action *actions = event_log_actions(&state->log, state->step, &lost_s);
    const double begin_s = event_log_begin_s(&state->log, state->step);
    for (int i = 0; i < state->log.actions; i++) {
        row[BARRIER_COLUMNS + 2 * i] = actions != NULL ? begin_s + actions[i].begin_s : NAN;
        row[BARRIER_COLUMNS + 2 * i + 1] = actions != NULL ? begin_s + actions[i].end_s : NAN;
    }
    return OK;
}

/* Gathers `count` doubles of each rank. */
static enum status exchange(struct rank_state *state, const void *mine, int64_t count, void *everyones)
{
    AUTO(buffer) own = {0}, all = {0};
    const size_t bytes = (size_t)count * sizeof(double), world = (size_t)state->world->size;
    TRY(buffer_alloc(state->device, PART_COMMUNICATION, bytes, &own));
    TRY(buffer_alloc(state->device, PART_COMMUNICATION, world * bytes, &all));
    TRY(copy_to_device(state->compute, own.data, mine, bytes));
    TRY(group_all_gather(state->groups->world, state->compute, tensor_1d(own.data, F64, count),
                         tensor_1d(all.data, F64, (int64_t)world * count)));
    TRY(copy_to_host(state->compute, everyones, all.data, world * bytes));
    return stream_sync(state->compute);
}

#define TIMELINES "the timelines of all ranks (profile.timeline)"

static enum status gather_rows(struct rank_state *state, struct gathered *g)
{
    const struct schedule *s = state->run->schedule;
    int longest = 0;
    for (int rank = 0; rank < s->p; rank++)
        longest = s->ranks[rank].count > longest ? s->ranks[rank].count : longest;
    g->columns = BARRIER_COLUMNS + 2 * (int64_t)longest;
    AUTO_FREE double *row = memory_zeroed((size_t)g->columns, sizeof *row, TIMELINES);
    g->rows = memory_zeroed((size_t)g->columns * (size_t)state->world->size, sizeof *g->rows, TIMELINES);
    TRY(fill_row(state, row));
    return exchange(state, row, g->columns, g->rows);
}

static enum status gather_spans(struct rank_state *state, const struct span *mine, int count,
                                struct gathered *g)
{
    double most = (double)count;
    TRY(rank_agree_max(state, &most, 1));
    g->span_count = (int64_t)most;
    AUTO_FREE struct span *padded = memory_zeroed((size_t)g->span_count, sizeof *padded, TIMELINES);
    g->spans = memory_zeroed((size_t)g->span_count * (size_t)state->world->size, sizeof *g->spans, TIMELINES);
    memcpy(padded, mine, (size_t)count * sizeof *mine);
    return exchange(state, padded, g->span_count * (int64_t)(sizeof *padded / sizeof(double)), g->spans);
}

static enum status gather(struct rank_state *state, struct gathered *g)
{
    AUTO_FREE struct span *spans = NULL;
    int count = 0;
    TRY(event_log_compare_clocks(&state->log));
    TRY(gather_rows(state, g));
    TRY(event_log_spans(&state->log, state->step, &spans, &count));
    return gather_spans(state, spans, count, g);
}

static double clock_offset(const struct gathered *g, int rank)
{
    struct barrier_times first, other;
    memcpy(&first, g->rows, sizeof first);
    memcpy(&other, g->rows + rank * g->columns, sizeof other);
    return timeline_clock_offset(&first, &other);
}

/* ---- pipelines ---- */

enum { MILLISECONDS = 1000 };

/* Receives may be posted before the first computation; a trace begins at 0. */
static double after_origin(double time_s)
{
    return time_s > 0.0 ? time_s * MILLISECONDS : 0.0;
}

/* Timelines of the pipeline that contains `coord`, on the clock of rank 0, in milliseconds since
 * `origin_s`. */
static enum status pipeline_times(const struct rank_state *state, const struct gathered *g,
                                  struct mesh_coord coord, double origin_s, struct simulation **out)
{
    const struct schedule *s = state->run->schedule;
    struct simulation *sim = simulation_create(s);
    for (coord.pp = 0; coord.pp < s->p; coord.pp++) {
        int rank = mesh_rank(&state->mesh, MESH_DENSE, coord);
        const double *times = g->rows + rank * g->columns + BARRIER_COLUMNS;
        double shift_s = clock_offset(g, rank) + origin_s;
        for (int i = 0; i < s->ranks[coord.pp].count; i++)
            sim->times[sim->first[coord.pp] + i] = (struct action_time){
                .start = after_origin(times[2 * i] - shift_s),
                .end = after_origin(times[2 * i + 1] - shift_s),
                .cause = -1,
            };
    }
    simulation_total(s, sim);
    *out = sim;
    return OK;
}

/* Start of the first compute action of the step, on the clock of rank 0. */
static double origin_of(const struct rank_state *state, const struct gathered *g)
{
    double origin = 0.0;
    for (int rank = 0; rank < state->world->size; rank++) {
        const struct action_list *list =
            &state->run->schedule->ranks[mesh_coord(&state->mesh, MESH_DENSE, rank).pp];
        int first = 0;
        while (first < list->count - 1 && !action_traits(list->actions[first].kind)->computes)
            first++;
        double start = g->rows[rank * g->columns + BARRIER_COLUMNS + 2 * first] - clock_offset(g, rank);
        origin = rank == 0 || start < origin ? start : origin;
    }
    return origin;
}

/* Simulates the same lists with the measured mean costs, which the title lists in the syntax of --cost (sums
 * per rank). */
static enum status predict(const struct rank_state *state, const struct simulation *measured, char *title,
                           size_t title_bytes, struct simulation **out)
{
    const struct schedule *s = state->run->schedule;
    AUTO_FREE struct stage_cost *of_stage = memory_zeroed((size_t)s->stages, sizeof *of_stage, TIMELINES);
    AUTO_FREE double *b_of_stage = memory_zeroed((size_t)s->stages, sizeof *b_of_stage, TIMELINES);
    struct cost_table costs;
    AUTO(text) said = {0};
    timeline_costs(s, measured, of_stage, b_of_stage, &costs);
    timeline_costs_text(s, &costs, &said);
    snprintf(title, title_bytes, "step %lld, simulated with %s as measured: %s", (long long)state->step,
             text_chars(&said), s->family->about.name);
    return simulate(s, &costs, NULL, out);
}

/* ---- files ---- */

struct pages {
    struct drawing *drawings;   // the simulation, then each pipeline
    struct timeline_rows *rows; // of each drawing
    char (*titles)[160];
    int count;
};

static enum status write_file(const struct rank_state *state, const char *suffix, const struct text *content)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/timeline-step-%lld.%s", state->run->recipe->logging.run_dir, (long long)state->step,
             suffix);
    return file_write_atomic(path.chars, content->chars, content->length);
}

static enum status write_files(const struct rank_state *state, const struct pages *pages)
{
    AUTO(text) trace = {0}, picture = {0};
    draw_trace(pages->drawings, pages->count, 1000.0, &trace);
    draw_svg(pages->drawings, 2, &(struct svg_options){.unit = "ms"}, &picture);
    TRY(write_file(state, "json", &trace));
    return write_file(state, "svg", &picture);
}

static void add_page(const struct rank_state *state, struct pages *pages, const struct simulation *sim)
{
    const struct timeline_rows *rows = &pages->rows[pages->count];
    pages->drawings[pages->count] = (struct drawing){.title = pages->titles[pages->count],
                                                     .schedule = state->run->schedule,
                                                     .simulation = sim,
                                                     .rows = rows->list,
                                                     .row_count = rows->count};
    pages->count++;
}

/* The spans of the pipeline that contains `coord`. */
static void pipeline_rows(const struct rank_state *state, const struct gathered *g, struct mesh_coord coord,
                          double origin_s, struct timeline_rows *out)
{
    for (coord.pp = 0; coord.pp < state->run->schedule->p; coord.pp++) {
        const int rank = mesh_rank(&state->mesh, MESH_DENSE, coord);
        timeline_rows_add(out, coord.pp, g->spans + rank * g->span_count, g->span_count,
                          clock_offset(g, rank) + origin_s);
    }
}

/* Each pipeline of the mesh is identified by its first rank. */
static enum status fill_pages(const struct rank_state *state, const struct gathered *g, struct pages *pages)
{
    const struct degrees *degrees = &state->mesh.degrees;
    // A schedule from a file has another name than the recipe's key.
    const char *schedule = state->run->schedule->family->about.name;
    double origin_s = origin_of(state, g);
    pages->count = 1;
    for (int rank = 0; rank < state->world->size; rank++) {
        struct mesh_coord coord = mesh_coord(&state->mesh, MESH_DENSE, rank);
        struct simulation *sim = NULL;
        if (coord.pp != 0)
            continue;
        pipeline_rows(state, g, coord, origin_s, &pages->rows[pages->count]);
        TRY(pipeline_times(state, g, coord, origin_s, &sim));
        if (degrees->tp * degrees->cp * degrees->dp == 1)
            snprintf(pages->titles[pages->count], sizeof *pages->titles, "step %lld, measured: %s",
                     (long long)state->step, schedule);
        else
            snprintf(pages->titles[pages->count], sizeof *pages->titles,
                     "step %lld, measured, tp %d cp %d dp %d: %s", (long long)state->step, coord.tp, coord.cp,
                     coord.dp, schedule);
        add_page(state, pages, sim);
    }
    struct simulation *predicted = NULL;
    TRY(predict(state, pages->drawings[1].simulation, pages->titles[0], sizeof *pages->titles, &predicted));
    int count = pages->count;
    pages->count = 0;
    add_page(state, pages, predicted);
    pages->count = count;
    return OK;
}

static enum status write_pages(const struct rank_state *state, const struct gathered *g)
{
    size_t most = (size_t)state->world->size + 1;
    struct pages pages = {.drawings = memory_zeroed(most, sizeof *pages.drawings, TIMELINES),
                          .rows = memory_zeroed(most, sizeof *pages.rows, TIMELINES),
                          .titles = memory_zeroed(most, sizeof *pages.titles, TIMELINES)};
    enum status status = fill_pages(state, g, &pages);
    if (status == OK)
        status = write_files(state, &pages);
    for (int i = 0; i < pages.count; i++)
        simulation_destroy((struct simulation *)pages.drawings[i].simulation);
    for (size_t i = 0; i < most; i++)
        timeline_rows_free(&pages.rows[i]);
    free(pages.rows);
    free(pages.drawings);
    free(pages.titles);
    return status;
}

enum status timeline_write(struct rank_state *state)
{
    struct gathered g = {0};
    enum status status = gather(state, &g);
    if (status == OK && state->world->rank == 0)
        status = write_pages(state, &g);
    free(g.rows);
    free(g.spans);
    return status;
}
