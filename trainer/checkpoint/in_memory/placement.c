// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/in_memory/placement.h"

int placement_holder(const struct placement *placement, int node, int copy)
{
    const int groups = placement->nodes / placement->copies, last = groups - 1;
    const int group = node / placement->copies < last ? node / placement->copies : last;
    const int first = group * placement->copies,
              size = group == last ? placement->nodes - first : placement->copies;
    return first + (node - first + copy) % size;
}
