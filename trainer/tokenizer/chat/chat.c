// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/chat/chat.h"

#include "base/memory.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <string.h>

/* A conversation being encoded: `pending` is text that is not encoded yet. */
struct writer {
    const struct chat_template *template;
    struct encoder *encoder;
    struct chat_tokens *out;
    struct text pending;
    bool counts; // what follows counts in the loss
};

/* Marks the ids from `begin` on. */
static void mark(struct writer *w, int64_t begin)
{
    const char counts = w->counts;
    for (int64_t i = begin; i < w->out->ids.count; i++)
        text_add_bytes(&w->out->counts, &counts, 1);
}

/* Encodes the pending text. The space that the tokenizer adds before it replaces its own first one. */
static enum status flush(struct writer *w)
{
    const char *text = text_chars(&w->pending);
    const int64_t begin = w->out->ids.count;
    size_t skip = w->template->adds_space && text[0] == ' ' ? 1 : 0;
    if (w->pending.length > skip)
        TRY(encoder_encode_plain(w->encoder, text + skip, (int64_t)(w->pending.length - skip), &w->out->ids));
    w->pending.length = 0;
    mark(w, begin);
    return OK;
}

static enum status add_pieces(struct writer *w, const struct chat_pieces *pieces)
{
    for (int i = 0; i < pieces->count; i++) {
        const struct chat_piece *piece = &pieces->list[i];
        if (piece->id < 0) {
            text_add_bytes(&w->pending, piece->text, (size_t)piece->length);
            continue;
        }
        TRY(flush(w));
        const int64_t begin = w->out->ids.count;
        tokens_append(&w->out->ids, &piece->id, 1);
        mark(w, begin);
    }
    return OK;
}

static enum status set_counts(struct writer *w, bool counts)
{
    TRY(flush(w));
    w->counts = counts;
    return OK;
}

struct message {
    enum chat_role role;
    const char *content;
    size_t length;
};

static enum status add_message(struct writer *w, const struct message *message, bool after_system)
{
    const struct chat_pieces *places = w->template->places[message->role];
    const bool answer = message->role == ROLE_ASSISTANT;
    TRY(add_pieces(w, message->role == ROLE_USER && after_system ? &w->template->after_system
                                                                 : &places[PLACE_BEFORE]));
    if (answer)
        TRY(set_counts(w, true));
    TRY(add_pieces(w, &places[PLACE_LEAD]));
    text_add_bytes(&w->pending, message->content, message->length);
    TRY(add_pieces(w, &places[PLACE_END]));
    if (answer)
        TRY(set_counts(w, false));
    return add_pieces(w, &places[PLACE_AFTER]);
}

/* ---- the line ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void trim(const struct chat_template *template, struct message *message)
{
    while (template->trims && message->length > 0 && is_space(message->content[message->length - 1]))
        message->length--;
    for (; template->trims && message->length > 0 && is_space(message->content[0]); message->length--)
        message->content++;
}

/* Reads a string; `where` names its place. */
static enum status read_content(const struct chat_template *template, const json_t *value, const char *where,
                                struct message *out)
{
    if (!json_is_string(value))
        return fail(BAD_DATA, "%s is %s; it must be a string", where,
                    value == NULL         ? "missing"
                    : json_is_null(value) ? "null"
                                          : "not a string");
    out->content = json_string_value(value);
    out->length = json_string_length(value);
    trim(template, out);
    if (out->length == 0)
        return fail(BAD_DATA, "%s is empty; remove the message, or the whole line", where);
    return OK;
}

static enum status read_role(const json_t *message, size_t i, enum chat_role *out)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL)
        return fail(BAD_DATA, "messages[%zu] has no string \"role\"; use system, user or assistant", i);
    for (int r = 0; r < CHAT_ROLES; r++)
        if (strcmp(role, chat_role_names[r]) == 0) {
            *out = (enum chat_role)r;
            return OK;
        }
    return fail(BAD_DATA, "messages[%zu].role \"%.40s\" is unknown; use system, user or assistant", i, role);
}

static enum status read_message(const struct chat_template *template, const json_t *value, size_t i,
                                struct message *out)
{
    char where[64];
    if (!json_is_object(value))
        return fail(BAD_DATA, "messages[%zu] is not an object; use {\"role\": \"...\", \"content\": \"...\"}",
                    i);
    TRY(read_role(value, i, &out->role));
    if (out->role == ROLE_SYSTEM && i > 0)
        return fail(BAD_DATA, "messages[%zu].role is system; only the first message may be", i);
    snprintf(where, sizeof where, "messages[%zu].content", i);
    return read_content(template, json_object_get(value, "content"), where, out);
}

/* As the templates of transformers' models. `turn`: messages before this one, without the system message. */
static enum status check_turn(const struct chat_template *template, enum chat_role role, size_t i,
                              size_t turn)
{
    const enum chat_role expected = turn % 2 == 0 ? ROLE_USER : ROLE_ASSISTANT;
    if (!template->alternates || role == expected)
        return OK;
    return fail(BAD_DATA,
                "messages[%zu].role is %s, but template %s needs user, assistant, user, ... in turn: use %s "
                "here, merge the message with its neighbour, or use another template (chatml)",
                i, chat_role_names[role], template->name, chat_role_names[expected]);
}

static enum status add_messages(struct writer *w, const json_t *messages)
{
    size_t turns = 0;
    bool answered = false, after_system = false;
    if (!json_is_array(messages))
        return fail(BAD_DATA,
                    "messages is not a list; use [{\"role\": \"user\", \"content\": \"...\"}, ...]");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        struct message message = {.role = ROLE_USER};
        TRY(read_message(w->template, json_array_get(messages, i), i, &message));
        if (message.role != ROLE_SYSTEM)
            TRY(check_turn(w->template, message.role, i, turns++));
        TRY(add_message(w, &message, after_system));
        answered |= message.role == ROLE_ASSISTANT;
        after_system = message.role == ROLE_SYSTEM;
    }
    if (!answered)
        return fail(
            BAD_DATA,
            "messages has no answer, so no token would count in the loss; add a message whose role is "
            "assistant, or remove the line");
    return OK;
}

static enum status add_completion(struct writer *w, const json_t *root)
{
    struct message prompt = {.role = ROLE_USER}, completion = {.role = ROLE_ASSISTANT};
    TRY(read_content(w->template, json_object_get(root, "prompt"), "prompt", &prompt));
    TRY(read_content(w->template, json_object_get(root, "completion"), "completion", &completion));
    TRY(add_message(w, &prompt, false));
    return add_message(w, &completion, false);
}

static enum status add_line(struct writer *w, const json_t *root)
{
    const json_t *messages = json_object_get(root, "messages");
    if (!json_is_object(root))
        return fail(BAD_DATA, "not a JSON object; use {\"messages\": [...]} or {\"prompt\": \"...\", "
                              "\"completion\": \"...\"}");
    if (messages != NULL && json_object_get(root, "prompt") != NULL)
        return fail(BAD_DATA, "the object has both messages and prompt; remove one");
    if (messages == NULL && json_object_get(root, "prompt") == NULL)
        return fail(BAD_DATA, "the object has neither messages nor prompt; use {\"messages\": [...]} or "
                              "{\"prompt\": \"...\", \"completion\": \"...\"}");
    TRY(add_pieces(w, &w->template->begin));
    TRY(messages != NULL ? add_messages(w, messages) : add_completion(w, root));
    return flush(w);
}

static bool put(char *at, const char *chars)
{
    memcpy(at, chars, strlen(chars));
    return true;
}

/* Overwrites NaN and Infinity outside of strings, which Python's json writes and RFC 8259 does not have, by 0
 * and spaces, so that columns stay the same. Returns whether there was any. */
static bool replace_not_finite(char *line, size_t length)
{
    bool in_string = false, any = false;
    for (size_t i = 0; i < length; i++) {
        const size_t left = length - i;
        if (line[i] == '\\' && in_string)
            i++;
        else if (line[i] == '"')
            in_string = !in_string;
        else if (!in_string && left >= 3 && memcmp(line + i, "NaN", 3) == 0)
            any = put(line + i, "0  ");
        else if (!in_string && left >= 8 && memcmp(line + i, "Infinity", 8) == 0)
            any = put(line + i, "0       ");
    }
    return any;
}

static json_t *read_line(const char *line, size_t length, json_error_t *why)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL;
    json_t *root = json_read(line, length, flags, why);
    if (root != NULL)
        return root;
    AUTO(text) copy = {0};
    text_add_bytes(&copy, line, length);
    if (length > 0 && replace_not_finite(copy.chars, copy.length))
        root = json_read(copy.chars, copy.length, flags, why);
    return root;
}

enum status chat_encode(const struct chat_template *template, struct encoder *encoder, const char *line,
                        int64_t length, struct chat_tokens *out)
{
    json_error_t why;
    json_t *root = read_line(line, (size_t)length, &why);
    if (root == NULL)
        return fail(BAD_DATA, "column %d: %s; each line must be one complete JSON object, in UTF-8",
                    why.position, why.text);
    struct writer w = {.template = template, .encoder = encoder, .out = out};
    enum status status = add_line(&w, root);
    text_free(&w.pending);
    json_decref(root);
    return status;
}

static enum status add_prompt(struct writer *w, struct message *system, struct message *user)
{
    const bool has_system = system->content != NULL;
    trim(w->template, user);
    if (has_system)
        trim(w->template, system);
    if (user->length == 0 || (has_system && system->length == 0))
        return fail(BAD_DATA, "the message of the %s is empty", user->length == 0 ? "user" : "system");
    TRY(add_pieces(w, &w->template->begin));
    if (has_system)
        TRY(add_message(w, system, false));
    TRY(add_message(w, user, has_system));
    TRY(add_pieces(w, &w->template->places[ROLE_ASSISTANT][PLACE_BEFORE]));
    return flush(w);
}

enum status chat_encode_prompt(const struct chat_template *template, struct encoder *encoder,
                               const char *system, const char *user, int64_t length, struct tokens *out)
{
    struct chat_tokens tokens = {.counts = {0}};
    struct writer w = {.template = template, .encoder = encoder, .out = &tokens};
    struct message first = {ROLE_SYSTEM, system, system != NULL ? strlen(system) : 0},
                   second = {ROLE_USER, user, (size_t)length};
    enum status status = add_prompt(&w, &first, &second);
    if (status == OK)
        tokens_append(out, tokens.ids.ids, tokens.ids.count);
    text_free(&w.pending);
    chat_tokens_free(&tokens);
    return status;
}

void chat_tokens_free(struct chat_tokens *tokens)
{
    tokens_free(&tokens->ids);
    text_free(&tokens->counts);
}
