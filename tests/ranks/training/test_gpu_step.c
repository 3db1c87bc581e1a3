// SPDX-License-Identifier: Apache-2.0
/* GPU use of a training step, as counted by the emulator: the host enqueues a whole step without waiting,
 * and synchronizes once, for the loss and the gradient norm that it reports. No step allocates: device
 * memory is one allocation, made when the device opens, of exactly the size that the memory planning pass of
 * the rank reports. Also checks the profiler ranges: the names of the actions. */
#include "planner/memory/memory_formula.h"
#include "planner/plan/memory_plan.h"
#include "schedules/action.h"
#include "tests/emulator/include/cuda_runtime_api.h"
#include "tests/emulator/include/nvtx3/nvToolsExt.h"
#include "tests/support/tiny.h"
#include "tests/support/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, RANGES = 2000 };

#define SMALL                                                                                         \
    "cluster.device=cuda train.train_iters=3 optimizer.lr_decay_iters=3 optimizer.lr_warmup_iters=1 " \
    "train.micro_batch_size=1 train.global_batch_size=4 model.num_layers=2 model.hidden_size=16 "     \
    "model.num_attention_heads=4 model.ffn_hidden_size=32 model.seq_length=8 "
#define FUSED "model.activation=gelu_tanh cluster.matmul_epilogues=fused "
#define TIMED "model.activation=gelu_tanh cluster.matmul_epilogues=auto deterministic=false "
#define HOST  " memory.offload_activations=true memory.offload_optimizer=true "

/* Each written by its own rank. */
struct watch {
    struct emulator_calls before[RANKS];
    int failures[RANKS];
    bool waits;                 // the injected fault: the host waits in every step
    char ranges[RANKS][RANGES]; // of a step
};

static void expect_none(struct watch *watch, const struct rank_state *w, const char *what, int count,
                        int most)
{
    if (count > most && !watch->waits)
        printf("FAILED step %lld, rank %d: %d %s\n", (long long)w->step + 1, w->world->rank, count, what);
    watch->failures[w->world->rank] += count > most;
}

/* The device is open, and has its memory. */
static enum status declared(void *context, struct rank_state *w)
{
    struct watch *watch = context;
    watch->before[w->world->rank] = emulator_calls();
    return OK;
}

/* Everything is allocated. NCCL's communicators take a chunk of their own while they are created. */
static enum status built(void *context, struct rank_state *w)
{
    struct watch *watch = context;
    struct emulator_calls now = emulator_calls();
    if (w->world->size == 1)
        expect_none(watch, w, "allocations besides the planned one",
                    now.device_allocs - watch->before[0].device_allocs, 0);
    watch->before[w->world->rank] = now;
    return OK;
}

/* The planned bytes of each part equal the bytes in use; so does the formula, except for the workspace of
 * sums between GPUs, and for trials. */
static enum status compare_plan(struct watch *watch, const struct rank_state *w)
{
    struct memory_use use = device_memory(w->device);
    struct memory_table formula;
    struct memory_plan plan;
    bool tries = w->run->recipe->kernels.epilogues == EPILOGUES_AUTO;
    TRY(memory_plan_make(w->run, w->world->rank, NULL, &plan));
    TRY(memory_formula(w->run, w->world->rank, run_threads(w->run, w->world->size), &formula));
    for (int part = 0; part < PART_COUNT; part++) {
        bool differs = use.peak_bytes[part] != plan.use.peak_bytes[part] ||
                       (part != PART_COMMUNICATION && (part != PART_WORKSPACE || !tries) &&
                        use.peak_bytes[part] != formula.part_bytes[part]);
        watch->failures[w->world->rank] += differs;
        if (differs)
            printf("FAILED rank %d: %lld bytes of %s; %lld were planned, and the formula says %lld\n",
                   w->world->rank, (long long)use.peak_bytes[part], part_name((enum part)part),
                   (long long)plan.use.peak_bytes[part], (long long)formula.part_bytes[part]);
    }
    memory_table_free(&formula);
    return OK;
}

/* Everything but the update is enqueued. */
static enum status reduced(void *context, struct rank_state *w, int64_t step)
{
    struct watch *watch = context;
    if (watch->waits)
        TRY(stream_sync(w->compute));
    struct emulator_calls now = emulator_calls(), before = watch->before[w->world->rank];
    expect_none(watch, w, "allocations", now.allocations - before.allocations, 0);
    if (step == 1) // kernels find their temporary memory, of the pool
        return OK;
    expect_none(watch, w, "waits before the update", now.syncs - before.syncs, 0);
    expect_none(watch, w, "event queries", now.polls - before.polls, 0);
    return OK;
}

/* "<load><0F0><1F0>...<reduce><update>" */
static void check_ranges(struct watch *watch, const struct rank_state *w)
{
    struct text expected = {0};
    const struct action_list *list = &w->run->schedule->ranks[w->groups->coord.pp];
    text_add(&expected, "<load>");
    for (int i = 0; i < list->count; i++) {
        char name[ACTION_CHARS];
        action_text(list->actions[i], name);
        text_add(&expected, "<%s>", name);
    }
    text_add(&expected, "<reduce><update>");
    if (strcmp(text_chars(&expected), watch->ranges[w->world->rank]) != 0) {
        printf("FAILED rank %d: ranges %s, not %s\n", w->world->rank, watch->ranges[w->world->rank],
               text_chars(&expected));
        watch->failures[w->world->rank]++;
    }
    text_free(&expected);
}

static enum status stepped(void *context, struct rank_state *w, int64_t step,
                           const struct step_result *result)
{
    struct watch *watch = context;
    struct emulator_calls now = emulator_calls(), *before = &watch->before[w->world->rank];
    (void)result;
    if (step > 1)
        expect_none(watch, w, "waits in a step", now.syncs - before->syncs, watch->waits ? 2 : 1);
    expect_none(watch, w, "allocations in the update", now.allocations - before->allocations, 0);
    if (step == w->run->recipe->train.train_iters)
        TRY(compare_plan(watch, w));
    *before = now;
    if (step > 1 && !watch->waits)
        check_ranges(watch, w);
    emulator_ranges(step < w->run->recipe->train.train_iters ? watch->ranges[w->world->rank] : NULL, RANGES);
    return OK;
}

static enum status train(const struct tiny *tiny, const char *layout, struct watch *watch, struct trace *out)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, TINY_GPT, SMALL TINY_DROPOUT, layout, 0, &recipe));
    struct trace_options options = {.transport = recipe_transport(recipe)};
    if (watch != NULL)
        options.observer = (struct step_observer){.context = watch,
                                                  .on_params_declared = declared,
                                                  .on_weights_initialized = built,
                                                  .on_gradients_complete = reduced,
                                                  .on_step_end = stepped};
    enum status status = trace_run(recipe, &options, out);
    recipe_destroy(recipe);
    return status;
}

static int report_failure(const char *layout, const char *what)
{
    printf("FAILED %s: %s\n", layout, what);
    return 1;
}

/* Failures of an observed run. */
static int observe(const struct tiny *tiny, const char *layout, bool waits, struct trace *out)
{
    struct watch watch = {.waits = waits};
    int failures = 0;
    if (train(tiny, layout, &watch, out) != OK)
        return report_failure(layout, fail_text());
    for (int r = 0; r < RANKS; r++)
        failures += watch.failures[r];
    return failures;
}

/* Offloaded and copied back, between streams that run as late as possible: results are bit-identical. */
static int same_bits(const char *layout, const struct trace *reference, const struct trace *trace)
{
    struct text why = {0};
    int failures = trace_differs(reference, trace, &why) ? report_failure(layout, text_chars(&why)) : 0;
    text_free(&why);
    return failures;
}

/* An out-of-memory configuration is rejected before the first step, with the requested bytes and a fix. */
static int rejects_a_small_gpu(const struct tiny *tiny)
{
    static const char *const expected[] = {"cudaMalloc of ", "1.00 GiB of the GPU's 1.00 GiB are free",
                                           "rank 0 needs ",  " of GPU 0 (",
                                           "activations ",   "memory.recompute_granularity full"};
    struct trace ignored;
    int failures = 0;
    setenv("EMULATOR_FAIL", "cudaMalloc", 1);
    enum status status = train(tiny, "pipeline.schedule=gpipe", NULL, &ignored);
    unsetenv("EMULATOR_FAIL");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (status != NO_DEVICE_MEMORY || strstr(fail_text(), expected[i]) == NULL)
            failures += report_failure(expected[i], fail_text());
    return failures;
}

int main(void)
{
    struct tiny tiny;
    struct trace stays, leaves, ignored;
    int failures = 0;
    MUST(tiny_create(&tiny));
    const char *one[] = {"pipeline.schedule=gpipe", "pipeline.schedule=gpipe" HOST,
                         "pipeline.schedule=gpipe precision.params_dtype=bf16 " FUSED,
                         "pipeline.schedule=gpipe precision.params_dtype=bf16 " FUSED HOST};
    for (size_t i = 0; i < sizeof one / sizeof *one; i += 2) {
        failures += observe(&tiny, one[i], false, &stays) + observe(&tiny, one[i + 1], false, &leaves);
        failures += same_bits(one[i + 1], &stays, &leaves);
    }
    if (observe(&tiny, one[0], true, &ignored) == 0)
        failures += report_failure(one[0], "a host that waits in every step is not detected");
    failures += observe(&tiny,
                        "tp=2 dp=2 pp=2 cluster.transport=nccl parallel.zero_stage=1 "
                        "precision.params_dtype=bf16",
                        false, &ignored);
    failures += observe(&tiny, "pipeline.schedule=gpipe " TIMED, false, &ignored);
    failures += rejects_a_small_gpu(&tiny);
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures != 0;
}
