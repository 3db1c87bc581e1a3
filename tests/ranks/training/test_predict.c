// SPDX-License-Identifier: Apache-2.0
/* The predicted step (planner/predict/): where messages are free, it equals that of the schedule
 * simulator, which does not use tapes; on one rank it is the sum of its ops; on every layout the parts of a
 * rank's time, and those of the critical path, add up to the step; and no step gets longer on a faster
 * cluster. */
#include "planner/plan/memory_plan.h"
#include "planner/predict/predict.h"
#include "schedules/simulate.h"
#include "tests/support/tiny.h"
#include "tests/unit/planner/ideal_profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 8, MAX_STAGES = 32, MAX_LANES = 32 };

struct planned {
    struct recipe *recipe;
    struct run run;
    struct tape *tapes[MAX_RANKS];
    int count;
};

static void planned_free(struct planned *planned)
{
    for (int i = 0; i < planned->count; i++)
        tape_destroy(planned->tapes[i]);
    run_destroy(&planned->run);
    recipe_destroy(planned->recipe);
}

static enum status plan(const struct tiny *tiny, enum tiny_family family, const char *layout,
                        struct planned *out)
{
    *out = (struct planned){.count = 0};
    TRY(tiny_recipe(tiny, family, "cluster.device=dry", layout, 0, &out->recipe));
    enum status status = run_create(out->recipe, false, &out->run);
    for (int pp = 0; status == OK && pp < out->run.mesh.degrees.pp; pp++) {
        const int rank = mesh_rank(&out->run.mesh, MESH_DENSE, (struct mesh_coord){.pp = pp});
        struct memory_plan memory;
        CHECK(pp < MAX_RANKS);
        status = memory_plan_record(&out->run, rank, NULL, &memory, &out->tapes[pp]);
        out->count += status == OK;
    }
    if (status != OK)
        planned_free(out);
    return status;
}

static double run_s_of(const struct predicted_rank *rank)
{
    double sum = 0.0;
    for (int c = 0; c < COST_CLASSES; c++)
        sum += rank->run_s[c];
    return sum;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* ---- the parts add up ---- */

static enum status check_sum(const struct prediction *step, const char *layout)
{
    for (int i = 0; i < step->count; i++) {
        const struct predicted_rank *rank = &step->ranks[i];
        double sum = run_s_of(rank) + rank->bubble_s;
        for (int g = 0; g < PREDICT_GROUPS; g++) {
            sum += rank->exposed_s[g];
            if (rank->exposed_s[g] > rank->transfer_s[g] * (1.0 + 1e-9))
                return fail(OUT_OF_BOUND, "%s: rank %d waits %g s for %s, whose transfers take %g s", layout,
                            i, rank->exposed_s[g], predict_group_name((enum predict_group)g),
                            rank->transfer_s[g]);
        }
        if (!near(sum, step->step_s) || rank->bubble_s < 0.0)
            return fail(OUT_OF_BOUND, "%s: the parts of rank %d take %.15g s, the step %.15g s", layout, i,
                        sum, step->step_s);
    }
    return OK;
}

/* A span begins when its cause ends, a lane does one thing at a time, and the critical path is the step. */
static enum status check_spans(const struct prediction *step, const char *layout)
{
    double critical_s = 0.0, parts_s = 0.0;
    double lanes[MAX_RANKS][MAX_LANES] = {{0}};
    for (int64_t i = 0; i < step->span_count; i++) {
        const struct predicted_span *span = &step->spans[i];
        const double cause_s = span->cause >= 0 ? step->spans[span->cause].end_s : 0.0;
        double *free_s = &lanes[span->rank][span->lane];
        if (span->begin_s > cause_s || span->begin_s < cause_s || span->begin_s < *free_s ||
            span->end_s > step->step_s + step->overlap_s || span->cause >= i)
            return fail(OUT_OF_BOUND, "%s: span %lld from %g to %g s, caused by %d", layout, (long long)i,
                        span->begin_s, span->end_s, span->cause);
        *free_s = span->end_s;
        critical_s += span->critical ? span->end_s - span->begin_s : 0.0;
    }
    for (int c = 0; c < COST_CLASSES; c++)
        parts_s += step->path.run_s[c];
    for (int g = 0; g < PREDICT_GROUPS; g++)
        parts_s += step->path.transfer_s[g];
    for (int r = 0; r < step->count; r++)
        critical_s -= step->ranks[r].critical_s;
    if (!near(parts_s, step->step_s + step->overlap_s) || fabs(critical_s) > 1e-9 * step->step_s)
        return fail(OUT_OF_BOUND, "%s: a critical path of %.15g s, the step takes %.15g s", layout, parts_s,
                    step->step_s);
    return OK;
}

/* Twice as fast in everything but one: never longer. */
static enum status check_faster(const struct planned *planned, const char *layout)
{
    double step_s[6];
    for (int faster = 0; faster < 6; faster++) {
        struct cluster_profile *p = ideal_profile(faster == 1 ? 2e9 : 1e9, faster == 2 ? 2e9 : 1e9);
        struct prediction *step = NULL;
        p->node.devices = 2;
        p->node.link_bandwidth = faster == 3 ? 2e7 : 1e7;
        p->network.bandwidth = faster == 4 ? 2e5 : 1e5;
        p->network.latency_s = faster == 5 ? 1e-5 : 2e-5;
        struct cost_options options = {.profile = p, .ranks_per_node = 2};
        enum status status = predict_timeline(&options, planned->tapes, planned->count, &step);
        if (status == OK) {
            step_s[faster] = step->step_s;
            status = check_sum(step, layout);
        }
        if (status == OK)
            status = check_spans(step, layout);
        prediction_destroy(step);
        profile_destroy(p);
        TRY(status);
        if (step_s[faster] > step_s[0] * (1.0 + 1e-12))
            return fail(OUT_OF_BOUND, "%s: %g s instead of %g s on a faster cluster (%d)", layout,
                        step_s[faster], step_s[0], faster);
    }
    return OK;
}

/* ---- the simulator's time ---- */

enum { FORWARDS, INPUTS, WEIGHTS, BACKWARDS, KINDS };
static const char kinds[KINDS + 1] = "FIWB";

/* Adds up the ops of each stage's first action of each kind. */
static void add_costs(const struct planned *planned, const struct cost_options *options,
                      double seconds[MAX_STAGES][KINDS])
{
    int first[MAX_STAGES][KINDS] = {{0}}; // microbatch + 1
    for (int r = 0; r < planned->count; r++) {
        const struct tape *tape = planned->tapes[r];
        for (int i = 0; i < tape->lanes[0].count; i++) {
            const struct tape_item *item = &tape->lanes[0].items[i];
            int stage = 0, microbatch = 0;
            char kind = 0;
            if (item->kind != TAPE_OP ||
                sscanf(tape->actions[item->action].name, "%d%c%d", &stage, &kind, &microbatch) != 3 ||
                strchr(kinds, kind) == NULL)
                continue;
            const int k = (int)(strchr(kinds, kind) - kinds);
            CHECK(stage < MAX_STAGES);
            if (first[stage][k] == 0)
                first[stage][k] = microbatch + 1;
            if (first[stage][k] == microbatch + 1)
                seconds[stage][k] += cost_of_op(options, &tape->ops[item->index]).run_s;
        }
    }
}

/* Only matmuls and attention take time, so every microbatch takes the same, and the optimizer none. */
static enum status check_simulated(const struct planned *planned, const char *layout)
{
    struct cluster_profile *p = ideal_profile(1e9, 1e30);
    const struct cost_options options = {.profile = p, .ranks_per_node = 8};
    struct stage_cost stages[MAX_STAGES] = {{0}};
    double b[MAX_STAGES] = {0};
    struct simulation *simulation = NULL;
    struct prediction *step = NULL;
    double seconds[MAX_STAGES][KINDS] = {{0}};
    add_costs(planned, &options, seconds);
    for (int i = 0; i < MAX_STAGES; i++) {
        stages[i] =
            (struct stage_cost){.f = seconds[i][FORWARDS], .i = seconds[i][INPUTS], .w = seconds[i][WEIGHTS]};
        b[i] = seconds[i][BACKWARDS];
    }
    // The program runs the two actions of a pair one after the other; the simulator lets them end together.
    for (int r = 0; r < planned->count; r++)
        for (int i = 0; i < planned->run.schedule->ranks[r].count; i++)
            planned->run.schedule->ranks[r].actions[i].overlaps_next = false;
    const struct cost_table costs = {.of_stage = stages, .b_of_stage = b};
    enum status status = simulate(planned->run.schedule, &costs, NULL, &simulation);
    if (status == OK)
        status = predict_step(&options, planned->tapes, planned->count, &step);
    if (status == OK && (!near(step->step_s, simulation->makespan) || !(step->step_s > 0.0)))
        status = fail(OUT_OF_BOUND, "%s: a step of %.12g s, the simulator says %.12g s", layout, step->step_s,
                      simulation->makespan);
    for (int r = 0; status == OK && r < step->count; r++)
        if (!near(run_s_of(&step->ranks[r]), simulation->ranks[r].busy))
            status = fail(OUT_OF_BOUND, "%s: rank %d computes for %.12g s, the simulator says %.12g s",
                          layout, r, run_s_of(&step->ranks[r]), simulation->ranks[r].busy);
    simulation_destroy(simulation);
    prediction_destroy(step);
    profile_destroy(p);
    return status;
}

/* On one rank nothing waits. */
static enum status check_one_rank(const struct planned *planned, const char *layout)
{
    struct cluster_profile *p = ideal_profile(1e9, 1e8);
    const struct cost_options options = {.profile = p, .ranks_per_node = 1};
    struct prediction *step = NULL;
    double sum = 0.0;
    const struct tape *tape = planned->tapes[0];
    for (int lane = 0; lane < tape->lane_count; lane++)
        for (int i = 0; i < tape->lanes[lane].count; i++)
            if (tape->lanes[lane].items[i].kind == TAPE_OP)
                sum += cost_of_op(&options, &tape->ops[tape->lanes[lane].items[i].index]).run_s;
    enum status status = predict_step(&options, planned->tapes, 1, &step);
    if (status == OK && !(near(step->step_s, sum) && sum > 0.0))
        status = fail(OUT_OF_BOUND, "%s: %.12g s, but the ops take %.12g s", layout, step->step_s, sum);
    prediction_destroy(step);
    profile_destroy(p);
    return status;
}

/* ---- layouts ---- */

static int check(const struct tiny *tiny, enum tiny_family family, const char *layout,
                 enum status (*property)(const struct planned *planned, const char *layout))
{
    struct planned planned;
    enum status status = plan(tiny, family, layout, &planned);
    if (status == OK) {
        status = property(&planned, layout);
        planned_free(&planned);
    }
    if (status != OK)
        printf("FAILED  %s: %s\n", layout, fail_text());
    return status != OK;
}

static const char *const layouts[] = {
    "tp=2 pp=2 dp=2 parallel.sequence_parallel=true",
    "pp=4 pipeline.layout=[2,0,3,0] train.micro_batch_size=1",
    "dp=2 pp=2 parallel.zero_stage=3",
    "dp=4 parallel.zero_stage=1",
    "tp=2 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true",
    "pp=4 pipeline.schedule=zb-h1 memory.offload_activations=true",
    "pp=2 memory.recompute_granularity=full",
    "pp=2 dp=2 pipeline.optimizer_post_validation=true",
    "pp=2 precision.params_dtype=bf16 memory.offload_optimizer=true",
};

int main(void)
{
    struct tiny tiny;
    int failures = 0, schedules = 0;
    MUST(tiny_create(&tiny));
    for (int family = TINY_GPT; family <= TINY_LLAMA; family++) {
        failures += check(&tiny, (enum tiny_family)family, "", check_one_rank);
        failures +=
            check(&tiny, (enum tiny_family)family, "memory.recompute_granularity=full", check_one_rank);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
            failures += check(&tiny, (enum tiny_family)family, layouts[i], check_faster);
    }
    for (int i = 0; schedule_about(i) != NULL; i++)
        for (int p = 2; p <= 4; p += 2)
            for (int v = 1; v <= 2; v++) {
                char layout[200];
                struct recipe *recipe = NULL;
                snprintf(layout, sizeof layout,
                         "pp=%d pipeline.schedule=%s pipeline.virtual_stages=%d train.micro_batch_size=1 "
                         "model.num_layers=8",
                         p, schedule_about(i)->name, v);
                if (tiny_recipe(&tiny, TINY_LLAMA, "cluster.device=dry", layout, 0, &recipe) != OK)
                    continue; // not supported by this schedule
                recipe_destroy(recipe);
                schedules++;
                failures += check(&tiny, TINY_LLAMA, layout, check_simulated);
            }
    failures += schedules < 20;
    tiny_destroy(&tiny);
    printf("%d schedules compared with the simulator, %d failures\n", schedules, failures);
    return failures != 0;
}
