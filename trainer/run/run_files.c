// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_files.h"

#include "base/memory.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/checkpoint/store.h"
#include "trainer/data/data.h"
#include "trainer/data/recipe_data.h"
#include "trainer/tokenizer/chat/chat_template.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A tokenizer that the run does not need may be missing. */
static enum status read_tokenizer(const struct recipe *recipe, struct problems *warnings,
                                  struct model_files *out)
{
    struct pretrained_tokenizer_file files[PRETRAINED_TOKENIZER_FILES];
    const int count = pretrained_tokenizer_files(recipe, files);
    for (int i = 0; i < count; i++) {
        enum status status = pretrained_tokenizer_read(files[i].path, files[i].file, warnings, out);
        if (status == NO_MEMORY)
            return status;
        if (status != OK)
            problems_warn(warnings, "%s: %s; it is not copied into the checkpoints", files[i].key,
                          fail_text());
    }
    return OK;
}

/* Appends the folder of checkpoint.load; nothing if there is none, which checkpoint_load() reports. */
static enum status find_loaded(const struct recipe *recipe, struct text *out)
{
    const char *load = recipe->checkpoint.load;
    AUTO(text) manifest = {0}, skipped = {0};
    int64_t step = recipe->checkpoint.ckpt_step > 0 ? recipe->checkpoint.ckpt_step : -1;
    if (load == NULL || strcmp(load, "auto") == 0)
        return OK;
    text_add(&manifest, "%s/manifest.json", load);
    const bool is_folder_of_steps = access(manifest.chars, F_OK) != 0;
    enum status status = is_folder_of_steps && step < 0 ? store_newest(load, INT64_MAX, &step, &skipped) : OK;
    if (is_folder_of_steps && step >= 0)
        store_of_step(load, step, "", out);
    else if (!is_folder_of_steps)
        text_add(out, "%s", load);
    return status;
}

static enum status read_originals(const struct run *run, struct problems *warnings, struct model_files *out)
{
    AUTO(text) loaded = {0};
    TRY(read_tokenizer(run->recipe, warnings, out));
    enum status status = find_loaded(run->recipe, &loaded);
    if (status == OK && loaded.length > 0 && !model_files_has_tokenizer(out))
        status = model_files_read(loaded.chars, MODEL_TOKENIZER_JSON, MODEL_CHAT_TEMPLATE, warnings, out);
    if (status == OK && loaded.length > 0)
        status = model_files_read(loaded.chars, MODEL_GENERATION_CONFIG, MODEL_CONFIG, warnings, out);
    return status;
}

/* Replaces the template of the model by that of the conversations. */
static enum status add_chat_template(const struct run *run, struct model_files *out)
{
    const char *name = run->data != NULL ? data_chat_template(run->data) : "";
    struct tokenizer *tokenizer = NULL;
    AUTO(text) jinja = {0};
    if (name[0] == 0 || run->recipe->tokenizer.tokenizer_type == TOKENIZER_NONE)
        return OK;
    TRY(recipe_create_tokenizer(run->recipe, &tokenizer));
    enum status status = chat_template_jinja(name, tokenizer, &jinja);
    if (status == OK)
        model_files_set(out, MODEL_CHAT_TEMPLATE, &jinja);
    else
        status =
            fail(BAD_DATA,
                 "data.train was prepared with chat template %s, which does not fit the recipe's tokenizer: "
                 "%s; use the tokenizer that prepared the data",
                 name, fail_text());
    tokenizer_destroy(tokenizer);
    return status;
}

enum status run_files_collect(struct run *run, int64_t newest)
{
    AUTO(problems) warnings = {0};
    AUTO(text) own = {0};
    run->model_files = memory_zeroed(1, sizeof *run->model_files, "the files of the tokenizer");
    enum status status = OK;
    if (newest >= 0) {
        store_of_step(run->recipe->checkpoint.save, newest, "", &own);
        status = model_files_read(own.chars, MODEL_TOKENIZER_JSON, MODEL_CONFIG, &warnings, run->model_files);
    }
    const bool has_own = model_files_has_tokenizer(run->model_files) ||
                         model_files_get(run->model_files, MODEL_CHAT_TEMPLATE) != NULL;
    if (status == OK && !has_own)
        status = read_originals(run, &warnings, run->model_files);
    if (status == OK && !has_own)
        status = add_chat_template(run, run->model_files);
    problems_print(&warnings, stderr);
    return status;
}

void run_files_free(struct run *run)
{
    if (run->model_files != NULL)
        model_files_free(run->model_files);
    free(run->model_files);
    run->model_files = NULL;
}
