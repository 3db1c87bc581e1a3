// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/huggingface/added_tokens.h"

#include "trainer/tokenizer/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

/* The child of `node` for a byte, or 0. */
static int32_t child_of(const struct added_tokens *t, int32_t node, unsigned char byte)
{
    if (node == 0)
        return t->first[byte];
    int32_t child = t->nodes[node].child;
    while (child != 0 && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

static void insert(struct added_tokens *t, int32_t index)
{
    const struct added_token *token = &t->list[index];
    int32_t node = 0;
    for (int64_t i = 0; i < token->length; i++) {
        unsigned char byte = (unsigned char)token->content[i];
        int32_t child = child_of(t, node, byte);
        if (child == 0) {
            child = t->node_count++;
            t->nodes[child] = (struct trie_node){
                .byte = byte, .sibling = node != 0 ? t->nodes[node].child : 0, .token = -1};
            if (node == 0)
                t->first[byte] = child;
            else
                t->nodes[node].child = child;
        }
        node = child;
    }
    t->nodes[node].token = index;
}

enum status added_tokens_create(const struct added_token *list, int64_t count, bool normalized,
                                struct added_tokens *out)
{
    int64_t bytes = 1;
    for (int64_t i = 0; i < count; i++)
        bytes += list[i].normalized == normalized ? list[i].length : 0;
    *out = (struct added_tokens){.list = list, .node_count = 1};
    if (bytes == 1)
        return OK;
    out->nodes = bytes < INT32_MAX ? calloc((size_t)bytes, sizeof *out->nodes) : NULL;
    if (out->nodes == NULL)
        return fail(NO_MEMORY, "no memory for the added tokens of a tokenizer");
    for (int64_t i = 0; i < count; i++)
        if (list[i].normalized == normalized)
            insert(out, (int32_t)i);
    return OK;
}

void added_tokens_free(struct added_tokens *tokens)
{
    free(tokens->nodes);
    *tokens = (struct added_tokens){0};
}

/* The longest token at the beginning of text[0..length), or -1. */
static int32_t longest_at(const struct added_tokens *t, const char *text, int64_t length)
{
    int32_t node = 0, best = -1;
    for (int64_t i = 0; i < length; i++) {
        node = child_of(t, node, (unsigned char)text[i]);
        if (node == 0)
            break;
        best = t->nodes[node].token >= 0 ? t->nodes[node].token : best;
    }
    return best;
}

/* Start of the character that ends at text[at], at least 1. */
static int64_t character_before(const char *text, int64_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static bool stands_alone(const struct added_search *s, int64_t begin, int64_t end)
{
    int64_t before = begin > 0 ? character_before(s->text, begin) : 0;
    if (begin > 0 && character_is_word(s->text + before, begin - before))
        return false;
    return end == s->length || !character_is_word(s->text + end, s->length - end);
}

static int64_t spaces_before(const char *text, int64_t at)
{
    int64_t used = 0;
    while (at > 0) {
        int64_t begin = character_before(text, at);
        if (character_at(text + begin, at - begin, &used) != CHARACTER_SPACE)
            break;
        at = begin;
    }
    return at;
}

static int64_t spaces_after(const char *text, int64_t at, int64_t length)
{
    for (int64_t used = 0; at < length; at += used)
        if (character_at(text + at, length - at, &used) != CHARACTER_SPACE)
            break;
    return at;
}

bool added_tokens_next(const struct added_tokens *tokens, struct added_search *search,
                       struct added_match *out)
{
    if (tokens->nodes == NULL)
        return false;
    while (search->at < search->length) {
        int32_t index = -1;
        if (tokens->first[(unsigned char)search->text[search->at]] != 0)
            index = longest_at(tokens, search->text + search->at, search->length - search->at);
        if (index < 0) {
            search->at++;
            continue;
        }
        const struct added_token *token = &tokens->list[index];
        int64_t begin = search->at, end = begin + token->length;
        search->at = end;
        if (token->single_word && !stands_alone(search, begin, end))
            continue;
        if (token->special && search->plain)
            continue;
        if (token->lstrip)
            begin = spaces_before(search->text, begin);
        if (token->rstrip)
            end = spaces_after(search->text, end, search->length);
        *out = (struct added_match){begin > search->taken ? begin : search->taken, end, token->id};
        search->taken = end;
        return true;
    }
    return false;
}
