// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"

#include "base/file.h"
#include "trainer/files/json_read.h"
#include "trainer/tokenizer/tokenizer.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    struct text path = {0}, bytes = {0};
    json_t *root = NULL;
    text_add(&path, "%s/tokenizer_config.json", folder);
    if (file_read_small(path.chars, MAX_BYTES, &bytes) == OK)
        // transformers writes an unlimited model_max_length as 10^30, more than an integer of jansson.
        root = json_read(text_chars(&bytes), bytes.length, JSON_DECODE_INT_AS_REAL, NULL);
    const bool begins = !json_is_false(json_object_get(root, "add_bos_token"));
    json_decref(root);
    text_free(&bytes);
    text_free(&path);
    return begins;
}

/* Reads FOLDER/out->file as out->type. *found: the folder has it. */
static enum status try_file(const char *folder, int64_t vocab_size, const struct pretrained_tokenizer *as,
                            bool *found)
{
    struct text path = {0};
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
    text_free(&path);
    return status;
}

enum status pretrained_tokenizer_find(const char *folder, int64_t vocab_size, struct problems *warnings,
                                      struct pretrained_tokenizer *out)
{
    const struct pretrained_tokenizer kinds[] = {
        {"HuggingFaceTokenizer", "tokenizer.json"},
        {begins_texts(folder) ? "Llama2Tokenizer" : "GPTSentencePieceTokenizer", "tokenizer.model"}};
    struct text why = {0};
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
    text_free(&why);
    return status == BAD_CHECKPOINT || status == NO_MEMORY ? status : OK;
}

bool pretrained_tokenizer_in(const char *folder, const struct recipe *recipe, struct text *out)
{
    const char *model = recipe->tokenizer.tokenizer_model;
    if (model == NULL)
        return false;
    struct stat info;
    struct text path = {0};
    const char *slash = strrchr(model, '/');
    text_add(&path, "%s/%s", folder, slash != NULL ? slash + 1 : model);
    const bool found = stat(path.chars, &info) == 0 && S_ISREG(info.st_mode);
    if (found)
        text_add(out, "%s", path.chars);
    text_free(&path);
    return found;
}

/* ---- copies ---- */

/* Copies a small file into the folder, if it exists. */
static enum status copy_file(const struct output_folder *output, const char *path, const char *name,
                             bool *found)
{
    enum { MAX_BYTES = 1 << 30 };
    struct text bytes = {0};
    *found = access(path, F_OK) == 0;
    enum status status = *found ? status_of_input(file_read_small(path, MAX_BYTES, &bytes)) : OK;
    if (*found && status == OK)
        status = output_folder_write(output, name, &bytes);
    text_free(&bytes);
    return status;
}

enum status pretrained_tokenizer_copy_gpt2(const struct output_folder *output, const char *vocab_file,
                                           const char *merge_file, bool *found)
{
    bool vocab, merges;
    struct text config = {0};
    TRY(copy_file(output, vocab_file, "vocab.json", &vocab));
    TRY(copy_file(output, merge_file, "merges.txt", &merges));
    *found = vocab && merges;
    text_add(&config, "{\"tokenizer_class\": \"GPT2Tokenizer\"}\n");
    enum status status = *found ? output_folder_write(output, "tokenizer_config.json", &config) : OK;
    text_free(&config);
    return status;
}

enum status pretrained_tokenizer_copy(const struct output_folder *output, const char *path, const char *name,
                                      bool *found)
{
    static const char *const files[] = {"tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "generation_config.json"};
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    enum status status = copy_file(output, path, name, found);
    for (size_t i = 0; status == OK && strcmp(base, name) == 0 && i < sizeof files / sizeof *files; i++) {
        struct text other = {0};
        bool exists;
        text_add(&other, "%.*s%s", (int)(base - path), path, files[i]);
        if (strcmp(files[i], name) != 0)
            status = copy_file(output, other.chars, files[i], &exists);
        text_free(&other);
    }
    return status;
}
