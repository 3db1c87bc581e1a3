// SPDX-License-Identifier: Apache-2.0
/* Reads a file in three steps: cells to actions, one list per line; the number of stages and microbatches;
 * placement (csv_placement.c).
 *
 * Caution: a large number in a short file, such as "1999999999F0", must not cause a large allocation. Table
 * sizes are therefore bounded by the number of actions in the file. */
#include "schedules/csv/csv.h"

#include "base/memory.h"
#include "schedules/csv/csv_parse.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = SCHEDULE_MAX_RANKS, MAX_BYTES = 1 << 30, SHOWN_BYTES = 32, TOO_LARGE = INT_MAX };
/* Error codes of parse_cell(). */
enum { NO_ACTION = -1, HUGE_NUMBER = -2 };

/* ---- cells ---- */

/* Cuts the next cell off the front of `rest`; returns false after the last one. */
static bool next_cell(struct span *rest, struct span *cell)
{
    if (rest->at == NULL)
        return false;
    const char *comma = memchr(rest->at, ',', rest->length);
    *cell = *rest;
    if (comma == NULL) {
        rest->at = NULL;
        return true;
    }
    cell->length = (size_t)(comma - rest->at);
    rest->at = comma + 1;
    rest->length -= cell->length + 1;
    return true;
}

static struct span without_blanks(struct span s)
{
    while (s.length > 0 && (*s.at == ' ' || *s.at == '\t')) {
        s.at++;
        s.length--;
    }
    while (s.length > 0 && (s.at[s.length - 1] == ' ' || s.at[s.length - 1] == '\t'))
        s.length--;
    return s;
}

/* Strips the quotes that a spreadsheet may add. */
static struct span unquoted(struct span cell)
{
    cell = without_blanks(cell);
    if (cell.length < 2 || cell.at[0] != '"' || cell.at[cell.length - 1] != '"')
        return cell;
    return without_blanks((struct span){cell.at + 1, cell.length - 2});
}

static bool match_word(struct span *s, const char *word)
{
    size_t length = strlen(word);
    if (s->length < length || memcmp(s->at, word, length) != 0)
        return false;
    s->at += length;
    s->length -= length;
    return true;
}

/* Parses a number; values too large for stages or microbatches become TOO_LARGE. */
static bool parse_number(struct span *s, int *out)
{
    size_t digits = 0;
    int64_t number = 0;
    for (; digits < s->length && s->at[digits] >= '0' && s->at[digits] <= '9'; digits++)
        number = number >= TOO_LARGE ? TOO_LARGE : 10 * number + (s->at[digits] - '0');
    if (digits == 0)
        return false;
    *out = (int)(number < TOO_LARGE ? number : TOO_LARGE);
    s->at += digits;
    s->length -= digits;
    return true;
}

/* Parses the letters of a kind, up to the digits of the microbatch. */
static struct span parse_letters(struct span *s)
{
    struct span letters = {s->at, 0};
    while (letters.length < s->length && (s->at[letters.length] < '0' || s->at[letters.length] > '9'))
        letters.length++;
    s->at += letters.length;
    s->length -= letters.length;
    return letters;
}

static bool parse_action(struct span *s, struct action *out)
{
    *out = (struct action){.peer = -1};
    if (!parse_number(s, &out->stage))
        return false;
    struct span letters = parse_letters(s);
    for (int kind = 0; kind < ACTION_KIND_COUNT; kind++) {
        const char *text = action_traits((enum action_kind)kind)->text;
        if (strlen(text) != letters.length || memcmp(text, letters.at, letters.length) != 0)
            continue;
        out->kind = (enum action_kind)kind;
        return parse_number(s, &out->microbatch);
    }
    return false;
}

/* Returns the number of actions of a cell: 0 if idle, 2 for a pair. */
static int parse_cell(struct span cell, struct action out[2])
{
    struct span rest = unquoted(cell);
    if (rest.length == 0)
        return 0;
    int count = 1;
    if (match_word(&rest, "(")) {
        if (!parse_action(&rest, &out[0]) || !match_word(&rest, ";") || !parse_action(&rest, &out[1]) ||
            !match_word(&rest, ")"))
            return NO_ACTION;
        match_word(&rest, "OVERLAP_F_B");
        out[0].overlaps_next = true;
        count = 2;
    } else if (!parse_action(&rest, &out[0])) {
        return NO_ACTION;
    }
    for (int i = 0; i < count; i++)
        if (out[i].stage == TOO_LARGE || out[i].microbatch == TOO_LARGE)
            return HUGE_NUMBER;
    return rest.length == 0 ? count : NO_ACTION;
}

/* ---- errors ---- */

/* cell 0: the whole line; cells are counted from 1. */
static enum status fail_cell(const struct csv *csv, int rank, int cell, const char *words)
{
    char where[32] = "";
    if (cell > 0)
        snprintf(where, sizeof where, ", cell %d", cell);
    return fail(BAD_SCHEDULE, "%s, line %d (rank %d)%s: %s", csv->name, rank + 1, rank, where, words);
}

/* Returns the cell of the action at `position` of a rank's list. */
static int cell_of(const struct csv *csv, int rank, int position)
{
    struct action actions[2];
    struct span rest = csv->lines[rank], cell;
    for (int number = 1, count = 0; next_cell(&rest, &cell); number++) {
        count += parse_cell(cell, actions);
        if (count > position)
            return number;
    }
    return 0;
}

enum status csv_fail(const struct csv *csv, int rank, int position, const char *format, ...)
{
    char words[600];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return fail_cell(csv, rank, position >= 0 ? cell_of(csv, rank, position) : 0, words);
}

/* Formats a cell for printing. */
static void show(struct span cell, struct text *out)
{
    text_add_bytes(out, "\"", 1);
    text_add_printable(out, cell.at, cell.length < SHOWN_BYTES ? cell.length : SHOWN_BYTES);
    text_add(out, "%s\"", cell.length > SHOWN_BYTES ? "..." : "");
}

static enum status fail_unknown(const struct csv *csv, int rank, int number, struct span cell, int what)
{
    static const struct {
        const char *letters, *reason;
    } others[] = {
        {"BW", "use B for a whole backward, I and W for its halves"},
        {"UNSHARD", "remove it: parallel.zero_stage determines when weights are gathered"},
        {"RESHARD", "remove it: parallel.zero_stage determines when weights are gathered"},
        {"REDUCE_GRAD", "remove it: gradients are reduced after their last microbatch"},
    };
    const char *reason =
        "is not an action; use 0F3, 0B3, 0I3 or 0W3, (0F3;1B2) for a pair, or an empty cell for idle time";
    struct span rest = unquoted(cell), letters;
    struct text shown = {0};
    int stage;
    show(rest, &shown);
    letters = parse_number(&rest, &stage) ? parse_letters(&rest) : rest;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strlen(others[i].letters) == letters.length &&
            memcmp(others[i].letters, letters.at, letters.length) == 0)
            reason = others[i].reason;
    if (what == HUGE_NUMBER)
        reason = "too large for a stage or microbatch";
    text_add(&shown, "%s %s", strncmp(reason, "is no", 5) == 0 ? "" : ":", reason);
    enum status status = fail_cell(csv, rank, number, shown.chars);
    text_free(&shown);
    return status;
}

/* ---- the file to lists ---- */

/* Splits the file into lines; ignores empty lines at the end. */
static enum status split_lines(struct csv *csv, const char *bytes, size_t length)
{
    if (length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) { // UTF-8 byte order mark
        bytes += 3;
        length -= 3;
    }
    while (length > 0 && strchr("\r\n\t ", bytes[length - 1]) != NULL && bytes[length - 1] != 0)
        length--;
    if (length == 0)
        return fail(BAD_SCHEDULE, "%s: is empty; a schedule has a line of actions for every rank", csv->name);
    int lines = 1;
    for (size_t i = 0; i < length; i++)
        lines += bytes[i] == '\n' ? 1 : 0;
    if (length > MAX_BYTES || lines > MAX_LINES)
        return fail(BAD_SCHEDULE, "%s: %zu bytes in %d lines; too large for a schedule", csv->name, length,
                    lines);
    csv->lines = memory_zeroed((size_t)lines, sizeof *csv->lines, "the lines of a schedule file");
    csv->ranks = memory_zeroed((size_t)lines, sizeof *csv->ranks, "the lines of a schedule file");
    for (csv->p = 0; csv->p < lines; csv->p++) {
        const char *end = memchr(bytes, '\n', length);
        size_t whole = end != NULL ? (size_t)(end - bytes) : length;
        bool returned = whole > 0 && bytes[whole - 1] == '\r';
        csv->lines[csv->p] = (struct span){bytes, whole - (returned ? 1 : 0)};
        bytes += end != NULL ? whole + 1 : whole;
        length -= end != NULL ? whole + 1 : whole;
    }
    return OK;
}

static enum status parse_line(struct csv *csv, int rank)
{
    struct span rest = csv->lines[rank], cell;
    struct action actions[2];
    for (int number = 1; next_cell(&rest, &cell); number++) {
        int count = parse_cell(cell, actions);
        if (count < 0)
            return fail_unknown(csv, rank, number, cell, count);
        for (int i = 0; i < count; i++) {
            action_list_add(&csv->ranks[rank], actions[i]);
            const struct action_traits *traits = action_traits(actions[i].kind);
            csv->actions++;
            csv->forwards += traits->forward ? 1 : 0;
            csv->has_transfers = csv->has_transfers || !traits->computes;
        }
    }
    return OK;
}

/* Some programs write B instead of I if the file has W. */
static enum status check_notation(const struct csv *csv)
{
    int rank_of_w = -1, position_of_w = -1;
    for (int rank = csv->p - 1; rank >= 0; rank--)
        for (int i = csv->ranks[rank].count - 1; i >= 0; i--) {
            if (csv->ranks[rank].actions[i].kind == BACKWARD_INPUT)
                return OK;
            if (csv->ranks[rank].actions[i].kind == BACKWARD_WEIGHT) {
                rank_of_w = rank;
                position_of_w = i;
            }
        }
    if (rank_of_w < 0)
        return OK;
    char text[ACTION_CHARS];
    return csv_fail(csv, rank_of_w, position_of_w,
                    "%s is in a file without I; write I instead of B for input gradients",
                    action_text(csv->ranks[rank_of_w].actions[position_of_w], text));
}

/* Counts stages and microbatches. */
static enum status measure(struct csv *csv)
{
    char text[ACTION_CHARS];
    for (int rank = 0; rank < csv->p; rank++) {
        const struct action_list *list = &csv->ranks[rank];
        if (list->count == 0)
            return csv_fail(csv, rank, -1, "has no actions; every rank must run a stage");
        for (int i = 0; i < list->count; i++) {
            struct action a = list->actions[i];
            if (a.stage >= csv->actions || a.microbatch >= csv->actions)
                return csv_fail(csv, rank, i, "%s: a file with %d actions has no %s %d", action_text(a, text),
                                csv->actions, a.stage >= csv->actions ? "stage" : "microbatch",
                                a.stage >= csv->actions ? a.stage : a.microbatch);
            csv->stages = a.stage >= csv->stages ? a.stage + 1 : csv->stages;
            csv->m = a.microbatch >= csv->m ? a.microbatch + 1 : csv->m;
        }
    }
    return OK;
}

enum status schedule_parse_csv(const char *name, const char *bytes, size_t length, struct schedule **out)
{
    struct csv csv = {.name = name};
    enum status status = split_lines(&csv, bytes, length);
    for (int rank = 0; status == OK && rank < csv.p; rank++)
        status = parse_line(&csv, rank);
    if (status == OK)
        status = check_notation(&csv);
    if (status == OK)
        status = measure(&csv);
    if (status == OK)
        status = csv_schedule(&csv, out);
    for (int rank = 0; csv.ranks != NULL && rank < csv.p; rank++)
        free(csv.ranks[rank].actions);
    free(csv.ranks);
    free(csv.lines);
    return status;
}

enum status schedule_read_csv(const char *path, struct schedule **out)
{
    struct text text = {0}, name = {0};
    text_add_printable(&name, path, strlen(path));
    enum status status = file_read_small(path, MAX_BYTES, &text);
    if (status == OK)
        status = schedule_parse_csv(text_chars(&name), text_chars(&text), text.length, out);
    text_free(&name);
    text_free(&text);
    return status;
}
