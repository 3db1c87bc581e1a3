// SPDX-License-Identifier: Apache-2.0
/* A byte-level BPE tokenizer from a tokenizer.json. Text becomes ids in these steps:
 *
 *     "Hello<|eot|> there"    the document
 *     "Hello" 128009 " there" added tokens                     added_tokens.h
 *     "Hello" ...             normalizer: NFC or another       hf_encode.c
 *     "Hello"   " there"      pre-tokenizer: words             split.h
 *     9906      1070          merges                           bpe.h
 *     128000 9906 128009 1070 post-processor: prefix, suffix   added by the caller
 *
 * Bytes that are not UTF-8 cannot be in Hugging Face's strings. Here a run of them is one word, and the text
 * before and after it is tokenized as two texts; so every text is encoded without loss. But the vocabulary
 * may lack the bytes that never occur in UTF-8 (DeepSeek's has their characters as added tokens, found in
 * text only): each becomes U+FFFD. */
#pragma once

#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/huggingface/added_tokens.h"
#include "trainer/tokenizer/huggingface/split.h"

struct json_t;

enum { HF_SPLITS = 16 };

struct huggingface {
    struct bpe bpe; // first: bpe_decode()
    struct added_token *added;
    int64_t added_count;
    uint8_t *is_special;                 // [bpe.size]
    bool lacks_bytes;                    // of the 13 that never occur in UTF-8; they become U+FFFD
    struct added_tokens raw, normalized; // those found before and after the normalizer
    bool normalizes;
    int normal_form; // of utf8proc_map()
    struct split splits[HF_SPLITS];
    int split_count;
    bool prefix_space; // before words that begin with none
    bool cuts;         // llama_cut() or bpe_cut() is valid
    struct tokens prefix, suffix;
    int32_t begin_of_text; // -1: none
};

/* Reads a tokenizer.json, or the one in a folder. BAD_DATA names the file, the place in it, the value and the
 * problem; IO_ERROR, NOT_SUPPORTED. */
MUST_USE enum status hf_load(const char *path, struct huggingface **out);
void hf_free(struct huggingface *hf); // accepts NULL, and a partially loaded one

/* ---- sections of the file, private to hf_load*.c ---- */

struct hf_loader {
    const char *file;
    struct json_t *root;
    const struct json_t *vocabulary; // token text to id
    int16_t byte_of[512];            // byte_alphabet.h
    struct huggingface *hf;
};

/* Fills `added` and the searches. */
MUST_USE enum status hf_load_added(struct hf_loader *l);
/* Fills is_special, when the number of ids is known. */
MUST_USE enum status hf_load_special(struct hf_loader *l);
/* normalizer, pre_tokenizer, decoder */
MUST_USE enum status hf_load_steps(struct hf_loader *l);
/* Fills prefix and suffix. */
MUST_USE enum status hf_load_post_processor(struct hf_loader *l);
/* Finds the end-of-document token: eos_token of the tokenizer_config.json in the same folder, or a usual
 * name; and the token that begins a text: its bos_token, or the last one of the prefix. */
MUST_USE enum status hf_load_ends(struct hf_loader *l);

/* The id of a token, added or of the vocabulary; -1: none. */
int64_t hf_id_of(const struct hf_loader *l, const char *token);
/* The string of a key, or "" if it is absent or no string. */
const char *hf_string(const struct json_t *object, const char *key);
/* True for an absent key and for null. */
bool hf_is_null(const struct json_t *value);

extern const struct tokenizer_kind kind_huggingface;
