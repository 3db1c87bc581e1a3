// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/page.h"

#include "base/memory.h"
#include "base/status.h"

#include <string.h>
#include <time.h>

/* In the executable cuboid only (commit.c.in); "" if it was not built in a clone. */
extern __attribute__((weak)) const char cuboid_commit[];

static const char *file_text(const char *name)
{
    for (const struct page_file *file = page_files; file->name != NULL; file++)
        if (strcmp(file->name, name) == 0)
            return file->text;
    die_of(BAD_ARGUMENT, "no page file %s", name);
}

static void add_escaped(struct text *out, const char *chars)
{
    AUTO(text) safe = {0};
    text_add_printable(&safe, chars, strlen(chars));
    for (const char *c = text_chars(&safe); *c != 0; c++)
        if (*c == '&' || *c == '<' || *c == '>')
            text_add(out, "&#%d;", *c);
        else
            text_add_bytes(out, c, 1);
}

static void add_data(struct text *out, const char *json)
{
    for (const char *at = json, *next; *at != 0; at = next) {
        next = at + strcspn(at, "<");
        text_add_bytes(out, at, (size_t)(next - at));
        if (*next == '<') {
            text_add(out, "\\u003c");
            next++;
        }
    }
}

/* What the page is, what made it, and when. */
static void add_about(const struct page *page, struct text *out)
{
    AUTO(text) json = {0};
    AUTO(text) program = {0};
    char date[32] = "";
    struct tm utc;
    const time_t now = time(NULL);
    const char *commit = cuboid_commit != NULL ? cuboid_commit : "";
    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
    text_add(&program, "cuboid " VERSION "%s%s%s", *commit != 0 ? " (commit " : "", commit,
             *commit != 0 ? ")" : "");
    text_add(&json, "{\"title\": ");
    text_add_json(&json, page->title);
    text_add(&json, ", \"command\": ");
    text_add_json(&json, page->command);
    text_add(&json, ", \"program\": ");
    text_add_json(&json, program.chars);
    text_add(&json, ", \"date\": \"%s\"}", date);
    add_data(out, json.chars);
}

/* The part of the template that is named @NAME@. */
static void add_part(const struct page *page, const char *name, size_t length, struct text *out)
{
    if (length == 5 && memcmp(name, "title", 5) == 0)
        add_escaped(out, page->title);
    else if (length == 5 && memcmp(name, "style", 5) == 0)
        text_add(out, "%s", file_text("page.css"));
    else if (length == 5 && memcmp(name, "about", 5) == 0)
        add_about(page, out);
    else if (length == 4 && memcmp(name, "data", 4) == 0)
        add_data(out, text_chars(page->data));
    else
        text_add(out, "%s%s", file_text("page.js"), file_text(page->script));
}

void page_add(const struct page *page, struct text *out)
{
    const char *at = file_text("page.html"), *name;
    for (; (name = strchr(at, '@')) != NULL; at = strchr(name + 1, '@') + 1) {
        text_add_bytes(out, at, (size_t)(name - at));
        add_part(page, name + 1, strcspn(name + 1, "@"), out);
    }
    text_add(out, "%s", at);
}
