// SPDX-License-Identifier: Apache-2.0
/* cuboid checkpoint export: a checkpoint as a model of Hugging Face's transformers library. */
#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/checkpoint/huggingface/pretrained_config.h"
#include "trainer/checkpoint/huggingface/pretrained_export.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/checkpoint/load.h"
#include "trainer/data/recipe_data.h"
#include "trainer/engine/rank.h"
#include "trainer/tokenizer/chat/chat_template.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_SHARD_MB = 5000, MAX_SHARD_MB = 1000000000 };

static enum status parse(int argc, char **argv, struct pretrained_export_options *out,
                         const char **checkpoint, const char **tokenizer)
{
    int64_t shard_mb = DEFAULT_SHARD_MB;
    const struct option options[] = {
        {"-o", OPTION_TEXT, &out->out, 0, 0},
        {"--output", OPTION_TEXT, &out->out, 0, 0},
        {"--dtype", OPTION_TEXT, &out->dtype, 0, 0},
        {"--architecture", OPTION_TEXT, &out->architecture, 0, 0},
        {"--tokenizer", OPTION_TEXT, tokenizer, 0, 0},
        {"--max-shard-mb", OPTION_INTEGER, &shard_mb, 1, MAX_SHARD_MB},
    };
    int count;
    const char **rest = memory_zeroed((size_t)argc + 1, sizeof *rest, "the arguments");
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

static enum status load_recipe(const char *folder, const struct text *overrides, int count,
                               struct recipe **out)
{
    const char *list[PRETRAINED_TOKENIZER_FILES + 1] = {"cluster.device=dry"};
    struct text path = {0};
    struct problems problems = {0};
    text_add(&path, "%s/recipe.yaml", folder);
    for (int i = 0; i < count; i++)
        list[i + 1] = overrides[i].chars;
    enum status status = planned_recipe_load(path.chars, list, count + 1, 0, out, &problems);
    if (status != OK) {
        problems_print(&problems, stderr);
        status = fail(status, "checkpoint export: %s is not valid", path.chars);
    }
    problems_free(&problems);
    text_free(&path);
    return status;
}

/* ---- the tokenizer ---- */

/* What is exported besides the weights. */
struct extras {
    const char *given; // --tokenizer; NULL: that of the checkpoint
    struct recipe *recipe;
    struct model_files files;
    struct pretrained_ids ids;
    struct pretrained_config config; // of the import
    bool is_import;
    struct text overrides[PRETRAINED_TOKENIZER_FILES]; // the paths of the tokenizer's files
    int override_count;
};

/* The recipe may be another user's: no file that it names outside of the checkpoint is read or copied. */
static enum status find_own_tokenizer(struct extras *x, const char *folder)
{
    struct pretrained_tokenizer_file list[PRETRAINED_TOKENIZER_FILES];
    const int count = pretrained_tokenizer_files(x->recipe, list);
    for (int i = 0; i < count; i++)
        if (model_files_get(&x->files, list[i].file) == NULL)
            return fail(
                BAD_USAGE,
                "checkpoint export: %s has no %s that can be read, the tokenizer of its recipe (%s %s); use "
                "--tokenizer PATH, or --tokenizer none to export without",
                folder, model_file_name(list[i].file), list[i].key, list[i].path);
    x->override_count = pretrained_tokenizer_in(folder, x->recipe, x->overrides);
    return OK;
}

/* Replaces the files of the tokenizer by those of --tokenizer: a file, or a folder. */
static enum status find_given_tokenizer(struct extras *x)
{
    struct pretrained_tokenizer_file list[PRETRAINED_TOKENIZER_FILES];
    const int count = pretrained_tokenizer_files(x->recipe, list);
    struct stat info;
    for (enum model_file file = MODEL_TOKENIZER_JSON; file < MODEL_CHAT_TEMPLATE; file++)
        model_files_set(&x->files, file, NULL);
    if (strcmp(x->given, "none") == 0)
        return OK;
    const bool is_folder = stat(x->given, &info) == 0 && S_ISDIR(info.st_mode);
    if (count == 0 || (count > 1 && !is_folder))
        return fail(
            BAD_USAGE, "checkpoint export: --tokenizer %s: tokenizer.tokenizer_type %s of the recipe %s",
            x->given, recipe_tokenizer_name(x->recipe),
            count == 0 ? "has no file; remove --tokenizer" : "has two files; use the folder that has them");
    for (int i = 0; i < count; i++) {
        TRY(pretrained_tokenizer_read(x->given, list[i].file, NULL, &x->files));
        text_add(&x->overrides[i], "%s=%s%s%s", list[i].key, x->given, is_folder ? "/" : "",
                 is_folder ? model_file_name(list[i].file) : "");
        if (model_files_get(&x->files, list[i].file) == NULL)
            return fail(BAD_USAGE, "checkpoint export: --tokenizer %s: is not %s that can be read", x->given,
                        model_file_name(list[i].file));
    }
    x->override_count = count;
    return OK;
}

/* Creates the tokenizer from the files that are exported: a file that it cannot read is not copied. *out:
 * NULL if there is none. */
static enum status create_tokenizer(struct extras *x, const char *folder, struct tokenizer **out)
{
    const enum tokenizer_type type = x->recipe->tokenizer.tokenizer_type;
    *out = NULL;
    TRY(x->given != NULL ? find_given_tokenizer(x) : find_own_tokenizer(x, folder));
    if (x->override_count > 0) {
        recipe_destroy(x->recipe);
        x->recipe = NULL;
        TRY(load_recipe(folder, x->overrides, x->override_count, &x->recipe));
    }
    const bool has_one = x->override_count > 0 || type == TOKENIZER_BYTE || type == TOKENIZER_GPT2_BPE;
    return has_one && (x->given == NULL || strcmp(x->given, "none") != 0)
               ? recipe_create_tokenizer(x->recipe, out)
               : OK;
}

/* AutoTokenizer needs the class of a tokenizer that consists of two files. */
static void name_class(struct model_files *files)
{
    struct text config = {0};
    const bool has_words =
        model_files_get(files, MODEL_VOCAB_JSON) != NULL && model_files_get(files, MODEL_MERGES_TXT) != NULL;
    text_add(&config, "{\"tokenizer_class\": \"GPT2Tokenizer\"}\n");
    if (has_words && model_files_get(files, MODEL_TOKENIZER_JSON) == NULL &&
        model_files_get(files, MODEL_TOKENIZER_CONFIG) == NULL)
        model_files_set(files, MODEL_TOKENIZER_CONFIG, &config);
    text_free(&config);
}

/* ---- what the import and the training leave ---- */

/* The architecture and the context of an imported model. */
static enum status read_imported(struct extras *x)
{
    struct problems ignored = {0};
    const struct text *config = model_files_get(&x->files, MODEL_CONFIG);
    x->is_import = config != NULL;
    enum status status =
        x->is_import ? pretrained_config_parse("config.json of the checkpoint", config, &ignored, &x->config)
                     : OK;
    problems_free(&ignored);
    return status;
}

/* The ids of an import, and the end of an answer of the template that the run was trained with. A model
 * that was not imported begins a text as its tokenizer does, or after the end of a document, as in
 * training. */
static enum status find_ids(struct extras *x, const struct tokenizer *tokenizer)
{
    const struct text *jinja = model_files_get(&x->files, MODEL_CHAT_TEMPLATE);
    const char *name = jinja != NULL ? chat_template_of_jinja(text_chars(jinja)) : NULL;
    struct chat_template template;
    TRY(pretrained_ids_read(&x->files, &x->ids));
    if (tokenizer == NULL)
        return OK;
    const struct tokens *prefix = tokenizer_prefix(tokenizer);
    const int32_t end = tokenizer_end_of_document(tokenizer);
    if (x->ids.end_count == 0)
        pretrained_ids_add_end(&x->ids, end, false);
    if (!x->is_import && x->ids.bos < 0)
        x->ids.bos = prefix->count > 0 ? prefix->ids[prefix->count - 1] : end;
    if (name == NULL)
        return OK;
    TRY(chat_template_create(name, tokenizer, &template));
    pretrained_ids_add_end(&x->ids, chat_template_end(&template), true);
    return OK;
}

static enum status make_extras(struct extras *x, const char *folder)
{
    struct tokenizer *tokenizer;
    struct text generation = {0};
    TRY(load_recipe(folder, NULL, 0, &x->recipe));
    TRY(model_files_read(folder, MODEL_TOKENIZER_JSON, MODEL_CONFIG, NULL, &x->files));
    TRY(read_imported(x));
    TRY(create_tokenizer(x, folder, &tokenizer));
    enum status status = find_ids(x, tokenizer);
    tokenizer_destroy(tokenizer);
    if (status == OK)
        status = pretrained_ids_generation_config(&x->files, &x->ids, &generation);
    if (generation.length > 0)
        model_files_set(&x->files, MODEL_GENERATION_CONFIG, &generation);
    text_free(&generation);
    name_class(&x->files);
    model_files_set(&x->files, MODEL_CONFIG, NULL);
    if (!model_files_has_tokenizer(&x->files))
        model_files_set(&x->files, MODEL_CHAT_TEMPLATE, NULL);
    return status;
}

/* The longest sequence of an imported model. */
static int64_t context_of(const struct extras *x)
{
    int64_t tokens = 0;
    for (int i = 0; i < x->config.count; i++)
        if (strcmp(x->config.values[i].key, "seq_length") == 0 &&
            !integer_parse(x->config.values[i].value, &tokens))
            tokens = 0;
    return tokens;
}

/* *folder: that of the checkpoint, freed by the caller. */
static enum status export_checkpoint(struct pretrained_export_options *options, const char *path,
                                     const char *given, char **folder,
                                     struct pretrained_export_result *result)
{
    struct extras x = {.given = given};
    enum status status = checkpoint_resolve(path, folder);
    if (status == OK)
        status = make_extras(&x, *folder);
    status = status_of_input(status);
    if (status == OK) {
        options->checkpoint = *folder;
        options->recipe = x.recipe;
        options->files = &x.files;
        options->ids = &x.ids;
        options->imported_as = x.config.architecture;
        options->context = context_of(&x);
        status = pretrained_export(options, result);
    }
    for (int i = 0; i < PRETRAINED_TOKENIZER_FILES; i++)
        text_free(&x.overrides[i]);
    model_files_free(&x.files);
    recipe_destroy(x.recipe);
    return status;
}

int checkpoint_export(int argc, char **argv)
{
    const char *path = NULL, *tokenizer = NULL;
    char *folder = NULL;
    struct pretrained_export_options options = {.checkpoint = NULL};
    struct pretrained_export_result result;
    enum status status = parse(argc, argv, &options, &path, &tokenizer);
    if (status == OK)
        status = export_checkpoint(&options, path, tokenizer, &folder, &result);
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
