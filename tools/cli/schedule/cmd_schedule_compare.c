// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/schedule/cmd_schedule_compare.h"

#include "base/memory.h"
#include "tools/cli/schedule/cmd_schedule_costs.h"
#include "tools/cli/schedule/cmd_schedule_print.h"
#include "tools/cli/schedule/cmd_schedule_progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OWN_V = 2 };      // the largest default v of a family
enum { AUTO_SHARE = 8 }; // time of auto, the last row of the table, in units of a named family

/* A simulated family. */
struct entry {
    const char *name;
    int v, chunks;
    bool replicas; // number of copies of the weights
    double makespan, bubble;
    double idle;   // largest idle share of a rank in the step, with warm-up and cool-down
    int peak;      // peak in chunks, largest of all ranks
    double whole;  // the same in whole microbatches of a rank
    int64_t sends; // largest number of sends of a rank
    char *refusal; // owned; NULL: it was simulated
};

static enum status build(const struct comparison *c, const char *name, int v, const struct progress *progress,
                         struct schedule **out)
{
    struct cost_table costs = v > 0 ? costs_of_chunks(&c->whole, v) : c->whole; // v 0: costs of a whole rank
    struct schedule_options options = {.name = name,
                                       .p = c->p,
                                       .m = c->m,
                                       .v = v,
                                       .costs = &costs,
                                       .memory_limit = c->memory_limit,
                                       .progress = progress};
    return schedule_build(&options, out);
}

static int64_t sends_of(const struct schedule *s, int rank)
{
    int64_t sends = 0;
    for (int i = 0; i < s->ranks[rank].count; i++)
        sends += action_traits(s->ranks[rank].actions[i].kind)->sends ? 1 : 0;
    return sends;
}

static void summarize(const struct schedule *s, const struct simulation *sim, struct entry *out)
{
    out->v = s->v;
    out->chunks = s->chunks;
    out->replicas = schedule_has_replicas(s);
    out->makespan = sim->makespan;
    out->bubble = bubble_fraction(sim);
    for (int rank = 0; rank < s->p; rank++) {
        int64_t sends = sends_of(s, rank);
        if (sim->makespan > 0.0)
            out->idle = fmax(out->idle, 1.0 - sim->ranks[rank].busy / sim->makespan);
        out->peak = sim->ranks[rank].peak > out->peak ? sim->ranks[rank].peak : out->peak;
        out->sends = sends > out->sends ? sends : out->sends;
    }
    out->whole = (double)out->peak / s->v;
}

/* Simulates one family with one v; 0: its default. */
static enum status simulate_with(const struct comparison *c, int v, const struct progress *progress,
                                 struct entry *out)
{
    struct schedule *schedule = NULL;
    struct simulation *simulation = NULL;
    TRY(build(c, out->name, v, progress, &schedule));
    struct cost_table costs = costs_of_chunks(&c->whole, schedule->v);
    enum status status = simulate(schedule, &costs, NULL, &simulation);
    if (status == OK)
        summarize(schedule, simulation, out);
    simulation_destroy(simulation);
    schedule_destroy(schedule);
    return status;
}

static bool is_auto(const struct entry *entry)
{
    return strcmp(entry->name, "auto") == 0;
}

/* Named families use the given v or their default, which is 1 or 2; auto uses the best of these. */
static enum status simulate_family(const struct comparison *c, const struct progress *progress,
                                   struct entry *out)
{
    enum status status = BAD_SCHEDULE;
    struct entry given = {.name = out->name};
    if (is_auto(out)) {
        status = simulate_with(c, 0, progress, out);
        if (status == OK && c->v > OWN_V)
            status = simulate_with(c, c->v, progress, &given);
        if (status == OK && given.v > 0 &&
            (given.makespan < out->makespan || (given.makespan <= out->makespan && given.whole < out->whole)))
            *out = given;
    } else {
        status = c->v > 0 ? simulate_with(c, c->v, progress, out) : BAD_SCHEDULE;
        if (status == BAD_SCHEDULE)
            status = simulate_with(c, 0, progress, out);
    }
    if (status != BAD_SCHEDULE)
        return status;
    struct text why = {0};
    text_add(&why, "%s", fail_text());
    out->refusal = why.chars;
    return OK;
}

/* Sorts by step time; ties by the order of the table; unsupported families last. */
static bool before(const struct entry *a, const struct entry *b)
{
    if ((a->refusal == NULL) != (b->refusal == NULL))
        return a->refusal == NULL;
    return a->refusal == NULL && a->makespan < b->makespan;
}

static void sort(struct entry *entries, int count)
{
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && before(&entries[j], &entries[j - 1]); j--) {
            struct entry other = entries[j];
            entries[j] = entries[j - 1];
            entries[j - 1] = other;
        }
}

/* Whether ranks idle more in a step than between their first and last actions, which only steps that overlap
 * gain. */
static bool needs_overlap(const struct entry *e)
{
    return e->idle > e->bubble + 0.01;
}

/* Explains the columns, and how auto compares with the others. */
static void print_notes(const struct comparison *c, bool replicas, bool searched)
{
    const char *before = "\n";
    printf("\nidle: share of the step time in which the most idle rank waits\n"
           "bubble: without its waits before its first and after its last action\n"
           "+ idle falls to the bubble only where steps overlap (pipeline.optimizer_post_validation)\n");
    if (replicas) {
        printf("%s* holds all weights twice%s\n", before,
               searched ? "; not a candidate of auto, which holds weights once" : "");
        before = "";
    }
    if (searched && c->v > OWN_V) {
        printf("%sauto has the best of v 1, 2 and %d\n", before, c->v);
        before = "";
    }
    if (searched && c->memory_limit > 0.0)
        printf("%sauto is limited to %g whole microbatches (--memory-limit); the other "
               "schedules are not\n",
               before, c->memory_limit);
}

static void print_table(const struct comparison *c, const struct entry *entries, int count)
{
    struct text title = {0};
    bool replicas = false, searched = false;
    add_costs(&c->whole, 0, &title);
    printf("p %d, m %d; %s\n\n", c->p, c->m, title.chars);
    text_free(&title);
    printf("%-12s %2s %10s %9s %9s %17s %12s\n", "schedule", "v", "step time", "idle", "bubble",
           "peak microbatches", "messages");
    printf("%-12s %2s %10s %9s %9s %17s %12s\n", "", "", "", "", "", "(chunks)", "sent");
    for (int i = 0; i < count && entries[i].refusal == NULL; i++) {
        const struct entry *e = &entries[i];
        char peak[NUMBER_CHARS];
        snprintf(peak, sizeof peak, "%.4g (%d)", e->whole, e->peak);
        printf("%s%-*s %2d %10.6g %7.1f %% %7.1f %% %17s %12lld\n", e->name, 12 - (int)strlen(e->name),
               e->replicas        ? "*"
               : needs_overlap(e) ? "+"
                                  : "",
               e->v, e->makespan, 100.0 * e->idle, 100.0 * e->bubble, peak, (long long)e->sends);
        replicas = replicas || e->replicas;
        searched = searched || is_auto(e);
    }
    print_notes(c, replicas, searched);
    for (int i = 0; i < count; i++)
        if (entries[i].refusal != NULL)
            printf("%s%s\n", i == 0 || entries[i - 1].refusal == NULL ? "\nnot supported:\n" : "",
                   entries[i].refusal);
}

static void print_json(const struct comparison *c, const struct entry *entries, int count)
{
    char a[NUMBER_CHARS], b[NUMBER_CHARS], d[NUMBER_CHARS], w[NUMBER_CHARS];
    printf("{\"p\": %d, \"m\": %d, ", c->p, c->m);
    print_json_costs(&c->whole);
    printf(",\n \"schedules\": [");
    for (int i = 0; i < count; i++) {
        const struct entry *e = &entries[i];
        struct text refusal = {0};
        text_add_json(&refusal, e->refusal != NULL ? e->refusal : "");
        printf("%s\n  {\"schedule\": \"%s\", ", i > 0 ? "," : "", e->name);
        if (e->refusal != NULL)
            printf("\"refused\": %s}", refusal.chars);
        else
            printf("\"v\": %d, \"weight_copies\": %d, \"makespan\": %s, \"bubble_fraction\": %s, "
                   "\"idle_fraction\": %s, "
                   "\"peak_chunks\": %d, "
                   "\"peak_whole\": %s, "
                   "\"messages\": %lld}",
                   e->v, e->replicas ? 2 : 1, number_text(e->makespan, a), number_text(e->bubble, b),
                   number_text(e->idle, d), e->peak, number_text(e->whole, w), (long long)e->sends);
        text_free(&refusal);
    }
    puts("]}");
}

enum status compare_schedules(const struct comparison *comparison)
{
    int count = 0;
    while (schedule_about(count) != NULL)
        count++;
    struct entry *entries = memory_zeroed((size_t)count, sizeof *entries, "the schedules");
    enum status status = OK;
    struct reporter reporter;
    reporter_begin(&reporter, "compare");
    for (int i = 0; status == OK && i < count; i++) {
        double all = count - 1 + AUTO_SHARE;
        entries[i].name = schedule_about(i)->name;
        double share = is_auto(&entries[i]) ? AUTO_SHARE : 1.0;
        reporter_part(&reporter, entries[i].name, 100.0 * i / all, 100.0 * (i + share) / all);
        status = simulate_family(comparison, &reporter.progress, &entries[i]);
    }
    reporter_end(&reporter);
    sort(entries, count);
    if (status == OK && comparison->json)
        print_json(comparison, entries, count);
    else if (status == OK)
        print_table(comparison, entries, count);
    for (int i = 0; i < count; i++)
        free(entries[i].refusal);
    free(entries);
    return status;
}
