// SPDX-License-Identifier: Apache-2.0
/* Constraints of a sweep, its numbering of layouts, and its file. */
#include "planner/recipe/planned_recipe.h"
#include "planner/sweep/sweep.h"
#include "trainer/files/problems.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#define BASE SOURCE_ROOT "/recipes/base/gpt3-1.3b.yaml"

static struct recipe *load(void)
{
    const char *overrides[] = {"tp=4", "pp=2", "dp=8", "cluster.device=dry"};
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    cr_assert_eq(planned_recipe_load(BASE, overrides, 4, 0, &recipe, &problems), OK);
    problems_free(&problems);
    return recipe;
}

Test(sweep, constraints)
{
    static const struct {
        const char *text;
        bool holds;
    } cases[] = {
        {"tp * pp <= 8", true},
        {"tp * pp < 8", false},
        {"tp * pp >= 9", false},
        {"tp / pp == 2", true},
        {"2 * pp != tp", false},
        {"ranks == tp * pp * dp", true},
        {"microbatches == 64", true},
        {"layers_per_stage > 11.5", true},
        {"pipeline.schedule == 1f1b", true},
        {"pipeline.schedule != 1f1b", false},
        {"pipeline.schedule < 1f1b", false}, // text has no order; rejected below
        {"parallel.sequence_parallel == true", true},
        {"model.hidden_size / model.num_attention_heads == model.kv_channels", true},
    };
    struct recipe *recipe = load();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sweep_constraint constraint;
        struct text why = {0};
        if (strchr(cases[i].text, '<') != NULL && strstr(cases[i].text, "1f1b") != NULL) {
            cr_expect(!sweep_constraint_parse(cases[i].text, &constraint, &why));
        } else {
            cr_assert(sweep_constraint_parse(cases[i].text, &constraint, &why), "%s: %s", cases[i].text,
                      text_chars(&why));
            cr_expect_eq(sweep_constraint_holds(&constraint, recipe), cases[i].holds, "%s", cases[i].text);
            sweep_constraint_free(&constraint);
        }
        text_free(&why);
    }
    recipe_destroy(recipe);
}

Test(sweep, invalid_constraints_are_rejected)
{
    static const char *const texts[] = {"",
                                        "tp",
                                        "tp <=",
                                        "<= 4",
                                        "tp + pp <= 4",
                                        "tp<=4",
                                        "tp <= 4 <= 8",
                                        "depth <= 4",
                                        "tp * x == 4",
                                        "tp = 4",
                                        "4 == abc",
                                        "tp * tp * tp * tp * tp * tp * tp < 1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct sweep_constraint constraint;
        struct text why = {0};
        cr_expect(!sweep_constraint_parse(texts[i], &constraint, &why), "%s", texts[i]);
        cr_expect(why.length > 0, "%s", texts[i]);
        text_free(&why);
    }
}

/* Reads a sweep of this text. */
static enum status read_text(const char *text, struct sweep_file *file, struct problems *problems)
{
    char path[] = "/tmp/sweep-XXXXXX.yaml";
    const int descriptor = mkstemps(path, 5);
    cr_assert(descriptor >= 0);
    cr_assert_eq(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
    const enum status status = sweep_file_read(path, file, problems);
    unlink(path);
    return status;
}

Test(sweep, layouts_in_the_order_of_the_file)
{
    struct sweep_file file;
    struct problems problems = {0};
    cr_assert_eq(read_text("base: " BASE "\naxes:\n  pp: [1, 2, 4]\n  tp: [2, 1]\n"
                           "  pipeline.layout: [[1, 2], [3]]\n",
                           &file, &problems),
                 OK);
    cr_expect_eq(file.layouts, 12);
    static const char *const expected[] = {[0] = "pp=1 tp=2 pipeline.layout=[1,2]",
                                           [1] = "pp=1 tp=2 pipeline.layout=[3]",
                                           [2] = "pp=1 tp=1 pipeline.layout=[1,2]",
                                           [11] = "pp=4 tp=1 pipeline.layout=[3]"};
    for (int number = 0; number < 12; number++) {
        struct recipe_change changes[SWEEP_MAX_AXES];
        struct text text = {0};
        sweep_layout_text(&file, number, &text);
        sweep_changes(&file, number, changes);
        if (expected[number] != NULL)
            cr_expect_str_eq(text.chars, expected[number]);
        cr_expect_str_eq(changes[0].key, "parallel.pipeline_parallel_size");
        for (int axis = 0; axis < 3; axis++)
            cr_expect_eq(changes[axis].value, file.axes[axis].values[sweep_value(&file, number, axis)]);
        text_free(&text);
    }
    sweep_file_free(&file);
}

Test(sweep, invalid_files_are_rejected)
{
    static const char *const texts[] = {
        "axes: {tp: [1]}\n",
        "base: a.yaml\n",
        "base: a.yaml\naxes: {tp: []}\n",
        "base: a.yaml\naxes: {tp: 4}\n",
        "base: a.yaml\naxes: {depth: [4]}\n",
        "base: a.yaml\naxes: {base: [b.yaml]}\n",
        "base: a.yaml\naxes: {tp: [1, -2]}\n",
        "base: a.yaml\naxes: {tp: [1, 1]}\n",
        "base: a.yaml\naxes: {tp: [1], parallel.tensor_parallel_size: [2]}\n",
        "base: a.yaml\naxes: {tp: [1]}\naxis: 3\n",
        "base: a.yaml\naxes: {tp: [1]}\nconstraints: tp < 4\n",
        "base: a.yaml\naxes: {tp: [1]}\nconstraints: [tp]\n",
        "base: [a.yaml]\naxes: {tp: [1]}\n",
        "base: a.yaml\nbase: b.yaml\naxes: {tp: [1]}\n",
        "- base\n",
        "base: {\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct sweep_file file;
        struct problems problems = {0};
        cr_expect_eq(read_text(texts[i], &file, &problems), BAD_RECIPE, "%s", texts[i]);
        cr_expect_eq(problems.errors, 1, "%s: %zu problems", texts[i], problems.errors);
        problems_free(&problems);
    }
}

Test(sweep, too_many_layouts_are_counted_and_rejected)
{
    struct sweep_file file;
    struct problems problems = {0};
    struct text text = {0};
    text_add(&text, "base: a.yaml\naxes:\n");
    static const char *const keys[] = {"seed", "tp", "pp", "dp", "train.micro_batch_size"};
    for (int axis = 0; axis < 5; axis++) {
        text_add(&text, "  %s: [1", keys[axis]);
        for (int i = 2; i <= 100; i++)
            text_add(&text, ", %d", i);
        text_add(&text, "]\n");
    }
    cr_expect_eq(read_text(text.chars, &file, &problems), BAD_RECIPE);
    cr_expect(strstr(problems.list[0].text, "1e+10 layouts are more than 10^9") != NULL, "%s",
              problems.list[0].text);
    problems_free(&problems);
    text_free(&text);
}
