// SPDX-License-Identifier: Apache-2.0
#include "trainer/dry_run.h"

#include "trainer/report.h"

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

enum status dry_run(const struct run *run, FILE *to)
{
    // Ranks of one pipeline coordinate hold the same sizes: the first of each speaks for the others.
    for (int pp = 0; pp < run->mesh.degrees.pp; pp++) {
        struct rehearsal rehearsal = {.run = run};
        int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct place){.pp = pp});
        TRY(world_run_dry(run->mesh.world, rank, rehearse, &rehearsal));
        report_parts(rank, pp, rehearsal.memory.peak_bytes, rehearsal.memory.peak_total_bytes, to);
    }
    int others = run->mesh.world / run->mesh.degrees.pp - 1;
    if (others > 0)
        fprintf(to, "One rank of each stage is shown; the %d other%s of a stage allocate%s the same%s.\n",
                others, others == 1 ? "" : "s", others == 1 ? "s" : "",
                run->recipe->parallel.zero_stage > 0 ? ", but for a block of each bucket" : "");
    fprintf(
        to,
        "Nothing was computed: these are the allocations of a run of this recipe, its ranks as threads. As\n"
        "processes, each group's sums take up to 2 MiB of communication more.\n");
    return OK;
}
