// SPDX-License-Identifier: Apache-2.0
/* Text to token ids and back. Every tokenizer is a row in the table of tokenizer.c, and is lossless: decoding
 * what was encoded gives the same bytes, whether or not they are UTF-8.
 *
 *     byte     the ids 0..255 are the bytes, 256 ends a document; needs no file
 *     GPT2BPE  GPT-2's byte-level BPE, from its vocab.json and merges.txt
 *
 * A tokenizer is read-only once made, and threads may share it. What encoding learns on the way (a cache
 * of words) lives in an encoder; each thread has its own.
 *
 * The trap: encoding a text in two parts is not encoding it whole, because a word may lie across the
 * cut. encoder_cut() says where a cut changes nothing. */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

struct tokenizer;
struct encoder;

/* Named as the recipe's tokenizer: keys. Files may be NULL for a kind that needs none. */
struct tokenizer_config {
    const char *type; // "byte", "GPT2BPE" ("gpt2" is the same); case does not matter
    const char *vocab_file;
    const char *merge_file;
};

/* A list of ids that grows. {0} is empty; tokens_free() takes it. */
struct tokens {
    int32_t *ids;
    int64_t count;
    int64_t capacity;
};

/* Makes room for `more` ids after the last one. NO_MEMORY when there is none. */
MUST_USE enum status tokens_reserve(struct tokens *tokens, int64_t more);
void tokens_free(struct tokens *tokens);

/* BAD_RECIPE for an unknown type or a missing file name, BAD_DATA or IO_ERROR for a bad file. */
MUST_USE enum status tokenizer_create(const struct tokenizer_config *config, struct tokenizer **out);
void tokenizer_destroy(struct tokenizer *tokenizer); // takes NULL

const char *tokenizer_name(const struct tokenizer *tokenizer);        // "byte", "GPT2BPE"
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);      // ids are in [0, this)
int32_t tokenizer_end_of_document(const struct tokenizer *tokenizer); // the id that ends a document

/* The tokenizer must outlive the encoder. */
MUST_USE enum status encoder_create(const struct tokenizer *tokenizer, struct encoder **out);
void encoder_destroy(struct encoder *encoder); // takes NULL

/* Adds the ids of bytes[0..length) to `out`. No end of document is added, and text that spells one
 * ("<|endoftext|>") is text like any other. */
MUST_USE enum status encoder_encode(struct encoder *encoder, const char *bytes, int64_t length,
                                    struct tokens *out);

/* How many of bytes[0..length) may be encoded now, when more text follows, so that encoding the rest
 * later gives the same ids as encoding all at once: a number in [0, length]; 0 asks for more text. */
int64_t encoder_cut(const struct encoder *encoder, const char *bytes, int64_t length);

/* Adds the bytes of `ids` to `out`; the end of a document has none with `byte`, "<|endoftext|>" with
 * GPT2BPE. BAD_DATA for an id outside the vocabulary. */
MUST_USE enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                      struct text *out);
