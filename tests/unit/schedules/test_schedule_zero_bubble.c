// SPDX-License-Identifier: Apache-2.0
/* zb-h2 and zb-v against the lower bound of the makespan, and against the results of the zero-bubble
 * authors' own scheduler: zero_bubble_makespans.csv, which names its source. For f = i = w = 1 both
 * families reach the lower bound for every p and m, also below 2p-1, where the pipeline is never full. */
#include "schedules/bound.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>
#include <stdio.h>

static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}};

/* The lower bound of the makespan, in units: no rank runs more than one action at a time, and a rank's
 * first action, or first I, waits for those of a microbatch that is alone in the pipeline. */
static int least_makespan(bool v_shaped, int p, int m)
{
    if (!v_shaped) // the last rank starts at p-1; rank 0 has its first I at 2p-1
        return (int)fmax(3 * m + p - 1, 2 * m + 2 * p - 1);
    // The last rank starts at p-1, and has its first I at 3p-1; rank 0's of stage 0 comes at 4p-1.
    return (int)fmax(fmax(6 * m + p - 1, 4 * m + 3 * p - 1), 2 * m + 4 * p - 1);
}

static void expect_least(bool v_shaped, int p, int m)
{
    const char *name = v_shaped ? "zb-v" : "zb-h2";
    int limit = v_shaped ? 2 * p : 2 * p - 1; // chunks
    struct schedule *s = build(name, p, m, 0);
    struct simulation *sim = simulated(s, units);
    double bound;
    cr_assert_eq(schedule_bound(s, &units, limit, &bound), OK);
    cr_assert_leq(bound, sim->makespan);
    cr_assert_eq(sim->makespan, least_makespan(v_shaped, p, m), "%s p %d m %d: %g; the minimum is %d", name,
                 p, m, sim->makespan, least_makespan(v_shaped, p, m));
    for (int rank = 0; rank < p; rank++)
        cr_assert_leq(sim->ranks[rank].peak, least(limit, s->v * m), "%s p %d m %d rank %d", name, p, m,
                      rank);
    simulation_destroy(sim);
    schedule_destroy(s);
}

Test(zero_bubble, no_schedule_is_shorter)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 3 * p; m++)
            for (int v_shaped = 0; v_shaped < 2; v_shaped++)
                expect_least(v_shaped != 0, p, m);
    static const int pipes[] = {12, 17, 32};
    for (size_t i = 0; i < sizeof pipes / sizeof *pipes; i++)
        for (int m = 1; m <= 2 * pipes[i]; m += 3)
            for (int v_shaped = 0; v_shaped < 2; v_shaped++)
                expect_least(v_shaped != 0, pipes[i], m);
}

/* Where all microbatches fit within the limit of v-half or v-min they must not be longer than zb-v. */
static bool fits_and_is_least(const char *name, int p, int m)
{
    struct schedule *s = build(name, p, m, 0);
    struct simulation *sim = simulated(s, units);
    bool fits = true;
    for (int rank = 0; rank < p; rank++)
        fits = fits && s->family->peak_claim(s, rank) == 2 * m;
    cr_assert(!fits || sim->makespan == least_makespan(true, p, m), "%s p %d m %d: %g", name, p, m,
              sim->makespan);
    simulation_destroy(sim);
    schedule_destroy(s);
    return fits;
}

Test(zero_bubble, limits_that_do_not_bind)
{
    static const char *const names[] = {"v-half", "v-min"};
    int compared = 0;
    for (int p = 2; p <= 12; p++)
        for (int i = 0; i < 2; i++) // if m does not fit, larger m do not fit either
            for (int m = 1; m <= p && fits_and_is_least(names[i], p, m); m++)
                compared++;
    cr_assert_geq(compared, 20);
}

/* The bound of bound.h equals what both families reach. */
Test(zero_bubble, bound_is_reached)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 3 * p; m++)
            for (int v = 1; v <= 2; v++) {
                struct schedule *s = build_lists(v == 1 ? "zb-h2" : "zb-v", p, m, v);
                double bound;
                cr_assert_eq(schedule_bound(s, &units, v == 1 ? 2 * p - 1 : 2 * p, &bound), OK);
                cr_assert_eq(bound, least_makespan(v == 2, p, m), "v %d p %d m %d: %g, not %d", v, p, m,
                             bound, least_makespan(v == 2, p, m));
                schedule_destroy(s);
            }
}

/* ---- the authors' results ---- */

struct row {
    char name[16];
    int p, m, v, limit; // chunks
    struct cost_table costs;
    double makespan;
};

static bool read_row(FILE *file, struct row *out)
{
    char line[120];
    struct stage_cost *c = &out->costs.chunk;
    *out = (struct row){.v = 0};
    do {
        if (fgets(line, sizeof line, file) == NULL)
            return false;
    } while (line[0] == '#');
    int read = sscanf(line, "%15[^,],%d,%d,%d,%lf,%lf,%lf,%lf,%d,%lf", out->name, &out->p, &out->m, &out->v,
                      &c->f, &c->i, &c->w, &out->costs.latency, &out->limit, &out->makespan);
    cr_assert_eq(read, 10, "%s", line);
    return true;
}

static void expect_no_longer(const struct row *row)
{
    struct schedule *s = build_with((struct schedule_options){
        .name = row->name,
        .p = row->p,
        .m = row->m,
        .v = row->v,
        .costs = &row->costs,
        .memory_limit = strcmp(row->name, "auto") == 0 ? (double)row->limit / row->v : 0.0});
    struct simulation *sim = simulated(s, row->costs);
    cr_assert_leq(sim->makespan, row->makespan * (1.0 + 1e-9), "%s p %d m %d limit %d: %g, theirs %g",
                  row->name, row->p, row->m, row->limit, sim->makespan, row->makespan);
    for (int rank = 0; rank < s->p; rank++)
        cr_assert_leq(sim->ranks[rank].peak, row->limit);
    simulation_destroy(sim);
    schedule_destroy(s);
}

enum { PARTS = 3 }; // rows with a search are slow: each test runs a part of them, in parallel

static void expect_part_no_longer(int part)
{
    FILE *file = fopen(SOURCE_ROOT "/tests/fixtures/zero_bubble_makespans.csv", "r");
    cr_assert_not_null(file);
    struct row row;
    int named = 0, searched = 0;
    while (read_row(file, &row)) {
        bool search = strcmp(row.name, "auto") == 0;
        bool mine = (search ? searched : named) % PARTS == part;
        if (mine && (!search || !fewer_cases() || searched / PARTS % 10 == 0))
            expect_no_longer(&row);
        named += search ? 0 : 1;
        searched += search ? 1 : 0;
    }
    fclose(file);
    cr_assert_eq(named, 2 * 108); // p 1 to 8, m 1 to 3p
    cr_assert_geq(searched, 30);
}

Test(zero_bubble, no_longer_than_the_authors_scheduler_0)
{
    expect_part_no_longer(0);
}

Test(zero_bubble, no_longer_than_the_authors_scheduler_1)
{
    expect_part_no_longer(1);
}

Test(zero_bubble, no_longer_than_the_authors_scheduler_2)
{
    expect_part_no_longer(2);
}
