// SPDX-License-Identifier: Apache-2.0
/* cluster.cuda_graphs on the emulated GPU: bit-identical to a run without them, over schedules, resumed,
 * evaluated between steps, with skipped steps; the number of launches of a step; and the error messages when
 * a capture fails, or when a step does not match the captured graph. (At each replay the emulator captures
 * the step again and compares: kernels/cuda/runtime/graph.c.) */
#include "schedules/action.h"
#include "tests/emulator/include/cuda_runtime_api.h"
#include "tests/support/tiny.h"
#include "tests/support/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, M = 2, LESS = 2 };

#define SMALL                                                                                         \
    "cluster.device=cuda train.train_iters=4 optimizer.lr_decay_iters=4 optimizer.lr_warmup_iters=1 " \
    "train.micro_batch_size=1 model.num_layers=2 model.hidden_size=16 model.num_attention_heads=4 "   \
    "model.ffn_hidden_size=32 model.seq_length=8 " TINY_DROPOUT
#define NCCL   " cluster.transport=nccl "
#define GRAPHS " cluster.cuda_graphs=true "

struct graph_case {
    enum tiny_family family;
    const char *layout;
    int graphs;        // launched by rank 0 in a step
    bool often, stops; // evaluates after each step; stopped after step 1, and resumed
};

static const struct graph_case cases[] = {
    // F and B of each microbatch.
    {TINY_LLAMA, "memory.offload_optimizer=true", .graphs = 2 * M, .often = true},
    {TINY_LLAMA, "precision.params_dtype=bf16 memory.recompute_granularity=full", .graphs = 2 * M,
     .stops = true},
    {TINY_LLAMA, "precision.params_dtype=fp16 precision.initial_loss_scale=8192", .graphs = 2 * M},
    {TINY_LLAMA, "precision.params_dtype=bf16 precision.matmul_format=hybrid precision.scaling=delayed",
     .graphs = 2 * M},
    // F, I and W.
    {TINY_GPT, "pp=2 pipeline.schedule=zb-h1" NCCL, .graphs = 3 * M},
    {TINY_LLAMA, "pp=2 pipeline.schedule=interleaved pipeline.layout=[1,1,0,0]" NCCL, .graphs = 2 * 2 * M,
     .often = true},
    {TINY_LLAMA, "pp=2 pipeline.optimizer_post_validation=true" NCCL, .graphs = 2 * M},
    // The last backward pass starts data-parallel communication.
    {TINY_LLAMA, "dp=2" NCCL, .graphs = 2 * M - 1},
    {TINY_LLAMA, "dp=2 parallel.zero_stage=1 precision.params_dtype=bf16" NCCL, .graphs = 2 * M - 1,
     .stops = true},
};

/* By rank 0. */
struct watch {
    struct emulator_calls before;
    int graphs, launches;     // graph launches, and kernel launches outside of graphs, in the last step
    int skipped, faulty_step; // steps so far; the step in which two microbatches are swapped, or 0
};

static enum status loaded(void *context, struct rank_state *w, int64_t step)
{
    struct watch *watch = context;
    struct batch first = w->batches.list[0];
    if (step == 0 || step != watch->faulty_step)
        return OK;
    w->batches.list[0] = w->batches.list[1];
    w->batches.list[1] = first;
    return OK;
}

static enum status stepped(void *context, struct rank_state *w, int64_t step,
                           const struct step_result *result)
{
    struct watch *watch = context;
    if (w->world->rank != 0)
        return OK;
    struct emulator_calls now = emulator_calls();
    watch->skipped += result->skipped;
    watch->launches = now.launches - watch->before.launches;
    watch->graphs = now.graphs - watch->before.graphs;
    watch->before = now;
    (void)step;
    return OK;
}

static enum status train(const struct tiny *tiny, const struct graph_case *c, const char *graphs,
                         struct watch *watch, struct trace *out)
{
    char layout[400];
    struct recipe *recipe = NULL;
    snprintf(layout, sizeof layout, "%s%s train.global_batch_size=%d", c->layout, graphs,
             strncmp(c->layout, "dp=2", 4) == 0 ? 2 * M : M);
    TRY(tiny_recipe(tiny, c->family, SMALL, layout, 0, &recipe));
    struct trace_options options = {
        .transport = recipe_transport(recipe),
        .evaluates_often = c->often,
        .looks_ahead = !c->often,
        .stop_after = c->stops ? 1 : 0,
        .observer = {.context = watch, .on_batches_loaded = loaded, .on_step_end = stepped}};
    if (strstr(c->layout, "post_validation") != NULL) // ranks look ahead when no observer is set
        options.observer = (struct step_observer){0};
    *out = (struct trace){0};
    enum status status = trace_run(recipe, &options, out);
    if (status == OK && c->stops) {
        options.stop_after = 0;
        options.resume = true;
        status = trace_run(recipe, &options, out);
    }
    recipe_destroy(recipe);
    return status;
}

static int report_failure(const char *layout, const char *what)
{
    printf("FAILED %s: %s\n", layout, what);
    return 1;
}

static int check_counts(const struct graph_case *c, const struct watch *off, const struct watch *on)
{
    char text[200];
    snprintf(text, sizeof text, "%d launches, or %d graphs and %d launches; %d steps skipped", off->launches,
             on->graphs, on->launches, on->skipped);
    printf("%s: %s\n", c->layout, text);
    bool fp16 = strstr(c->layout, "fp16") != NULL;
    bool bad = off->graphs != 0 || on->graphs != c->graphs ||
               (!c->often && on->launches > off->launches / LESS) ||
               (fp16 && (on->skipped == 0 || on->skipped == STEPS));
    return bad ? report_failure(c->layout, text) : 0;
}

static int compare(const struct tiny *tiny, const struct graph_case *c)
{
    struct trace off, on;
    struct watch none = {.graphs = 0}, watch = {.graphs = 0};
    struct text why = {0};
    int failures = 0;
    if (train(tiny, c, "", &none, &off) != OK || train(tiny, c, GRAPHS, &watch, &on) != OK)
        return report_failure(c->layout, fail_text());
    if (trace_differs(&off, &on, &why))
        failures += report_failure(c->layout, text_chars(&why));
    if (strstr(c->layout, "post_validation") == NULL)
        failures += check_counts(c, &none, &watch);
    text_free(&why);
    return failures;
}

/* A run that must fail, and its error message. */
static int check_failure(const struct tiny *tiny, const char *failing, int faulty_step, const char *first,
                         const char *last)
{
    struct watch watch = {.faulty_step = faulty_step};
    struct trace ignored;
    setenv("EMULATOR_FAIL", failing, 1);
    enum status status =
        train(tiny, &(struct graph_case){.layout = "pipeline.schedule=gpipe"}, GRAPHS, &watch, &ignored);
    unsetenv("EMULATOR_FAIL");
    bool reported = status != OK && strstr(fail_text(), first) != NULL && strstr(fail_text(), last) != NULL;
    return reported ? 0 : report_failure(first, status != OK ? fail_text() : "no error was reported");
}

int main(void)
{
    struct tiny tiny;
    int failures = 0;
    MUST(tiny_create(&tiny));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failures += compare(&tiny, &cases[i]);
    failures += check_failure(&tiny, "cudaGraphInstantiate", 0,
                              "cluster.cuda_graphs true: cuda: cudaGraphInstantiate: out of memory",
                              "use cluster.cuda_graphs false");
    failures +=
        check_failure(&tiny, "cudaStreamEndCapture", 0, "cuda: cudaStreamEndCapture: operation failed",
                      "use cluster.cuda_graphs false");
    if (EMULATOR_COMPARES)
        failures +=
            check_failure(&tiny, "", 3, "a replay differs from the captured graph: call ", "another byte");
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures != 0;
}
