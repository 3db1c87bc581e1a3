// SPDX-License-Identifier: Apache-2.0
/* The dry device rehearses a run: what it counts for each rank, part by part, must be what the same rank of a
 * real run has allocated, to the byte. */
#include "tests/support/tiny.h"
#include "trainer/worker.h"

#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 16 };

struct job {
    struct run run;
    int steps;
    struct memory_use use[MOST_RANKS];
};

static enum status rank_main(struct world *world, void *argument)
{
    struct job *job = argument;
    struct worker worker;
    struct step_result result;
    double loss;
    TRY(worker_create(&job->run, world, true, &worker));
    for (int i = 0; i < job->steps; i++)
        TRY(worker_step(&worker, &result));
    if (job->steps > 1)
        TRY(worker_evaluate(&worker, &loss));
    job->use[world->rank] = device_memory(worker.device);
    worker_destroy(&worker);
    return OK;
}

static enum status play(const struct tiny *tiny, enum tiny_family family, const char *layout, bool dry,
                        struct job *job, int *size)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, family, dry ? "cluster.device=dry" : "cluster.device=cpu", layout, 0, &recipe));
    *size = recipe_world_size(recipe);
    CHECK(*size <= MOST_RANKS);
    // One step is what a rehearsal plays; a run plays more, and evaluates.
    *job = (struct job){.steps = dry ? 1 : 2};
    enum status status = run_create(recipe, !dry, &job->run);
    if (status == OK && !dry)
        status = world_run("local", *size, rank_main, job);
    for (int rank = 0; status == OK && dry && rank < *size; rank++)
        status = world_run_dry(*size, rank, rank_main, job);
    run_destroy(&job->run);
    recipe_destroy(recipe);
    return status;
}

static enum status compare(const struct tiny *tiny, enum tiny_family family, const char *layout)
{
    struct job real, dry;
    int size = 0;
    TRY(play(tiny, family, layout, false, &real, &size));
    TRY(play(tiny, family, layout, true, &dry, &size));
    for (int rank = 0; rank < size; rank++) {
        for (int part = 0; part < PART_COUNT; part++)
            if (real.use[rank].peak_bytes[part] != dry.use[rank].peak_bytes[part])
                return fail(OUT_OF_BOUND, "rank %d: %lld bytes of %s, and %lld were rehearsed", rank,
                            (long long)real.use[rank].peak_bytes[part], part_name((enum part)part),
                            (long long)dry.use[rank].peak_bytes[part]);
        if (real.use[rank].peak_total_bytes != dry.use[rank].peak_total_bytes)
            return fail(OUT_OF_BOUND, "rank %d: %lld bytes at most, and %lld were rehearsed", rank,
                        (long long)real.use[rank].peak_total_bytes,
                        (long long)dry.use[rank].peak_total_bytes);
    }
    return real.use[0].peak_bytes[PART_WORKSPACE] > 0 ? OK : fail(OUT_OF_BOUND, "no workspace at all");
}

int main(void)
{
    static const struct {
        enum tiny_family family;
        const char *layout;
    } cases[] = {
        {TINY_GPT, "cluster.threads_per_rank=1"},
        {TINY_GPT, "cluster.threads_per_rank=2" TINY_DROPOUT},
        {TINY_GPT, "tp=2 pp=2 dp=2 parallel.sequence_parallel=true cluster.threads_per_rank=1"},
        {TINY_LLAMA, "tp=4 pp=2 pipeline.schedule=zb-h1 pipeline.layout=[4,1] cluster.threads_per_rank=1"},
        {TINY_LLAMA, "pp=4 pipeline.layout=[2,0,3,0] train.micro_batch_size=1 cluster.threads_per_rank=3"},
        {TINY_GPT, "tp=2 pp=3 pipeline.optimizer_post_validation=true cluster.threads_per_rank=1"},
        {TINY_GPT,
         "pp=2 memory.recompute_granularity=full memory.recompute_num_layers=2 pipeline.schedule=zb-h1 "
         "cluster.threads_per_rank=1"},
    };
    struct tiny tiny;
    int bad = 0;
    MUST(tiny_create(&tiny));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status status = compare(&tiny, cases[i].family, cases[i].layout);
        bad += status != OK;
        printf("%s: %s\n", cases[i].layout, status == OK ? "to the byte" : fail_text());
    }
    tiny_destroy(&tiny);
    return bad != 0;
}
