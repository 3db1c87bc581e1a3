// SPDX-License-Identifier: Apache-2.0
/* --cost-file: the times of each stage, from a spreadsheet or a script:
 *
 *     stage,f,i,w          optional heading; then a line for each stage, in any order
 *     0,1.5,1.4,1.1        (for example, the stage with the embedding)
 *     1,1,1,1
 *
 * Caution: times of a stage that does not exist are rejected, so stages are 0 to one less than the number
 * of lines, each once. */
#include "tools/cli/schedule/cmd_schedule_costs.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FIELDS = 4, MAX_BYTES = 1 << 26 };

struct reader {
    const char *path;
    struct stage_costs *out;
    bool *given; // [lines] stages seen so far
    int lines;   // lines with times
};

/* Splits a line into fields without blanks; returns their number, FIELDS + 1 if there are more. */
static int split(char *line, const char *fields[FIELDS])
{
    int count = 0;
    for (char *rest = line, *field; (field = strsep(&rest, ",")) != NULL; count++) {
        if (count == FIELDS)
            return FIELDS + 1;
        field += strspn(field, " \t");
        size_t length = strlen(field);
        while (length > 0 && strchr(" \t\r", field[length - 1]) != NULL)
            field[--length] = 0;
        fields[count] = field;
    }
    return count;
}

static bool is_blank(const char *line)
{
    return line[strspn(line, " \t\r")] == 0;
}

static bool is_heading(const char *line)
{
    return strncmp(line, "stage", 5) == 0;
}

/* Columns in another order would be misread. */
static enum status check_heading(const struct reader *r, char *line)
{
    static const char *const names[FIELDS] = {"stage", "f", "i", "w"};
    const char *fields[FIELDS];
    bool good = split(line, fields) == FIELDS;
    for (int i = 0; good && i < FIELDS; i++)
        good = strcasecmp(fields[i], names[i]) == 0;
    return good ? OK
                : fail(BAD_USAGE,
                       "%s, line 1: the columns are stage,f,i,w, in this order; a file without a "
                       "heading has them too",
                       r->path);
}

static enum status read_line(struct reader *r, int number, char *line)
{
    const char *fields[FIELDS];
    int64_t stage;
    double times[FIELDS - 1];
    bool good = split(line, fields) == FIELDS && integer_parse(fields[0], &stage) && stage >= 0;
    for (int i = 1; good && i < FIELDS; i++)
        good = number_parse(fields[i], &times[i - 1]) && times[i - 1] >= 0.0 && times[i - 1] <= 1e12;
    if (!good)
        return fail(BAD_USAGE,
                    "%s, line %d: use stage,f,i,w: a stage and three times from 0 to 1e12, such as "
                    "0,1,1.2,0.9",
                    r->path, number);
    if (stage >= r->lines)
        return fail(BAD_USAGE, "%s, line %d: stage %lld; %d lines have the times of stages 0 to %d", r->path,
                    number, (long long)stage, r->lines, r->lines - 1);
    if (r->given[stage])
        return fail(BAD_USAGE, "%s, line %d: stage %lld is given twice", r->path, number, (long long)stage);
    r->given[stage] = true;
    r->out->of_stage[stage] = (struct stage_cost){.f = times[0], .i = times[1], .w = times[2]};
    return OK;
}

/* Counts the lines with times, or reads them. */
static enum status read_lines(struct reader *r, struct text *text, bool counting)
{
    char *rest = text->chars;
    for (int number = 1; rest != NULL; number++) {
        char *line = rest, *end = strchr(line, '\n');
        rest = end != NULL ? end + 1 : NULL;
        size_t length = strcspn(line, "\n");
        char kept = line[length];
        line[length] = 0;
        bool heading = number == 1 && is_heading(line), times = !is_blank(line) && !heading;
        if (!counting && heading)
            TRY(check_heading(r, line));
        if (counting)
            r->lines += times ? 1 : 0;
        else if (times)
            TRY(read_line(r, number, line));
        line[length] = kept;
    }
    return OK;
}

static enum status check_sum(const struct stage_costs *costs, const char *path)
{
    double sum = 0.0;
    for (int stage = 0; stage < costs->count; stage++)
        sum += costs->of_stage[stage].f + costs->of_stage[stage].i + costs->of_stage[stage].w;
    return sum > 0.0 ? OK : fail(BAD_USAGE, "%s: all times are 0; set at least one", path);
}

enum status read_stage_costs(const char *path, struct stage_costs *out)
{
    struct text text = {0};
    struct reader r = {.path = path, .out = out};
    *out = (struct stage_costs){.path = path};
    enum status status = file_read_small(path, MAX_BYTES, &text);
    if (status == IO_ERROR) // like a missing schedule file
        status = BAD_USAGE;
    if (status == OK && strlen(text_chars(&text)) != text.length)
        status = fail(BAD_USAGE, "%s: contains a zero byte, so it is not text", path);
    if (status == OK)
        status = read_lines(&r, &text, true);
    if (status == OK) {
        out->count = r.lines;
        out->of_stage = memory_zeroed((size_t)r.lines + 1, sizeof *out->of_stage, "the times of stages");
        r.given = memory_zeroed((size_t)r.lines + 1, sizeof *r.given, "the times of stages");
        status = read_lines(&r, &text, false);
    }
    if (status == OK)
        status = check_sum(out, path);
    free(r.given);
    text_free(&text);
    if (status != OK)
        stage_costs_free(out);
    return status;
}

void stage_costs_free(struct stage_costs *costs)
{
    free(costs->of_stage);
    costs->of_stage = NULL;
}
