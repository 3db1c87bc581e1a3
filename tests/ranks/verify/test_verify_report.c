// SPDX-License-Identifier: Apache-2.0
/* The output of `cuboid verify`: the order of its lines, its verdict, and the faults that a layout cannot
 * expose. */
#include "tests/support/tiny.h"
#include "tests/support/tiny_verify.h"
#include "trainer/verify/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct test {
    struct tiny tiny;
    int failures;
};

static void expect(struct test *test, bool good, const char *what, const char *printed)
{
    printf("%-7s %s\n", good ? "ok" : "FAILED", what);
    if (!good)
        printf("%s\n", printed);
    test->failures += !good;
}

/* ---- a hand-made report ---- */

enum { ROWS = 3 };

struct hand_made {
    char names[ROWS][PARAM_NAME_CHARS];
    struct verify_worst worst[VERIFY_QUANTITIES][ROWS];
    struct verify_step step;
    struct verify_report report;
};

static void make(struct hand_made *made)
{
    static const char *const names[ROWS] = {"embedding.weight", "layers.0.norm1.weight", "head.weight"};
    static const double ratios[ROWS] = {0.2, 0.986, 0.5};
    *made = (struct hand_made){.step = {{5.0, 5.0}, {1.0, 1.0}, 1e-6, 1e-12}};
    made->report =
        (struct verify_report){.rows = ROWS, .steps = 1, .names = made->names, .step = &made->step};
    made->report.largest = 0.986;
    made->report.visible = 5e-4;
    for (int q = VERIFY_GRADIENT; q < VERIFY_QUANTITIES; q++)
        made->report.total[q] = (struct verify_total){100000, 99999, 2e-7, 1e-6, 4e-5, 2};
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        made->report.worst[q] = made->worst[q];
    for (int row = 0; row < ROWS; row++) {
        snprintf(made->names[row], sizeof made->names[row], "%s", names[row]);
        made->worst[VERIFY_GRADIENT][row] =
            (struct verify_worst){ratios[row], ratios[row] * 1e-6, 1e-6, 7, 1};
    }
}

/* The caller frees the text. */
static char *printed(const struct verify_report *report)
{
    char *text = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    CHECK(to != NULL);
    verify_print(report, false, to);
    verify_print_verdict(report, to);
    fclose(to);
    return text;
}

static bool has_in_order(const char *text, const char *first, const char *second, const char *third)
{
    const char *a = strstr(text, first), *b = a != NULL ? strstr(a, second) : NULL;
    return b != NULL && strstr(b, third) != NULL;
}

static void check_clean(struct test *test)
{
    struct hand_made made;
    make(&made);
    char *text = printed(&made.report);
    expect(test, has_in_order(text, "embedding.weight", "layers.0.norm1.weight", "head.weight"),
           "lines are in forward order, not sorted by ratio", text);
    expect(test,
           strstr(text, "PASS: all differences are within rounding; an error of 0.05 % of the rms of a "
                        "gradient would be found\n") != NULL,
           "a clean run passes", text);
    expect(test,
           strstr(text, "gradients: 99.9 % of 100.0 K values bit-identical; largest difference 2.0e-07 in "
                        "head.weight (4.0e-05 of its rms); rounding may reach 1.0e-06\n") != NULL,
           "differences are compared with the tensor and with rounding; one that differs is not 100 %", text);
    expect(test, strstr(text, "against the fp64 norm of the layout's own gradients") != NULL,
           "the two gradient norms are named", text);
    free(text);
}

static void check_outside(struct test *test)
{
    struct hand_made made;
    make(&made);
    made.worst[VERIFY_INITIAL][2] = (struct verify_worst){INFINITY, 1e-3, 0.0, 4, 0};
    made.worst[VERIFY_GRADIENT][0] = (struct verify_worst){INFINITY, NAN, 1e-6, 4, 1};
    made.report.outside = made.report.unbounded = 2;
    char *text = printed(&made.report);
    expect(test, strstr(text, "inf") == NULL, "no error is \"inf of its bound\"", text);
    expect(test, has_in_order(text, "embedding.weight", "not finite", "FAIL: 2 outside bounds, 2 of them"),
           "a value that is not finite is out of bounds", text);
    expect(test, has_in_order(text, "head.weight", "exact", "Initial weights differ"),
           "exact quantities are marked", text);
    free(text);

    make(&made);
    made.worst[VERIFY_GRADIENT][2] = (struct verify_worst){12.5, 1.25e-5, 1e-6, 4, 1};
    made.report.outside = 1;
    made.report.largest = 12.5;
    text = printed(&made.report);
    expect(test,
           strstr(text, "FAIL: 1 outside bounds, the farthest a gradient at 12.5 times its bound\n") != NULL,
           "a fault makes it fail", text);
    expect(test, strstr(text, "the backward pass runs from the head to the embedding") != NULL,
           "gradients alone: where to look", text);
    free(text);
}

/* ---- a report of a run ---- */

/* Adds to every element of a gradient, the same on one rank and in the layout but for this. */
struct shift {
    const char *name;
    double of_rms;
    int64_t elements;
};

static enum status shift_gradient(void *context, struct rank_state *state, int64_t step)
{
    struct shift *shift = context;
    struct held_param *held = weights_held(&state->weights, params_find(&state->params, shift->name));
    if (held == NULL || step != 1)
        return OK;
    TRY(stream_sync(state->compute));
    float *x = held->gradient.data;
    double sum = 0.0;
    shift->elements = tensor_count(held->gradient);
    for (int64_t i = 0; i < shift->elements; i++)
        sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < shift->elements; i++)
        x[i] += (float)(shift->of_rms * sqrt(sum / (double)shift->elements));
    return OK;
}

/* In a layout that is otherwise bit-identical, only the shifted gradient differs, by what was added; an error
 * of the size that the verdict prints is outside, in any gradient. */
static void check_shift(struct test *test, const char *name)
{
    const struct comparison c = {TINY_LLAMA, "train.micro_batch_size=1", "pp=2", ""};
    struct verify_report clean = {0}, shifted = {0};
    MUST(tiny_verify(&test->tiny, &c, 1, (struct step_observer){0}, &clean));
    char *text = printed(&clean);
    expect(test, strstr(text, "\nPASS: every loss, gradient, weight and moment is bit-identical\n") != NULL,
           "pipeline stages alone are bit-identical, which the verdict reports", text);
    free(text);
    struct shift shift = {name, 1.001 * clean.visible, 0};
    MUST(tiny_verify(&test->tiny, &c, 1,
                     (struct step_observer){.context = &shift, .on_gradients_complete = shift_gradient},
                     &shifted));
    const struct verify_total *total = &shifted.total[VERIFY_GRADIENT];
    text = printed(&shifted);
    expect(test, shifted.outside > 0, "an error of the size in the verdict is outside", text);
    expect(test, total->compared - total->identical == shift.elements && shift.elements > 0,
           "exactly the shifted elements differ", text);
    expect(test,
           strcmp(shifted.names[total->row], name) == 0 && fabs(total->relative / shift.of_rms - 1.0) < 0.01,
           "the largest difference is what was added", text);
    free(text);
    verify_report_free(&clean);
    verify_report_free(&shifted);
}

/* ---- hints ---- */

/* one_rank: the keys of the run that the layout is compared with. */
static void check_hint_against(struct test *test, const char *layout, const char *one_rank, int steps,
                               const char *wanted, bool is_there)
{
    struct recipe *recipe = NULL, *reference = NULL;
    char *text = NULL;
    size_t length = 0;
    MUST(tiny_recipe(&test->tiny, TINY_GPT, "train.global_batch_size=8", layout, 0, &recipe));
    MUST(tiny_recipe(&test->tiny, TINY_GPT, "train.global_batch_size=8", one_rank, 0, &reference));
    FILE *to = open_memstream(&text, &length);
    CHECK(to != NULL);
    verify_print_hints(recipe, reference, steps, to);
    fclose(to);
    char what[200];
    snprintf(what, sizeof what, "%s, %d steps: %s\"%s\"", layout, steps, is_there ? "" : "no ", wanted);
    expect(test, (strstr(text, wanted) != NULL) == is_there, what, text);
    free(text);
    recipe_destroy(recipe);
    recipe_destroy(reference);
}

static void check_hint(struct test *test, const char *layout, int steps, const char *wanted, bool is_there)
{
    check_hint_against(test, layout, "tp=1", steps, wanted, is_there);
}

static void check_hints(struct test *test)
{
    static const char sp[] = "wrong index of a token";
    check_hint(test, "tp=2 parallel.sequence_parallel=true train.micro_batch_size=2", 3, sp, true);
    check_hint(test, "tp=2 parallel.sequence_parallel=true train.micro_batch_size=4", 3, sp, true);
    check_hint(test, "tp=2 parallel.sequence_parallel=true train.micro_batch_size=1", 3, sp, false);
    check_hint(test, "tp=2 train.micro_batch_size=2", 3, sp, false);
    check_hint(test, "tp=2", 1, "--steps 2", true);
    check_hint(test, "tp=2", 2, "--steps 2", false);
    check_hint(test, "tp=1", 2, "compared with itself", true);
    check_hint_against(test, "memory.recompute_granularity=full", "tp=1", 2, "compared with itself", false);
    check_hint(test, "tp=2", 2, "(dp=1)", true);
    check_hint(test, "dp=2", 2, "(dp=1)", false);
    check_hint(test, "dp=2 train.micro_batch_size=4", 2, "a rank has one", true);
    check_hint(test, "dp=2 train.micro_batch_size=2", 2, "a rank has one", false);
    check_hint(test, "dp=2", 2, "dropout (both are 0)", true);
    check_hint(test, "dp=2 model.hidden_dropout=0.1", 2, "dropout (both are 0)", false);
    check_hint(test, "dp=2", 2, "data.reset_attention_mask=false", true);
}

int main(void)
{
    struct test test = {.failures = 0};
    MUST(tiny_create(&test.tiny));
    check_clean(&test);
    check_outside(&test);
    check_shift(&test, "layers.1.attention.q.weight");
    check_shift(&test, "layers.3.norm2.weight");
    check_hints(&test);
    tiny_destroy(&test.tiny);
    return test.failures != 0;
}
