// SPDX-License-Identifier: Apache-2.0
/* Reads the steps of tokenizer.json: normalizer, pre_tokenizer and decoder. */
#include "trainer/tokenizer/huggingface/huggingface.h"

#include <jansson.h>
#include <string.h>
#include <utf8proc.h>

#define PLACE(out, ...) snprintf((out), sizeof(out), __VA_ARGS__)

/* ---- normalizer ---- */

static enum status load_normalizer(struct hf_loader *l, const json_t *normalizer)
{
    static const struct {
        const char *type;
        int form;
    } forms[] = {{"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
                 {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
                 {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    const char *type = hf_string(normalizer, "type");
    if (hf_is_null(normalizer))
        return OK;
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (strcmp(type, "Sequence") == 0 && json_array_size(list) <= 1)
        return json_array_size(list) == 0 ? OK : load_normalizer(l, json_array_get(list, 0));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].type) == 0) {
            l->hf->normalizes = true;
            l->hf->normal_form = forms[i].form;
            return OK;
        }
    return fail(BAD_DATA,
                "%s: normalizer.type \"%.80s\"%s is not supported; there are NFC, NFD, NFKC and NFKD",
                l->file, type, strcmp(type, "Sequence") == 0 ? " of several normalizers" : "");
}

/* ---- pre_tokenizer ---- */

/* The state of the traversal of a pre_tokenizer. */
struct steps {
    bool byte_level; // the last step was reached
};

static enum status add_split(struct hf_loader *l, const char *place, const struct split *split)
{
    struct huggingface *hf = l->hf;
    if (hf->split_count == HF_SPLITS)
        return fail(BAD_DATA, "%s: %s: more than %d steps are not supported", l->file, place, HF_SPLITS);
    hf->splits[hf->split_count++] = *split;
    return OK;
}

static enum status load_split(struct hf_loader *l, const json_t *step, const char *place)
{
    static const char *const behaviors[] = {[SPLIT_ISOLATED] = "Isolated",
                                            [SPLIT_REMOVED] = "Removed",
                                            [SPLIT_CONTIGUOUS] = "Contiguous",
                                            [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                            [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext"};
    const char *behavior = hf_string(step, "behavior");
    int which = 0, count = (int)(sizeof behaviors / sizeof *behaviors);
    while (which < count && strcmp(behavior, behaviors[which]) != 0)
        which++;
    if (which == count)
        return fail(BAD_DATA,
                    "%s: %s.behavior \"%.80s\" is not supported; there are Isolated, Removed, Contiguous, "
                    "MergedWithPrevious and MergedWithNext",
                    l->file, place, behavior);
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const char *chars = json_string_value(regex != NULL ? regex : string);
    if (chars == NULL || *chars == 0)
        return fail(BAD_DATA, "%s: %s.pattern is neither {\"Regex\": \"...\"} nor {\"String\": \"...\"}",
                    l->file, place);
    struct split split = {.behavior = (enum split_behavior)which,
                          .invert = json_is_true(json_object_get(step, "invert"))};
    PLACE(split.place, "%s.pattern", place);
    enum status status = split_compile(chars, strlen(chars), regex == NULL, &split);
    if (status != OK)
        return fail(status, "%s: %s.pattern \"%.200s\": %s", l->file, place, chars, fail_text());
    status = add_split(l, place, &split);
    if (status != OK)
        split_free(&split);
    return status;
}

static enum status load_byte_level(struct hf_loader *l, const json_t *step, const char *place,
                                   struct steps *steps)
{
    struct huggingface *hf = l->hf;
    const json_t *words = json_object_get(step, "use_regex");
    steps->byte_level = true;
    // Absent keys have the defaults of early files: GPT-2's.
    hf->prefix_space = json_is_true(json_object_get(step, "add_prefix_space"));
    if (words != NULL && !json_is_true(words))
        return OK;
    return add_split(l, place, &(struct split){.pattern = SPLIT_GPT2_WORDS, .behavior = SPLIT_ISOLATED});
}

static enum status load_step(struct hf_loader *l, const json_t *step, const char *place, int depth,
                             struct steps *steps)
{
    const char *type = hf_string(step, "type");
    if (steps->byte_level)
        return fail(BAD_DATA, "%s: %s: a step \"%.80s\" after ByteLevel is not supported", l->file, place,
                    type);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(l, step, place, steps);
    if (strcmp(type, "Split") == 0)
        return load_split(l, step, place);
    if (strcmp(type, "Digits") == 0)
        return add_split(
            l, place,
            &(struct split){.pattern = SPLIT_DIGITS,
                            .behavior = SPLIT_ISOLATED,
                            .digits = json_is_true(json_object_get(step, "individual_digits")) ? 1 : 0});
    if (strcmp(type, "Sequence") != 0 || depth > 3)
        return fail(
            BAD_DATA,
            "%s: %s.type \"%.80s\" is not supported; there are ByteLevel, Split, Digits and Sequence%s",
            l->file, place, type,
            strcmp(type, "Metaspace") == 0
                ? "; use the model's SentencePiece file with GPTSentencePieceTokenizer or Llama2Tokenizer"
                : "");
    const json_t *list = json_object_get(step, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[80];
        PLACE(inner, "%s.pretokenizers[%zu]", place, i);
        TRY(load_step(l, json_array_get(list, i), inner, depth + 1, steps));
    }
    return OK;
}

/* A position where text can be cut is known only for the built-in patterns, alone, and for added tokens
 * that do not look at the text around them. */
static bool can_cut(const struct huggingface *hf)
{
    for (int64_t i = 0; i < hf->added_count; i++) {
        const struct added_token *t = &hf->added[i];
        if (t->lstrip || t->rstrip || t->single_word || strpbrk(t->content, " \n") != NULL)
            return false;
    }
    bool form = !hf->normalizes || hf->normal_form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return form && hf->split_count == 1 && split_is_words(&hf->splits[0]) && !hf->prefix_space;
}

/* ---- decoder ---- */

static enum status check_decoder(const struct hf_loader *l, const json_t *decoder, int depth)
{
    const char *type = hf_string(decoder, "type");
    if (hf_is_null(decoder) || strcmp(type, "ByteLevel") == 0)
        return OK;
    if (strcmp(type, "Sequence") != 0 || depth > 3)
        return fail(BAD_DATA, "%s: decoder.type \"%.80s\" is not supported, only ByteLevel", l->file, type);
    const json_t *list = json_object_get(decoder, "decoders");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(check_decoder(l, json_array_get(list, i), depth + 1));
    return OK;
}

enum status hf_load_steps(struct hf_loader *l)
{
    struct steps steps = {0};
    TRY(load_normalizer(l, json_object_get(l->root, "normalizer")));
    const json_t *pre_tokenizer = json_object_get(l->root, "pre_tokenizer");
    if (!hf_is_null(pre_tokenizer))
        TRY(load_step(l, pre_tokenizer, "pre_tokenizer", 0, &steps));
    if (!steps.byte_level)
        return fail(BAD_DATA,
                    "%s: pre_tokenizer has no step ByteLevel, and only byte-level BPE is supported; use the "
                    "model's SentencePiece file with GPTSentencePieceTokenizer or Llama2Tokenizer",
                    l->file);
    TRY(check_decoder(l, json_object_get(l->root, "decoder"), 0));
    l->hf->cuts = can_cut(l->hf);
    return OK;
}
