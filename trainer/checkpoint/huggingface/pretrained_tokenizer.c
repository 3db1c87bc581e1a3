// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/files/json_read.h"
#include "trainer/tokenizer/tokenizer.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

/* Also of a link whose target is missing, as in a cache with files removed: opening it reports that. */
static bool has_name(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/* Whether <s> begins a text: add_bos_token of tokenizer_config.json, by default true. */
static bool begins_texts(const char *folder)
{
    enum { MAX_BYTES = 16 << 20 };
    AUTO(text) path = {0}, bytes = {0};
    json_t *root = NULL;
    text_add(&path, "%s/tokenizer_config.json", folder);
    if (file_read_small(path.chars, MAX_BYTES, &bytes) == OK)
        // transformers writes an unlimited model_max_length as 10^30, more than an integer of jansson.
        root = json_read(text_chars(&bytes), bytes.length, JSON_DECODE_INT_AS_REAL, NULL);
    const bool begins = !json_is_false(json_object_get(root, "add_bos_token"));
    json_decref(root);
    return begins;
}

/* Reads FOLDER/out->file as out->type. *found: the folder has it. */
static enum status try_file(const char *folder, int64_t vocab_size, const struct pretrained_tokenizer *as,
                            bool *found)
{
    AUTO(text) path = {0};
    struct tokenizer *tokenizer = NULL;
    text_add(&path, "%s/%s", folder, as->file);
    const struct tokenizer_config config = {.type = as->type, .tokenizer_model = path.chars};
    *found = has_name(path.chars);
    enum status status = *found ? tokenizer_create(&config, &tokenizer) : BAD_DATA;
    if (status == OK && tokenizer_vocab_size(tokenizer) > vocab_size)
        status = fail(BAD_CHECKPOINT,
                      "%s: %d ids, but vocab_size %lld in config.json; remove it to import the model without "
                      "tokenizer",
                      path.chars, tokenizer_vocab_size(tokenizer), (long long)vocab_size);
    tokenizer_destroy(tokenizer);
    return status;
}

enum status pretrained_tokenizer_find(const char *folder, int64_t vocab_size, struct problems *warnings,
                                      struct pretrained_tokenizer *out)
{
    const struct pretrained_tokenizer kinds[] = {
        {"HuggingFaceTokenizer", "tokenizer.json"},
        {begins_texts(folder) ? "Llama2Tokenizer" : "GPTSentencePieceTokenizer", "tokenizer.model"}};
    AUTO(text) why = {0};
    enum status status = BAD_DATA;
    *out = (struct pretrained_tokenizer){.type = NULL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && out->type == NULL; i++) {
        bool found;
        status = try_file(folder, vocab_size, &kinds[i], &found);
        if (status == BAD_CHECKPOINT || status == NO_MEMORY)
            break;
        if (status == OK)
            *out = kinds[i];
        else if (found)
            text_add(&why, "%s%s", why.length > 0 ? "; " : "", fail_text());
    }
    if (why.length > 0 && out->type != NULL)
        problems_warn(warnings, "%s; %s is used, as %s", why.chars, out->file, out->type);
    else if (why.length > 0)
        problems_warn(warnings, "%s; the model is imported with tokenizer_type: none (docs/tokenizers.md)",
                      why.chars);
    return status == BAD_CHECKPOINT || status == NO_MEMORY ? status : OK;
}

/* ---- in a checkpoint ---- */

int pretrained_tokenizer_files(const struct recipe *recipe,
                               struct pretrained_tokenizer_file out[PRETRAINED_TOKENIZER_FILES])
{
    const char *model = recipe->tokenizer.tokenizer_model;
    int count = 0;
    switch (recipe->tokenizer.tokenizer_type) {
    case TOKENIZER_BYTE:
    case TOKENIZER_NONE:
        break;
    case TOKENIZER_GPT2_BPE:
        if (recipe->tokenizer.vocab_file == NULL)
            break; // ids only
        out[count++] = (struct pretrained_tokenizer_file){"tokenizer.vocab_file", MODEL_VOCAB_JSON,
                                                          recipe->tokenizer.vocab_file};
        out[count++] = (struct pretrained_tokenizer_file){"tokenizer.merge_file", MODEL_MERGES_TXT,
                                                          recipe->tokenizer.merge_file};
        break;
    case TOKENIZER_HUGGING_FACE:
        out[count++] =
            (struct pretrained_tokenizer_file){"tokenizer.tokenizer_model", MODEL_TOKENIZER_JSON, model};
        break;
    case TOKENIZER_SENTENCEPIECE:
    case TOKENIZER_LLAMA2:
        out[count++] =
            (struct pretrained_tokenizer_file){"tokenizer.tokenizer_model", MODEL_TOKENIZER_MODEL, model};
        break;
    }
    return count;
}

int pretrained_tokenizer_in(const char *folder, const struct recipe *recipe,
                            struct text out[PRETRAINED_TOKENIZER_FILES])
{
    struct pretrained_tokenizer_file files[PRETRAINED_TOKENIZER_FILES];
    const int count = pretrained_tokenizer_files(recipe, files);
    bool found = true;
    for (int i = 0; i < count; i++) {
        struct stat info;
        AUTO(text) path = {0};
        text_add(&path, "%s/%s", folder, model_file_name(files[i].file));
        found = found && stat(path.chars, &info) == 0 && S_ISREG(info.st_mode);
        text_add(&out[i], "%s=%s", files[i].key, path.chars);
    }
    return found ? count : 0;
}

/* ---- copies ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

enum status pretrained_tokenizer_read(const char *path, enum model_file file, struct problems *warnings,
                                      struct model_files *out)
{
    struct stat info;
    AUTO(text) whole = {0}, folder = {0};
    const char *name = model_file_name(file);
    text_add(&whole, "%s", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        text_add(&whole, "/%s", name);
    const size_t above = whole.length - strlen(base_name(whole.chars));
    text_add_bytes(&folder, above > 0 ? whole.chars : "./", above > 0 ? above : 2);
    enum status status = model_files_read_as(whole.chars, file, out);
    if (status == OK && strcmp(base_name(whole.chars), name) == 0)
        status = model_files_read(folder.chars, MODEL_TOKENIZER_JSON, MODEL_CHAT_TEMPLATE, warnings, out);
    return status;
}
