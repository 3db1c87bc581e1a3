// SPDX-License-Identifier: Apache-2.0
/* A variant is the recipe that planned_recipe_load() makes of the same files and overrides. */
#include "planner/recipe/planned_recipe.h"
#include "trainer/files/problems.h"
#include "trainer/recipe/recipe_variants.h"

#include <criterion/criterion.h>
#include <string.h>

#define BASE SOURCE_ROOT "/recipes/base/gpt3-1.3b.yaml"

enum { MAX_CHANGES = 4 };
static const struct variant {
    const char *key[MAX_CHANGES], *value[MAX_CHANGES];
} variants[] = {
    {{"tp"}, {"4"}},
    {{"tp"}, {"1"}}, // disables sequence_parallel
    {{"tp", "pp", "parallel.data_parallel_size"}, {"4", "4", "2"}},
    {{"pp", "pipeline.schedule"}, {"4", "interleaved"}},
    {{"pp", "pipeline.schedule", "pipeline.virtual_stages"}, {"4", "interleaved", "3"}},
    {{"pipeline.schedule", "pp"}, {"zb-v", "8"}},
    {{"parallel.data_parallel_size"}, {"auto"}},
    {{"parallel.zero_stage"}, {"2"}}, // disabled: dp is 1
    {{"parallel.zero_stage", "dp"}, {"3", "4"}},
    {{"name"}, {"other"}}, // derives run_dir
    {{"tokenizer.vocab_file", "tokenizer.merge_file"}, {"a", "b"}},
    {{"precision.params_dtype", "cluster.profile"}, {"fp16", "dgx-a100-80"}}, // derives peak_flops
    {{"cluster.profile"}, {"dgx-h100"}},
    {{"cluster.nodes", "cluster.profile"}, {"2", "selene"}},
    {{"data.train"}, {"elsewhere"}},
    {{"model.hidden_size"}, {"4096"}},
    {{"model.num_layers"}, {"25"}},
    {{"pipeline.layout"}, {"[13, 11]"}},
    {{"optimizer.lr_decay_iters"}, {"auto"}},
    /* Invalid. */
    {{"tp"}, {"5"}},
    {{"pp"}, {"25"}},
    {{"train.micro_batch_size"}, {"3"}},
    {{"pipeline.layout"}, {"[13, 12]"}},
    {{"cluster.profile", "cluster.gpus_per_node", "cluster.nodes"}, {"selene", "9", "1"}},
    {{"cluster.profile"}, {"no-such-cluster"}},
    {{"pipeline.schedule_file"}, {"/no/such/file.csv"}},
};

static size_t count_of(const struct variant *variant)
{
    size_t count = 0;
    while (count < MAX_CHANGES && variant->key[count] != NULL)
        count++;
    return count;
}

static enum status load(const struct variant *variant, struct text *resolved, struct text *errors)
{
    char words[MAX_CHANGES][100];
    const char *overrides[MAX_CHANGES];
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    for (size_t i = 0; i < count_of(variant); i++) {
        snprintf(words[i], sizeof words[i], "%s=%s", variant->key[i], variant->value[i]);
        overrides[i] = words[i];
    }
    const enum status status = planned_recipe_load(BASE, overrides, count_of(variant), 0, &recipe, &problems);
    if (status == OK)
        recipe_resolved_text(recipe, resolved);
    for (size_t i = 0; i < problems.count; i++)
        if (!problems.list[i].warning)
            text_add(errors, "%s\n", problems.list[i].text);
    recipe_destroy(recipe);
    problems_free(&problems);
    return status;
}

static struct recipe_change change_of(const struct variant *variant, size_t i)
{
    struct problems problems = {0};
    struct node *value = *variant->value[i] == '['
                             ? yaml_parse("value", variant->value[i], strlen(variant->value[i]), &problems)
                             : node_scalar(variant->value[i]);
    return (struct recipe_change){recipe_key(&planner_keys, variant->key[i]), value};
}

static enum status vary(struct recipe_variants *all, const struct variant *variant, struct text *resolved,
                        struct text *errors, int *rule)
{
    struct recipe_change changes[MAX_CHANGES];
    struct problems problems = {0};
    struct recipe *recipe = NULL;
    for (size_t i = 0; i < count_of(variant); i++)
        changes[i] = change_of(variant, i);
    const enum status status = recipe_variant(all, changes, count_of(variant), &recipe, rule);
    if (status == OK)
        recipe_resolved_text(recipe, resolved);
    else
        recipe_variant_explain(all, changes, count_of(variant), &problems);
    for (size_t i = 0; i < problems.count; i++)
        if (!problems.list[i].warning)
            text_add(errors, "%s\n", problems.list[i].text);
    recipe_destroy(recipe);
    problems_free(&problems);
    for (size_t i = 0; i < count_of(variant); i++)
        node_free((struct node *)(uintptr_t)changes[i].value);
    return status;
}

Test(recipe_variants, equal_loaded_recipes)
{
    struct recipe_variants *all = NULL;
    struct problems problems = {0};
    int refused = 0;
    cr_assert_eq(recipe_variants_open(&planner_keys, BASE, NULL, 0, 0, &all, &problems), OK);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct text loaded[2] = {{0}}, varied[2] = {{0}};
        int rule;
        const enum status status = load(&variants[i], &loaded[0], &loaded[1]);
        cr_expect_eq(vary(all, &variants[i], &varied[0], &varied[1], &rule), status, "variant %zu", i);
        cr_expect_str_eq(text_chars(&varied[0]), text_chars(&loaded[0]), "variant %zu", i);
        cr_expect_str_eq(text_chars(&varied[1]), text_chars(&loaded[1]), "variant %zu", i);
        refused += status != OK;
        cr_expect(status == OK || rule < 0 || strlen(recipe_rule_keys(&planner_keys, rule)) > 0);
        for (int k = 0; k < 2; k++) {
            text_free(&loaded[k]);
            text_free(&varied[k]);
        }
    }
    cr_expect_eq(refused, 7);
    recipe_variants_close(all);
    problems_free(&problems);
}

Test(recipe_variants, report_problems_of_the_files)
{
    struct recipe_variants *all = NULL;
    struct problems problems = {0};
    const char *overrides[] = {"model.depth=3", "tp=x"};
    cr_expect_eq(recipe_variants_open(&planner_keys, BASE, overrides, 2, 0, &all, &problems), BAD_RECIPE);
    cr_expect_eq(problems.errors, 2);
    problems_free(&problems);
}

Test(recipe_variants, refuse_a_value)
{
    struct text why = {0};
    struct node *node = node_scalar("-3");
    cr_expect(!recipe_change_is_valid(&planner_keys,
                                      &(struct recipe_change){recipe_key(&planner_keys, "tp"), node}, &why));
    cr_expect(strstr(why.chars, "-3") != NULL, "%s", why.chars);
    text_free(&why);
    node_free(node);
}
