// SPDX-License-Identifier: Apache-2.0
/* Delayed scaling: scales follow from the amax history as in a double-precision reference, the history does
 * not depend on the layout, and a resumed run restores it. Injected faults: a microbatch whose amax is not
 * recorded, a history lost on resume, scales changed by an evaluation. */
#include "layers/model.h"
#include "tests/support/tiny.h"
#include "tests/support/trace.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/optimizer/amax_history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scales from a history ---- */

enum { STEPS_SEEN = 9, MAX_ROWS = 40, MAX_SLOTS = MAX_ROWS * OPERAND_COUNT };

/* The value that a rank records for a slot in a step: of many magnitudes, and sometimes zero, infinite or
 * NaN. */
static float recorded_value(int rank, int step, int64_t slot)
{
    uint32_t word = philox_word(philox_named(5, "seen"), (uint64_t)(rank + 10 * step), (uint64_t)slot);
    if ((slot + step) % 5 == 0)
        return 0.0F;
    if (rank == 1 && (slot + step) % 7 == 0)
        return step % 2 == 0 ? INFINITY : NAN;
    return ldexpf(1.0F + philox_uniform(word), (int)(word % 40) - 20);
}

struct history_case {
    int64_t length, margin;
    enum amax_algorithm algorithm;
    int ranks;
};

/* By definition: the largest amax of all ranks over the last `length` steps; a step without one keeps the
 * previous scale. */
static float expected_used(const struct history_case *c, int steps, int64_t slot)
{
    double entry = 0.0, of_step[STEPS_SEEN], largest = 0.0;
    for (int s = 0; s < steps; s++) {
        double most = 0.0;
        bool finite = true;
        for (int r = 0; r < c->ranks; r++) {
            finite = finite && isfinite(recorded_value(r, s, slot));
            most = fmax(most, (double)recorded_value(r, s, slot));
        }
        entry = finite && most > 0.0 ? most : entry;
        of_step[s] = entry;
    }
    for (int s = steps - 1; s >= 0 && steps - s <= (c->algorithm == AMAX_MAX ? c->length : 1); s--)
        largest = fmax(largest, of_step[s]);
    return (float)ldexp(largest, (int)c->margin);
}

static enum status run_history(struct world *world, const struct history_case *c, struct params *params,
                               struct device *device, struct stream *stream)
{
    struct mesh mesh;
    struct groups *groups = NULL;
    struct amax_history *history = NULL;
    struct recipe_precision recipe = {.scaling = SCALE_DELAYED,
                                      .amax_history_len = c->length,
                                      .amax_compute_algo = c->algorithm,
                                      .margin = c->margin};
    TRY(mesh_create((struct degrees){.tp = 1, .cp = 1, .ep = 1, .dp = world->size, .pp = 1}, NULL, &mesh));
    TRY(groups_create(world, &mesh, 1, &groups));
    struct amax_history_config config = {&recipe, params, groups, device, stream};
    TRY(amax_history_create(&config, &history));
    struct delayed_scaling delayed = amax_history_scaling(history);
    int64_t slots = tensor_count(delayed.recorded);
    float seen[MAX_SLOTS], used[MAX_SLOTS];
    CHECK(slots <= MAX_SLOTS);
    for (int step = 0; step <= STEPS_SEEN; step++) {
        TRY(copy_to_host(stream, used, delayed.used.data, tensor_bytes(delayed.used)));
        TRY(copy_to_host(stream, seen, delayed.recorded.data, tensor_bytes(delayed.recorded)));
        TRY(stream_sync(stream));
        for (int64_t slot = 0; slot < slots; slot++) {
            float want = expected_used(c, step, slot);
            if (memcmp(&used[slot], &want, sizeof want) != 0 || seen[slot] > 0.0F)
                return fail(OUT_OF_BOUND, "step %d, slot %lld: the scale is %g, expected %g; amax %g", step,
                            (long long)slot, (double)used[slot], (double)want, (double)seen[slot]);
            seen[slot] = recorded_value(world->rank, step, slot);
        }
        TRY(copy_to_device(stream, delayed.recorded.data, seen, tensor_bytes(delayed.recorded)));
        TRY(amax_history_reduce(history));
        TRY(stream_sync(stream));
        TRY(amax_history_update(history));
    }
    amax_history_destroy(history);
    groups_destroy(groups);
    return OK;
}

static enum status history_rank(struct world *world, void *argument)
{
    static const struct model_config model = {.num_layers = 2,
                                              .hidden_size = 8,
                                              .num_attention_heads = 2,
                                              .num_query_groups = 2,
                                              .ffn_hidden_size = 8,
                                              .kv_channels = 4,
                                              .seq_length = 4,
                                              .vocab_size = 8,
                                              .make_vocab_size_divisible_by = 1};
    struct params params;
    struct device *device;
    struct stream *stream;
    struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    TRY(params_declare(&model, &one_each, false, &params));
    TRY(device_open(&(struct device_options){.name = "strict", .threads = 1}, &device));
    TRY(stream_create(device, "test", &stream));
    enum status status = run_history(world, argument, &params, device, stream);
    stream_destroy(stream);
    device_close(device);
    params_free(&params);
    return status;
}

static int check_histories(void)
{
    static const struct history_case cases[] = {
        {1024, 0, AMAX_MAX, 1},         {3, 2, AMAX_MAX, 2},         {1, 0, AMAX_MAX, 1},
        {1024, 0, AMAX_MOST_RECENT, 2}, {1, 1, AMAX_MOST_RECENT, 1},
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct history_case c = cases[i];
        bool good = world_run_threads(c.ranks, history_rank, &c) == OK;
        failures += !good;
        printf("%lld steps, margin %lld: %s\n", (long long)c.length, (long long)c.margin,
               good ? "ok" : fail_text());
    }
    return failures;
}

/* ---- whole runs ---- */

#define COMMON                                                                               \
    "precision.matmul_format=hybrid optimizer.lr_decay_iters=6 optimizer.lr_warmup_iters=1 " \
    "train.eval_interval=0 cluster.threads_per_rank=1 "
#define PP_4        "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1 cluster.device=strict "
#define INTERLEAVED "pp=2 pipeline.schedule=interleaved memory.recompute_granularity=full "
#define ZB_V                                                              \
    "pp=2 pipeline.schedule=zb-v memory.recompute_granularity=selective " \
    "memory.recompute_modules=[norm,core_attn] "

/* Faults to inject. */
enum fault { NO_FAULT, UNRECORDED_STEP, LOST_HISTORY, EVALUATION_RECORDS };

struct context {
    enum fault fault;
    float *history; // [rows * OPERAND_COUNT], the newest of each, after the first step; NULL: not requested
};

static enum status overwrite_amax(struct rank_state *w, float value, int64_t begin, int64_t end)
{
    struct tensor recorded = amax_history_scaling(w->amax).recorded;
    return fill(w->compute, (struct fill){.out = tensor_1d((float *)recorded.data + begin, F32, end - begin),
                                          .value = value});
}

/* Called before the reduction of the recorded amax. */
static enum status inject(void *context, struct rank_state *w, int64_t step)
{
    const struct context *c = context;
    int64_t slots = (int64_t)w->params.count * OPERAND_COUNT;
    if (step == 2 && c->fault == UNRECORDED_STEP)
        return overwrite_amax(w, 0.0F, 0, slots);
    return OK;
}

static enum status inject_loaded(void *context, struct rank_state *w, int64_t step)
{
    const struct context *c = context;
    if (step == 5 && c->fault == LOST_HISTORY) {
        float nothing[OPERAND_COUNT] = {0};
        for (int row = 0; row < w->params.count; row++)
            amax_history_set(w->amax, row, nothing, 1);
        return amax_history_upload(w->amax);
    }
    if (step == 0 && c->fault == EVALUATION_RECORDS)
        return overwrite_amax(w, 9e9F, 0, (int64_t)w->params.count * OPERAND_COUNT);
    return OK;
}

static enum status keep_newest(void *context, struct rank_state *w, int64_t step,
                               const struct step_result *result)
{
    struct context *c = context;
    (void)result;
    for (int row = 0; row < w->params.count && step == 1 && w->world->rank == 0 && c->history != NULL;
         row++) {
        int64_t columns;
        const float *lines = amax_history_get(w->amax, row, &columns);
        for (int operand = 0; operand < OPERAND_COUNT && lines != NULL; operand++)
            c->history[row * OPERAND_COUNT + operand] = lines[operand * columns];
    }
    return OK;
}

/* The default options of a run. */
static void add_defaults(struct text *keys, const char *more)
{
    static const char *const usual[][2] = {
        {"precision.scaling=", "delayed"}, {"precision.amax_history_len=", "3"}, {"train.train_iters=", "6"}};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strstr(more, usual[i][0]) == NULL)
            text_add(keys, " %s%s", usual[i][0], usual[i][1]);
}

static enum status run(const struct tiny *tiny, const char *more, struct trace_options options,
                       struct context *context, struct trace *out)
{
    struct recipe *recipe = NULL;
    struct text keys = {0};
    text_add(&keys, "checkpoint.save=%s/saved checkpoint.save_interval=3 %s", tiny->folder, more);
    add_defaults(&keys, more);
    enum status status = tiny_recipe(tiny, TINY_GPT, COMMON, keys.chars, 0, &recipe);
    text_free(&keys);
    TRY(status);
    options.transport = "local";
    options.observer = (struct step_observer){.context = context,
                                              .on_batches_loaded = inject_loaded,
                                              .on_gradients_complete = inject,
                                              .on_step_end = keep_newest};
    status = trace_run(recipe, &options, out);
    recipe_destroy(recipe);
    return status;
}

/* Runs that must be bit-identical to the first, or must not be. */
static const struct run_case {
    const char *what, *layout;
    bool evaluates_often;
    enum fault fault;
    bool differs;
} runs[] = {
    {"a deep pipeline, late streams", PP_4, false, NO_FAULT, false},
    {"two chunks, all recomputed", INTERLEAVED, false, NO_FAULT, false},
    {"zb-v, some recomputed", ZB_V, false, NO_FAULT, false},
    {"evaluations between the steps", "", true, NO_FAULT, false},
    {"injected: amax of a step not recorded", "", false, UNRECORDED_STEP, true},
    {"injected: a lost history", "", false, LOST_HISTORY, true},
    {"injected: an evaluation that records amax", "", true, EVALUATION_RECORDS, true},
    {"scales of the current tensors", "precision.scaling=tensorwise", false, NO_FAULT, true},
    {"a longer history", "precision.amax_history_len=5", false, NO_FAULT, true},
    {"the amax of the last step only", "precision.amax_compute_algo=most_recent", false, NO_FAULT, true},
    {"a margin", "precision.margin=3", false, NO_FAULT, true},
};

static int report(const char *what, enum status status, const struct trace *a, const struct trace *b,
                  bool must_differ)
{
    struct text why = {0};
    bool differs = status == OK && trace_differs(a, b, &why);
    bool bad = status != OK || differs != must_differ;
    printf("%s: %s%s\n", what, bad ? "FAILED  " : "",
           status != OK ? fail_text()
           : differs    ? text_chars(&why)
                        : "bit-identical");
    text_free(&why);
    return bad;
}

static int check_runs(const struct tiny *tiny, const struct trace *reference)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i += UNDER_TSAN ? 3 : UNDER_SANITIZER ? 2 : 1) {
        struct trace trace = {.steps = 0};
        struct context context = {.fault = runs[i].fault};
        bool often = runs[i].evaluates_often;
        enum status status =
            run(tiny, runs[i].layout, (struct trace_options){.evaluates_often = often}, &context, &trace);
        failures += report(runs[i].what, status, reference, &trace, runs[i].differs);
    }
    return failures;
}

/* Saved on one layout, and resumed on another, bit-identical to an uninterrupted run; and different without
 * the history. */
static int check_resume(const struct tiny *tiny, const struct trace *reference)
{
    struct context nothing = {0}, lost = {.fault = LOST_HISTORY};
    struct trace saved = {.steps = 0}, again;
    enum status status = run(tiny, ZB_V, (struct trace_options){.stop_after = 4}, &nothing, &saved);
    again = saved;
    if (status == OK)
        status = run(tiny, "", (struct trace_options){.resume = true}, &nothing, &again);
    int failures = report("stopped on two ranks, resumed on one", status, reference, &again, false);
    again = saved;
    if (status == OK)
        status = run(tiny, INTERLEAVED, (struct trace_options){.resume = true}, &lost, &again);
    return failures + report("injected: resumed without the history", status, reference, &again, true);
}

/* After one step every split of the global batch has recorded the same amax: over microbatches, data ranks,
 * and two pipeline ranks that hold the same stage. */
static int check_splits(const struct tiny *tiny)
{
    static const char *const splits[] = {"", "dp=2", "dp=4", "dp=2 parallel.zero_stage=3",
                                         "pp=2 pipeline.schedule=dualpipe"};
    float first[MAX_SLOTS * 4], other[MAX_SLOTS * 4];
    int failures = 0, present = 0;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char overrides[200];
        struct trace trace = {.steps = 0};
        memset(other, 0, sizeof other);
        struct context context = {.history = other};
        snprintf(overrides, sizeof overrides, "%s train.train_iters=1", splits[i]);
        enum status status = run(tiny, overrides, (struct trace_options){0}, &context, &trace);
        if (i == 0)
            memcpy(first, other, sizeof first);
        bool same = status == OK && memcmp(first, other, sizeof first) == 0;
        printf("%s: %s\n", splits[i], status != OK ? fail_text() : same ? "the same history" : "FAILED");
        failures += !same;
    }
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        present += first[i] > 0.0F;
    // For five layers: x of four linear layers, w and dy of six weights.
    printf("%d operands have a history\n", present);
    return failures + (present != 5 * (4 + 2 * 6));
}

int main(void)
{
    struct tiny tiny;
    struct trace reference = {.steps = 0};
    struct context nothing = {0};
    int failures = check_histories();
    MUST(tiny_create(&tiny));
    MUST(run(&tiny, "", (struct trace_options){0}, &nothing, &reference));
    failures += check_runs(&tiny, &reference);
    failures += check_resume(&tiny, &reference);
    failures += check_splits(&tiny);
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures != 0;
}
