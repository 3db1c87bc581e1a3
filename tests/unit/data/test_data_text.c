// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "trainer/data/data_text.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The extracted text: documents with a "|" after each. */
struct extracted {
    struct text all;
    int64_t documents, progress;
    enum status end_status; // the return value of end_document
};

static enum status append_text(void *context, const char *bytes, int64_t length)
{
    cr_assert_gt(length, 0);
    text_add_bytes(&((struct extracted *)context)->all, bytes, (size_t)length);
    return OK;
}

static enum status end_document(void *context)
{
    struct extracted *result = context;
    text_add(&result->all, "|");
    result->documents++;
    return result->end_status;
}

static enum status add_progress(void *context, int64_t bytes)
{
    ((struct extracted *)context)->progress += bytes;
    return OK;
}

static enum status read_bytes(const char *bytes, size_t length, const char *ending,
                              const struct text_options *options, struct extracted *result)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/cuboid-text-XXXXXX%s", ending);
    int fd = mkstemps(path, (int)strlen(ending));
    cr_assert(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
    close(fd);
    const struct text_sink sink = {
        .append = append_text, .end_document = end_document, .progress = add_progress, .context = result};
    enum status status = text_read(path, options, &sink);
    if (status == OK)
        cr_assert_eq(result->progress, (int64_t)length);
    unlink(path);
    return status;
}

static void expect(const char *text, struct text_options options, const char *ending, const char *expected)
{
    struct extracted result = {0};
    options.json_key = options.json_key != NULL ? options.json_key : "text";
    cr_assert_eq(read_bytes(text, strlen(text), ending, &options, &result), OK, "%s", fail_text());
    cr_assert_str_eq(text_chars(&result.all), expected);
    text_free(&result.all);
}

Test(data_text, document_rules)
{
    const struct text_options file = {.documents = TEXT_FILE}, blank = {.documents = TEXT_BLANK_LINE};
    const struct text_options feed = {.documents = TEXT_FORM_FEED},
                              two = {.documents = TEXT_LINES, .lines = 2};
    expect("a\n\nb\f", file, ".txt", "a\n\nb\f|");
    expect("", file, ".txt", "");
    expect("a\nb\n\n\nc\n\nd", blank, ".txt", "a\nb\n\n\n|c\n\n|d|");
    expect("\n\n\na\r\n\r\n b\n \nc\n\n", blank, ".txt", "\n\n\na\r\n\r\n| b\n \nc\n\n|");
    expect("\fa\f\fb\nc\f", feed, ".txt", "a|b\nc|");
    expect("1\n2\n3\n4\n5", two, ".txt", "1\n2\n|3\n4\n|5|");
    expect("1\n2\n", two, ".txt", "1\n2\n|");
}

Test(data_text, json_lines_by_name_or_option)
{
    const char *lines =
        "{\"text\": \"a\\u00e9\\n\", \"id\": 1}\n\n \r\n{\"id\": 2, \"text\": \"\"}\r\n{\"text\":\"b\"}";
    expect(lines, (struct text_options){0}, ".jsonl", "a\xC3\xA9\n|b|");
    expect(lines, (struct text_options){0}, ".json", "a\xC3\xA9\n|b|");
    expect(lines, (struct text_options){.format = TEXT_JSON_LINES}, ".txt", "a\xC3\xA9\n|b|");
    expect("{}", (struct text_options){.format = TEXT_PLAIN}, ".jsonl", "{}|");
    expect("\xEF\xBB\xBF{\"text\":\"x\"}\n{\"text\":\"\xEF\xBB\xBFy\"}\n", (struct text_options){0}, ".jsonl",
           "x|\xEF\xBB\xBFy|"); // a byte order mark, and one that is text
    expect("\xEF\xBB\xBF", (struct text_options){0}, ".jsonl", "");
    expect("\xEF\xBB\xBFx", (struct text_options){0}, ".txt", "\xEF\xBB\xBFx|");
    expect("{\"content\":\"x\"}", (struct text_options){.json_key = "content"}, ".ndjson", "x|");
}

Test(data_text, a_bad_line_is_named)
{
    const struct {
        const char *text, *named;
    } bad[] = {
        {"{\"text\":\"a\"}\n{\"text\":", "line 2, column "},
        {"{\"text\":\"a\"}\n\n[1]\n", "line 3: not a JSON object"},
        {"{\"txt\":\"a\"}\n", "line 1: the object has no \"text\""},
        {"{\"text\":5}\n", "line 1: the object has no string under \"text\""},
        {"{\"text\":\"\xFF\"}\n", "line 1, column "},
        {"{\"text\":\"a\"} {\"text\":\"b\"}\n", "line 1, column "},
        {"\x00\n", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct extracted result = {0};
        size_t length = i == 6 ? 2 : strlen(bad[i].text);
        cr_assert_eq(
            read_bytes(bad[i].text, length, ".jsonl", &(struct text_options){.json_key = "text"}, &result),
            BAD_DATA);
        cr_assert(strstr(fail_text(), bad[i].named) != NULL, "%s", fail_text());
        text_free(&result.all);
    }
    struct extracted result = {.end_status = STOPPED}; // a sink that is full ends the reading
    cr_assert_eq(
        read_bytes("a\nb\n", 4, ".txt", &(struct text_options){.documents = TEXT_LINES, .lines = 1}, &result),
        STOPPED);
    cr_assert_eq(result.documents, 1);
    text_free(&result.all);
    const struct text_sink sink = {
        .append = append_text, .end_document = end_document, .progress = add_progress, .context = &result};
    cr_assert_eq(text_read("/nowhere/at/all", &(struct text_options){0}, &sink), IO_ERROR);
    cr_assert_eq(text_read("/tmp", &(struct text_options){0}, &sink), IO_ERROR);
}

static enum status shorten(void *context, int64_t bytes)
{
    return bytes > 0 && truncate(context, 2 << 20) != 0 ? IO_ERROR : OK;
}

static enum status ignore_text(void *context, const char *bytes, int64_t length)
{
    (void)context;
    (void)bytes;
    (void)length;
    return OK;
}

/* The text before its new end could end in any word. */
Test(data_text, a_file_that_becomes_shorter_while_it_is_read)
{
    enum { LENGTH = 3 << 20 };
    char path[] = "/tmp/cuboid-text-XXXXXX", *text = malloc(LENGTH);
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && text != NULL);
    memset(text, 'a', LENGTH);
    cr_assert_eq(write(fd, text, LENGTH), LENGTH);
    const struct text_sink sink = {.append = ignore_text, .progress = shorten, .context = path};
    cr_assert_eq(text_read(path, &(struct text_options){0}, &sink), BAD_DATA);
    cr_assert_not_null(strstr(fail_text(), "ends after byte 2097152 of 3145728"), "%s", fail_text());
    unlink(path);
    close(fd);
    free(text);
}

/* Files are read in chunks; whatever is at their edges, no byte is lost and every rule applies. */
Test(data_text, chunk_boundaries_have_no_effect)
{
    enum { LENGTH = 3 << 20 };
    char *bytes = malloc(LENGTH);
    unsigned seed = 7;
    for (int trial = 0; trial < 6; trial++) {
        for (int i = 0; i < LENGTH; i++) {
            seed = seed * 1664525U + 1013904223U;
            bytes[i] = "\n\n\rab\f\xC3\xA9"[seed >> 29]; // every edge is likely to cut something
        }
        bytes[0] = 'a';
        struct text_options options = {.format = TEXT_BYTES, // halves of characters
                                       .documents = (enum text_documents)(trial % TEXT_DOCUMENTS_COUNT),
                                       .lines = 3};
        struct extracted result = {0};
        cr_assert_eq(read_bytes(bytes, LENGTH, ".txt", &options, &result), OK);

        // The same on the whole text at once.
        struct text whole = {0};
        int line_ends = 0, lines = 0, begun = 0;
        for (int i = 0; i < LENGTH; i++) {
            bool is_end = bytes[i] == '\n' || bytes[i] == '\r';
            bool feed = options.documents == TEXT_FORM_FEED && bytes[i] == '\f';
            bool ended = feed || (options.documents == TEXT_BLANK_LINE && !is_end && line_ends >= 2) ||
                         (options.documents == TEXT_LINES && lines == 3);
            if (ended && begun > 0) {
                text_add(&whole, "|");
                begun = lines = 0;
            }
            line_ends = is_end ? line_ends + (bytes[i] == '\n') : 0;
            lines += bytes[i] == '\n';
            begun += !feed;
            if (!feed)
                text_add_bytes(&whole, bytes + i, 1);
        }
        text_add(&whole, "|");
        if (bytes[LENGTH - 1] == '\f' && options.documents == TEXT_FORM_FEED && begun == 0)
            whole.length--;
        cr_assert_eq(result.all.length, whole.length, "rule %d", (int)options.documents);
        cr_assert_eq(memcmp(result.all.chars, whole.chars, whole.length), 0);
        text_free(&whole);
        text_free(&result.all);
    }
    free(bytes);
}
