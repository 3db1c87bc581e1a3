// SPDX-License-Identifier: Apache-2.0
#include "tools/cmd_schedule_compare.h"

#include "tools/cmd_schedule_costs.h"
#include "tools/cmd_schedule_print.h"

#include <stdlib.h>

/* One family on the clock. */
struct entry {
    const char *name;
    int v, chunks;
    double makespan, bubble;
    int peak;      // activations of a chunk, of the rank that holds most
    double whole;  // the same in activations of everything a rank has
    int64_t sends; // of the rank that sends most
    char *refusal; // owned; NULL: it was played
};

static enum status build(const struct comparison *c, const char *name, struct schedule **out)
{
    struct cost_table costs = c->whole; // of a stage, or of a rank where auto chooses v
    if (c->v > 0)
        costs.chunk = cost_of_part(c->whole.chunk, c->v);
    struct schedule_options options = {
        .name = name, .p = c->p, .m = c->m, .v = c->v, .costs = &costs, .memory_limit = c->memory_limit};
    enum status status = schedule_build(&options, out);
    if (status != BAD_SCHEDULE || c->v == 0)
        return status;
    options.v = 0;
    return schedule_build(&options, out);
}

static int64_t sends_of(const struct schedule *s, int rank)
{
    int64_t sends = 0;
    for (int i = 0; i < s->ranks[rank].count; i++)
        sends += action_fact(s->ranks[rank].actions[i].kind)->sends ? 1 : 0;
    return sends;
}

static void summarise(const struct schedule *s, const struct simulation *sim, struct entry *out)
{
    out->v = s->v;
    out->chunks = s->chunks;
    out->makespan = sim->makespan;
    out->bubble = bubble_fraction(sim);
    for (int rank = 0; rank < s->p; rank++) {
        int64_t sends = sends_of(s, rank);
        out->peak = sim->ranks[rank].peak > out->peak ? sim->ranks[rank].peak : out->peak;
        out->sends = sends > out->sends ? sends : out->sends;
    }
    out->whole = (double)out->peak / s->v;
}

static enum status play(const struct comparison *c, struct entry *out)
{
    struct schedule *schedule = NULL;
    struct simulation *simulation = NULL;
    enum status status = build(c, out->name, &schedule);
    if (status == BAD_SCHEDULE) {
        struct text why = {0};
        text_add(&why, "%s", fail_text());
        out->refusal = why.chars;
        return OK;
    }
    if (status == OK) {
        struct cost_table costs = c->whole;
        costs.chunk = cost_of_part(c->whole.chunk, schedule->v);
        status = simulate(schedule, &costs, NULL, &simulation);
    }
    if (status == OK)
        summarise(schedule, simulation, out);
    simulation_destroy(simulation);
    schedule_destroy(schedule);
    return status;
}

/* The shortest first; those that tie in the order of the table, those that were refused at the end. */
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

static void print_table(const struct comparison *c, const struct entry *entries, int count)
{
    const struct stage_cost *whole = &c->whole.chunk;
    printf("p %d, m %d; F, I and W of a whole rank take %g, %g and %g, those of a chunk 1/v of that; a "
           "message %g\n\n",
           c->p, c->m, whole->f, whole->i, whole->w, c->whole.wire);
    printf("%-12s %2s %10s %9s %17s %12s\n", "schedule", "v", "makespan", "bubble", "peak activations",
           "messages");
    printf("%-12s %2s %10s %9s %17s %12s\n", "", "", "", "", "whole (chunks)", "sent");
    for (int i = 0; i < count && entries[i].refusal == NULL; i++) {
        const struct entry *e = &entries[i];
        char peak[NUMBER_CHARS];
        snprintf(peak, sizeof peak, "%.4g (%d)", e->whole, e->peak);
        printf("%-12s %2d %10.6g %7.1f %% %17s %12lld\n", e->name, e->v, e->makespan, 100.0 * e->bubble, peak,
               (long long)e->sends);
    }
    for (int i = 0; i < count; i++)
        if (entries[i].refusal != NULL)
            printf("%s%s\n", i == 0 || entries[i - 1].refusal == NULL ? "\nleft out:\n" : "",
                   entries[i].refusal);
}

static void print_json(const struct comparison *c, const struct entry *entries, int count)
{
    char a[NUMBER_CHARS], b[NUMBER_CHARS], w[NUMBER_CHARS], d[NUMBER_CHARS];
    printf("{\"p\": %d, \"m\": %d, \"cost\": {\"f\": %s, \"i\": %s, \"w\": %s, \"comm\": %s},\n "
           "\"schedules\": [",
           c->p, c->m, number_text(c->whole.chunk.f, a), number_text(c->whole.chunk.i, b),
           number_text(c->whole.chunk.w, w), number_text(c->whole.wire, d));
    for (int i = 0; i < count; i++) {
        const struct entry *e = &entries[i];
        struct text refusal = {0};
        text_add_json(&refusal, e->refusal != NULL ? e->refusal : "");
        printf("%s\n  {\"schedule\": \"%s\", ", i > 0 ? "," : "", e->name);
        if (e->refusal != NULL)
            printf("\"refused\": %s}", refusal.chars);
        else
            printf("\"v\": %d, \"makespan\": %s, \"bubble_fraction\": %s, \"peak_chunks\": %d, "
                   "\"peak_whole\": %s, "
                   "\"messages\": %lld}",
                   e->v, number_text(e->makespan, a), number_text(e->bubble, b), e->peak,
                   number_text(e->whole, w), (long long)e->sends);
        text_free(&refusal);
    }
    puts("]}");
}

enum status compare_schedules(const struct comparison *c)
{
    int count = 0;
    while (schedule_about(count) != NULL)
        count++;
    struct entry *entries = calloc((size_t)count, sizeof *entries);
    if (entries == NULL)
        return fail(NO_MEMORY, "no memory to compare %d schedules", count);
    enum status status = OK;
    for (int i = 0; status == OK && i < count; i++) {
        entries[i].name = schedule_about(i)->name;
        status = play(c, &entries[i]);
    }
    sort(entries, count);
    if (status == OK && c->json)
        print_json(c, entries, count);
    else if (status == OK)
        print_table(c, entries, count);
    for (int i = 0; i < count; i++)
        free(entries[i].refusal);
    free(entries);
    return status;
}
