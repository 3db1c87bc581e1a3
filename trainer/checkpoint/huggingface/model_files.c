// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/model_files.h"

#include "base/memory.h"
#include "trainer/files/inside.h"
#include "trainer/files/json_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ---- */

/* An object of JSON; an integer of any size. */
static bool is_json(const struct text *bytes)
{
    json_t *root = json_read(text_chars(bytes), bytes->length, JSON_DECODE_INT_AS_REAL, NULL);
    const bool is_object = json_is_object(root);
    json_decref(root);
    return is_object;
}

/* UTF-8 without zeros. */
static bool is_text(const struct text *bytes)
{
    const char *at = text_chars(bytes), *end = at + bytes->length;
    for (int length; at < end; at += length) {
        length = *at != 0 ? utf8_length(at) : 0;
        if (length == 0)
            return false;
    }
    return true;
}

/* Jinja, as a template has to be that writes anything of a conversation. */
static bool is_template(const struct text *bytes)
{
    return is_text(bytes) && strstr(text_chars(bytes), "{{") != NULL &&
           strstr(text_chars(bytes), "}}") != NULL;
}

/* Lines of two words, after one that may be a comment. */
static bool is_merges(const struct text *bytes)
{
    const char *at = text_chars(bytes);
    if (!is_text(bytes))
        return false;
    for (bool first = true; *at != 0; first = false) {
        const size_t length = strcspn(at, "\n"), word = strcspn(at, " \n");
        const bool is_pair =
            word > 0 && word + 1 < length && memchr(at + word + 1, ' ', length - word - 1) == NULL;
        if (length > 0 && !is_pair && !(first && *at == '#'))
            return false;
        at += length + (at[length] == '\n');
    }
    return true;
}

static bool read_varint(const struct text *bytes, size_t *at, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *at < bytes->length; shift += 7) {
        const unsigned char byte = (unsigned char)bytes->chars[(*at)++];
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* A message of Protocol Buffers that begins with field 1, the pieces. */
static bool is_sentencepiece(const struct text *bytes)
{
    enum { VARINT, FIXED_64, DELIMITED, FIXED_32 = 5, FIRST_PIECE = 0x0A };
    if (bytes->length == 0 || bytes->chars[0] != FIRST_PIECE)
        return false;
    for (size_t at = 0; at < bytes->length;) {
        uint64_t tag, size = 0;
        if (!read_varint(bytes, &at, &tag) || tag >> 3 == 0)
            return false;
        const int type = (int)(tag & 7);
        if ((type == VARINT || type == DELIMITED) && !read_varint(bytes, &at, &size))
            return false;
        if (type != VARINT && type != FIXED_64 && type != DELIMITED && type != FIXED_32)
            return false;
        size = type == FIXED_64 ? 8 : type == FIXED_32 ? 4 : type == VARINT ? 0 : size;
        if (size > bytes->length - at)
            return false;
        at += size;
    }
    return true;
}

static const struct {
    const char *name, *what;
    bool (*parses)(const struct text *bytes);
} kinds[] = {
    [MODEL_TOKENIZER_JSON] = {"tokenizer.json", "an object of JSON", is_json},
    [MODEL_TOKENIZER_MODEL] = {"tokenizer.model", "a SentencePiece model", is_sentencepiece},
    [MODEL_VOCAB_JSON] = {"vocab.json", "an object of JSON", is_json},
    [MODEL_MERGES_TXT] = {"merges.txt", "lines of two words", is_merges},
    [MODEL_TOKENIZER_CONFIG] = {"tokenizer_config.json", "an object of JSON", is_json},
    [MODEL_SPECIAL_TOKENS_MAP] = {"special_tokens_map.json", "an object of JSON", is_json},
    [MODEL_ADDED_TOKENS] = {"added_tokens.json", "an object of JSON", is_json},
    [MODEL_CHAT_TEMPLATE] = {"chat_template.jinja", "a template of Jinja", is_template},
    [MODEL_GENERATION_CONFIG] = {"generation_config.json", "an object of JSON", is_json},
    [MODEL_CONFIG] = {"config.json", "an object of JSON", is_json},
};
_Static_assert(sizeof kinds / sizeof *kinds == MODEL_FILE_COUNT, "a row for each file");

const char *model_file_name(enum model_file file)
{
    return kinds[file].name;
}

bool model_files_has_name(const char *name, size_t length)
{
    for (int i = 0; i < MODEL_FILE_COUNT; i++)
        if (strlen(kinds[i].name) == length && strncmp(kinds[i].name, name, length) == 0)
            return true;
    return false;
}

/* ---- reading ---- */

enum { MAX_BYTES = 1 << 28 };

/* Whether the user of a file reports that it cannot be read: a link without a target, or other content. */
static bool is_reported(enum model_file file)
{
    return file == MODEL_TOKENIZER_JSON || file == MODEL_TOKENIZER_MODEL;
}

static enum status read_one(const char *folder, const char *name, enum model_file file,
                            struct model_files *out)
{
    struct text bytes = {0};
    bool found = false;
    if (is_reported(file) && !inside_exists(folder, name))
        return OK;
    enum status status = inside_read(folder, name, MAX_BYTES, &bytes, &out->list[file].mode, &found);
    const bool parses = status == OK && found && kinds[file].parses(&bytes);
    if (status == OK && found && !parses && !is_reported(file))
        status = fail(BAD_CHECKPOINT, "%s/%s: is not %s; use an intact copy, or remove it", folder, name,
                      kinds[file].what);
    if (parses)
        out->list[file].bytes = bytes;
    else
        text_free(&bytes);
    return status;
}

enum status model_files_read(const char *folder, enum model_file first, enum model_file last,
                             struct problems *warnings, struct model_files *out)
{
    for (enum model_file file = first; file <= last; file++) {
        if (out->list[file].bytes.chars != NULL)
            continue;
        enum status status = read_one(folder, kinds[file].name, file, out);
        if (status != OK && warnings == NULL)
            return status_of_input(status);
        if (status != OK)
            problems_warn(warnings, "%s; it is not copied", fail_text());
    }
    return OK;
}

enum status model_files_read_as(const char *path, enum model_file file, struct model_files *out)
{
    AUTO(text) folder = {0};
    char *real = realpath(path, NULL); // the user named it: links are followed
    if (real == NULL)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    const char *slash = strrchr(real, '/');
    text_add_bytes(&folder, real, slash > real ? (size_t)(slash - real) : 1);
    enum status status = read_one(folder.chars, slash + 1, file, out);
    free(real);
    return status;
}

void model_files_set(struct model_files *files, enum model_file file, const struct text *text)
{
    text_free(&files->list[file].bytes);
    files->list[file].mode = 0777;
    if (text != NULL)
        text_add_bytes(&files->list[file].bytes, text_chars(text), text->length);
}

const struct text *model_files_get(const struct model_files *files, enum model_file file)
{
    return files->list[file].bytes.chars != NULL ? &files->list[file].bytes : NULL;
}

bool model_files_has_tokenizer(const struct model_files *files)
{
    return model_files_get(files, MODEL_TOKENIZER_JSON) != NULL ||
           model_files_get(files, MODEL_TOKENIZER_MODEL) != NULL ||
           (model_files_get(files, MODEL_VOCAB_JSON) != NULL &&
            model_files_get(files, MODEL_MERGES_TXT) != NULL);
}

enum status model_files_write(const struct model_files *files, const char *folder)
{
    for (enum model_file file = 0; file < MODEL_FILE_COUNT; file++)
        if (files->list[file].bytes.chars != NULL)
            TRY(inside_write(folder, kinds[file].name, &files->list[file].bytes, files->list[file].mode));
    return OK;
}

void model_files_free(struct model_files *files)
{
    for (enum model_file file = 0; file < MODEL_FILE_COUNT; file++)
        text_free(&files->list[file].bytes);
}
