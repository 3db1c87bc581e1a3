// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/in_memory/placement.h"

int placement_holder(const struct placement *p, int node, int copy)
{
    const int groups = p->nodes / p->copies, last = groups - 1;
    const int group = node / p->copies < last ? node / p->copies : last;
    const int first = group * p->copies, size = group == last ? p->nodes - first : p->copies;
    return first + (node - first + copy) % size;
}
