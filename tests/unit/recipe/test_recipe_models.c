// SPDX-License-Identifier: Apache-2.0
/* The recipes of published models, and their exact numbers of parameters: those of the classes of
 * transformers 5.24.0 with the same shapes (num_parameters() on the meta device), GPT2LMHeadModel for GPT-2,
 * GPT-3 and Megatron's models, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
 * and BloomForCausalLM. A wrong digit in a recipe, or in the declaration of a parameter, changes them. */
#include "base/file.h"
#include "layers/model.h"
#include "layers/parameters/param.h"
#include "planner/recipe/planned_recipe.h"
#include "tests/unit/recipe/recipe_case.h"

#include <glob.h>

#define RECIPES SOURCE_ROOT "/recipes/"

static const struct {
    const char *path;
    int64_t parameters;
} models[] = {
    {"gpt2-124m.yaml", 124439808},
    {"models/gpt/gpt2-355m.yaml", 354823168},
    {"models/gpt/gpt2-774m.yaml", 774030080},
    {"models/gpt/gpt2-1.5b.yaml", 1557611200},
    {"models/gpt/gpt3-125m.yaml", 125226240},
    {"models/gpt/gpt3-350m.yaml", 355871744},
    {"models/gpt/gpt3-760m.yaml", 760300032},
    {"gpt3-1.3b.yaml", 1315723264},
    {"models/gpt/gpt3-2.7b.yaml", 2651553280},
    {"models/gpt/gpt3-6.7b.yaml", 6658404352},
    {"models/gpt/gpt3-13b.yaml", 12853386240},
    {"models/gpt/gpt3-175b.yaml", 174604259328},
    {"models/megatron/megatron-1.7b.yaml", 1652230656},
    {"models/megatron/megatron-3.6b.yaml", 3562168320},
    {"models/megatron/megatron-7.5b.yaml", 7467786240},
    {"models/megatron/megatron-18.4b.yaml", 18449756160},
    {"models/megatron/megatron-39.1b.yaml", 39096041472},
    {"models/megatron/megatron-76.1b.yaml", 76050739200},
    {"models/megatron/megatron-145.6b.yaml", 145622261760},
    {"models/megatron/megatron-310.1b.yaml", 310130540544},
    {"models/megatron/megatron-529.6b.yaml", 529600819200},
    {"models/megatron/megatron-1008b.yaml", 1008038758400},
    {"models/llama/llama2-7b.yaml", 6738415616},
    {"models/llama/llama2-13b.yaml", 13015864320},
    {"models/llama/llama2-70b.yaml", 68976648192},
    {"llama3-8b.yaml", 8030261248},
    {"models/llama/llama3-70b.yaml", 70553706496},
    {"models/llama/llama3-405b.yaml", 405853388800},
    {"models/llama/mistral-7b.yaml", 7241732096},
    {"models/qwen/qwen2.5-0.5b.yaml", 494032768},
    {"models/qwen/qwen2.5-1.5b.yaml", 1543714304},
    {"models/qwen/qwen2.5-3b.yaml", 3085938688},
    {"models/qwen/qwen2.5-7b.yaml", 7615616512},
    {"models/qwen/qwen2.5-14b.yaml", 14770033664},
    {"models/qwen/qwen2.5-32b.yaml", 32763876352},
    {"models/qwen/qwen2.5-72b.yaml", 72706203648},
    {"models/qwen/qwen3-0.6b.yaml", 596049920},
    {"models/qwen/qwen3-1.7b.yaml", 1720574976},
    {"models/qwen/qwen3-4b.yaml", 4022468096},
    {"models/qwen/qwen3-8b.yaml", 8190735360},
    {"models/qwen/qwen3-14b.yaml", 14768307200},
    {"models/qwen/qwen3-32b.yaml", 32762123264},
    {"models/bloom/bloom-176b.yaml", 176247271424},
};
enum { MODELS = sizeof models / sizeof *models };

static struct recipe *load_model(const char *path)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    const char *const dry[] = {"cluster.device=dry"}; // a build without CUDA has no device for them
    const enum status status = planned_recipe_load(path, dry, 1, 0, &recipe, &problems);
    problems_print(&problems, stderr);
    cr_assert(status == OK && problems.count == 0, "%s", path);
    problems_free(&problems);
    return recipe;
}

Test(recipe_models, have_their_published_sizes)
{
    for (int i = 0; i < MODELS; i++) {
        char path[1024];
        int64_t count = 0;
        snprintf(path, sizeof path, RECIPES "%s", models[i].path);
        struct recipe *recipe = load_model(path);
        cr_assert_eq(model_parameter_count(&recipe->model, &count), OK);
        cr_expect_eq(count, models[i].parameters, "%s: %lld", models[i].path, (long long)count);
        recipe_destroy(recipe);
    }
}

/* Narayanan et al. 2021, equation 2, which counts all but the final norm. */
Test(recipe_models, of_megatron_have_the_sizes_of_the_formula)
{
    int count = 0;
    for (int i = 0; i < MODELS; i++) {
        char path[1024];
        if (strstr(models[i].path, "megatron") == NULL)
            continue;
        snprintf(path, sizeof path, RECIPES "%s", models[i].path);
        struct recipe *recipe = load_model(path);
        const int64_t l = recipe->model.num_layers, h = recipe->model.hidden_size;
        const int64_t formula =
            12 * l * h * h + 13 * l * h + (recipe->model.vocab_size + recipe->model.seq_length) * h;
        cr_expect_eq(models[i].parameters, formula + 2 * h, "%s", models[i].path);
        recipe_destroy(recipe);
        count++;
    }
    cr_assert_eq(count, 10);
}

/* The number of nodes decides the data-parallel degree: cluster.nodes=32 plans the model on 32 nodes. */
Test(recipe_models, scale_with_the_nodes_and_are_bf16)
{
    for (int i = 0; i < MODELS; i++) {
        char path[1024];
        struct text file = {0};
        snprintf(path, sizeof path, RECIPES "%s", models[i].path);
        struct recipe *recipe = load_model(path);
        cr_expect_eq(recipe->precision.params_dtype, BF16, "%s", path);
        cr_expect_gt(recipe->cluster.nodes, 0, "%s", path);
        MUST(file_read(path, &file));
        cr_expect(strstr(file.chars, "data_parallel_size") == NULL, "%s", path);
        text_free(&file);
        recipe_destroy(recipe);
    }
}

Test(recipe_models, every_recipe_is_in_the_table)
{
    glob_t found = {0};
    cr_assert_eq(glob(RECIPES "models/*/*.yaml", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int listed = 0;
        for (int m = 0; m < MODELS; m++)
            listed += strcmp(found.gl_pathv[i] + strlen(RECIPES), models[m].path) == 0;
        cr_expect_eq(listed, 1, "%s", found.gl_pathv[i]);
    }
    globfree(&found);
}
