// SPDX-License-Identifier: Apache-2.0
/* Finds the files that a recipe names. */
#include "trainer/recipe/recipe_table.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool check_path(const struct recipe *recipe, const char *key, const char *path,
                       struct problems *problems)
{
    struct text where = {0};
    if (access(path, R_OK) == 0)
        return true;
    int why = errno;
    recipe_origin_text(recipe, recipe_row_index(key), &where);
    const bool is_load = strcmp(key, "checkpoint.load") == 0;
    problems_add(problems, "%s: %s: %s: %s%s", text_chars(&where), key, path, strerror(why),
                 is_load ? "; use auto, none or a checkpoint directory" : "");
    text_free(&where);
    return false;
}

/* Names only one of the files of a missing source. */
static void check_sources(const struct recipe *recipe, const char *key, const struct recipe_sources *sources,
                          struct problems *problems)
{
    static const char *const endings[] = {".idx", ".bin"};
    for (size_t i = 0; i < sources->count; i++) {
        const char *path = sources->list[i].path;
        size_t length = strlen(path);
        for (int e = 0; e < 2; e++)
            if (length > 4 && strcmp(path + length - 4, endings[e]) == 0)
                length -= 4;
        bool there = true;
        for (int e = 0; e < 2 && there; e++) {
            struct text file = {0};
            text_add(&file, "%.*s%s", (int)length, path, endings[e]);
            there = check_path(recipe, key, file.chars, problems);
            text_free(&file);
        }
    }
}

/* A run that already has checkpoints resumes from those, so the one that it started from may be gone.
 * run_dir_check() decides then. */
static bool has_checkpoint_folder(const struct recipe *recipe)
{
    const char *save = recipe->checkpoint.save;
    return save != NULL && access(save, F_OK) == 0;
}

bool recipe_needs_tokenizer(const struct recipe *recipe)
{
    const struct recipe_data *data = &recipe->data;
    return !data->mock_data || data->reset_attention_mask || data->reset_position_ids || data->eod_mask_loss;
}

const char *recipe_tokenizer_name(const struct recipe *recipe)
{
    const struct choice *choice = recipe_rows[recipe_row_index("tokenizer.tokenizer_type")].choices;
    while (choice->value != (int)recipe->tokenizer.tokenizer_type)
        choice++;
    return choice->name;
}

void recipe_check_files(const struct recipe *recipe, bool schedule, struct problems *problems)
{
    const char *load = recipe->checkpoint.load, *vocab = recipe->tokenizer.vocab_file,
               *merge = recipe->tokenizer.merge_file;
    if (schedule && recipe->pipeline.schedule_file != NULL)
        check_path(recipe, "pipeline.schedule_file", recipe->pipeline.schedule_file, problems);
    if (recipe->cluster.device == NULL || !device_traits(recipe->cluster.device)->computes)
        return; // planning opens none of them
    if (!recipe->data.mock_data) {
        check_sources(recipe, "data.train", &recipe->data.train, problems);
        check_sources(recipe, "data.valid", &recipe->data.valid, problems);
    }
    const char *model = recipe->tokenizer.tokenizer_model;
    if (!recipe_needs_tokenizer(recipe))
        vocab = merge = model = NULL;
    if (vocab != NULL)
        check_path(recipe, "tokenizer.vocab_file", vocab, problems);
    if (merge != NULL)
        check_path(recipe, "tokenizer.merge_file", merge, problems);
    if (model != NULL)
        check_path(recipe, "tokenizer.tokenizer_model", model, problems);
    if (load != NULL && strcmp(load, "auto") != 0 && !has_checkpoint_folder(recipe))
        check_path(recipe, "checkpoint.load", load, problems);
}

void recipe_warn_of_files(const struct recipe *recipe, struct problems *problems)
{
    struct problems missing = {0};
    recipe_check_files(recipe, false, &missing);
    for (size_t i = 0; i < missing.count; i++)
        problems_warn(problems, "%s", missing.list[i].text);
    problems_free(&missing);
}

const char *recipe_missing_feature(const char *name)
{
    static const char *const features[][2] = {
        {"num_experts", "mixture of experts is not implemented"},
        {"num_moe_experts", "mixture of experts is not implemented"},
        {"moe_", "mixture of experts is not implemented"},
        {"num_local_experts", "mixture of experts is not implemented"},
        {"mtp_", "multi-token prediction is not implemented"},
        {"multi_latent_attention", "multi-latent attention is not implemented"},
        {"q_lora_rank", "multi-latent attention is not implemented"},
        {"kv_lora_rank", "multi-latent attention is not implemented"},
        {"use_distributed_optimizer", "set parallel.zero_stage to 1"},
        {"fp8_recipe", "set precision.matmul_format and precision.scaling"},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (strncmp(name, features[i][0], strlen(features[i][0])) == 0)
            return features[i][1];
    return NULL;
}

const char *recipe_near_choice(const char *value, const char *const *names, size_t count)
{
    static const char *const pairs[][2] = {{"gpu", "cuda"},     {"GPU", "cuda"},  {"nvidia", "cuda"},
                                           {"float16", "fp16"}, {"half", "fp16"}, {"bfloat16", "bf16"},
                                           {"float32", "fp32"}};
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (size_t i = 0; i < count && strcmp(value, pairs[p][0]) == 0; i++)
            if (strcmp(names[i], pairs[p][1]) == 0)
                return names[i];
    return nearest_name(value, names, count);
}
