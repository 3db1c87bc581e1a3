// SPDX-License-Identifier: Apache-2.0
/* Finds the files that a recipe names. */
#include "base/memory.h"
#include "trainer/recipe/recipe_table.h"
#include "trainer/tokenizer/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The length of a file's name without .yaml or .yml; 0: it has another ending. */
static size_t stem_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0) ? (size_t)(dot - name) : 0;
}

static int is_yaml(const struct dirent *entry)
{
    return stem_of(entry->d_name) > 0;
}

/* The entry whose name is nearest to this one, apart from the ending; -1: none is near. */
static int near_entry(const char *name, struct dirent **entries, int count)
{
    AUTO_FREE const char **stems = memory_zeroed((size_t)count + 1, sizeof *stems, "the names of a folder");
    int found = -1;
    AUTO_FREE char *stem = text_copy(name);
    stem[stem_of(name) > 0 ? stem_of(name) : strlen(name)] = 0;
    for (int i = 0; i < count; i++) {
        char *of_entry = text_copy(entries[i]->d_name);
        of_entry[stem_of(of_entry)] = 0;
        stems[i] = of_entry;
    }
    const char *near = count > 0 ? nearest_name(stem, stems, (size_t)count) : NULL;
    for (int i = 0; i < count; i++) {
        found = near != NULL && stems[i] == near ? i : found;
        free((char *)(uintptr_t)stems[i]);
    }
    return found;
}

void recipe_near_file(const char *path, struct text *hint)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    AUTO(text) folder = {0};
    struct dirent **entries = NULL;
    if (access(path, F_OK) == 0)
        return;
    text_add(&folder, "%.*s", (int)(name - path), path);
    const int count = scandir(folder.length > 0 ? folder.chars : ".", &entries, is_yaml, alphasort);
    const int near = near_entry(name, entries, count > 0 ? count : 0);
    if (near >= 0)
        text_add(hint, "; did you mean %s%s?", text_chars(&folder), entries[near]->d_name);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

/* advice: how to mend a missing file. */
static bool check_path_with(const struct recipe *recipe, const char *key, const char *path,
                            const char *advice, struct problems *problems)
{
    AUTO(text) where = {0};
    if (access(path, R_OK) == 0)
        return true;
    int why = errno;
    recipe_origin_text(recipe, recipe_row_index(key), &where);
    problems_add(problems, "%s: %s: %s: %s%s", text_chars(&where), key, path, strerror(why),
                 why == ENOENT ? advice : "");
    return false;
}

static bool check_path(const struct recipe *recipe, const char *key, const char *path,
                       struct problems *problems)
{
    const bool is_load = strcmp(key, "checkpoint.load") == 0;
    return check_path_with(recipe, key, path, is_load ? "; use auto, none or a checkpoint directory" : "",
                           problems);
}

/* The options of `cuboid data prepare` for the tokenizer of the recipe, which may not know it. */
static void add_tokenizer_options(const struct recipe *recipe, struct text *out)
{
    const struct recipe_tokenizer *t = &recipe->tokenizer;
    if (t->tokenizer_type == TOKENIZER_NONE)
        text_add(out, " and the model's tokenizer (--tokenizer), since tokenizer.tokenizer_type is none");
    else if (t->tokenizer_type != TOKENIZER_BYTE)
        text_add(out, " --tokenizer %s", recipe_tokenizer_name(recipe));
    if (t->vocab_file != NULL && t->merge_file != NULL)
        text_add(out, " --vocab-file %s --merge-file %s", t->vocab_file, t->merge_file);
    if (t->tokenizer_model != NULL)
        text_add(out, " --tokenizer-model %s", t->tokenizer_model);
}

/* How to make a dataset that is missing. */
static void add_prepare(const struct recipe *recipe, const char *prefix, struct text *out)
{
    struct stat info;
    const bool is_text = stat(prefix, &info) == 0 && S_ISREG(info.st_mode);
    if (is_text)
        text_add(
            out,
            "; %s is a file, not the prefix of a dataset: prepare its text with cuboid data prepare %s -o "
            "PREFIX",
            prefix, prefix);
    else
        text_add(out, "; make the dataset with cuboid data prepare TEXT -o %s", prefix);
    add_tokenizer_options(recipe, out);
    text_add(out, is_text ? ", and use PREFIX here" : "");
}

/* Names only one of the files of a missing source. */
static void check_sources(const struct recipe *recipe, const char *key, const struct recipe_sources *sources,
                          struct problems *problems)
{
    static const char *const endings[] = {".idx", ".bin"};
    for (size_t i = 0; i < sources->count; i++) {
        const char *path = sources->list[i].path;
        AUTO(text) advice = {0};
        bool there = true;
        add_prepare(recipe, path, &advice);
        for (int e = 0; e < 2 && there; e++) {
            AUTO(text) file = {0};
            text_add(&file, "%s%s", path, endings[e]);
            there = check_path_with(recipe, key, file.chars, advice.chars, problems);
        }
    }
}

static void strip_endings(struct recipe_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        char *path = sources->list[i].path;
        const size_t length = path != NULL ? strlen(path) : 0;
        if (length > 4 && (strcmp(path + length - 4, ".bin") == 0 || strcmp(path + length - 4, ".idx") == 0))
            path[length - 4] = 0;
    }
}

void recipe_strip_sources(struct recipe *recipe)
{
    strip_endings(&recipe->data.train);
    strip_endings(&recipe->data.valid);
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

/* ---- the size of the vocabulary ---- */

void vocabulary_cache_free(struct vocabulary_cache *cache)
{
    free(cache->files);
    *cache = (struct vocabulary_cache){.files = NULL};
}

static enum status read_size(const struct tokenizer_config *config, int64_t *out)
{
    struct tokenizer *tokenizer = NULL;
    TRY(tokenizer_create(config, &tokenizer));
    *out = tokenizer_vocab_size(tokenizer);
    tokenizer_destroy(tokenizer);
    return OK;
}

bool recipe_read_vocabulary(struct recipe *recipe, struct vocabulary_cache *cache, struct problems *problems)
{
    const enum origin_kind origin = recipe->origin[recipe_row_index("model.vocab_size")].kind;
    const struct tokenizer_config config = {.type = recipe_tokenizer_name(recipe),
                                            .vocab_file = recipe->tokenizer.vocab_file,
                                            .merge_file = recipe->tokenizer.merge_file,
                                            .tokenizer_model = recipe->tokenizer.tokenizer_model};
    const bool has_files =
        config.tokenizer_model != NULL || (config.vocab_file != NULL && config.merge_file != NULL);
    recipe->tokenizer.vocab_size = 0;
    if (origin == FROM_FILE || origin == FROM_COMMAND_LINE || !has_files ||
        recipe->tokenizer.tokenizer_type == TOKENIZER_NONE)
        return true;
    struct text files = {0};
    text_add(&files, "%s\n%s\n%s\n%s", config.type, config.vocab_file != NULL ? config.vocab_file : "",
             config.merge_file != NULL ? config.merge_file : "",
             config.tokenizer_model != NULL ? config.tokenizer_model : "");
    enum status status = OK;
    if (cache->files == NULL || strcmp(cache->files, files.chars) != 0) {
        vocabulary_cache_free(cache);
        status = read_size(&config, &cache->size);
        cache->files = status == OK ? text_copy(files.chars) : NULL;
    }
    text_free(&files);
    recipe->tokenizer.vocab_size = status == OK ? cache->size : 0;
    if (status == OK || status == IO_ERROR || status == NOT_SUPPORTED)
        return true; // without the files, model.vocab_size is required
    problems_add(problems, "tokenizer.%s: %s",
                 config.tokenizer_model != NULL ? "tokenizer_model" : "vocab_file and merge_file",
                 fail_text());
    return false;
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
    AUTO(problems) missing = {0};
    recipe_check_files(recipe, false, &missing);
    for (size_t i = 0; i < missing.count; i++)
        problems_warn(problems, "%s", missing.list[i].text);
}
