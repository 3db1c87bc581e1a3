// SPDX-License-Identifier: Apache-2.0
/* Events of libyaml, turned into a tree with limits.
 *
 * libyaml reports position and problem in its own words ("mapping values are not allowed in this context");
 * the hints below add what usually causes it. A tab in the indentation is looked for first, because libyaml
 * would name the character after it. */
#include "trainer/files/yaml.h"

#include "base/memory.h"
#include "trainer/files/problems.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *name;
    struct problems *problems;
    size_t nodes;
    bool failed;
};

void node_free(struct node *node)
{
    if (node == NULL)
        return;
    for (size_t i = 0; i < node->count; i++)
        node_free(node->child[i]); // at most YAML_MAX_DEPTH deep
    free(node->child);
    free(node->text);
    free(node);
}

struct node *node_scalar(const char *text)
{
    struct node *node = memory_zeroed(1, sizeof *node, "YAML");
    node->plain = true;
    node->text = text_copy(text);
    return node;
}

static void node_add(struct node *node, struct node *child)
{
    // Grows at 0, 4, 8, 16 ...
    if (node->count == 0 || (node->count >= 4 && (node->count & (node->count - 1)) == 0)) {
        size_t capacity = node->count == 0 ? 4 : node->count * 2;
        node->child = memory_resized(node->child, capacity, sizeof *node->child, "YAML");
    }
    node->child[node->count++] = child;
}

static void refuse(struct reader *reader, yaml_mark_t mark, const char *why)
{
    if (!reader->failed)
        problems_add(reader->problems, "%s:%zu:%zu: %s", reader->name, mark.line + 1, mark.column + 1, why);
    reader->failed = true;
}

/* A hint about the usual cause of an error message of libyaml. */
static const char *hint_for(const char *problem)
{
    static const struct {
        const char *part, *hint;
    } hints[] = {
        {"mapping values are not allowed", "; a second \": \" in one line? put the value in quotes"},
        {"could not find expected ':'", "; a key without its colon?"},
        {"did not find expected key", "; is this line indented like its neighbours?"},
        {"did not find expected ',' or ']'", "; a list that is not closed?"},
        {"did not find expected ',' or '}'", "; a mapping that is not closed?"},
        {"cannot start any token", "; put a value that begins with this character in quotes"},
        {"unexpected end of stream", "; a quote that is not closed?"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strstr(problem, hints[i].part) != NULL)
            return hints[i].hint;
    return "";
}

static void refuse_syntax(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    const char *problem = parser->problem != NULL ? parser->problem : "cannot be parsed";
    AUTO(text) why = {0};
    text_add(&why, "not YAML: %s%s", problem, hint_for(problem));
    // Also gives the line where the construct began, which may be far away.
    if (parser->context != NULL && parser->context_mark.line != parser->problem_mark.line)
        text_add(&why, " (%s from line %zu)", parser->context, parser->context_mark.line + 1);
    refuse(reader, parser->problem_mark, why.chars);
}

static bool next_event(struct reader *reader, yaml_event_t *event)
{
    if (!reader->failed && yaml_parser_parse(&reader->parser, event) == 1)
        return true;
    if (!reader->failed)
        refuse_syntax(reader);
    return false;
}

static void refuse_decoration(struct reader *reader, const yaml_event_t *event, const void *anchor,
                              const void *tag)
{
    if (anchor != NULL)
        refuse(reader, event->start_mark,
               "anchors (&name) are not supported; use `base: other.yaml` to share settings");
    else if (tag != NULL)
        refuse(reader, event->start_mark, "tags (!name) are not supported; remove it");
}

static struct node *build(struct reader *reader, const yaml_event_t *event, int depth);

static void build_scalar(struct reader *reader, const yaml_event_t *event, struct node *node)
{
    const char *value = (const char *)event->data.scalar.value;
    refuse_decoration(reader, event, event->data.scalar.anchor, event->data.scalar.tag);
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (strlen(value) != event->data.scalar.length)
        refuse(reader, event->start_mark, "a value with a zero byte (\\0) inside");
    node->text = text_copy(value);
}

static void build_children(struct reader *reader, struct node *node, int depth)
{
    yaml_event_t event;
    while (next_event(reader, &event)) {
        bool end = event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        struct node *child = end ? NULL : build(reader, &event, depth + 1);
        if (child != NULL && node->kind == NODE_MAP && node->count % 2 == 0) {
            if (child->kind != NODE_SCALAR)
                refuse(reader, event.start_mark, "a key that is itself a list or a mapping");
            else if (child->plain && strcmp(child->text, "<<") == 0)
                refuse(reader, event.start_mark,
                       "merge keys (<<) are not supported; use `base: other.yaml` to share settings");
        }
        yaml_event_delete(&event);
        if (child != NULL)
            node_add(node, child);
        if (end)
            return;
    }
}

/* The node that begins with `event`; half of one when the reader failed. */
static struct node *build(struct reader *reader, const yaml_event_t *event, int depth)
{
    struct node *node = memory_zeroed(1, sizeof *node, "YAML");
    node->line = (int)event->start_mark.line + 1;
    if (depth > YAML_MAX_DEPTH)
        refuse(reader, event->start_mark, "nested too deeply (more than 16 levels)");
    else if (++reader->nodes > YAML_MAX_NODES)
        refuse(reader, event->start_mark, "too many keys and values (more than 20000)");
    else if (event->type == YAML_ALIAS_EVENT)
        refuse(reader, event->start_mark,
               "aliases (*name) are not supported; use `base: other.yaml` to share settings");
    else if (event->type == YAML_SCALAR_EVENT)
        build_scalar(reader, event, node);
    else if (event->type == YAML_SEQUENCE_START_EVENT) {
        node->kind = NODE_LIST;
        refuse_decoration(reader, event, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        build_children(reader, node, depth);
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        node->kind = NODE_MAP;
        refuse_decoration(reader, event, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        build_children(reader, node, depth);
    }
    if (node->text == NULL)
        node->text = text_copy("");
    return node;
}

/* One document or none, and nothing after it. */
static struct node *build_stream(struct reader *reader)
{
    struct node *root = NULL;
    yaml_event_t event;
    int documents = 0;
    bool end = false;
    while (!end && next_event(reader, &event)) {
        if (event.type == YAML_STREAM_END_EVENT)
            end = true;
        else if (event.type == YAML_DOCUMENT_START_EVENT && ++documents > 1)
            refuse(reader, event.start_mark, "a second document; a file has a single document");
        else if (root == NULL && event.type != YAML_STREAM_START_EVENT &&
                 event.type != YAML_DOCUMENT_START_EVENT && event.type != YAML_DOCUMENT_END_EVENT)
            root = build(reader, &event, 0);
        yaml_event_delete(&event);
    }
    if (root == NULL) {
        root = memory_zeroed(1, sizeof *root, "YAML");
        root->kind = NODE_MAP;
        root->line = 1;
        root->text = text_copy("");
    }
    return root;
}

/* Control characters, other line ends, and non-characters: true if the UTF-8 sequence at `c` is not allowed
 * in a line of a file. */
static bool is_control(const char *c)
{
    static const char *const others[] = {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xEF\xBB\xBF", "\xEF\xBF\xBE",
                                         "\xEF\xBF\xBF"}; // U+2028, U+2029, U+FEFF, U+FFFE, U+FFFF
    const unsigned char *byte = (const unsigned char *)c;
    if (byte[0] < 0x20 || byte[0] == 0x7F || (byte[0] == 0xC2 && byte[1] < 0xA0))
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(c, others[i], 3) == 0)
            return true;
    return false;
}

/* libyaml's own reader gives an offset only, so bytes that no file may contain are found here. */
static bool bytes_are_text(struct reader *reader, const char *bytes, size_t length)
{
    yaml_mark_t mark = {0};
    bool indenting = true;
    for (size_t i = 0; i < length;) {
        const char *c = bytes + i;
        int size = utf8_length(c);
        if (indenting && *c == '\t')
            refuse(reader, mark, "a tab in the indentation; use spaces");
        else if (size == 0)
            refuse(reader, mark, "a byte that is not UTF-8");
        else if (is_control(c) && *c != '\t' && *c != '\n' && *c != '\r')
            refuse(reader, mark, "a control character");
        if (reader->failed)
            return false;
        indenting = *c == '\n' || (indenting && *c == ' ');
        mark.column = *c == '\n' ? 0 : mark.column + 1;
        mark.line += *c == '\n' ? 1 : 0;
        i += (size_t)size;
    }
    return true;
}

bool text_is_printable(const char *text)
{
    for (const char *c = text; *c != 0; c += utf8_length(c))
        if (utf8_length(c) == 0 || is_control(c))
            return false;
    return true;
}

void text_add_clean(struct text *out, const char *chars)
{
    for (const char *c = chars; *c != 0;) {
        int size = utf8_length(c);
        char one[8] = {0};
        memcpy(one, c, size > 0 ? (size_t)size : 1);
        text_add(out, "%s", text_is_printable(one) ? one : "?");
        c += size > 0 ? size : 1;
    }
}

/* Whether `text` reads as itself without quotes; `reserved` is one more word that does not, or NULL. */
static bool can_be_plain(const char *text, const char *reserved)
{
    static const char *const words[] = {"none", "null", "true", "false", "True", "False", "TRUE", "FALSE"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0)
            return false;
    for (const char *c = text; *c != 0; c++)
        if (!isalnum((unsigned char)*c) && strchr("_./-+", *c) == NULL)
            return false;
    return !(reserved != NULL && strcmp(text, reserved) == 0) &&
           (isalnum((unsigned char)*text) || *text == '/');
}

void yaml_add_string(struct text *out, const char *string, const char *reserved)
{
    if (string == NULL)
        text_add(out, "none");
    else if (can_be_plain(string, reserved))
        text_add(out, "%s", string);
    else
        text_add_json(out, string);
}

struct node *yaml_parse(const char *name, const char *bytes, size_t length, struct problems *problems)
{
    struct reader reader = {.name = name, .problems = problems};
    // Some editors begin UTF-8 with a byte order mark. It says nothing; those of UTF-16 do.
    if (length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0) {
        bytes += 3;
        length -= 3;
    }
    if (length >= 2 && (memcmp(bytes, "\xFF\xFE", 2) == 0 || memcmp(bytes, "\xFE\xFF", 2) == 0)) {
        problems_add(problems, "%s: is UTF-16; save it as UTF-8", name);
        return NULL;
    }
    if (length > YAML_MAX_BYTES) {
        problems_add(problems, "%s: larger than 1 MiB, the limit of a YAML file", name);
        return NULL;
    }
    if (!bytes_are_text(&reader, bytes, length))
        return NULL;
    if (yaml_parser_initialize(&reader.parser) != 1)
        die(__FILE__, __LINE__, "yaml", "out of memory for a YAML parser");
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)bytes, length);

    struct node *root = build_stream(&reader);
    yaml_parser_delete(&reader.parser);
    if (reader.failed) {
        node_free(root);
        return NULL;
    }
    return root;
}

/* ---- the file: neither a FIFO may block, nor a device be read without end ---- */

enum { SILENCE_MS = 10000 }; // of a pipe, while a file is read from it

/* Whether a pipe is a FIFO with a path, which may never have a writer; a pipe made by a shell has no path. */
static bool is_named(int fd)
{
    char link[32], target[16] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, target, sizeof target - 1) < 0 || strncmp(target, "pipe:", 5) != 0;
}

static const char *kind_fault(int fd, const struct stat *about)
{
    if (S_ISREG(about->st_mode) || (S_ISFIFO(about->st_mode) && !is_named(fd)))
        return NULL;
    return S_ISDIR(about->st_mode) ? "is a directory, not a file; use the file in it"
           : S_ISFIFO(about->st_mode)
               ? "is a named pipe, not a regular file; use a file, or <(COMMAND) in bash"
               : "is a device, not a regular file; use a file";
}

/* Reads up to one byte more than the limit of a file. */
static const char *read_bounded(int fd, struct text *out)
{
    char block[8192];
    while (out->length <= YAML_MAX_BYTES) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait, 1, SILENCE_MS);
        if (ready == 0)
            return "is a pipe to which nothing was written for 10 s; use a file";
        ssize_t got = ready < 0 ? -1 : read(fd, block, sizeof block);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return got == 0 ? NULL : strerror(errno);
        text_add_bytes(out, block, (size_t)got);
    }
    return NULL;
}

const char *yaml_file_read(const char *path, struct text *out, dev_t *device, ino_t *inode)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return strerror(errno);
    const char *fault = fstat(fd, &about) != 0 ? strerror(errno) : kind_fault(fd, &about);
    if (fault == NULL) {
        *device = about.st_dev;
        *inode = about.st_ino;
        fault = read_bounded(fd, out);
    }
    close(fd);
    return fault;
}
