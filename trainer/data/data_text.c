// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_text.h"

#include "base/text.h"
#include "trainer/files/json_line.h"
#include "trainer/text/byte_source.h"
#include "trainer/text/file_kind.h"
#include "trainer/text/text_check.h"
#include "trainer/text/unpack.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_DEPTH = 8 }; // of compressed files in archives in compressed files

struct reader {
    const char *name; // the path, "standard input", or "PATH: MEMBER"
    const struct text_options *options;
    const struct text_sink *sink;
    bool json;

    // Plain text: whether the document has any byte; the number of line ends at its end (far below 0 before
    // the first line of a file, so that leading empty lines are no document); its lines so far.
    bool begun;
    int64_t line_ends, lines;
    struct text_check check;

    // JSON Lines: the incomplete line at the end of the chunk, and the line number.
    struct text line;
    int64_t line_number;
};

static enum status append(struct reader *r, const char *bytes, int64_t length)
{
    if (length == 0)
        return OK;
    r->begun = true;
    return r->sink->append(r->sink->context, bytes, length);
}

static enum status end_document(struct reader *r)
{
    bool begun = r->begun;
    r->begun = false;
    r->lines = 0;
    r->line_ends = 0;
    return begun ? r->sink->end_document(r->sink->context) : OK;
}

/* A document ends before the first byte that follows two line ends; "\r" between them is ignored. */
static enum status cut_at_blank_lines(struct reader *r, const char *bytes, int64_t length)
{
    int64_t begin = 0, i = 0;
    while (i < length) {
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            r->line_ends += bytes[i] == '\n';
            i++;
            continue;
        }
        if (r->line_ends >= 2) {
            TRY(append(r, bytes + begin, i - begin));
            TRY(end_document(r));
            begin = i;
        }
        r->line_ends = 0;
        const char *line_end = memchr(bytes + i, '\n', (size_t)(length - i));
        i = line_end != NULL ? line_end - bytes : length;
    }
    return append(r, bytes + begin, length - begin);
}

static enum status cut_at_form_feeds(struct reader *r, const char *bytes, int64_t length)
{
    for (const char *end = bytes + length;;) {
        const char *feed = memchr(bytes, '\f', (size_t)(end - bytes));
        if (feed == NULL)
            return append(r, bytes, end - bytes);
        TRY(append(r, bytes, feed - bytes));
        TRY(end_document(r));
        bytes = feed + 1;
    }
}

static enum status cut_at_lines(struct reader *r, const char *bytes, int64_t length)
{
    const char *end = bytes + length;
    for (const char *begin = bytes, *at = bytes;;) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL)
            return append(r, begin, end - begin);
        at = line_end + 1;
        if (++r->lines < r->options->lines)
            continue;
        TRY(append(r, begin, at - begin));
        TRY(end_document(r));
        begin = at;
    }
}

static enum status cut_documents(struct reader *r, const char *bytes, int64_t length)
{
    switch (r->options->documents) {
    case TEXT_FILE:
        return append(r, bytes, length);
    case TEXT_BLANK_LINE:
        return cut_at_blank_lines(r, bytes, length);
    case TEXT_FORM_FEED:
        return cut_at_form_feeds(r, bytes, length);
    case TEXT_LINES:
        return cut_at_lines(r, bytes, length);
    case TEXT_DOCUMENTS_COUNT:
        break;
    }
    return fail(BAD_ARGUMENT, "%s: no rule to split it into documents", r->name);
}

static enum status refuse_binary(const struct reader *r)
{
    const struct text_check *c = &r->check;
    return fail(
        BAD_DATA,
        "%s: %.0f %% of its first %" PRId64 " bytes are not UTF-8 text, the first one at byte %" PRId64
        "; if it is text in another encoding, use iconv -f ENCODING -t UTF-8 FILE | cuboid data prepare "
        "-, and to encode any bytes --format bytes",
        r->name, 100.0 * (double)c->wrong / (double)c->bytes, c->bytes, c->first_wrong);
}

static enum status read_plain(struct reader *r, const char *bytes, int64_t length)
{
    const int64_t left = TEXT_CHECKED_BYTES - r->check.bytes;
    const int64_t first = left < 0 ? 0 : left < length ? left : length;
    if (r->options->format == TEXT_BYTES)
        return cut_documents(r, bytes, length);
    text_check_add(&r->check, bytes, first);
    if (left > 0 && first == left && text_check_is_binary(&r->check))
        return refuse_binary(r);
    text_check_add(&r->check, bytes + first, length - first);
    return cut_documents(r, bytes, length);
}

static enum status end_plain(struct reader *r)
{
    text_check_end(&r->check);
    if (text_check_is_binary(&r->check))
        return refuse_binary(r);
    if (r->check.wrong > 0 && r->sink->not_utf8 != NULL)
        r->sink->not_utf8(r->sink->context, r->name, &r->check);
    return end_document(r);
}

/* What to do with an object that lacks the key of the text, if it has a usual key of conversations. */
static const char *chat_advice(const char *bytes, int64_t length)
{
    static const struct {
        const char *key, *advice;
    } chats[] = {
        {"messages", "it has \"messages\": for conversations, use --chat-template"},
        {"conversations",
         "it has \"conversations\": for --chat-template, rename this key to \"messages\", and "
         "the keys \"from\" and \"value\" in it to \"role\" and \"content\""},
        {"instruction",
         "it has \"instruction\": for --chat-template, write it and \"input\" as \"prompt\", and "
         "\"output\" as \"completion\""},
        {"completion", "it has \"completion\": for a prompt and its answer, use --chat-template"},
    };
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        struct json_line line;
        if (json_line_parse(bytes, length, chats[i].key, &line) && line.found > LINE_NO_KEY)
            return chats[i].advice;
    }
    return "set --json-key to the key of the text";
}

/* Finds the text of a JSON line. */
static enum status find_text(const struct reader *r, const char *bytes, int64_t length, struct json_line *out)
{
    const char *key = r->options->json_key;
    if (!json_line_parse(bytes, length, key, out))
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ", column %" PRId64 ": %s; JSON Lines needs one complete "
                    "object on each line (--skip-invalid skips others)",
                    r->name, r->line_number, out->at + 1, out->problem);
    if (out->found == LINE_NO_OBJECT)
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ": not a JSON object; JSON Lines needs {\"%s\": \"...\"} on "
                    "each line",
                    r->name, r->line_number, key);
    if (out->found != LINE_STRING)
        return fail(BAD_DATA, "%s, line %" PRId64 ": the object has no %s\"%s\"; %s", r->name, r->line_number,
                    out->found == LINE_NO_STRING ? "string under " : "", key, chat_advice(bytes, length));
    return OK;
}

static enum status read_json_line(struct reader *r, const char *bytes, int64_t length)
{
    // Some programs write a byte order mark, which JSON does not allow.
    if (++r->line_number == 1 && length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0) {
        bytes += 3;
        length -= 3;
    }
    int64_t blank = 0;
    while (blank < length && strchr(" \t\r", bytes[blank]) != NULL && bytes[blank] != 0)
        blank++;
    if (blank == length)
        return OK;
    if (r->sink->line != NULL)
        return r->sink->line(r->sink->context, r->name, r->line_number, bytes, length);
    struct json_line line;
    if (find_text(r, bytes, length, &line) != OK)
        return r->sink->skip != NULL ? r->sink->skip(r->sink->context, fail_text()) : BAD_DATA;
    char decoded[1 << 14];
    int64_t at = line.begin, got;
    while ((got = json_line_decode(&line, &at, decoded, sizeof decoded)) > 0)
        TRY(append(r, decoded, got));
    return end_document(r);
}

/* Keeps the beginning of a line that continues in the next chunk. */
static enum status keep_line(struct reader *r, const char *bytes, size_t length)
{
    if (length > TEXT_MAX_LINE_BYTES - r->line.length)
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ": longer than the limit of %d MiB; split the document, or "
                    "use plain text",
                    r->name, r->line_number + 1, TEXT_MAX_LINE_BYTES >> 20);
    text_add_bytes(&r->line, bytes, length);
    return OK;
}

static enum status read_json_lines(struct reader *r, const char *bytes, int64_t length)
{
    const char *end = bytes + length;
    for (;;) {
        const char *line_end = memchr(bytes, '\n', (size_t)(end - bytes));
        if (line_end == NULL)
            return keep_line(r, bytes, (size_t)(end - bytes));
        if (r->line.length == 0) {
            TRY(read_json_line(r, bytes, line_end - bytes));
        } else {
            TRY(keep_line(r, bytes, (size_t)(line_end - bytes)));
            TRY(read_json_line(r, r->line.chars, (int64_t)r->line.length));
            r->line.length = 0;
        }
        bytes = line_end + 1;
    }
}

/* ---- files ---- */

static enum status read_chunks(struct reader *r, struct byte_source *source)
{
    for (;;) {
        const char *bytes;
        int64_t count;
        TRY(source_next(source, &bytes, &count));
        if (count == 0)
            break;
        TRY(r->json ? read_json_lines(r, bytes, count) : read_plain(r, bytes, count));
        TRY(r->sink->progress(r->sink->context, 0)); // much text may be packed in few bytes
    }
    if (!r->json)
        return end_plain(r);
    return r->line.length > 0 ? read_json_line(r, r->line.chars, (int64_t)r->line.length) : OK;
}

static bool ends_with(const char *name, size_t length, const char *end)
{
    return length > strlen(end) && memcmp(name + length - strlen(end), end, strlen(end)) == 0;
}

/* "a.jsonl", "a.json.gz" */
static bool has_json_name(const char *name)
{
    static const char *const packed[] = {".gz", ".xz", ".zst", ".bz2", ".lz4"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (ends_with(name, length, packed[i])) {
            length -= strlen(packed[i]);
            break;
        }
    return ends_with(name, length, ".jsonl") || ends_with(name, length, ".ndjson") ||
           ends_with(name, length, ".json");
}

bool text_is_json(const char *path, const struct text_options *options)
{
    return options->format == TEXT_JSON_LINES || (options->format == TEXT_BY_NAME && has_json_name(path));
}

static enum status read_text(struct byte_source *source, const struct text_options *options,
                             const struct text_sink *sink)
{
    struct reader r = {
        .name = source->name,
        .options = options,
        .sink = sink,
        .line_ends = INT64_MIN / 2,
        .json = text_is_json(source->name, options),
    };
    const enum status status = read_chunks(&r, source);
    text_free(&r.line);
    return status;
}

static enum status read_any(struct byte_source *source, const struct text_options *options,
                            const struct text_sink *sink, int depth);

/* Reads the files in a compressed file or an archive. */
static enum status read_packed(const struct file_kind *kind, struct byte_source *packed,
                               const struct text_options *options, const struct text_sink *sink, int depth)
{
    struct unpack *unpack = NULL;
    struct byte_source *file = NULL;
    if (depth == MAX_DEPTH)
        return fail(BAD_DATA, "%s: packed more than %d times; unpack it first", packed->name, MAX_DEPTH);
    TRY(unpack_create(kind, packed, &unpack));
    enum status status = unpack_next(unpack, &file);
    while (status == OK && file != NULL) {
        status = read_any(file, options, sink, depth + 1);
        if (status == OK)
            status = unpack_next(unpack, &file);
    }
    unpack_destroy(unpack);
    return status;
}

/* Reads a source by its first bytes. */
static enum status read_any(struct byte_source *source, const struct text_options *options,
                            const struct text_sink *sink, int depth)
{
    if (options->format == TEXT_BYTES)
        return read_text(source, options, sink);
    TRY(source_head(source));
    const struct file_kind *kind = file_kind_of(text_chars(&source->head), (int64_t)source->head.length);
    if (kind == NULL)
        return read_text(source, options, sink);
    if (kind->form != KIND_OTHER)
        return read_packed(kind, source, options, sink, depth);
    if (kind->as_text == NULL)
        return fail(BAD_DATA,
                    "%s is %s, not text; remove it from the inputs, or use --format bytes for its bytes",
                    source->name, kind->name);
    return fail(BAD_DATA, "%s is %s, not UTF-8 text; use %s", source->name, kind->name, kind->as_text);
}

enum status text_read(const char *path, const struct text_options *options, const struct text_sink *sink)
{
    struct file_source *file = NULL;
    TRY(file_source_open(path, sink->progress, sink->context, &file));
    const enum status status = read_any(file_source_bytes(file), options, sink, 0);
    file_source_close(file);
    return status;
}
