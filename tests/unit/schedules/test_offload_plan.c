// SPDX-License-Identifier: Apache-2.0
/* Offload plans of every family are consistent, and an inconsistent plan is detected. */
#include "schedules/offload_plan.h"

#include <criterion/criterion.h>

static struct schedule *built(const char *name, int p, int m)
{
    struct schedule *s = NULL;
    cr_assert_eq(schedule_build(&(struct schedule_options){.name = name, .p = p, .m = m}, &s), OK, "%s",
                 fail_text());
    return s;
}

Test(offload_plan, families_keep_their_memory_claims)
{
    const char *const names[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipev"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct schedule *s = built(names[i], 4, 8);
        for (int rank = 0; rank < s->p; rank++) {
            struct offload_plan *plan = NULL;
            cr_expect_eq(offload_plan_create(s, rank, &plan), OK, "%s, rank %d: %s", names[i], rank,
                         fail_text());
            offload_plan_destroy(plan);
        }
        schedule_destroy(s);
    }
}

/* One field is changed, and restored. */
#define BREAK(field, value, words)                                                             \
    do {                                                                                       \
        int kept_ = (field);                                                                   \
        (field) = (value);                                                                     \
        cr_expect_eq(offload_plan_check(plan, s, 0), BAD_SCHEDULE, "%s: not detected", words); \
        cr_expect_str_eq(fail_text(), words);                                                  \
        (field) = kept_;                                                                       \
        cr_assert_eq(offload_plan_check(plan, s, 0), OK);                                      \
    } while (0)

/* 1F1B, the first of four ranks, eight microbatches: 0F0 0F1 0F2 0F3 0B0 0F4 0B1 ... */
Test(offload_plan, detects_an_inconsistent_plan)
{
    struct schedule *s = built("1f1b", 4, 8);
    struct offload_plan *plan = NULL;
    cr_assert_eq(offload_plan_create(s, 0, &plan), OK);
    cr_assert(plan->any && plan->reload_at[0] > 0 && plan->reload_at[7] >= 0);
    BREAK(plan->m, 7, "offload: the plan is of 1 chunks and 7 microbatches, not of 1 and 8");
    int *slot = plan->slot[KEEP_UNTIL_BACKWARD_WEIGHT];
    BREAK(slot[0], -1, "offload: chunk 0, microbatch 0 has slot -1 of 3");
    BREAK(slot[8], 3, "offload: chunk 0, microbatch 0 has slot 3 of 3");
    BREAK(plan->reload_at[0], -1, "offload: chunk 0, microbatch 0 stays on the device, but has two slots");
    BREAK(plan->reload_at[0], 2,
          "offload: chunk 0, microbatch 0 returns before action 2; it leaves with action 2, and is read by "
          "action 9");
    BREAK(plan->reload_at[0], 10,
          "offload: chunk 0, microbatch 0 returns before action 10; it leaves with action 2, and is read by "
          "action 9");
    BREAK(slot[8], 1, "offload: microbatches 0 and 3 of chunk 0 are both in slot 1 at action 6");
    schedule_destroy(s);
    offload_plan_destroy(plan);
}
