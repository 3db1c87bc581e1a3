// SPDX-License-Identifier: Apache-2.0
/* cuboid checkpoint export: a checkpoint as a model of Hugging Face's transformers library. */
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/huggingface/pretrained_export.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_SHARD_MB = 5000, MAX_SHARD_MB = 1000000000 };

static enum status parse(int argc, char **argv, struct pretrained_export_options *out,
                         const char **checkpoint)
{
    int64_t shard_mb = DEFAULT_SHARD_MB;
    const struct option options[] = {
        {"-o", OPTION_TEXT, &out->out, 0, 0},
        {"--output", OPTION_TEXT, &out->out, 0, 0},
        {"--dtype", OPTION_TEXT, &out->dtype, 0, 0},
        {"--architecture", OPTION_TEXT, &out->architecture, 0, 0},
        {"--max-shard-mb", OPTION_INTEGER, &shard_mb, 1, MAX_SHARD_MB},
    };
    int count;
    const char **rest = calloc((size_t)argc + 1, sizeof *rest);
    if (rest == NULL)
        return fail(NO_MEMORY, "no memory for the arguments");
    enum status status = options_parse(argc, argv, options, sizeof options / sizeof *options, rest, &count);
    if (status == OK && count != 1)
        status = fail(BAD_USAGE,
                      "checkpoint export: expected one checkpoint; use cuboid checkpoint export CKPT -o DIR");
    if (status == OK && out->out == NULL)
        status =
            fail(BAD_USAGE, "checkpoint export: no output given; use -o and a folder that does not exist");
    if (status == OK && out->architecture != NULL && pretrained_architecture_find(out->architecture) == NULL)
        status = fail(BAD_USAGE,
                      "checkpoint export: --architecture %s is not supported; use LlamaForCausalLM, "
                      "or another one of docs/huggingface.md",
                      out->architecture);
    out->max_file_bytes = shard_mb * 1000000;
    *checkpoint = rest[0];
    free(rest);
    return status;
}

static enum status load_recipe(const char *folder, struct recipe **out)
{
    static const char *const no_device[] = {"cluster.device=dry"};
    struct text path = {0};
    struct problems problems = {0};
    text_add(&path, "%s/recipe.yaml", folder);
    enum status status = recipe_load(path.chars, no_device, 1, 0, out, &problems);
    if (status != OK) {
        problems_print(&problems, stderr);
        status = fail(status, "checkpoint export: %s is not valid", path.chars);
    }
    problems_free(&problems);
    text_free(&path);
    return status;
}

/* Returns the id of the end of a document; -1 without a tokenizer whose files can be read. A model without a
 * tokenizer can be exported, too. */
static int32_t end_of_document(const struct recipe *recipe)
{
    struct tokenizer *tokenizer = NULL;
    if (recipe->tokenizer.tokenizer_type == TOKENIZER_NONE || run_tokenizer(recipe, &tokenizer) != OK)
        return -1;
    const int32_t id = tokenizer_end_of_document(tokenizer);
    tokenizer_destroy(tokenizer);
    return id;
}

/* Sets the recipe's path of a tokenizer.json to that of the file: in the checkpoint's folder, or as is. */
static enum status find_tokenizer(const char *folder, struct recipe *recipe)
{
    char **model = &recipe->tokenizer.tokenizer_model;
    struct text path = {0};
    struct stat info;
    if (recipe->tokenizer.tokenizer_type != TOKENIZER_HUGGING_FACE || *model == NULL)
        return OK;
    if (!pretrained_tokenizer_in(folder, recipe, &path)) {
        const bool is_folder = stat(*model, &info) == 0 && S_ISDIR(info.st_mode);
        text_add(&path, "%s%s", *model, is_folder ? "/tokenizer.json" : "");
    }
    if (stat(path.chars, &info) != 0) {
        const char *slash = strrchr(*model, '/'), *name = slash != NULL ? slash + 1 : *model;
        enum status status =
            fail(BAD_RECIPE,
                 "tokenizer.tokenizer_model %s of the checkpoint's recipe: neither %s/%s nor "
                 "%s exists; copy the tokenizer's files to %s",
                 *model, folder, name, path.chars, folder);
        text_free(&path);
        return status;
    }
    free(*model);
    *model = path.chars;
    return OK;
}

/* *folder: that of the checkpoint, freed by the caller. */
static enum status export_checkpoint(struct pretrained_export_options *options, const char *path,
                                     char **folder, struct pretrained_export_result *result)
{
    struct recipe *recipe = NULL;
    enum status status = checkpoint_resolve(path, folder);
    if (status == OK)
        status = load_recipe(*folder, &recipe);
    if (status == OK)
        status = find_tokenizer(*folder, recipe);
    status = status_of_input(status);
    if (status == OK) {
        const bool has_file = recipe->tokenizer.tokenizer_type == TOKENIZER_HUGGING_FACE;
        options->checkpoint = *folder;
        options->recipe = recipe;
        options->tokenizer = has_file ? recipe->tokenizer.tokenizer_model : NULL;
        options->end_of_document = end_of_document(recipe);
        status = pretrained_export(options, result);
    }
    recipe_destroy(recipe);
    return status;
}

int checkpoint_export(int argc, char **argv)
{
    const char *path = NULL;
    char *folder = NULL;
    struct pretrained_export_options options = {.checkpoint = NULL};
    struct pretrained_export_result result;
    enum status status = parse(argc, argv, &options, &path);
    if (status == OK)
        status = export_checkpoint(&options, path, &folder, &result);
    if (status == OK) {
        char bytes[NUMBER_CHARS];
        print_line(stdout, "%s: %s of %s, %d tensors in %d file%s, %s in %s%s", options.out,
                   result.architecture->name, folder, result.tensors, result.files,
                   result.files == 1 ? "" : "s", bytes_text(result.bytes, bytes), result.dtype,
                   result.has_tokenizer ? ", with tokenizer" : "; no tokenizer.json");
    }
    free(folder);
    return exit_status(status);
}
