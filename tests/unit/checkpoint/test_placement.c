// SPDX-License-Identifier: Apache-2.0
/* The placement of copies in memory: which losses of nodes it survives, against a count by hand. */
#include "trainer/checkpoint/in_memory/memory_copy.h"

#include <criterion/criterion.h>

enum { MAX_NODES = 16 };

/* True if every node has a holder that is not lost. lost: [nodes]. */
static bool survives(const struct placement *p, const bool *lost)
{
    for (int node = 0; node < p->nodes; node++) {
        bool held = false;
        for (int copy = 0; copy < p->copies; copy++)
            held = held || !lost[placement_holder(p, node, copy)];
        if (!held)
            return false;
    }
    return true;
}

/* Returns how many sets of `lost` nodes (1 or 2) a checkpoint survives; *sets: the number of sets. */
static int survived(int nodes, int copies, int lost, int *sets)
{
    const struct placement placement = {.nodes = nodes, .copies = copies};
    int count = 0;
    *sets = 0;
    for (int a = 0; a < nodes; a++)
        for (int b = lost == 1 ? a : a + 1; b < (lost == 1 ? a + 1 : nodes); b++) {
            bool is_lost[MAX_NODES] = {false};
            is_lost[a] = is_lost[b] = true;
            count += survives(&placement, is_lost);
            (*sets)++;
        }
    return count;
}

Test(placement, losses_of_sixteen_nodes)
{
    int sets;
    cr_expect_eq(survived(16, 2, 1, &sets), 16);
    cr_expect_eq(sets, 16);
    cr_expect_eq(survived(16, 2, 2, &sets), 112);
    cr_expect_eq(sets, 120);
    cr_expect_eq(survived(16, 1, 1, &sets), 0);
    cr_expect_eq(survived(16, 3, 2, &sets), 120);
}

/* 7 nodes: two pairs, and a ring of three, in which each pair of nodes holds both copies of one of them. */
Test(placement, losses_with_a_ring)
{
    int sets;
    cr_expect_eq(survived(7, 2, 1, &sets), 7);
    cr_expect_eq(survived(7, 2, 2, &sets), 21 - 2 - 3);
    cr_expect_eq(survived(3, 2, 2, &sets), 0);
    cr_expect_eq(survived(1, 1, 1, &sets), 0);
}

/* Each node has its own shards, and as many copies of others as all others; all within its group. */
Test(placement, holders)
{
    for (int nodes = 1; nodes <= MAX_NODES; nodes++)
        for (int copies = 1; copies <= nodes; copies++) {
            const struct placement placement = {.nodes = nodes, .copies = copies};
            int held[MAX_NODES] = {0};
            for (int node = 0; node < nodes; node++) {
                unsigned seen = 0;
                for (int copy = 0; copy < copies; copy++) {
                    const int holder = placement_holder(&placement, node, copy);
                    cr_assert(holder >= 0 && holder < nodes && (seen >> holder & 1) == 0);
                    seen |= 1U << holder;
                    held[holder]++;
                    const int distance = holder > node ? holder - node : node - holder;
                    cr_assert(distance < 2 * copies);
                }
                cr_assert_eq(placement_holder(&placement, node, 0), node);
            }
            for (int node = 0; node < nodes; node++)
                cr_expect_eq(held[node], copies);
        }
}
