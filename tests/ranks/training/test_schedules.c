// SPDX-License-Identifier: Apache-2.0
/* Every schedule gives losses, gradient norms, weights and moments that are bitwise those of one pipeline
 * rank that runs the same microbatches in order: on 2, 3, 4 and 8 ranks, with 1 to 16 microbatches and every
 * v up to 3 that the family supports, for either model, at tp 1 and 2, on `cpu` and in some cases on
 * `strict`. The model has as many layers as stages.
 *
 * DualPipe accumulates the microbatches of its two directions separately, then adds both sums: another
 * summation order than one rank's, so it is checked against verify's bounds. But p does not change that
 * order: on 4 and 8 ranks it is bit-identical to 2.
 *
 * `cuboid verify` must pass for each family.
 *
 *     test_schedules         one of 32 (family, p, m, v), with models, tp and devices in rotation
 *     test_schedules all     all combinations
 *     test_schedules FAMILY  all combinations of one family */
#include "schedules/schedule.h"
#include "tests/support/tiny_verify.h"
#include "tests/support/trace.h"
#include "tools/cli/commands.h"
#include "trainer/engine/step.h"

#include <string.h>

enum { MAX_M = 16, MAX_V = 3, STEPS = 2, VARIANTS = 4 };

/* Of so many cases one is run. */
static int stride(void)
{
    return UNDER_SANITIZER ? 86 : long_tests() ? 16 : 32;
}

static const int ranks[] = {2, 3, 4, 8};
enum { RANKS = sizeof ranks / sizeof *ranks, MAX_STAGES = 8 * MAX_V };

/* Model and tp. */
static const struct variant {
    enum tiny_family family;
    int tp;
} variants[VARIANTS] = {{TINY_GPT, 1}, {TINY_LLAMA, 2}, {TINY_GPT, 2}, {TINY_LLAMA, 1}};

struct test {
    struct tiny tiny;
    const char *only; // NULL: all families
    bool whole;       // every variant of each case
    int cases, runs, failures;
    struct trace
        reference[VARIANTS]; // of one pipeline rank, for the current numbers of layers and microbatches
    bool has_reference[VARIANTS];
};

/* One layout of one model. */
struct point {
    const char *name;
    int p, m, v, layers, variant;
    bool strict;
};

enum { COMMON_CHARS = 500, LAYOUT_CHARS = 200 };

static void common_text(int layers, int m, char out[COMMON_CHARS])
{
    snprintf(
        out, COMMON_CHARS,
        "model.num_layers=%d model.hidden_size=16 model.num_attention_heads=4 "
        "model.ffn_hidden_size=16 model.seq_length=4 train.micro_batch_size=1 train.global_batch_size=%d "
        "train.train_iters=%d train.eval_iters=1 optimizer.lr_warmup_iters=0 optimizer.lr_decay_iters=%d",
        layers, m, STEPS, STEPS);
}

static void layout_text(const struct point *x, char out[LAYOUT_CHARS])
{
    snprintf(out, LAYOUT_CHARS, "tp=%d pp=%d pipeline.schedule=%s pipeline.virtual_stages=%d%s",
             variants[x->variant].tp, x->p, x->name, x->v, x->strict ? " cluster.device=strict" : "");
}

static enum status train(const struct test *test, const struct point *x, struct trace *out)
{
    static const struct trace_options local = {.transport = "local"};
    char common[COMMON_CHARS], layout[LAYOUT_CHARS];
    struct recipe *recipe = NULL;
    common_text(x->layers, x->m, common);
    layout_text(x, layout);
    TRY(tiny_recipe(&test->tiny, variants[x->variant].family, common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &local, out);
    recipe_destroy(recipe);
    return status;
}

static void record(struct test *test, const struct point *x, bool good, const char *why)
{
    char common[COMMON_CHARS], layout[LAYOUT_CHARS];
    test->runs++;
    if (good)
        return;
    test->failures++;
    common_text(x->layers, x->m, common);
    layout_text(x, layout);
    printf("FAILED  %s: %s %s: %s\n", variants[x->variant].family == TINY_GPT ? "gpt" : "llama", common,
           layout, why);
}

/* Compares bitwise with `reference`. */
static void compare(struct test *test, const struct point *x, const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    struct text why = {0};
    enum status status = train(test, x, &trace);
    if (status != OK)
        text_add(&why, "%s", fail_text());
    record(test, x, status == OK && !trace_differs(reference, &trace, &why), text_chars(&why));
    text_free(&why);
}

/* Checks verify's bounds against one rank. */
static void compare_within_bound(struct test *test, const struct point *x)
{
    char common[COMMON_CHARS], layout[LAYOUT_CHARS];
    struct verify_report report = {0};
    common_text(x->layers, x->m, common);
    layout_text(x, layout);
    struct comparison comparison = {variants[x->variant].family, common, layout, ""};
    enum status status = tiny_verify(&test->tiny, &comparison, STEPS, (struct step_observer){0}, &report);
    bool good = status == OK && report.outside == 0;
    record(test, x, good, status == OK ? "out of bounds" : fail_text());
    if (status == OK && !good)
        verify_print(&report, false, stdout);
    verify_report_free(&report);
}

static bool has_stage_replicas(const char *name)
{
    return strcmp(name, "dualpipe") == 0;
}

static void check_point(struct test *test, struct point x)
{
    if (has_stage_replicas(x.name)) {
        compare_within_bound(test, &x);
        return;
    }
    struct trace *reference = &test->reference[x.variant];
    if (!test->has_reference[x.variant]) {
        struct point one = {
            .name = "1f1b", .p = 1, .m = x.m, .v = 1, .layers = x.layers, .variant = x.variant};
        enum status status = train(test, &one, reference);
        record(test, &one, status == OK, fail_text());
        test->has_reference[x.variant] = status == OK;
    }
    if (test->has_reference[x.variant])
        compare(test, &x, reference);
}

static void check_case(struct test *test, struct point x)
{
    int number = test->cases++;
    if (!test->whole && number % stride() != 0)
        return;
    for (int i = 0; i < (test->whole ? VARIANTS : 1); i++) {
        x.variant = (number / stride() + i) % VARIANTS;
        x.strict = (number / stride() + i) % 17 == 0;
        check_point(test, x);
    }
}

/* All families with p·v = layers. */
static void check_stages(struct test *test, int layers, int m)
{
    memset(test->has_reference, 0, sizeof test->has_reference);
    for (int i = 0; schedule_about(i) != NULL; i++)
        for (int r = 0; r < RANKS; r++) {
            const char *name = schedule_about(i)->name;
            int p = ranks[r], v = layers / p;
            struct schedule_options options = {.name = name, .p = p, .m = m, .v = v};
            if (layers % p != 0 || v > MAX_V || (test->only != NULL && strcmp(name, test->only) != 0) ||
                schedule_unsupported(&options) != NULL)
                continue;
            check_case(test, (struct point){.name = name, .p = p, .m = m, .v = v, .layers = layers});
        }
}

/* DualPipe on 4 and 8 ranks is bit-identical to 2, for either model. */
static void check_two_directions(struct test *test, int m)
{
    struct trace reference = {.steps = 0};
    struct point x = {.name = "dualpipe", .p = 2, .m = m, .v = 1, .layers = 8, .variant = m % VARIANTS};
    enum status status = train(test, &x, &reference);
    record(test, &x, status == OK, fail_text());
    for (x.p = 4; x.p <= 8; x.p += 4) {
        x.strict = x.p == 4 && m % 5 == 0;
        compare(test, &x, &reference);
    }
}

/* The command itself, with each family's own v. */
static void check_command(struct test *test, const char *name)
{
    char recipe[TINY_FOLDER_CHARS + 20], schedule[80];
    struct point x = {.name = name, .p = 2, .m = 4, .v = schedule_default_v(name), .layers = 5};
    snprintf(recipe, sizeof recipe, "%s/gpt.yaml", test->tiny.folder);
    snprintf(schedule, sizeof schedule, "pipeline.schedule=%s", name);
    // An alias of the key, which the command must recognize and override.
    char *words[] = {"verify", recipe, schedule, "parallel.pipeline_model_parallel_size=2", "--steps", "1"};
    struct schedule_options options = {.name = name, .p = x.p, .m = x.m};
    if (schedule_unsupported(&options) == NULL)
        record(test, &x, cmd_verify(6, words) == 0, "cuboid verify failed");
}

/* ---- memory planning ---- */

struct memory_plan {
    struct run run;
    struct memory_use use[8 * 2]; // of each rank
};

static enum status use_memory(struct world *world, void *argument)
{
    struct memory_plan *memory_plan = argument;
    struct rank_state state;
    struct step_result result;
    TRY(rank_create(&memory_plan->run, world, &(struct rank_options){.training = true}, &state));
    TRY(rank_step(&state, &result));
    memory_plan->use[world->rank] = device_memory(state.device);
    rank_destroy(&state);
    return OK;
}

static enum status memory_plan_make(const struct test *test, const struct point *x, bool dry,
                                    struct memory_plan *memory_plan)
{
    char common[COMMON_CHARS], layout[LAYOUT_CHARS], full[LAYOUT_CHARS + 40];
    struct recipe *recipe = NULL;
    common_text(x->layers, x->m, common);
    layout_text(x, layout);
    snprintf(full, sizeof full, "%s%s", layout, dry ? " cluster.device=dry" : "");
    TRY(tiny_recipe(&test->tiny, variants[x->variant].family, common, full, 0, &recipe));
    enum status status = run_create(recipe, !dry, &memory_plan->run);
    int size = recipe_world_size(recipe);
    for (int rank = 0; status == OK && dry && rank < size; rank++)
        status = world_run_dry(size, rank, use_memory, memory_plan);
    if (status == OK && !dry)
        status = world_run("local", size, use_memory, memory_plan);
    run_destroy(&memory_plan->run);
    recipe_destroy(recipe);
    return status;
}

/* The dry device counts the bytes that a run allocates, on every rank, part by part. */
static void check_memory(struct test *test, const char *name)
{
    struct point x = {.name = name, .p = 4, .m = 6, .v = schedule_default_v(name), .layers = 8, .variant = 2};
    struct memory_plan real, dry;
    memset(&real, 0, sizeof real);
    memset(&dry, 0, sizeof dry);
    enum status status = memory_plan_make(test, &x, false, &real);
    if (status == OK)
        status = memory_plan_make(test, &x, true, &dry);
    bool good = status == OK && real.use[0].peak_total_bytes > 0;
    for (int rank = 0; rank < x.p * variants[x.variant].tp; rank++)
        for (int part = 0; part < PART_COUNT; part++)
            good = good && real.use[rank].peak_bytes[part] == dry.use[rank].peak_bytes[part];
    record(test, &x, good, status == OK ? "planned bytes differ from the allocated bytes" : fail_text());
}

int main(int argc, char **argv)
{
    struct test test = {.whole = argc > 1};
    if (argc > 1 && strcmp(argv[1], "all") != 0)
        test.only = argv[1];
    MUST(tiny_create(&test.tiny));
    for (int layers = 2; layers <= MAX_STAGES; layers++) {
        int before = test.runs;
        for (int m = 1; m <= MAX_M; m++)
            check_stages(&test, layers, m);
        if (test.runs > before)
            printf("%d stages: %d runs\n", layers, test.runs - before);
        fflush(stdout);
    }
    // ThreadSanitizer coverage of verify and of whole runs is in test_bounds and in the cases above.
    for (int i = 0; !UNDER_TSAN && test.only == NULL && schedule_about(i) != NULL;
         i += UNDER_SANITIZER ? 3 : 1) {
        check_command(&test, schedule_about(i)->name);
        check_memory(&test, schedule_about(i)->name);
    }
    for (int m = 1; m <= MAX_M && (test.only == NULL || has_stage_replicas(test.only));
         m += UNDER_SANITIZER ? MAX_M : 1)
        check_two_directions(&test, m);
    tiny_destroy(&test.tiny);
    printf("%d cases (family, p, m, v), %d runs, %d failures\n", test.cases, test.runs, test.failures);
    return test.failures != 0 || test.runs == 0;
}
