// SPDX-License-Identifier: Apache-2.0
/* Recomputed or kept activations: bit-identical losses, weights and moments. On `strict`, released memory is
 * filled with NaN, so a dropped activation that the backward pass reads without recomputing it is detected.
 * Recomputation must also reduce activation memory. */
#include "tests/support/tiny.h"
#include "tests/support/trace.h"

#include <stdio.h>
#include <string.h>

#define FULL              " memory.recompute_granularity=full "
#define UNIFORM           FULL "memory.recompute_num_layers="
#define BLOCK             FULL "memory.recompute_method=block memory.recompute_num_layers="
#define SELECTIVE         " memory.recompute_granularity=selective "
#define SELECTIVE_MODULES SELECTIVE "memory.recompute_modules="
#define STRICT            " cluster.device=strict "
#define OFFLOAD           " memory.offload_activations=true "
#define MOMENTS           " memory.offload_optimizer=true "

/* Layouts bit-identical to the first, which keeps all activations. */
struct layout_group {
    const char *name;
    enum tiny_family family;
    const char *common;
    const char *layouts[26];
};

static const struct layout_group groups[] = {
    {"gpt, dropout, documents",
     TINY_GPT,
     TINY_DROPOUT TINY_DOCUMENTS,
     {"", FULL, UNIFORM "2" STRICT, BLOCK "3" STRICT, SELECTIVE_MODULES "[norm,activation,core_attn]" STRICT,
      SELECTIVE STRICT, "pp=2 pipeline.layout=[4,1]" UNIFORM "3",
      "pp=2 pipeline.schedule=interleaved" BLOCK "1" STRICT, "pp=2 pipeline.schedule=zb-v" UNIFORM "2" STRICT,
      "pp=4 pipeline.schedule=zb-h1 pipeline.layout=[0,2,1,2]" UNIFORM "2" STRICT,
      "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1" SELECTIVE_MODULES "[norm,activation]" STRICT,
      "pp=2 pipeline.schedule=v-min" SELECTIVE_MODULES "[norm,core_attn]" STRICT,
      "pp=2 pipeline.schedule=dualpipev" BLOCK "1" STRICT, "pp=4 pipeline.layout=[2,0,3,0]" FULL STRICT,
      // Offload and reload.
      "pp=4 pipeline.layout=[1,1,1,2]" OFFLOAD, "pp=4 pipeline.layout=[2,0,3,0]" OFFLOAD STRICT,
      "pipeline.schedule=gpipe" OFFLOAD STRICT,
      "pp=4 pipeline.schedule=gpipe pipeline.layout=[0,2,0,3]" OFFLOAD STRICT,
      "pp=2 pipeline.schedule=interleaved" OFFLOAD STRICT, "pp=2 pipeline.schedule=zb-v" OFFLOAD STRICT,
      "pp=4 pipeline.schedule=zb-h2 pipeline.layout=[1,1,1,2]" OFFLOAD STRICT FULL,
      "pp=2 pipeline.schedule=dualpipev" OFFLOAD STRICT SELECTIVE_MODULES "[norm]",
      "pp=2 pipeline.schedule=looped-bfs pipeline.virtual_stages=2" OFFLOAD STRICT,
      "pp=4 pipeline.layout=[1,1,1,2] pipeline.optimizer_post_validation=true" OFFLOAD STRICT}},
    {"llama, tp 2, sequence parallel",
     TINY_LLAMA,
     "tp=2 parallel.sequence_parallel=true" TINY_DROPOUT,
     {"", UNIFORM "5", UNIFORM "2" STRICT, SELECTIVE_MODULES "[layernorm,activation]" STRICT,
      "pp=2 pipeline.schedule=interleaved pipeline.layout=[2,1,0,2]" UNIFORM "2" STRICT,
      "pp=2 pipeline.schedule=zb-v" BLOCK "1",
      "pp=2 pipeline.schedule=zb-v" SELECTIVE_MODULES "[activation]" STRICT,
      "pp=4 pipeline.layout=[1,1,1,2]" FULL,
      "pp=4 pipeline.layout=[1,1,1,2] pipeline.schedule=zb-h2" FULL STRICT,
      "pp=4 pipeline.layout=[1,1,1,2]" OFFLOAD STRICT,
      "pp=2 pipeline.schedule=zb-v" OFFLOAD MOMENTS STRICT FULL, "pp=2 pipeline.schedule=interleaved" OFFLOAD,
      "pp=2 pipeline.schedule=gpipe" OFFLOAD STRICT}},
    {"gpt with parallel branches, tp 2, dp 2",
     TINY_GPT,
     "tp=2 dp=2" TINY_PARALLEL,
     {"", FULL, SELECTIVE, MOMENTS STRICT, MOMENTS "parallel.zero_stage=1", "pp=2" BLOCK "2" STRICT,
      "pp=2 pipeline.schedule=zb-v" SELECTIVE_MODULES "[norm]" STRICT}},
    {"gpt, dp 2, ZeRO 3, dropout",
     TINY_GPT,
     "dp=2 parallel.zero_stage=3 train.micro_batch_size=1" TINY_DROPOUT,
     {"", MOMENTS STRICT, UNIFORM "2" STRICT,
      "pp=4 pipeline.layout=[1,1,1,2]" OFFLOAD MOMENTS STRICT BLOCK "1"}},
    {"llama with parallel branches and two norms, dualpipe, documents",
     TINY_LLAMA,
     "pp=2 pipeline.schedule=dualpipe" TINY_LLAMA_BYTES TINY_DOCUMENTS TINY_TWO_NORMS,
     {"", UNIFORM "2" STRICT, SELECTIVE_MODULES "[core_attn,activation]" STRICT, OFFLOAD STRICT,
      FULL OFFLOAD}},
};

struct test {
    struct tiny tiny;
    int runs, failures;
};

static enum status note_memory(void *context, struct rank_state *w)
{
    struct memory_use *use = context;
    if (w->world->rank == 0)
        *use = device_memory(w->device);
    return OK;
}

static enum status run_short(const struct test *test, const struct layout_group *group, const char *layout,
                             struct trace_options options, struct trace *out)
{
    static const char few_steps[] = " train.train_iters=3 optimizer.lr_decay_iters=3 ";
    char common[400];
    struct recipe *recipe = NULL;
    snprintf(common, sizeof common, "%s%s", group->common, few_steps);
    TRY(tiny_recipe(&test->tiny, group->family, common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &options, out);
    recipe_destroy(recipe);
    return status;
}

static enum status run(const struct test *test, const struct layout_group *group, const char *layout,
                       struct memory_use *use, struct trace *out)
{
    struct trace_options options = {.transport = "local",
                                    .observer = {use, .on_weights_initialized = note_memory}};
    return run_short(test, group, layout, options, out);
}

/* Moments in host memory are saved from there, and loaded to there. */
static void check_resumed(struct test *test, const struct layout_group *group, const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    struct text layout = {0}, why = {0};
    text_add(&layout, "%s checkpoint.save=%s/save", MOMENTS STRICT, test->tiny.folder);
    struct trace_options stop = {.transport = "local", .stop_after = 1},
                         resume = {.transport = "local", .resume = true};
    test->runs++;
    if (run_short(test, group, text_chars(&layout), stop, &trace) != OK ||
        run_short(test, group, text_chars(&layout), resume, &trace) != OK)
        text_add(&why, "%s", fail_text());
    else
        trace_differs(reference, &trace, &why);
    if (why.length > 0) {
        printf("FAILED  %s, resumed: %s\n", group->name, text_chars(&why));
        test->failures++;
    }
    text_free(&layout);
    text_free(&why);
}

/* The first rank allocates less activation memory than when all are kept, and offloaded activations are in
 * host memory. */
static void check_memory(const char *layout, const struct memory_use *kept, const struct memory_use *use,
                         struct text *why)
{
    int64_t bytes = use->now_bytes[PART_ACTIVATIONS], most = kept->now_bytes[PART_ACTIVATIONS];
    bool offloaded = strstr(layout, "offload") != NULL;
    if (strstr(layout, "pp=") == NULL && strstr(layout, "schedule") == NULL && !offloaded && bytes >= most)
        text_add(why, "%lld bytes of activations, but %lld when all are kept", (long long)bytes,
                 (long long)most);
    if (offloaded != (use->now_bytes[PART_HOST] > 0))
        text_add(why, "%lld bytes in host memory", (long long)use->now_bytes[PART_HOST]);
}

static void check_group(struct test *test, const struct layout_group *group)
{
    struct trace reference = {.steps = 0};
    struct memory_use kept = {.peak_total_bytes = 0};
    MUST(run(test, group, "", &kept, &reference));
    if (group == &groups[0])
        check_resumed(test, group, &reference);
    for (int i = 1; group->layouts[i] != NULL; i++) {
        const char *layout = group->layouts[i];
        if ((UNDER_TSAN && i % 4 != 1) || (UNDER_SANITIZER && i % 2 == 0))
            continue; // a sanitizer needs only some of them
        struct trace trace = {.steps = 0};
        struct text why = {0};
        struct memory_use use = {.peak_total_bytes = 0};
        test->runs++;
        if (run(test, group, layout, &use, &trace) != OK)
            text_add(&why, "%s", fail_text());
        else if (!trace_differs(&reference, &trace, &why))
            check_memory(layout, &kept, &use, &why);
        if (why.length > 0) {
            printf("FAILED  %s: \"%s\": %s\n", group->name, layout, text_chars(&why));
            test->failures++;
        }
        text_free(&why);
    }
}

int main(void)
{
    struct test test = {.runs = 0};
    MUST(tiny_create(&test.tiny));
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        check_group(&test, &groups[g]);
    tiny_destroy(&test.tiny);
    printf("%d runs, %d failures\n", test.runs, test.failures);
    return test.failures != 0;
}
