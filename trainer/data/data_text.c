// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_text.h"

#include "base/text.h"
#include "trainer/files/json_line.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, WAIT_MS = 200 };

struct reader {
    const char *name; // the path, or "standard input"
    const struct text_options *options;
    const struct text_sink *sink;
    bool json;

    // Plain text: whether the document has any byte; the number of line ends at its end (far below 0 before
    // the first line of a file, so that leading empty lines are no document); its lines so far.
    bool begun;
    int64_t line_ends, lines;

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

static enum status read_plain(struct reader *r, const char *bytes, int64_t length)
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

/* Emits the text of a parsed JSON line. */
static enum status take_object(struct reader *r, const struct json_line *line)
{
    if (line->found == LINE_NO_OBJECT)
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ": not a JSON object; JSON Lines needs {\"%s\": \"...\"} on "
                    "each line",
                    r->name, r->line_number, r->options->json_key);
    if (line->found != LINE_STRING)
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ": the object has no %s\"%s\"; set --json-key to the key of "
                    "the text",
                    r->name, r->line_number, line->found == LINE_NO_STRING ? "string under " : "",
                    r->options->json_key);
    char decoded[1 << 14];
    int64_t at = line->begin, got;
    while ((got = json_line_decode(line, &at, decoded, sizeof decoded)) > 0)
        TRY(append(r, decoded, got));
    return end_document(r);
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
    if (!json_line_parse(bytes, length, r->options->json_key, &line))
        return fail(BAD_DATA,
                    "%s, line %" PRId64 ", column %" PRId64 ": %s; JSON Lines needs one complete "
                    "object on each line",
                    r->name, r->line_number, line.at + 1, line.problem);
    return take_object(r, &line);
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

/* Waits for input, or the end of it; a pipe may have no writer yet. The sink may stop the wait. */
static enum status wait_for_input(const struct reader *r, int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    while (poll(&poll_fd, 1, WAIT_MS) == 0)
        TRY(r->sink->progress(r->sink->context, 0));
    return OK; // also after an error, which read() reports
}

static enum status read_chunks(struct reader *r, int fd, char *chunk)
{
    for (;;) {
        TRY(wait_for_input(r, fd));
        ssize_t got = read(fd, chunk, CHUNK_BYTES);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s: %s", r->name, strerror(errno));
        if (got == 0)
            break;
        TRY(r->json ? read_json_lines(r, chunk, got) : read_plain(r, chunk, got));
        TRY(r->sink->progress(r->sink->context, got));
    }
    if (r->json && r->line.length > 0)
        return read_json_line(r, r->line.chars, (int64_t)r->line.length);
    return end_document(r);
}

static bool has_json_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL &&
           (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0 || strcmp(dot, ".json") == 0);
}

bool text_is_json(const char *path, const struct text_options *options)
{
    return options->format == TEXT_JSON_LINES || (options->format == TEXT_BY_NAME && has_json_name(path));
}

enum status text_read(const char *path, const struct text_options *options, const struct text_sink *sink)
{
    bool from_standard_input = strcmp(path, "-") == 0;
    struct reader r = {
        .name = from_standard_input ? "standard input" : path,
        .options = options,
        .sink = sink,
        .line_ends = INT64_MIN / 2,
        .json = text_is_json(path, options),
    };
    // O_NONBLOCK: opening a pipe must not wait for its writer, which cannot be stopped.
    int fd = from_standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    char *chunk = malloc(CHUNK_BYTES);
    enum status status =
        chunk == NULL ? fail(NO_MEMORY, "%s: no memory to read it", r.name) : read_chunks(&r, fd, chunk);
    free(chunk);
    text_free(&r.line);
    if (!from_standard_input)
        close(fd);
    return status;
}
