// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/measure/journal.h"

#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *run_state_name(enum run_state state)
{
    static const char *const names[RUN_STATES] = {"queued", "running", "done", "oom", "timeout", "failed"};
    CHECK(state < RUN_STATES);
    return names[state];
}

/* Removes control characters, so that the text is one line. */
static char *clean(const char *layout)
{
    struct text text = {0};
    text_add_printable(&text, layout, strlen(layout));
    return text.chars != NULL ? text.chars : text_copy("");
}

/* ---- entries ---- */

static const char *layout_at(const struct journal *journal, size_t place)
{
    return journal->list[journal->order[place]].layout;
}

/* The place of the first layout, in the order of strcmp(), that is not before this one. */
static size_t place_of(const struct journal *journal, const char *layout)
{
    size_t begin = 0, end = journal->count;
    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        if (strcmp(layout_at(journal, middle), layout) < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static struct journal_entry *find(const struct journal *journal, const char *layout)
{
    const size_t place = place_of(journal, layout);
    const bool known = place < journal->count && strcmp(layout_at(journal, place), layout) == 0;
    return known ? &journal->list[journal->order[place]] : NULL;
}

/* Makes space for one more entry: the capacity is a power of two. */
static void grow(struct journal *journal)
{
    if (journal->count > 0 && (journal->count & (journal->count - 1)) != 0)
        return;
    const size_t capacity = journal->count > 0 ? 2 * journal->count : 1;
    journal->list = memory_resized(journal->list, capacity, sizeof *journal->list, "the runs of a journal");
    journal->order =
        memory_resized(journal->order, capacity, sizeof *journal->order, "the runs of a journal");
}

/* Adds an entry after all others. */
static struct journal_entry *append_entry(struct journal *journal, const char *layout)
{
    const size_t place = place_of(journal, layout);
    grow(journal);
    memmove(&journal->order[place + 1], &journal->order[place],
            (journal->count - place) * sizeof *journal->order);
    journal->order[place] = journal->count;
    return &journal->list[journal->count++];
}

/* Sets the state of a layout; takes ownership of `layout`. */
static void set(struct journal *journal, char *layout, const struct journal_entry *entry)
{
    struct journal_entry *known = find(journal, layout);
    if (known == NULL)
        known = append_entry(journal, layout);
    else
        free(known->layout);
    *known = *entry;
    known->layout = layout;
}

struct journal_entry journal_find(const struct journal *journal, const char *layout)
{
    char *key = clean(layout);
    const struct journal_entry *known = find(journal, key);
    struct journal_entry entry = known != NULL ? *known : (struct journal_entry){.state = RUN_QUEUED};
    free(key);
    if (entry.state == RUN_RUNNING)
        entry.state = RUN_QUEUED;
    return entry;
}

/* "done 0.1234 29926635584 tp=1 pp=2"; other lines are ignored. */
static void read_line(struct journal *journal, char *line)
{
    struct journal_entry entry = {.state = RUN_STATES};
    char *state = strsep(&line, " "), *step = line != NULL ? strsep(&line, " ") : NULL,
         *memory = line != NULL ? strsep(&line, " ") : NULL;
    for (int i = 0; i < RUN_STATES; i++)
        if (strcmp(state, run_state_name((enum run_state)i)) == 0)
            entry.state = (enum run_state)i;
    if (line != NULL && entry.state != RUN_STATES && number_parse(step, &entry.step_s) &&
        integer_parse(memory, &entry.memory_bytes))
        set(journal, text_copy(line), &entry);
}

/* ---- the file ---- */

static enum status append(struct journal *journal, const struct text *line)
{
    const ssize_t written = write(journal->fd, line->chars, line->length);
    if (written != (ssize_t)line->length || fsync(journal->fd) != 0)
        return fail(IO_ERROR, "%s: cannot be written: %s", journal->path, strerror(errno));
    return OK;
}

enum status journal_add(struct journal *journal, const struct journal_entry *entry)
{
    char number[NUMBER_CHARS], *layout = clean(entry->layout);
    struct text line = {0};
    text_add(&line, "%s %s %lld %s\n", run_state_name(entry->state), number_text(entry->step_s, number),
             (long long)entry->memory_bytes, layout);
    const enum status status = append(journal, &line);
    text_free(&line);
    set(journal, layout, entry);
    return status;
}

/* Reads all complete lines; the first must be `head`. */
static enum status read_lines(struct journal *journal, char *text, const char *head)
{
    char *first = strsep(&text, "\n");
    if (text == NULL || strcmp(first, head) != 0)
        return fail(BAD_USAGE, "%s belongs to another sweep (\"%.200s\"); use --run-dir with another folder",
                    journal->path, first);
    for (char *line; (line = strsep(&text, "\n")) != NULL && text != NULL;)
        read_line(journal, line);
    return OK;
}

static enum status open_file(struct journal *journal, const char *head)
{
    struct text bytes = {0}, line = {0};
    journal->fd = open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (journal->fd < 0)
        return fail(IO_ERROR, "%s: cannot be opened: %s", journal->path, strerror(errno));
    const enum file_lock lock = file_lock(journal->fd);
    if (lock == FILE_IN_USE)
        return fail(BAD_USAGE, "%s is in use by another sweep", journal->path);
    if (lock == FILE_WITHOUT_LOCKS)
        print_line(stderr,
                   "warning: %s cannot be locked (%s): its file system has no locks; another sweep with this "
                   "--run-dir is not noticed",
                   journal->path, strerror(errno));
    TRY(file_read(journal->path, &bytes));
    enum status status = OK;
    if (bytes.length == 0)
        text_add(&line, "%s\n", head);
    else if (bytes.chars[bytes.length - 1] != '\n')
        text_add(&line, "\n"); // ends an incomplete line
    if (bytes.length > 0)
        status = read_lines(journal, bytes.chars, head);
    if (status == OK && line.length > 0)
        status = append(journal, &line);
    text_free(&bytes);
    text_free(&line);
    return status;
}

enum status journal_open(const char *path, const char *head, struct journal *out)
{
    char *line = clean(head);
    *out = (struct journal){.path = text_copy(path), .fd = -1};
    const enum status status = open_file(out, line);
    free(line);
    if (status != OK)
        journal_close(out);
    return status;
}

void journal_close(struct journal *journal)
{
    if (journal->fd >= 0)
        close(journal->fd);
    for (size_t i = 0; i < journal->count; i++)
        free(journal->list[i].layout);
    free(journal->list);
    free(journal->order);
    free(journal->path);
    *journal = (struct journal){.fd = -1};
}
