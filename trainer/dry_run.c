// SPDX-License-Identifier: Apache-2.0
#include "trainer/dry_run.h"

struct rehearsal {
    const struct run *run;
    struct memory_use memory;
};

static enum status rehearse(struct world *world, void *argument)
{
    struct rehearsal *rehearsal = argument;
    struct worker worker;
    struct step_result result;
    TRY(worker_create(rehearsal->run, world, true, &worker));
    TRY(worker_step(&worker, &result));
    rehearsal->memory = device_memory(worker.device);
    worker_destroy(&worker);
    return OK;
}

static void print_rank(int rank, int stage, const struct memory_use *use, FILE *to)
{
    char number[NUMBER_CHARS];
    fprintf(to, "%5d %6d", rank, stage);
    for (int part = 0; part < PART_COUNT; part++)
        fprintf(to, " %13s", bytes_text(use->peak_bytes[part], number));
    fprintf(to, " %13s\n", bytes_text(use->peak_total_bytes, number));
}

enum status dry_run(const struct run *run, FILE *to)
{
    // Ranks of one pipeline coordinate hold the same sizes: the first of each speaks for the others.
    fprintf(to, "%5s %6s", "rank", "pp");
    for (int part = 0; part < PART_COUNT; part++)
        fprintf(to, " %13s", part_name((enum part)part));
    fprintf(to, " %13s\n", "in all");
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        struct rehearsal rehearsal = {.run = run};
        int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct place){.pp = pp});
        TRY(world_run_dry(run->mesh.world, rank, rehearse, &rehearsal));
        print_rank(rank, pp, &rehearsal.memory, to);
    }
    int others = run->mesh.world / run->mesh.degrees.pp - 1;
    if (others > 0)
        fprintf(to, "One rank of each stage is shown; the %d other%s of a stage allocate%s the same.\n",
                others, others == 1 ? "" : "s", others == 1 ? "s" : "");
    fprintf(
        to,
        "Nothing was computed: these are the allocations of a run of this recipe, its ranks as threads. As\n"
        "processes, each group's sums take up to 2 MiB of communication more.\n");
    return OK;
}
