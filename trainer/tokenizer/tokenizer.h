// SPDX-License-Identifier: Apache-2.0
/* Text to token ids and back. Every tokenizer is a row in the table of tokenizer.c.
 *
 *     byte                  the ids 0..255 are the bytes, 256 ends a document; needs no file
 *     GPT2BPE               GPT-2's byte-level BPE, from its vocab.json and merges.txt
 *     HuggingFaceTokenizer  byte-level BPE as a tokenizer.json describes it (Llama 3, Qwen, ...)
 *     GPTSentencePieceTokenizer, Llama2Tokenizer   SentencePiece models; the second adds <s> before a text
 *
 * All are lossless unless their file asks for a change of the text (a normalizer): decoding returns the
 * encoded bytes, whether or not they are UTF-8. docs/tokenizers.md describes the types.
 *
 * A tokenizer is immutable, and threads may share it. Mutable state of encoding (a cache of words) belongs to
 * an encoder; each thread has its own.
 *
 * Caution: encoding a text in two parts differs from encoding it whole if the cut is inside a word.
 * encoder_cut() returns a safe position. */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

struct tokenizer;
struct encoder;

/* Named like the recipe's tokenizer: keys. Files may be NULL for a type that needs none. */
struct tokenizer_config {
    const char
        *type; // "byte", "GPT2BPE" (alias "gpt2"), "HuggingFaceTokenizer" ("hf"), ...; case-insensitive
    const char *vocab_file;
    const char *merge_file;
    const char *tokenizer_model; // a file, or the folder of a tokenizer.json
};

/* A growing list of ids. {0} is empty; release it with tokens_free(). */
struct tokens {
    int32_t *ids;
    int64_t count;
    int64_t capacity;
};

/* Reserves space for `more` ids after the last one. */
void tokens_reserve(struct tokens *tokens, int64_t more);
void tokens_append(struct tokens *tokens, const int32_t *ids, int64_t count);
void tokens_free(struct tokens *tokens);

/* BAD_RECIPE for an unknown type or a missing file name, BAD_DATA or IO_ERROR for a bad file. */
MUST_USE enum status tokenizer_create(const struct tokenizer_config *config, struct tokenizer **out);
void tokenizer_destroy(struct tokenizer *tokenizer); // accepts NULL

const char *tokenizer_name(const struct tokenizer *tokenizer);        // "byte", "GPT2BPE"
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);      // ids are in [0, vocab_size)
int32_t tokenizer_end_of_document(const struct tokenizer *tokenizer); // id of the end-of-document token

/* The token that begins a text, bos_token of transformers, whether or not the tokenizer adds it; -1: none. */
int32_t tokenizer_begin_of_text(const struct tokenizer *tokenizer);

/* The ids that the tokenizer adds before and after every text, such as Llama 3's <|begin_of_text|>; mostly
 * none. encoder_encode() does not add them, since it may encode a text in parts. */
const struct tokens *tokenizer_prefix(const struct tokenizer *tokenizer);
const struct tokens *tokenizer_suffix(const struct tokenizer *tokenizer);

/* The id of a special token ("<|im_start|>"), which encoder_encode_plain() never makes; -1: there is none. */
int32_t tokenizer_special_token(const struct tokenizer *tokenizer, const char *content);
/* Whether a space is added before every text that is encoded (SentencePiece). */
bool tokenizer_adds_space(const struct tokenizer *tokenizer);

/* The tokenizer must outlive the encoder. */
MUST_USE enum status encoder_create(const struct tokenizer *tokenizer, struct encoder **out);
void encoder_destroy(struct encoder *encoder); // accepts NULL

/* Appends the ids of bytes[0..length) to `out`. Adds no end of document. Text that spells a special token
 * ("<|endoftext|>") becomes this token with HuggingFaceTokenizer, like in Hugging Face's library; with the
 * other types it is encoded like any other text. */
MUST_USE enum status encoder_encode(struct encoder *encoder, const char *bytes, int64_t length,
                                    struct tokens *out);

/* Same for text from a source that is not trusted: no special token is appended, whatever the text spells.
 * BAD_DATA if the vocabulary has one for a word of it. */
MUST_USE enum status encoder_encode_plain(struct encoder *encoder, const char *bytes, int64_t length,
                                          struct tokens *out);

/* Number of bytes of bytes[0..length) that may be encoded now if more text follows, such that encoding the
 * rest later gives the same ids as encoding everything at once: in [0, length]; 0: more text is needed. */
int64_t encoder_cut(const struct encoder *encoder, const char *bytes, int64_t length);

/* Appends the bytes of `ids` to `out`; the end of a document is empty for `byte`, "<|endoftext|>" for
 * GPT2BPE. ids[0] begins a text: a space that the tokenizer adds before every text is removed. BAD_DATA for
 * an id outside the vocabulary. */
MUST_USE enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                      struct text *out);
/* Same for ids that continue a text. */
MUST_USE enum status tokenizer_decode_more(const struct tokenizer *tokenizer, const int32_t *ids,
                                           int64_t count, struct text *out);
