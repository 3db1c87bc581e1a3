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

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Finds the file of the recipe's tokenizer: in the checkpoint's folder, or as is. */
static enum status find_recipes_tokenizer(const char *folder, const struct recipe *recipe, struct text *out)
{
    const char *model = recipe->tokenizer.tokenizer_model, *slash = strrchr(model, '/');
    const char *name = slash != NULL ? slash + 1 : model;
    struct stat info;
    if (pretrained_tokenizer_in(folder, recipe, out))
        return OK;
    const bool is_folder = stat(model, &info) == 0 && S_ISDIR(info.st_mode);
    text_add(out, "%s%s", model, is_folder ? "/tokenizer.json" : "");
    return is_file(out->chars)
               ? OK
               : fail(BAD_RECIPE,
                      "tokenizer.tokenizer_model %s of the checkpoint's recipe: neither %s/%s nor "
                      "%s exists; copy the tokenizer's files to %s",
                      model, folder, name, out->chars, folder);
}

/* Appends the path of the tokenizer's file, and sets its path in the recipe. Without one of the recipe, that
 * of an imported model which Cuboid could not read. Empty: none. */
static enum status find_tokenizer(const char *folder, struct recipe *recipe,
                                  struct pretrained_export_options *options, struct text *out)
{
    char **model = &recipe->tokenizer.tokenizer_model;
    const enum tokenizer_type type = recipe->tokenizer.tokenizer_type;
    options->tokenizer_name =
        type == TOKENIZER_SENTENCEPIECE || type == TOKENIZER_LLAMA2 ? "tokenizer.model" : "tokenizer.json";
    if (*model != NULL) {
        TRY(find_recipes_tokenizer(folder, recipe, out));
        free(*model);
        *model = text_copy(out->chars);
    } else if (type == TOKENIZER_NONE) {
        text_add(out, "%s/tokenizer.json", folder);
    }
    options->tokenizer = out->length > 0 ? out->chars : NULL;
    return OK;
}

/* *folder: that of the checkpoint, freed by the caller. */
static enum status export_checkpoint(struct pretrained_export_options *options, const char *path,
                                     char **folder, struct pretrained_export_result *result)
{
    struct recipe *recipe = NULL;
    struct text tokenizer = {0};
    enum status status = checkpoint_resolve(path, folder);
    if (status == OK)
        status = load_recipe(*folder, &recipe);
    if (status == OK)
        status = find_tokenizer(*folder, recipe, options, &tokenizer);
    status = status_of_input(status);
    if (status == OK) {
        options->checkpoint = *folder;
        options->recipe = recipe;
        options->vocab_file = recipe->tokenizer.vocab_file;
        options->merge_file = recipe->tokenizer.merge_file;
        options->end_of_document = end_of_document(recipe);
        status = pretrained_export(options, result);
    }
    text_free(&tokenizer);
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
                   result.has_tokenizer ? ", with tokenizer" : "; no tokenizer");
    }
    free(folder);
    return exit_status(status);
}
