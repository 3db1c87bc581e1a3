// SPDX-License-Identifier: Apache-2.0
/* What the tests of schedules share. */
#pragma once

#include "base/philox.h"
#include "schedules/family.h"
#include "schedules/simulate.h"

#include <criterion/criterion.h>

/* Whole numbers of a test, from a name: the same in every run. */
struct dice {
    struct philox generator;
    uint64_t thrown;
};

static inline int throw_dice(struct dice *dice, int low, int high)
{
    uint32_t word = philox_word(dice->generator, 0, dice->thrown++);
    return low + (int)(word % (uint32_t)(high - low + 1));
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

static inline struct simulation *simulated(const struct schedule *s, struct cost_table costs)
{
    struct simulation *sim = NULL;
    enum status status = simulate(s, &costs, NULL, &sim);
    cr_assert_eq(status, OK, "%s", fail_text());
    return sim;
}

/* The list of a rank as text, "3F0 3B0"; without its transfers unless asked for. */
static inline const char *list_text(const struct schedule *s, int rank, bool transfers, struct text *out)
{
    char action[ACTION_CHARS];
    out->length = 0;
    for (int i = 0; i < s->ranks[rank].count; i++)
        if (transfers || action_fact(s->ranks[rank].actions[i].kind)->computes)
            text_add(out, "%s%s", out->length > 0 ? " " : "", action_text(s->ranks[rank].actions[i], action));
    return text_chars(out);
}
