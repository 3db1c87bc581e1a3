// SPDX-License-Identifier: Apache-2.0
#include "trainer/dry_run.h"

#include "trainer/report.h"

#include <stdlib.h>
#include <string.h>

struct rehearsal {
    const struct run *run;
    struct part_row *row;
};

static enum status rehearse(struct world *world, void *argument)
{
    struct rehearsal *rehearsal = argument;
    const struct run *run = rehearsal->run;
    struct part_row *row = rehearsal->row;
    struct worker worker;
    struct step_result result;
    TRY(worker_create(run, world, true, &worker));
    TRY(worker_step(&worker, &result));
    struct memory_use use = device_memory(worker.device);
    memcpy(row->part_bytes, use.peak_bytes, sizeof row->part_bytes);
    row->bytes = use.peak_total_bytes;
    for (int chunk = 0; chunk < run->schedule->chunks; chunk++)
        stash_slots(executor_stash(worker.executor), chunk, &row->slots[chunk * SLOT_KINDS]);
    worker_destroy(&worker);
    return OK;
}

/* Ranks of one pipeline coordinate hold the same sizes: the first of each speaks for the others. */
static enum status rehearse_rows(const struct run *run, struct part_row *rows, struct slot_use *slots)
{
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        rows[pp] = (struct part_row){.rank = mesh_rank(&run->mesh, MESH_DENSE, (struct place){.pp = pp}),
                                     .pp = pp,
                                     .slots = slots + pp * run->schedule->chunks * SLOT_KINDS};
        struct rehearsal rehearsal = {.run = run, .row = &rows[pp]};
        TRY(world_run_dry(run->mesh.world, rows[pp].rank, rehearse, &rehearsal));
    }
    return OK;
}

static void print_others(const struct run *run, FILE *to)
{
    int others = run->mesh.world / run->mesh.degrees.pp - 1;
    if (others > 0)
        fprintf(to, "One rank of each stage is shown; the %d other%s of a stage ha%s the same%s.\n", others,
                others == 1 ? "" : "s", others == 1 ? "s" : "ve",
                run->recipe->parallel.zero_stage > 0 ? ", but for a block of each bucket" : "");
}

static enum status count_for_papers(const struct run *run, FILE *to)
{
    TRY(report_formula(run, to));
    TRY(report_terms(run, 0, to));
    print_others(run, to);
    fprintf(
        to,
        "Nothing was computed, and nothing of this is allocated: assume papers counts what the programs of\n"
        "ZeRO (1910.02054) and Korthikanti et al. (2205.05198) stored.\n");
    return OK;
}

static enum status report_rows(const struct run *run, const struct part_row *rows, int count, FILE *to)
{
    int fullest = 0;
    for (int i = 0; i < count; i++)
        fullest = rows[i].bytes > rows[fullest].bytes ? i : fullest;
    report_parts(run, rows, count, to);
    TRY(report_terms(run, rows[fullest].rank, to));
    print_others(run, to);
    fprintf(
        to,
        "Nothing was computed: these are the allocations of a run of this recipe, its ranks as threads. As\n"
        "processes, each group's sums take up to 2 MiB of communication more.\n");
    return OK;
}

enum status dry_run(const struct run *run, FILE *to)
{
    int count = run->mesh.degrees.pp;
    if (run->recipe->assume == ASSUME_PAPERS)
        return count_for_papers(run, to);
    struct part_row *rows = calloc((size_t)count, sizeof *rows);
    struct slot_use *slots =
        calloc((size_t)count * (size_t)run->schedule->chunks * SLOT_KINDS, sizeof *slots);
    enum status status = rows != NULL && slots != NULL ? rehearse_rows(run, rows, slots)
                                                       : fail(NO_MEMORY, "no memory for %d rows", count);
    if (status == OK)
        status = report_rows(run, rows, count, to);
    free(rows);
    free(slots);
    return status;
}
