// SPDX-License-Identifier: Apache-2.0
#include "planner/plan/dry_run.h"

#include "planner/plan/memory_plan.h"
#include "planner/plan/report.h"

#include <stdlib.h>
#include <string.h>

/* Ranks of one pipeline coordinate have equal sizes: only the first of each is planned. */
static enum status plan_ranks(const struct run *run, struct rank_memory *ranks, struct slot_use *slots)
{
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        ranks[pp] =
            (struct rank_memory){.rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp}),
                                 .pp = pp,
                                 .slots = slots + pp * run->schedule->chunks * SLOT_LIFETIMES};
        struct memory_plan memory_plan;
        TRY(memory_plan_make(run, ranks[pp].rank, slots + pp * run->schedule->chunks * SLOT_LIFETIMES,
                             &memory_plan));
        memcpy(ranks[pp].part_bytes, memory_plan.use.peak_bytes, sizeof ranks[pp].part_bytes);
        ranks[pp].bytes = memory_plan.use.peak_total_bytes;
    }
    return OK;
}

enum status dry_run_table(const struct run *run, FILE *to)
{
    const int count = run->mesh.degrees.pp;
    struct rank_memory *ranks = calloc((size_t)count, sizeof *ranks);
    struct slot_use *slots =
        calloc((size_t)count * (size_t)run->schedule->chunks * SLOT_LIFETIMES, sizeof *slots);
    enum status status = ranks != NULL && slots != NULL ? plan_ranks(run, ranks, slots)
                                                        : fail(NO_MEMORY, "no memory for %d ranks", count);
    if (status == OK)
        report_most(ranks, count, to);
    fflush(to);
    free(ranks);
    free(slots);
    return status;
}
