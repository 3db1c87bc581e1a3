// SPDX-License-Identifier: Apache-2.0
/* Rules between keys of the model: windows of attention, soft-capping. */
#include "tests/unit/recipe/recipe_case.h"

#include "layers/model.h"

#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)
#define LINE(text) "warning: command line: " text "\n"

/* A digit per layer: the layer has a window. */
static void expect_windows(const char *skip, const char *expected)
{
    struct loaded l =
        load(SMALL, (const char *const[]){"model.num_layers=6", "model.sliding_window=7", skip, NULL}, 0);
    cr_assert_eq(l.errors, 0, "%s", text_chars(&l.messages));
    for (int64_t i = 0; i < 6; i++)
        cr_expect_eq(model_window(&l.recipe->model, i), expected[i] == '1' ? 7 : 0, "%s: layer %lld", skip,
                     (long long)i);
    loaded_free(&l);
}

Test(recipe_windows, layers_with_a_window)
{
    expect_windows(NULL, "111111");
    expect_windows("model.window_attn_skip_freq=[]", "111111");
    expect_windows("model.window_attn_skip_freq=2", "101010");
    expect_windows("model.window_attn_skip_freq=6", "111110");
    expect_windows("model.window_attn_skip_freq=[0, 0, 1, 1, 0, 1]", "001101");
}

Test(recipe_windows, windows_that_are_refused)
{
    const char *const window = "model.window_size=8";
    WITH("command line: model.window_size -1 is out of range; expected an integer from 0 to 100000000; use "
         "0\n",
         "model.window_size=-1");
    for (int n = -1; n < 2; n++) { // the hint is accepted
        char skip[80], message[160];
        snprintf(skip, sizeof skip, "model.window_attn_skip_freq=%d", n);
        snprintf(
            message, sizeof message,
            "command line: model.window_attn_skip_freq %d is out of range; expected an integer from 2 to "
            "100000; use 2\n",
            n);
        WITH(message, window, skip);
    }
    WITH("", window, "model.window_attn_skip_freq=2");
    WITH("command line: model.window_attn_skip_freq has 3 entries, 1 of which are neither 0 nor 1; use 1 "
         "(window) or 0 (full attention) for each of the model.num_layers 4 layers\n",
         window, "model.window_attn_skip_freq=[1, 0, 2]");
    WITH("command line: model.window_attn_skip_freq \"x\" is not an integer, or a list of integers, like "
         "[1, 1, 0]\n",
         window, "model.window_attn_skip_freq=x");
    WITH("command line: pipeline.layout \"4\" is not a list of integers, like [3, 3, 2]\n",
         "pipeline.layout=4");
    WITH(LINE("model.window_attn_skip_freq has no effect: model.window_size is 0, and no layer has a window"),
         "model.window_attn_skip_freq=2");
}

Test(recipe_windows, soft_caps_that_are_refused)
{
    WITH(
        "command line: model.attn_logit_softcapping -1 is out of range; expected a number from 0 to 1000000; "
        "use 0\n",
        "model.attn_logit_softcapping=-1");
    WITH("command line: model.final_logit_softcapping nan is out of range; expected a number from 0 to "
         "1000000; use 0\n",
         "model.final_logit_softcapping=nan");
    WITH("command line: model.final_logit_softcapping \".inf\" is not a number from 0 to 1000000\n",
         "model.final_logit_softcapping=.inf");
    WITH("command line: model.final_logit_softcapping 1e-300 is too small for fp32, which ends at 1.2e-38; "
         "expected a number from 0 to 1000000; use 0\n",
         "model.final_logit_softcapping=1e-300");
    WITH("", "model.attn_logit_softcapping=50", "model.final_logit_softcapping=30");
}

/* The window is part of the resolved recipe, in the form in which it was given. */
Test(recipe_windows, windows_are_written_back)
{
    static const char *const given[] = {"3", "[1, 0, 0, 1]"};
    for (int i = 0; i < 2; i++) {
        char skip[80];
        struct text text = {0};
        snprintf(skip, sizeof skip, "model.window_attn_skip_freq=%s", given[i]);
        struct loaded l = load(SMALL, (const char *const[]){"model.window_size=8", skip, NULL}, 0);
        cr_assert_eq(l.errors, 0, "%s", text_chars(&l.messages));
        recipe_key_text(l.recipe, "model.window_attn_skip_freq", &text);
        cr_expect_str_eq(text_chars(&text), given[i]);
        text_free(&text);
        loaded_free(&l);
    }
}

static double flops_with(const char *window, const char *skip)
{
    struct loaded l = load(SMALL, (const char *const[]){window, skip, NULL}, 0);
    cr_assert_eq(l.errors, 0, "%s", text_chars(&l.messages));
    double flops = model_attention_flops_per_token(&l.recipe->model);
    loaded_free(&l);
    return flops;
}

/* 4 layers, 64 columns of all heads, S 32. With a causal mask, half of the FLOPs are those of all pairs but
 * for the diagonal's halves: w S - w^2 / 2 pairs in windows of w tokens. */
Test(recipe_windows, windows_lower_the_flops)
{
    const double layer = 12.0 * 64.0;
    cr_expect_eq(flops_with("model.window_size=0", NULL), 4.0 * layer * 32.0);
    cr_expect_eq(flops_with("model.window_size=32", NULL), 4.0 * layer * 32.0);
    cr_expect_eq(flops_with("model.window_size=8", NULL), 4.0 * layer * 2.0 * (8.0 * 32.0 - 32.0) / 32.0);
    cr_expect_eq(flops_with("model.window_size=8", "model.window_attn_skip_freq=4"),
                 layer * (32.0 + 3.0 * 2.0 * (8.0 * 32.0 - 32.0) / 32.0));
}
