// SPDX-License-Identifier: Apache-2.0
/* Shared code of the schedule tests. */
#pragma once

#include "base/philox.h"
#include "schedules/families/family.h"
#include "schedules/simulate.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <string.h>

/* A random number generator, seeded by a name: the same numbers in every run. */
struct rng {
    struct philox generator;
    uint64_t draws;
};

/* In tools/test: a sample of the random cases, and of the sizes. */
static inline bool fewer_cases(void)
{
    return !long_tests();
}

/* The number of random cases to run. */
static inline int cases(int count)
{
    return UNDER_SANITIZER ? count / 40 : fewer_cases() ? count / 10 : count;
}

/* A random integer from low to high. */
static inline int rng_int(struct rng *rng, int low, int high)
{
    uint32_t word = philox_word(rng->generator, 0, rng->draws++);
    uint32_t values = high > low ? (uint32_t)(high - low + 1) : 1;
    return low + (int)(word % values);
}

static inline struct schedule *build_with(struct schedule_options options)
{
    struct schedule *s = NULL;
    enum status status = schedule_build(&options, &s);
    cr_assert_eq(status, OK, "%s p %d m %d v %d: %s", options.name, options.p, options.m, options.v,
                 fail_text());
    return s;
}

static inline struct schedule *build(const char *name, int p, int m, int v)
{
    return build_with((struct schedule_options){.name = name, .p = p, .m = m, .v = v});
}

/* The lists built by their family. v 0: its default. */
static inline struct schedule *build_lists(const char *name, int p, int m, int v)
{
    return build_with(
        (struct schedule_options){.name = name, .p = p, .m = m, .v = v, .without_transfers = true});
}

static inline struct simulation *simulated(const struct schedule *s, struct cost_table costs)
{
    struct simulation *sim = NULL;
    enum status status = simulate(s, &costs, NULL, &sim);
    cr_assert_eq(status, OK, "%s", fail_text());
    return sim;
}

/* The list of a rank as text, "3F0 3B0", a pair as "3F5+3B1"; transfers only on request. */
static inline const char *list_text(const struct schedule *s, int rank, bool transfers, struct text *out)
{
    char action[ACTION_CHARS];
    const char *between = "";
    out->length = 0;
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        if (!transfers && !action_traits(a.kind)->computes)
            continue;
        text_add(out, "%s%s", between, action_text(a, action));
        between = a.overlaps_next ? "+" : " ";
    }
    return text_chars(out);
}

/* Checks the list of every rank, without transfers. */
static inline void expect_lists(const char *name, int p, int m, int v, const char *const *ranks)
{
    struct schedule *s = build(name, p, m, v);
    struct text text = {0};
    for (int rank = 0; rank < p; rank++)
        cr_assert_str_eq(list_text(s, rank, false, &text), ranks[rank], "%s rank %d: %s", name, rank,
                         text_chars(&text));
    text_free(&text);
    schedule_destroy(s);
}

/* Lists, transfers and placement. */
static inline void expect_same_lists(const struct schedule *a, const struct schedule *b)
{
    cr_assert(a->p == b->p && a->m == b->m && a->v == b->v && a->stages == b->stages);
    for (int stage = 0; stage < a->stages; stage++)
        for (int k = 0; k < a->m; k++)
            cr_assert_eq(schedule_rank(a, stage, k), schedule_rank(b, stage, k));
    for (int rank = 0; rank < a->p; rank++) {
        cr_assert_eq(a->ranks[rank].count, b->ranks[rank].count);
        for (int i = 0; i < a->ranks[rank].count; i++) {
            struct action x = a->ranks[rank].actions[i], y = b->ranks[rank].actions[i];
            cr_assert(x.kind == y.kind && x.stage == y.stage && x.microbatch == y.microbatch &&
                          x.peer == y.peer && x.overlaps_next == y.overlaps_next,
                      "%s rank %d action %d", a->family->about.name, rank, i);
        }
    }
}

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

/* Random p, m, v and group size that family `index` supports. */
static inline struct schedule_options random_options(struct rng *rng, int index, int most_p, int most_m)
{
    const struct schedule_about *about = schedule_about(index);
    struct schedule_options options = {
        .name = about->name, .p = rng_int(rng, 1, most_p), .m = rng_int(rng, 1, most_m)};
    bool many_chunks = strstr(about->supports, "any v") != NULL;
    options.v = many_chunks ? rng_int(rng, 1, 4) : 0;
    if (strstr(about->supports, "even p") != NULL)
        options.p += options.p % 2;
    bool groups = strcmp(about->name, "interleaved") == 0 || strcmp(about->name, "zb-h1") == 0;
    if (groups && rng_int(rng, 0, 2) == 0)
        options.microbatch_group_size = rng_int(rng, options.p, options.p + most_m);
    return options;
}

static inline int family_count(void)
{
    int count = 1;
    while (schedule_about(count) != NULL)
        count++;
    return count;
}
