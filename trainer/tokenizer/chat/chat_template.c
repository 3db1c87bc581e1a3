// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/chat/chat_template.h"

#include "base/memory.h"

#include <string.h>

const char *const chat_role_names[CHAT_ROLES] = {"system", "user", "assistant"};

/* The table of docs/finetuning.md. NULL and absent texts are empty. */
static const struct row {
    const char *name;
    bool trims, alternates;
    const char *begin;
    const char *places[CHAT_ROLES][PLACE_COUNT]; // before, lead, end, after
    const char *after_system;                    // NULL: as before any user message
} rows[] = {
    {.name = "chatml",
     .places = {{"{<|im_start|>}system\n", NULL, "{<|im_end|>}", "\n"},
                {"{<|im_start|>}user\n", NULL, "{<|im_end|>}", "\n"},
                {"{<|im_start|>}assistant\n", NULL, "{<|im_end|>}", "\n"}}},
    {.name = "llama3",
     .trims = true,
     .begin = "{<|begin_of_text|>}",
     .places = {{"{<|start_header_id|>}system{<|end_header_id|>}\n\n", NULL, "{<|eot_id|>}", NULL},
                {"{<|start_header_id|>}user{<|end_header_id|>}\n\n", NULL, "{<|eot_id|>}", NULL},
                {"{<|start_header_id|>}assistant{<|end_header_id|>}\n\n", NULL, "{<|eot_id|>}", NULL}}},
    {.name = "llama2",
     .trims = true,
     .alternates = true,
     .places = {{"{<s>}[INST] <<SYS>>\n", NULL, "\n<</SYS>>\n\n", NULL},
                {"{<s>}[INST] ", NULL, " [/INST]", NULL},
                {NULL, " ", " {</s>}", NULL}},
     .after_system = ""},
    {.name = "mistral",
     .alternates = true,
     .begin = "{<s>}",
     .places = {{"{[INST]?[INST]} ", NULL, "\n\n", NULL},
                {"{[INST]?[INST]} ", NULL, "{[/INST]? [/INST]}", NULL},
                {NULL, " ", "{</s>}", NULL}},
     .after_system = ""},
    {.name = "plain", .places = {[ROLE_ASSISTANT] = {NULL, NULL, "{eos}", NULL}}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct row *find_row(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static enum status refuse_name(const char *name)
{
    const char *names[ROWS];
    AUTO(text) known = {0};
    for (int i = 0; i < ROWS; i++) {
        names[i] = rows[i].name;
        text_add(&known, "%s%s", i == 0 ? "" : i + 1 < ROWS ? ", " : " or ", rows[i].name);
    }
    const char *near = nearest_name(name, names, ROWS);
    enum status status = fail(BAD_USAGE, "--chat-template %s is unknown%s%s%s; use %s", name,
                              near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                              near != NULL ? "?)" : "", known.chars);
    return status;
}

static void add_piece(struct chat_pieces *pieces, int32_t id, const char *text, int64_t length)
{
    CHECK(pieces->count < CHAT_PIECES);
    if (id >= 0 || length > 0)
        pieces->list[pieces->count++] = (struct chat_piece){.id = id, .text = text, .length = length};
}

/* Adds the special token between braces, name[0..length). */
static enum status add_special(const struct row *row, const struct tokenizer *tokenizer, const char *name,
                               size_t length, struct chat_pieces *out)
{
    char content[32];
    const char *otherwise = memchr(name, '?', length);
    size_t own = otherwise != NULL ? (size_t)(otherwise - name) : length;
    CHECK(own < sizeof content);
    memcpy(content, name, own);
    content[own] = 0;
    int32_t id = strcmp(content, "eos") == 0 ? tokenizer_end_of_document(tokenizer)
                                             : tokenizer_special_token(tokenizer, content);
    if (id < 0 && otherwise == NULL)
        return fail(
            BAD_USAGE,
            "--chat-template %s needs the special token %s, which the tokenizer (%s) does not have; use "
            "another template (plain needs none)",
            row->name, content, tokenizer_name(tokenizer));
    if (id >= 0)
        add_piece(out, id, NULL, 0);
    else
        add_piece(out, -1, otherwise + 1, (int64_t)(length - own - 1));
    return OK;
}

static enum status compile(const struct row *row, const char *text, const struct tokenizer *tokenizer,
                           struct chat_pieces *out)
{
    for (const char *at = text != NULL ? text : ""; *at != 0;) {
        size_t plain = strcspn(at, "{");
        add_piece(out, -1, at, (int64_t)plain);
        at += plain;
        if (*at == 0)
            break;
        size_t length = strcspn(at + 1, "}");
        TRY(add_special(row, tokenizer, at + 1, length, out));
        at += length + 2;
    }
    return OK;
}

enum status chat_template_create(const char *name, const struct tokenizer *tokenizer,
                                 struct chat_template *out)
{
    const struct row *row = find_row(name);
    if (row == NULL)
        return refuse_name(name);
    struct chat_template template = {.name = row->name,
                                     .trims = row->trims,
                                     .alternates = row->alternates,
                                     .adds_space = tokenizer_adds_space(tokenizer)};
    TRY(compile(row, row->begin, tokenizer, &template.begin));
    for (int role = 0; role < CHAT_ROLES; role++)
        for (int place = 0; place < PLACE_COUNT; place++)
            TRY(compile(row, row->places[role][place], tokenizer, &template.places[role][place]));
    const char *after_system =
        row->after_system != NULL ? row->after_system : row->places[ROLE_USER][PLACE_BEFORE];
    TRY(compile(row, after_system, tokenizer, &template.after_system));
    *out = template;
    return OK;
}

int32_t chat_template_end(const struct chat_template *template)
{
    const struct chat_pieces *end = &template->places[ROLE_ASSISTANT][PLACE_END];
    return end->count > 0 ? end->list[end->count - 1].id : -1;
}

/* ---- Jinja ---- */

static const char name_comment[] = "{# cuboid chat template ";

/* Appends a text of the table as an expression: ` + '<|im_end|>\\n'`, without its braces; nothing for "". */
static enum status add_text(const struct row *row, const char *text, const struct tokenizer *tokenizer,
                            struct text *out)
{
    struct chat_pieces pieces = {.count = 0};
    AUTO(text) plain = {0};
    TRY(compile(row, text, tokenizer, &pieces));
    enum status status = OK;
    for (int i = 0; i < pieces.count && status == OK; i++)
        if (pieces.list[i].id >= 0)
            status = tokenizer_decode_more(tokenizer, &pieces.list[i].id, 1, &plain);
        else
            text_add_bytes(&plain, pieces.list[i].text, (size_t)pieces.list[i].length);
    text_add(out, "%s", plain.length > 0 ? " + '" : "");
    for (size_t i = 0; i < plain.length; i++)
        if (plain.chars[i] == '\n')
            text_add(out, "\\n");
        else
            text_add(out, "%s%c", plain.chars[i] == '\'' || plain.chars[i] == '\\' ? "\\" : "",
                     plain.chars[i]);
    text_add(out, "%s", plain.length > 0 ? "'" : "");
    return status;
}

/* Appends the expression of a message. `before`: its text before the message. */
static enum status add_message(const struct row *row, enum chat_role role, const char *before,
                               const struct tokenizer *tokenizer, struct text *out)
{
    text_add(out, "{{ ''");
    TRY(add_text(row, before, tokenizer, out));
    TRY(add_text(row, row->places[role][PLACE_LEAD], tokenizer, out));
    text_add(out, " + message['content']%s", row->trims ? ".strip()" : "");
    TRY(add_text(row, row->places[role][PLACE_END], tokenizer, out));
    TRY(add_text(row, row->places[role][PLACE_AFTER], tokenizer, out));
    text_add(out, " }}");
    return OK;
}

static enum status add_row(const struct row *row, const struct tokenizer *tokenizer, struct text *out)
{
    const char *user = row->places[ROLE_USER][PLACE_BEFORE];
    text_add(out, "%s%s #}%s", name_comment, row->name, row->begin != NULL ? "{{ ''" : "");
    TRY(add_text(row, row->begin, tokenizer, out));
    text_add(out, "%s{%% for message in messages %%}{%% if message['role'] == 'system' %%}",
             row->begin != NULL ? " }}" : "");
    TRY(add_message(row, ROLE_SYSTEM, row->places[ROLE_SYSTEM][PLACE_BEFORE], tokenizer, out));
    if (row->after_system != NULL) {
        text_add(out, "{%% elif message['role'] == 'user' and loop.index0 == 1 and "
                      "messages[0]['role'] == 'system' %%}");
        TRY(add_message(row, ROLE_USER, row->after_system, tokenizer, out));
    }
    text_add(out, "{%% elif message['role'] == 'user' %%}");
    TRY(add_message(row, ROLE_USER, user, tokenizer, out));
    text_add(out, "{%% elif message['role'] == 'assistant' %%}");
    TRY(add_message(row, ROLE_ASSISTANT, row->places[ROLE_ASSISTANT][PLACE_BEFORE], tokenizer, out));
    text_add(
        out,
        "{%% else %%}{{ raise_exception('Roles are system, user and assistant') }}{%% endif %%}{%% endfor %%}"
        "{%% if add_generation_prompt %%}{{ ''");
    TRY(add_text(row, row->places[ROLE_ASSISTANT][PLACE_BEFORE], tokenizer, out));
    text_add(out, " }}{%% endif %%}");
    return OK;
}

enum status chat_template_jinja(const char *name, const struct tokenizer *tokenizer, struct text *out)
{
    const struct row *row = find_row(name);
    return row != NULL ? add_row(row, tokenizer, out) : refuse_name(name);
}

const char *chat_template_of_jinja(const char *jinja)
{
    const size_t skip = sizeof name_comment - 1;
    for (int i = 0; i < ROWS && strncmp(jinja, name_comment, skip) == 0; i++) {
        const size_t length = strlen(rows[i].name);
        if (strncmp(jinja + skip, rows[i].name, length) == 0 && jinja[skip + length] == ' ')
            return rows[i].name;
    }
    return NULL;
}
