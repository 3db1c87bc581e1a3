// SPDX-License-Identifier: Apache-2.0
/* Chat templates: how a conversation is written for a model. A row of the table has the texts around each
 * message, in which braces are special tokens:
 *
 *     {<|im_start|>}            a special token of the tokenizer, which must exist
 *     {[/INST]? [/INST]}        this special token, or if the tokenizer has none, the text after ?
 *     {eos}                     the tokenizer's end-of-document token
 *
 *     chatml   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
 *                                                                   ^^^^^^^^^^^^^^^ counts in the loss
 *
 * A template is compiled for a tokenizer, which resolves the special tokens once. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

enum chat_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, CHAT_ROLES };

/* The texts around a message: before + lead + content + end + after. Of an answer lead, content and end count
 * in the loss. */
enum chat_place { PLACE_BEFORE, PLACE_LEAD, PLACE_END, PLACE_AFTER, PLACE_COUNT };

/* A piece of a text: a token, or text. */
struct chat_piece {
    int32_t id; // -1: text
    const char *text;
    int64_t length;
};

enum { CHAT_PIECES = 8 };
struct chat_pieces {
    struct chat_piece list[CHAT_PIECES];
    int count;
};

struct chat_template {
    const char *name;
    bool trims;      // spaces and line ends around each content are removed
    bool alternates; // after the system message, the roles are user, assistant, user ...
    bool adds_space; // of the tokenizer
    struct chat_pieces begin;
    struct chat_pieces places[CHAT_ROLES][PLACE_COUNT];
    struct chat_pieces after_system; // PLACE_BEFORE of a user message after the system message
};

/* Compiles the template `name`; the tokenizer must outlive it. BAD_USAGE for an unknown name, or a special
 * token that the tokenizer lacks. */
MUST_USE enum status chat_template_create(const char *name, const struct tokenizer *tokenizer,
                                          struct chat_template *out);

/* The token that ends an answer; -1: none. */
int32_t chat_template_end(const struct chat_template *template);

/* Appends the template as Jinja, as transformers reads it, with its name in a comment. */
MUST_USE enum status chat_template_jinja(const char *name, const struct tokenizer *tokenizer,
                                         struct text *out);
/* The name in the comment of such a template; NULL for another one. A literal. */
const char *chat_template_of_jinja(const char *jinja);

extern const char *const chat_role_names[CHAT_ROLES];
