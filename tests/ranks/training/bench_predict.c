// SPDX-License-Identifier: Apache-2.0
/* CPU time of one prediction, which has one thread, with all lanes simulated: 64 pipeline ranks, 512
 * microbatches, 4 chunks per rank, 256 layers. Tapes are recorded before.
 *
 *     bench_predict [REPEATS]    the fastest of them, 5 by default; exit status 1 above LIMIT_S
 */
#include "planner/plan/memory_plan.h"
#include "planner/predict/predict.h"
#include "tests/support/tiny.h"
#include "tests/unit/planner/ideal_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { P = 64 };
static const double LIMIT_S = 0.3;

typedef enum status predicts(const struct cost_options *options, struct tape *const *tapes, int count,
                             struct prediction **out);

/* CPU time, so that other programs on this machine count less. */
static double cpu_s(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status time_of(predicts *predict, struct tape *const *tapes, int repeats, double *fastest_s)
{
    struct cluster_profile *profile = ideal_profile(1e9, 1e8);
    const struct cost_options options = {.profile = profile, .ranks_per_node = 8};
    enum status status = OK;
    profile->node.link_bandwidth = 1e7;
    profile->network.bandwidth = 1e6;
    profile->model.overlap_slowdown = 0.1;
    *fastest_s = 1e9;
    for (int i = 0; i < repeats && status == OK; i++) {
        struct prediction *step = NULL;
        const double begin_s = cpu_s();
        status = predict(&options, tapes, P, &step);
        const double seconds = cpu_s() - begin_s;
        *fastest_s = seconds < *fastest_s ? seconds : *fastest_s;
        if (i == 0 && status == OK && step->span_count > 0)
            printf("%lld spans, ", (long long)step->span_count);
        prediction_destroy(step);
    }
    profile_destroy(profile);
    return status;
}

static enum status bench(const struct run *run, struct tape **tapes, int repeats, double *step_s)
{
    double timeline_s;
    int64_t items = 0;
    int lanes = 0;
    for (int pp = 0; pp < P; pp++) {
        const int rank = mesh_rank(&run->mesh, MESH_DENSE, (struct mesh_coord){.pp = pp});
        struct memory_plan memory;
        TRY(memory_plan_record(run, rank, NULL, &memory, &tapes[pp]));
        lanes += tapes[pp]->lane_count;
        for (int lane = 0; lane < tapes[pp]->lane_count; lane++)
            items += tapes[pp]->lanes[lane].count;
    }
    TRY(time_of(predict_step, tapes, repeats, step_s));
    TRY(time_of(predict_timeline, tapes, repeats, &timeline_s));
    printf("%lld items on %d lanes: step %.3f s, with its timeline %.3f s\n", (long long)items, lanes,
           *step_s, timeline_s);
    return OK;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    struct recipe *recipe = NULL;
    struct run run;
    struct tape *tapes[P] = {NULL};
    double step_s = 0.0;
    int64_t repeats = 5;
    if (argc > 1 && !integer_parse(argv[1], &repeats))
        return 2;
    MUST(tiny_create(&tiny));
    MUST(tiny_recipe(&tiny, TINY_GPT, "cluster.device=dry",
                     "pp=64 pipeline.schedule=interleaved pipeline.virtual_stages=4 model.num_layers=256 "
                     "train.micro_batch_size=1 train.global_batch_size=512",
                     0, &recipe));
    MUST(run_create(recipe, false, &run));
    MUST(bench(&run, tapes, (int)repeats, &step_s));
    for (int pp = 0; pp < P; pp++)
        tape_destroy(tapes[pp]);
    run_destroy(&run);
    recipe_destroy(recipe);
    tiny_destroy(&tiny);
    return step_s > LIMIT_S;
}
