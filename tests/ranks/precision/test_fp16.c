// SPDX-License-Identifier: Apache-2.0
/* Training in fp16: one injected overflow, on one rank, skips one step on every rank of every layout, and has
 * no other effect: weights and moments stay bitwise the same, Adam and the learning-rate schedule do not
 * count the step, and the scale changes according to the recipe. An overflow that no scale can avoid ends the
 * run with an error. test_layouts and test_bounds check that layouts agree.
 *
 * The overflow is injected at its usual source, the gradient of the loss: one token of one rank has weight
 * 2^20. Its loss stays finite.
 *
 * Pitfall: a skipped step looks like one whose gradient is zero. Each case also has steps that are not
 * skipped. */
#include "tests/support/tiny.h"
#include "tests/support/trace.h"
#include "trainer/files/checksum.h"
#include "trainer/optimizer/learning_rate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FP16 "precision.params_dtype=fp16 precision.hysteresis=1 "
#define BF16 "precision.params_dtype=bf16 "

enum { MAX_RANKS = 8, STEPS = 4, FROM = 3 }; // the step that overflows

static const struct trial {
    const char *common;
    const char *layout;
} trials[] = {
    {"", ""},
    {"", "tp=2"},
    {"", "dp=2"},
    {"", "pp=2 cluster.device=strict"},
    {"train.micro_batch_size=1", "tp=2 dp=2 pp=2 parallel.sequence_parallel=true"},
    {"", "dp=2 parallel.zero_stage=1 memory.offload_optimizer=true"},
    {"", "dp=2 parallel.zero_stage=2 pp=2"},
    {"", "dp=2 parallel.zero_stage=3 pp=2"},
    {"", "pp=2 tp=2 pipeline.schedule=zb-v memory.recompute_granularity=full"},
    {"", "pp=4 pipeline.schedule=dualpipe pipeline.layout=[1,2,0,2]"},
    {"", "pp=4 pipeline.optimizer_post_validation=true"},
};

/* State of the observers. Each rank writes its own elements. */
struct observations {
    int64_t from, to; // the steps with an overflow
    float weight;     // of the token
    int steps;
    bool skipped[MAX_RANKS][TRACE_MAX_STEPS + 1];
    double scale[MAX_RANKS][TRACE_MAX_STEPS + 1]; // after the step
    uint64_t state[MAX_RANKS][TRACE_MAX_STEPS + 1];
    bool has_state[MAX_RANKS];
    double largest_change; // of a bias that starts at 0, in the step after the first skipped one
};

/* ---- observers ---- */

/* The last tensor and data rank; of the pipeline ranks those whose head reads it. */
static enum status inject(void *context, struct rank_state *w, int64_t step)
{
    const struct observations *seen = context;
    const struct mesh_coord coord = w->groups->coord;
    const struct degrees *d = &w->mesh.degrees;
    if (step < seen->from || step > seen->to || coord.tp != d->tp - 1 || coord.dp != d->dp - 1)
        return OK;
    TRY(copy_to_device(w->compute, (void *)(uintptr_t)w->batches.list[0].loss_mask, &seen->weight,
                       sizeof seen->weight));
    return stream_sync(w->compute);
}

static enum status add_buffer(struct rank_state *w, const struct buffer *buffer, struct checksum *sum)
{
    if (buffer->bytes == 0)
        return OK;
    void *local = malloc(buffer->bytes);
    if (local == NULL)
        return fail(NO_MEMORY, "no memory to read %zu bytes", buffer->bytes);
    enum status status = copy_to_host(w->compute, local, buffer->data, buffer->bytes);
    if (status == OK)
        status = stream_sync(w->compute);
    checksum_add(sum, local, buffer->bytes);
    free(local);
    return status;
}

static enum status find_state(struct rank_state *w, uint64_t *out)
{
    const struct weights *weights = &w->weights;
    const struct buffer *all[] = {&weights->value, &weights->master, &weights->m, &weights->v};
    struct checksum *sum = checksum_begin();
    CHECK(sum != NULL);
    TRY(stream_wait(w->compute, weights->updated));
    for (int i = 0; i < 4; i++)
        TRY(add_buffer(w, all[i], sum));
    *out = checksum_now(sum);
    checksum_free(sum);
    return OK;
}

static enum status keep_result(void *context, struct rank_state *w, int64_t step,
                               const struct step_result *result)
{
    struct observations *seen = context;
    int rank = w->world->rank;
    seen->skipped[rank][step] = result->skipped;
    seen->scale[rank][step] = w->scale.value.scale;
    seen->has_state[rank] = w->weights.m.bytes > 0;
    return find_state(w, &seen->state[rank][step]);
}

static enum status keep_initial_state(void *context, struct rank_state *w)
{
    struct observations *seen = context;
    return find_state(w, &seen->state[w->world->rank][0]);
}

/* ---- one skipped step everywhere ---- */

static enum status run(const struct tiny *tiny, enum tiny_family family, const char *common,
                       const char *layout, struct step_observer observer, struct trace *trace)
{
    struct recipe *recipe = NULL;
    struct trace_options options = {.transport = "local", .observer = observer};
    TRY(tiny_recipe(tiny, family, common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &options, trace);
    recipe_destroy(recipe);
    return status;
}

static enum status check_steps(const struct observations *seen, int ranks, bool fixed)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int step = 1; step <= STEPS; step++) {
            bool expected = step == FROM, stays = seen->state[rank][step] == seen->state[rank][step - 1];
            double scale = fixed || step < FROM ? 1024.0 : 512.0;
            if (seen->skipped[rank][step] != expected)
                return fail(OUT_OF_BOUND, "rank %d %s step %d", rank, expected ? "ran" : "skipped", step);
            if (stays != (expected || !seen->has_state[rank]))
                return fail(OUT_OF_BOUND, "rank %d: step %d left its weights unchanged: %d", rank, step,
                            stays);
            if (seen->scale[rank][step] != scale)
                return fail(OUT_OF_BOUND, "rank %d: the scale is %g after step %d", rank,
                            seen->scale[rank][step], step);
        }
    return OK;
}

static enum status check_trial(const struct tiny *tiny, enum tiny_family family, const struct trial *trial,
                               bool fixed)
{
    struct observations *seen = calloc(1, sizeof *seen);
    struct trace trace = {.steps = 0};
    char common[300];
    CHECK(seen != NULL);
    *seen = (struct observations){.from = FROM, .to = FROM, .weight = 0x1p20F};
    snprintf(common, sizeof common, "%s%s train.train_iters=%d precision.%s=1024", FP16, trial->common, STEPS,
             fixed ? "loss_scale" : "initial_loss_scale");
    struct step_observer observer = {.context = seen,
                                     .on_weights_initialized = keep_initial_state,
                                     .on_batches_loaded = inject,
                                     .on_step_end = keep_result};
    enum status status = run(tiny, family, common, trial->layout, observer, &trace);
    int ranks = 1;
    while (ranks < MAX_RANKS && seen->state[ranks][0] != 0)
        ranks++;
    if (status == OK)
        status = check_steps(seen, ranks, fixed);
    free(seen);
    return status;
}

/* ---- steps that are counted ---- */

/* With the first step skipped, the second is Adam's first, in which g / sqrt(g^2) is 1: a bias that starts
 * at 0 moves by the first learning rate, a little less if its gradient is as small as epsilon. */
static enum status find_change(void *context, struct rank_state *w, int64_t step,
                               const struct step_result *result)
{
    struct observations *seen = context;
    struct owned_param *owned = weights_owned(&w->weights, params_find(&w->params, "layers.1.mlp.fc1.bias"));
    const int64_t count = tensor_count(owned->value);
    float now[200];
    CHECK(count <= 200);
    TRY(copy_to_host(w->compute, now, owned->value.data, tensor_bytes(owned->value)));
    TRY(stream_sync(w->compute));
    for (int64_t i = 0; i < count; i++)
        if (step == 2)
            seen->largest_change = fmax(seen->largest_change, fabs((double)now[i]));
    CHECK(result->skipped == (step == 1));
    return OK;
}

static enum status check_count(const struct tiny *tiny)
{
    struct observations seen = {.from = 1, .to = 1, .weight = 0x1p20F};
    struct trace trace = {.steps = 0};
    struct recipe *recipe = NULL;
    struct step_observer observer = {
        .context = &seen, .on_batches_loaded = inject, .on_step_end = find_change};
    TRY(run(tiny, TINY_GPT, FP16 "precision.loss_scale=1024 train.train_iters=3", "", observer, &trace));
    TRY(tiny_recipe(tiny, TINY_GPT, "", "", 0, &recipe));
    double first = learning_rate(&recipe->optimizer, 1), second = learning_rate(&recipe->optimizer, 2);
    recipe_destroy(recipe);
    CHECK(second > 1.5 * first); // or the comparison detects nothing
    return fabs(seen.largest_change / first - 1.0) < 1e-4
               ? OK
               : fail(OUT_OF_BOUND, "Adam's first step moved a bias by %g; the learning rates are %g and %g",
                      seen.largest_change, first, second);
}

/* ---- errors that end a run ---- */

static enum status check_end(const struct tiny *tiny, const char *common, float weight,
                             const char *const *expected)
{
    struct observations *seen = calloc(1, sizeof *seen);
    struct trace trace = {.steps = 0};
    CHECK(seen != NULL);
    *seen = (struct observations){.from = 1, .to = INT64_MAX, .weight = weight};
    enum status status = run(tiny, TINY_GPT, common, "pp=2",
                             (struct step_observer){.context = seen, .on_batches_loaded = inject}, &trace);
    free(seen);
    if (status != NOT_FINITE)
        return fail(OUT_OF_BOUND, "%s: the run ended with %s", common, status_name(status));
    for (int i = 0; expected[i] != NULL; i++)
        if (strstr(fail_text(), expected[i]) == NULL)
            return fail(OUT_OF_BOUND, "expected \"%s\", got \"%s\"", expected[i], fail_text());
    return OK;
}

static const char *const at_minimum_scale[] = {"step 2: the gradient of ", " is not finite on rank ",
                                               "precision.min_loss_scale 512", NULL};
static const char *const too_many_skips[] = {"step 20: the gradient of ", "20 consecutive skipped steps",
                                             "precision.loss_scale 1024 is too large", NULL};
static const char *const in_the_loss[] = {"step 1: the gradient of ", "(loss ", NULL};
static const char *const in_bf16[] = {"step 1: the gradient of ", "(loss ", NULL};

static const struct {
    const char *common;
    float weight;
    const char *const *expected;
} ends[] = {
    {FP16 "precision.initial_loss_scale=1024 precision.min_loss_scale=512", 0x1p20F, at_minimum_scale},
    {FP16 "precision.loss_scale=1024 train.train_iters=20", 0x1p20F, too_many_skips},
    {FP16 "precision.initial_loss_scale=1024", INFINITY, in_the_loss},
    {BF16, 0x1p127F, in_bf16}, // no loss scaling, and nothing skipped
};

int main(void)
{
    struct tiny tiny;
    int cases = 0, failures = 0;
    MUST(tiny_create(&tiny));
    for (int i = 0; i < (int)(sizeof trials / sizeof *trials); i++) {
        if (UNDER_TSAN && i % 4 >= 2)
            continue;
        enum status status = check_trial(&tiny, i % 3 == 1 ? TINY_LLAMA : TINY_GPT, &trials[i], i % 2 == 0);
        printf("%-7s one overflow, \"%s\"%s%s\n", status == OK ? "ok" : "FAILED", trials[i].layout,
               status == OK ? "" : ": ", status == OK ? "" : fail_text());
        cases++, failures += status != OK;
    }
    enum status status = check_count(&tiny);
    printf("%-7s counted steps%s%s\n", status == OK ? "ok" : "FAILED", status == OK ? "" : ": ",
           status == OK ? "" : fail_text());
    cases++, failures += status != OK;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        status = check_end(&tiny, ends[i].common, ends[i].weight, ends[i].expected);
        printf("%-7s errors that end a run: %s%s%s\n", status == OK ? "ok" : "FAILED", ends[i].common,
               status == OK ? "" : ": ", status == OK ? "" : fail_text());
        cases++, failures += status != OK;
    }
    tiny_destroy(&tiny);
    printf("%d cases, %d failures\n", cases, failures);
    return failures != 0;
}
