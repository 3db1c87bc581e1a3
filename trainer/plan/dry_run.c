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

static void print_others(const struct run *run, FILE *to)
{
    int others = run->mesh.world / run->mesh.degrees.pp - 1;
    if (others > 0)
        fprintf(to, "One rank of each stage is shown; the %d other%s of a stage ha%s the same%s.\n", others,
                others == 1 ? "" : "s", others == 1 ? "s" : "ve",
                run->recipe->data_parallel.zero_stage > 0 ? ", except for one block of each bucket" : "");
}

static enum status count_for_papers(const struct run *run, FILE *to)
{
    TRY(report_formula(run, to));
    TRY(report_terms(run, 0, to));
    print_others(run, to);
    fprintf(to, "Nothing was computed. These are not allocations of Cuboid: assume=papers "
                "counts what the\nimplementations of ZeRO (1910.02054) and Korthikanti et al. "
                "(2205.05198) store.\n");
    return OK;
}

static void print_notes(const struct run *run, FILE *to)
{
    if (device_traits(run->recipe->cluster.dry_device)->is_gpu)
        fprintf(to, "Nothing was computed: these are the allocations of this recipe with one GPU "
                    "per rank. CUDA, NCCL and\ncuDNN allocate additional memory. The terms do not "
                    "include the buffers of reductions between GPUs.\n");
    else
        fprintf(to, "Nothing was computed: these are the allocations of this recipe with ranks as "
                    "threads. Ranks as\nprocesses need up to 2 MiB more per group, for "
                    "reductions.\n");
}

static enum status report_rows(const struct run *run, const struct part_row *rows, int count, bool whole,
                               FILE *to)
{
    int fullest = 0;
    report_parts(run, rows, count, to);
    fflush(to);
    if (!whole)
        return OK;
    for (int i = 0; i < count; i++)
        fullest = rows[i].bytes > rows[fullest].bytes ? i : fullest;
    TRY(report_terms(run, rows[fullest].rank, to));
    print_others(run, to);
    print_notes(run, to);
    return OK;
}

static enum status plan_and_report(const struct run *run, bool whole, FILE *to)
{
    int count = run->mesh.degrees.pp;
    struct part_row *rows = calloc((size_t)count, sizeof *rows);
    struct slot_use *slots =
        calloc((size_t)count * (size_t)run->schedule->chunks * SLOT_LIFETIMES, sizeof *slots);
    enum status status = rows != NULL && slots != NULL ? plan_rows(run, rows, slots)
                                                       : fail(NO_MEMORY, "no memory for %d rows", count);
    if (status == OK)
        status = report_rows(run, rows, count, whole, to);
    free(rows);
    free(slots);
    return status;
}

enum status dry_run(const struct run *run, FILE *to)
{
    return run->recipe->assume.programs == ASSUME_PAPERS ? count_for_papers(run, to)
                                                         : plan_and_report(run, true, to);
}

enum status dry_run_table(const struct run *run, FILE *to)
{
    return plan_and_report(run, false, to);
}
