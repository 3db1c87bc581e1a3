// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/dry_run.h"

#include "trainer/plan/memory_plan.h"
#include "trainer/plan/report.h"

#include <stdlib.h>
#include <string.h>

/* Ranks of one pipeline coordinate have equal sizes: only the first of each is planned. */
static enum status plan_rows(const struct run *run, struct part_row *rows, struct slot_use *slots)
{
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        rows[pp] = (struct part_row){.rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp}),
                                     .pp = pp,
                                     .slots = slots + pp * run->schedule->chunks * SLOT_LIFETIMES};
        struct memory_plan memory_plan;
        TRY(memory_plan_make(run, rows[pp].rank, slots + pp * run->schedule->chunks * SLOT_LIFETIMES,
                             &memory_plan));
        memcpy(rows[pp].part_bytes, memory_plan.use.peak_bytes, sizeof rows[pp].part_bytes);
        rows[pp].bytes = memory_plan.use.peak_total_bytes;
    }
    return OK;
}

enum status dry_run_table(const struct run *run, FILE *to)
{
    const int count = run->mesh.degrees.pp;
    struct part_row *rows = calloc((size_t)count, sizeof *rows);
    struct slot_use *slots =
        calloc((size_t)count * (size_t)run->schedule->chunks * SLOT_LIFETIMES, sizeof *slots);
    enum status status = rows != NULL && slots != NULL ? plan_rows(run, rows, slots)
                                                       : fail(NO_MEMORY, "no memory for %d rows", count);
    if (status == OK)
        report_parts(run, rows, count, to);
    fflush(to);
    free(rows);
    free(slots);
    return status;
}
