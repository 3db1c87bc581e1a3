// SPDX-License-Identifier: Apache-2.0
/* Finds added tokens ("<|endoftext|>") in text: the leftmost, then the longest, by a trie of their bytes. */
#pragma once

#include "base/status.h"

struct added_token {
    char *content; // UTF-8, not empty; owned by the list
    int64_t length;
    int32_t id;
    bool single_word;    // only where no word character is next to it
    bool lstrip, rstrip; // takes the spaces before or after it
    bool normalized;     // matches the normalized text
    bool special;        // not found in text that is not trusted
};

struct trie_node {
    unsigned char byte;
    int32_t child, sibling; // index; 0: none
    int32_t token;          // index of the token that ends here; -1: none
};

/* {0} finds nothing. The tokens are borrowed. */
struct added_tokens {
    const struct added_token *list;
    struct trie_node *nodes; // nodes[0] is the root
    int32_t node_count;
    int32_t first[256]; // node of a first byte; 0: none
};

/* Builds the trie of the tokens of list[0..count) whose `normalized` is as given. NO_MEMORY. */
MUST_USE enum status added_tokens_create(const struct added_token *list, int64_t count, bool normalized,
                                         struct added_tokens *out);
void added_tokens_free(struct added_tokens *tokens); // accepts {0}

/* A search through text[0..length), valid UTF-8. */
struct added_search {
    const char *text;
    int64_t length;
    int64_t at;    // where the search continues
    int64_t taken; // end of the previous token, with the spaces after it
    bool plain;    // special tokens are text
};

struct added_match {
    int64_t begin, end; // with the spaces that it takes
    int32_t id;
};

/* Finds the next token; false: there is none. */
bool added_tokens_next(const struct added_tokens *tokens, struct added_search *search,
                       struct added_match *out);
