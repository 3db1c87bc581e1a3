// SPDX-License-Identifier: Apache-2.0
#include "tests/support/auto_tables.h"

#include "base/philox.h"
#include "schedules/bound.h"
#include "schedules/families/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 64, MAX_V = 2 };

struct table {
    struct philox generator;
    uint64_t number, drawn;
    struct schedule_options options; // of auto
    struct stage_cost whole[MAX_STAGES];
    struct stage_cost of_stage[MAX_V + 1][MAX_STAGES]; // by v
    struct cost_table costs[MAX_V + 1];
};

static double draw(struct table *t, double low, double high)
{
    return low + (high - low) * (double)philox_uniform(philox_word(t->generator, t->number, t->drawn++));
}

static int draw_int(struct table *t, int low, int high)
{
    return low + (int)(philox_word(t->generator, t->number, t->drawn++) % (uint32_t)(high - low + 1));
}

static void fill(struct table *t, int most_p, int most_m)
{
    int p = draw_int(t, 2, most_p), m = draw_int(t, 1, most_m);
    double f = draw(t, 0.5, 1.5), i = draw(t, 0.5, 1.5), w = draw(t, 0.5, 1.5);
    double message = draw_int(t, 0, 3) == 0 ? 0.0 : draw(t, 0.0, 0.3);
    double spread = draw_int(t, 0, 1) == 0 ? 0.0 : 0.3;
    for (int stage = 0; stage < p; stage++)
        t->whole[stage] = (struct stage_cost){.f = f * (1.0 + draw(t, -spread, spread)),
                                              .i = i * (1.0 + draw(t, -spread, spread)),
                                              .w = w * (1.0 + draw(t, -spread, spread))};
    double limit = draw_int(t, 0, 3) == 0 ? 0.0 : draw(t, p / 2.0 + 1.0, 2.0 * p);
    if (draw_int(t, 0, 3) != 0)
        limit = floor(limit);
    int v = draw_int(t, 0, 2);
    for (int parts = 1; parts <= MAX_V; parts++) {
        for (int stage = 0; stage < p * parts; stage++) {
            struct stage_cost c = t->whole[stage / parts];
            t->of_stage[parts][stage] = (struct stage_cost){c.f / parts, c.i / parts, c.w / parts};
        }
        t->costs[parts] = (struct cost_table){.of_stage = t->of_stage[parts], .wire = message};
    }
    t->options = (struct schedule_options){
        .name = "auto", .p = p, .m = m, .v = v, .costs = &t->costs[v == 0 ? 1 : v], .memory_limit = limit};
}

/* Makespan and peak of the requested schedule; 0 and no error if a family does not support the options. */
static enum status measure(const struct table *t, const struct schedule_options *options, int *v,
                           double *makespan, double *peak)
{
    struct schedule *s = NULL;
    struct simulation *sim = NULL;
    *makespan = 0.0;
    if (schedule_unsupported(options) != NULL)
        return OK;
    TRY(schedule_build(options, &s));
    enum status status = simulate(s, &t->costs[s->v], NULL, &sim);
    if (status == OK && !schedule_has_replicas(s)) {
        *v = s->v;
        *makespan = sim->makespan;
        *peak = 0.0;
        for (int rank = 0; rank < s->p; rank++)
            *peak = fmax(*peak, (double)sim->ranks[rank].peak / s->v);
    }
    simulation_destroy(sim);
    schedule_destroy(s);
    return status;
}

static enum status try_named(const struct table *t, int v, struct auto_outcome *out)
{
    for (int i = 0; schedule_about(i) != NULL; i++) {
        struct schedule_options options = {
            .name = schedule_about(i)->name, .p = t->options.p, .m = t->options.m, .v = v};
        double makespan, peak;
        int built_v;
        if (strcmp(options.name, "auto") == 0)
            continue;
        TRY(measure(t, &options, &built_v, &makespan, &peak));
        bool within = out->limit == 0.0 || peak <= out->limit;
        if (makespan > 0.0 && within && (out->named == 0.0 || makespan < out->named)) {
            out->named = makespan;
            out->shortest = options.name;
        }
    }
    return OK;
}

/* The minimum over both placements, since auto chooses one. */
static enum status find_bound(const struct table *t, int v, struct auto_outcome *out)
{
    static const struct family *const placements[] = {&family_1f1b, &family_zb_v};
    double all = (double)t->options.m * v;
    int limit = (int)(out->limit == 0.0 ? all : fmin(floor(out->limit * v), all));
    for (int i = 0; i < 2; i++) {
        struct schedule_options options = {.p = t->options.p, .m = t->options.m, .v = v};
        struct schedule *placed = NULL;
        double bound;
        placed = schedule_create(placements[i], &options);
        enum status status = schedule_bound(placed, &t->costs[v], limit, &bound);
        schedule_destroy(placed);
        TRY(status);
        if (out->bound == 0.0 || bound < out->bound)
            out->bound = bound;
    }
    return OK;
}

enum status auto_table(uint64_t number, int most_p, int most_m, struct auto_outcome *out)
{
    struct table t = {.generator = philox_named(1, "auto.tables"), .number = number};
    fill(&t, most_p, most_m);
    *out = (struct auto_outcome){.p = t.options.p,
                                 .m = t.options.m,
                                 .v = t.options.v,
                                 .limit = t.options.memory_limit,
                                 .shortest = "none"};
    int from = out->v == 0 ? 1 : out->v, to = out->v == 0 ? MAX_V : out->v;
    for (int v = from; v <= to; v++) {
        TRY(try_named(&t, v, out));
        TRY(find_bound(&t, v, out));
    }
    return measure(&t, &t.options, &out->chosen_v, &out->makespan, &out->peak);
}

static int compare(const void *a, const void *b)
{
    const struct auto_outcome *x = a, *y = b;
    double left = x->makespan / x->bound, right = y->makespan / y->bound;
    return left < right ? -1 : left > right ? 1 : 0;
}

void auto_sort(struct auto_outcome *outcomes, int count)
{
    qsort(outcomes, (size_t)count, sizeof *outcomes, compare);
}
