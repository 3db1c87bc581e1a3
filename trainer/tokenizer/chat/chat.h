// SPDX-License-Identifier: Apache-2.0
/* A conversation, one line of JSON Lines, as token ids, and which of them count in the loss: the answers. Two
 * forms:
 *
 *     {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
 *     {"prompt": "Hi", "completion": "Hello"}               the same as these two messages
 *
 * Special tokens come from the template only: content is encoded with encoder_encode_plain(). Text between
 * two special tokens is encoded as one text, but an answer begins with a token of its own, as when it is
 * generated. */
#pragma once

#include "trainer/tokenizer/chat/chat_template.h"

struct chat_tokens {
    struct tokens ids;
    struct text counts; // a byte for each id: 1 if it counts, else 0
};

/* Appends the conversation of line[0..length). BAD_DATA: the reason and its place in the line (column, or
 * messages[2].role), without file and line. */
MUST_USE enum status chat_encode(const struct chat_template *template, struct encoder *encoder,
                                 const char *line, int64_t length, struct chat_tokens *out);
/* Appends a conversation that an answer follows: the system message (NULL: none) and one of the user.
 * BAD_DATA for an empty one. */
MUST_USE enum status chat_encode_prompt(const struct chat_template *template, struct encoder *encoder,
                                        const char *system, const char *user, int64_t length,
                                        struct tokens *out);
void chat_tokens_free(struct chat_tokens *tokens); // accepts {0}
