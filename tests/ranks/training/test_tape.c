// SPDX-License-Identifier: Apache-2.0
/* The tape of a rank equals what a recorder sees in a real run: every stream has the same ops, messages,
 * events and waits in the same order. The messages add up to those of an independent count and match between
 * ranks, the matmul FLOPs equal a closed formula of the model's sizes, and the planned memory is that of the
 * run.
 *     test_tape                       a table of layouts, random recipes, injected faults
 *     test_tape random FIRST COUNT    random recipes by number
 *     test_tape mpi                   under mpirun: the layouts with as many ranks as were started */
#include "parallel/observe_world.h"
#include "planner/memory/memory_formula.h"
#include "planner/plan/memory_plan.h"
#include "tests/ranks/training/tape_compare.h"
#include "tests/ranks/verify/random_recipe.h"
#include "trainer/engine/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 16, RANDOM_RECIPES = 60 };

#define FULL       " memory.recompute_granularity=full "
#define OFFLOAD    " memory.offload_activations=true "
#define SELECTIVE  " memory.recompute_granularity=selective memory.recompute_modules="
#define SEQUENCE   " parallel.sequence_parallel=true "
#define OVERLAP    SEQUENCE "parallel.tp_comm_overlap=true "
#define VALIDATION " pipeline.optimizer_post_validation=true "
#define BF16_ALL   " precision.params_dtype=bf16 "
#define FP16_ALL   " precision.params_dtype=fp16 precision.initial_loss_scale=16 "

struct layout_case {
    enum tiny_family family;
    const char *layout;
};

/* ---- an observer between a rank and its recorder ---- */

/* Faults injected into what the recorder sees. */
enum fault {
    NO_FAULT,
    DROP_WAIT,
    DROP_RECORD,
    DROP_OP,
    DROP_MESSAGE,
    CHANGE_EVENT,
    CHANGE_SHAPE,
    CHANGE_BYTES,
    FAULTS
};

struct tap {
    struct observer recorder;
    struct traffic traffic;
    bool on;
    bool slow; // delays each update of weights
    enum fault fault;
    int left; // observations of the fault's kind before the one that is changed
};

static bool fault_hits(enum fault fault, const struct observation *seen)
{
    switch (fault) {
    case DROP_WAIT:
    case CHANGE_EVENT:
        return seen->what == OBSERVED_WAIT;
    case DROP_RECORD:
        return seen->what == OBSERVED_RECORD;
    case DROP_OP:
        return seen->what == OBSERVED_OP;
    case CHANGE_SHAPE:
        return seen->what == OBSERVED_OP && seen->op->kind == OP_GEMM;
    case DROP_MESSAGE:
    case CHANGE_BYTES:
        return seen->what == OBSERVED_MESSAGE;
    case NO_FAULT:
    case FAULTS:
        break;
    }
    return false;
}

static void tap_observe(void *context, const struct observation *seen)
{
    struct tap *tap = context;
    if (!tap->on)
        return;
    if (tap->slow && seen->what == OBSERVED_OP && seen->op->kind == OP_ADAMW)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    struct observer count = traffic_observer(&tap->traffic);
    count.notify(count.context, seen);
    struct observation changed = *seen;
    struct op op;
    struct observed_message message;
    const bool hit = fault_hits(tap->fault, seen) && tap->left-- == 0;
    if (hit && tap->fault == CHANGE_EVENT) {
        changed.event.at--;
    } else if (hit && tap->fault == CHANGE_SHAPE) {
        op = *seen->op;
        op.gemm.a.dim[op.gemm.transpose_a ? 0 : 1]++;
        changed.op = &op;
    } else if (hit && tap->fault == CHANGE_BYTES) {
        message = *seen->message;
        message.data.dim[0]++;
        changed.message = &message;
    } else if (hit) {
        return;
    }
    tap->recorder.notify(tap->recorder.context, &changed);
}

/* ---- a run ---- */

struct tape_case {
    struct run run;
    bool processes; // ranks are processes, which have transport buffers of their own
    struct tap tap[MAX_RANKS];
    struct tape *real[MAX_RANKS], *plan[MAX_RANKS];
    struct memory_use use[MAX_RANKS];
};

static enum status observe(void *context, struct rank_state *state)
{
    struct tape_case *job = context;
    return device_observe(state->device,
                          (struct observer){.notify = tap_observe, .context = &job->tap[state->world->rank]});
}

/* Records the first step of a rank. What is recorded is compared later: ranks whose peer has failed, and that
 * are slow, would end the process. */
static enum status rank_main(struct world *world, void *argument)
{
    struct tape_case *job = argument;
    struct tap *tap = &job->tap[world->rank];
    struct rank_state state;
    struct step_result result;
    struct tape_recorder *recorder = tape_recorder_create(world->rank);
    tap->recorder = tape_recorder_observer(recorder);
    TRY(world_observe(world, (struct observer){.notify = tap_observe, .context = tap}));
    TRY(memory_plan_create_rank(&job->run, world, &state));
    tape_recorder_record(recorder, true);
    tap->on = true;
    TRY(rank_step(&state, &result));
    tap->on = false;
    tape_recorder_record(recorder, false);
    job->use[world->rank] = device_memory(state.device);
    rank_destroy(&state);
    return tape_recorder_finish(recorder, &job->real[world->rank]);
}

/* The memory of each part, against a dry run and the closed formula. */
static enum status compare_memory(const struct tape_case *job, int rank, const struct memory_plan *plan)
{
    const struct memory_use *use = &job->use[rank];
    struct memory_table formula;
    enum status status = OK;
    TRY(memory_formula(&job->run, rank, 1, &formula));
    for (int part = 0; status == OK && part < PART_COUNT; part++) {
        const int64_t is = use->peak_bytes[part], planned = plan->use.peak_bytes[part];
        if (job->processes && part == PART_COMMUNICATION)
            continue;
        if (is != planned || is != formula.part_bytes[part])
            status = fail(OUT_OF_BOUND, "rank %d: %lld bytes of %s; %lld are planned, the formula has %lld",
                          rank, (long long)is, part_name((enum part)part), (long long)planned,
                          (long long)formula.part_bytes[part]);
    }
    memory_table_free(&formula);
    return status;
}

static enum status check_rank(struct tape_case *job, int rank)
{
    struct memory_plan plan;
    TRY(memory_plan_record(&job->run, rank, NULL, &plan, &job->plan[rank]));
    TRY(tape_compare(job->real[rank], job->plan[rank]));
    TRY(tape_compare_traffic(job->plan[rank], &job->tap[rank].traffic));
    return compare_memory(job, rank, &plan);
}

static enum status open_job(const struct recipe *recipe, struct tape_case *job)
{
    CHECK(recipe_world_size(recipe) <= MAX_RANKS);
    *job = (struct tape_case){.processes = false};
    TRY(run_create(recipe, true, &job->run));
    job->run.observer = (struct step_observer){.context = job, .on_params_declared = observe};
    return OK;
}

static void close_job(struct tape_case *job)
{
    for (int rank = 0; rank < MAX_RANKS; rank++) {
        tape_destroy(job->real[rank]);
        tape_destroy(job->plan[rank]);
    }
    run_destroy(&job->run);
}

/* FLOPs of all matmuls, 2·m·n·k each, without attention. */
static double matmul_flops(const struct tape *tape)
{
    double flops = 0.0;
    for (int lane = 0; lane < tape->lane_count; lane++)
        for (int i = 0; i < tape->lanes[lane].count; i++) {
            const struct tape_item *item = &tape->lanes[lane].items[i];
            const struct op_record *op = item->kind == TAPE_OP ? &tape->ops[item->index] : NULL;
            if (op != NULL && op->kind == OP_GEMM)
                flops += 2.0 * (double)op->shape[0] * (double)op->shape[1] * (double)op->shape[2];
        }
    return flops;
}

/* What the tapes of all ranks add up to. */
static enum status check_together(const struct tape_case *job)
{
    const int ranks = job->run.mesh.world, replicas = ranks / job->run.mesh.degrees.pp;
    int64_t items = 0;
    double flops = 0.0, expected = expected_matmul_flops(&job->run);
    for (int rank = 0; rank < ranks; rank++)
        flops += matmul_flops(job->plan[rank]);
    for (int rank = 0; rank < ranks; rank++)
        items += tape_items(job->plan[rank]);
    if (items < replicas * memory_plan_least_items(job->run.recipe))
        return fail(OUT_OF_BOUND, "%lld items; expected at least %d x %lld", (long long)items, replicas,
                    (long long)memory_plan_least_items(job->run.recipe));
    if (flops != expected)
        return fail(OUT_OF_BOUND, "%.0f FLOPs of matmuls; expected %.0f", flops, expected);
    return tapes_match(job->plan, ranks);
}

/* Ranks are threads; with a fault, what the recorder of rank 0 sees is changed. */
static enum status run_threads_of(const struct recipe *recipe, enum fault fault, int left)
{
    struct tape_case job;
    TRY(open_job(recipe, &job));
    job.tap[0].fault = fault;
    job.tap[0].left = left;
    enum status status = world_run("local", recipe_world_size(recipe), rank_main, &job);
    for (int rank = 0; status == OK && rank < job.run.mesh.world; rank++)
        status = check_rank(&job, rank);
    if (status == OK)
        status = check_together(&job);
    CHECK(fault == NO_FAULT || job.tap[0].left < 0);
    close_job(&job);
    return status;
}

/* ---- many layouts ---- */

static const struct layout_case cases[] = {
    {TINY_GPT, ""},
    {TINY_GPT, TINY_DROPOUT},
    {TINY_GPT, TINY_DOCUMENTS},
    {TINY_LLAMA, "optimizer.clip_grad=0"},
    {TINY_GPT, "tp=2 pp=2 dp=2" SEQUENCE},
    {TINY_LLAMA, "tp=4 pp=2 pipeline.schedule=zb-h1 pipeline.layout=[4,1]"},
    {TINY_LLAMA, "tp=4" OVERLAP FULL},
    {TINY_LLAMA, "tp=4" OVERLAP TINY_PARALLEL},
    {TINY_GPT, "tp=2" SEQUENCE TINY_TWO_NORMS},
    {TINY_GPT, "tp=2 pp=2 pipeline.schedule=zb-v" OVERLAP},
    {TINY_GPT, "tp=3 model.make_vocab_size_divisible_by=4 pp=2 pipeline.schedule=interleaved"},
    {TINY_LLAMA, "pp=4 pipeline.layout=[2,0,3,0] train.micro_batch_size=1"},
    {TINY_GPT, "pp=4 pipeline.schedule=gpipe pipeline.layout=[0,0,5,0] train.micro_batch_size=1"},
    {TINY_LLAMA,
     "pp=4 pipeline.layout=[1,0,2,2] pipeline.schedule=zb-h2" SELECTIVE "[norm,activation,core_attn]"},
    {TINY_GPT, "pp=4 pipeline.schedule=dualpipe dp=2 train.micro_batch_size=1"},
    {TINY_LLAMA, "pp=2 pipeline.schedule=dualpipev pipeline.layout=[0,2,1,2]"},
    {TINY_GPT, "pp=2 pipeline.schedule=v-half tp=2" FULL "memory.recompute_method=block"},
    {TINY_LLAMA, "pp=2 pipeline.schedule=v-min"},
    {TINY_LLAMA, "pp=2 dp=2 pipeline.schedule=looped-bfs pipeline.virtual_stages=2"},
    {TINY_GPT, "pp=2 pipeline.schedule=interleaved" FULL "memory.recompute_method=block"},
    {TINY_GPT, "pp=2 pipeline.schedule=zb-h1" FULL "memory.recompute_num_layers=2"},
    {TINY_LLAMA, "tp=2" SEQUENCE FULL "memory.recompute_num_layers=3"},
    {TINY_LLAMA, "pp=2 tp=2" SELECTIVE "[norm,activation]"},
    {TINY_GPT, "pp=4 pipeline.layout=[1,2,0,2]" OFFLOAD},
    {TINY_LLAMA, "pp=2 tp=2 pipeline.schedule=zb-v" SEQUENCE OFFLOAD FULL},
    {TINY_GPT, "dp=4 train.micro_batch_size=1"},
    {TINY_LLAMA, "dp=4 train.micro_batch_size=1 parallel.overlap_grad_reduce=false"},
    {TINY_GPT, "dp=3 pp=2 parallel.zero_stage=1 train.global_batch_size=12"},
    {TINY_GPT, "dp=4 tp=2 parallel.zero_stage=2 train.micro_batch_size=1" SEQUENCE},
    {TINY_LLAMA, "dp=2 pp=2 pipeline.schedule=interleaved parallel.zero_stage=3"},
    {TINY_GPT, "dp=2 pp=2 pipeline.schedule=zb-v parallel.zero_stage=3 parallel.overlap_param_gather=true"},
    {TINY_GPT, "dp=2 parallel.zero_stage=3 memory.offload_optimizer=true" FULL},
    // A rank without parameters; a direction of the pipeline without microbatches.
    {TINY_GPT, "dp=2 pp=3 parallel.zero_stage=3 pipeline.layout=[3,0,2] train.micro_batch_size=1"},
    {TINY_GPT, "pp=3 pipeline.layout=[3,0,2] precision.params_dtype=bf16" VALIDATION},
    {TINY_GPT, "dp=2 pp=3 parallel.zero_stage=2 pipeline.layout=[3,0,2] train.micro_batch_size=1"},
    {TINY_LLAMA, "pp=2 pipeline.schedule=dualpipe pipeline.layout=[5,0] train.global_batch_size=2 "
                 "train.micro_batch_size=2"},
    {TINY_GPT, "tp=2 pp=3" VALIDATION},
    {TINY_LLAMA, "dp=2 pp=2 parallel.zero_stage=3 parallel.overlap_grad_reduce=false "
                 "model.tie_word_embeddings=true" VALIDATION},
    {TINY_GPT, BF16_ALL "tp=2 pp=2 dp=2 parallel.zero_stage=1" SEQUENCE},
    {TINY_LLAMA, BF16_ALL "pp=3" VALIDATION SELECTIVE "[norm,core_attn]"},
    {TINY_LLAMA, BF16_ALL "dp=2 parallel.zero_stage=3 precision.main_params_dtype=bf16"},
    {TINY_LLAMA, FP16_ALL "tp=2 pp=2 model.vocab_size=3001"},
    {TINY_GPT, FP16_ALL "pp=2 dp=2 parallel.zero_stage=2"},
    {TINY_GPT, "tp=2 precision.matmul_format=hybrid" SEQUENCE},
    // Collectives and unequal numbers of sends in one group.
    {TINY_GPT, BF16_ALL "tp=2 dp=2 precision.matmul_format=e4m3" OVERLAP},
    {TINY_LLAMA, BF16_ALL "dp=2 precision.matmul_format=e4m3 precision.scaling=delayed"},
    {TINY_LLAMA, "tp=4 pp=2 pipeline.layout=[4,1] precision.forward_format=ternary "
                 "precision.high_precision_layers=[layers.1,fc2]"},
};

static const char common[] = "cluster.threads_per_rank=1";

/* Every layout on cpu; on strict, where each op counts as an event, every second one. */
static bool check_table(const struct tiny *tiny)
{
    static const char on_strict[] = "cluster.threads_per_rank=1 cluster.device=strict";
    const int stride = UNDER_TSAN ? 7 : UNDER_SANITIZER ? 5 : 1;
    bool good = true;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i += stride)
        for (int strict = 0; strict < 1 + (i / stride) % 2; strict++) {
            struct recipe *recipe = NULL;
            enum status status =
                tiny_recipe(tiny, cases[i].family, strict ? on_strict : common, cases[i].layout, 0, &recipe);
            if (status == OK)
                status = run_threads_of(recipe, NO_FAULT, 0);
            recipe_destroy(recipe);
            good = good && status == OK;
            printf("\"%s\"%s: %s\n", cases[i].layout, strict ? " strict" : "",
                   status == OK ? "equal" : fail_text());
        }
    return good;
}

static bool check_random(const struct tiny *tiny, uint64_t first, uint64_t count)
{
    bool good = true;
    for (uint64_t n = first; n < first + count; n += UNDER_SANITIZER ? 15 : 1) {
        struct random_recipe draw;
        struct recipe *recipe = NULL;
        enum status status = random_recipe(tiny, n, 2, &draw);
        if (status == OK) {
            random_recipe_options(tiny, n, &draw);
            status = tiny_recipe(tiny, draw.family, draw.common, draw.layout, 0, &recipe);
        }
        if (status == OK)
            status = run_threads_of(recipe, NO_FAULT, 0);
        recipe_destroy(recipe);
        good = good && status == OK;
        printf("random %llu \"%s%s\": %s\n", (unsigned long long)n, draw.common, draw.layout,
               status == OK ? "equal" : fail_text());
    }
    return good;
}

/* Each injected fault is found. */
static bool check_faults(const struct tiny *tiny)
{
    bool good = true;
    struct recipe *recipe = NULL;
    MUST(tiny_recipe(tiny, TINY_GPT, common, "pp=2 tp=2 dp=2 parallel.zero_stage=2" SEQUENCE, 0, &recipe));
    for (int fault = NO_FAULT + 1; fault < FAULTS; fault++) {
        const enum status status = run_threads_of(recipe, (enum fault)fault, 5);
        good = good && status == OUT_OF_BOUND;
        printf("fault %d: %s\n", fault, status == OK ? "not found" : fail_text());
    }
    recipe_destroy(recipe);
    return good;
}

/* With post-validation, messages of the update are in flight when a step returns: a rank that is destroyed
 * then must not free memory that a slower rank still reads. (AddressSanitizer finds that it does.) */
static bool check_slow_update(const struct tiny *tiny)
{
    struct tape_case job;
    struct recipe *recipe = NULL;
    MUST(tiny_recipe(tiny, TINY_LLAMA, common, "dp=2 pp=2 parallel.zero_stage=1" VALIDATION, 0, &recipe));
    MUST(open_job(recipe, &job));
    job.tap[1].slow = true;
    enum status status = world_run("local", recipe_world_size(recipe), rank_main, &job);
    if (status != OK)
        printf("a slow update: %s\n", fail_text());
    close_job(&job);
    recipe_destroy(recipe);
    return status == OK;
}

/* ---- reductions of parallel branches ---- */

/* Calls of the tensor-parallel group on the tape of rank 0, of one layer and one microbatch: the difference
 * between a model with three layers and one with two. */
static enum status count_layer_calls(const struct tiny *tiny, const char *model, const char *layout,
                                     int64_t out[CALL_COUNT])
{
    memset(out, 0, CALL_COUNT * sizeof *out);
    for (int layers = 2; layers <= 3; layers++) {
        char overrides[300];
        struct tape_case job;
        struct recipe *recipe = NULL;
        struct memory_plan plan;
        snprintf(overrides, sizeof overrides, "%s model.num_layers=%d %s", common, layers, model);
        TRY(tiny_recipe(tiny, TINY_GPT, overrides, layout, 0, &recipe));
        TRY(open_job(recipe, &job));
        TRY(memory_plan_record(&job.run, 0, NULL, &plan, &job.plan[0]));
        const int64_t sign = layers == 3 ? 1 : -1;
        for (int i = 0; i < job.plan[0]->message_count; i++) {
            const struct tape_message *m = &job.plan[0]->messages[i];
            if (strcmp(job.plan[0]->groups[m->group].name, "tp") == 0)
                out[m->call] += sign;
        }
        close_job(&job);
        recipe_destroy(recipe);
    }
    return OK;
}

/* One sum over tp forward and one backward, where a sequential block has two; but two forward with hidden
 * dropout, and two backward with two norms. */
static bool check_parallel_branches(const struct tiny *tiny)
{
#define ONE_BATCH "tp=2 train.global_batch_size=1 train.micro_batch_size=1 "
    static const struct {
        const char *model, *layout;
        enum call call;
        int64_t calls;
    } expected[] = {
        {"", ONE_BATCH, CALL_ALL_REDUCE, 4},
        {TINY_PARALLEL, ONE_BATCH, CALL_ALL_REDUCE, 2},
        {TINY_TWO_NORMS, ONE_BATCH, CALL_ALL_REDUCE, 3},
        {TINY_PARALLEL " model.hidden_dropout=0.2", ONE_BATCH, CALL_ALL_REDUCE, 3},
        {TINY_PARALLEL, ONE_BATCH FULL, CALL_ALL_REDUCE, 2}, // recomputes neither of the last matmuls
        {"", ONE_BATCH SEQUENCE, CALL_REDUCE_SCATTER, 4},
        {TINY_PARALLEL, ONE_BATCH SEQUENCE, CALL_REDUCE_SCATTER, 2},
        {TINY_TWO_NORMS, ONE_BATCH SEQUENCE, CALL_REDUCE_SCATTER, 3},
    };
    bool good = true;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int64_t calls[CALL_COUNT];
        enum status status = count_layer_calls(tiny, expected[i].model, expected[i].layout, calls);
        const bool right = status == OK && calls[expected[i].call] == expected[i].calls;
        printf("\"%s%s\": %s\n", expected[i].model, expected[i].layout,
               right          ? "equal"
               : status == OK ? ""
                              : fail_text());
        if (status == OK && !right)
            printf("%lld %s for each layer, expected %lld\n", (long long)calls[expected[i].call],
                   call_name(expected[i].call), (long long)expected[i].calls);
        good = good && right;
    }
    return good;
}

/* ---- processes ---- */

static enum status process_main(struct world *world, void *argument)
{
    const struct tiny *tiny = argument;
    enum status status = OK;
    for (size_t i = 0; status == OK && i < sizeof cases / sizeof *cases; i++) {
        struct tape_case job;
        struct recipe *recipe = NULL;
        TRY(tiny_recipe(tiny, cases[i].family, common, cases[i].layout, 0, &recipe));
        if (recipe_world_size(recipe) == world->size) {
            TRY(open_job(recipe, &job));
            job.processes = true;
            status = rank_main(world, &job);
            if (status == OK)
                status = check_rank(&job, world->rank);
            close_job(&job);
            if (world->rank == 0)
                printf("\"%s\": %s\n", cases[i].layout, status == OK ? "equal" : fail_text());
        }
        recipe_destroy(recipe);
    }
    return status;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    bool good = true;
    const char *what = argc > 1 ? argv[1] : "";
    MUST(tiny_create(&tiny));
    if (strcmp(what, "mpi") == 0) {
        good = world_run("mpi", 0, process_main, &tiny) == OK;
    } else if (strcmp(what, "random") == 0 && argc > 3) {
        good = check_random(&tiny, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    } else {
        good = check_table(&tiny);
        good = check_random(&tiny, 0, RANDOM_RECIPES) && good;
        if (!UNDER_SANITIZER) // it would only repeat that another sequence is found
            good = check_faults(&tiny) && good;
        good = check_slow_update(&tiny) && good;
        good = check_parallel_branches(&tiny) && good;
    }
    tiny_destroy(&tiny);
    return good ? 0 : 1;
}
