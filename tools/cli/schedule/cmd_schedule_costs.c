// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/schedule/cmd_schedule_costs.h"

#include <string.h>

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

enum cost { COST_F, COST_I, COST_W, COST_COMM, COST_B, COST_COUNT };

/* Parses one entry of "f=1, i = 2"; blanks are ignored. `set`: a bit for each entry seen before. */
static enum status set_cost(struct cost_table *costs, const char *item, unsigned *set)
{
    const struct {
        const char *name;
        double *value;
    } known[COST_COUNT] = {[COST_F] = {"f", &costs->chunk.f},
                           [COST_I] = {"i", &costs->chunk.i},
                           [COST_W] = {"w", &costs->chunk.w},
                           [COST_COMM] = {"comm", &costs->wire},
                           [COST_B] = {"b", &costs->b}};
    item = skip_blanks(item);
    size_t length = strcspn(item, " \t=");
    const char *equals = skip_blanks(item + length);
    double value;
    for (size_t k = 0; *equals == '=' && k < sizeof known / sizeof *known; k++) {
        if (strlen(known[k].name) != length || strncmp(known[k].name, item, length) != 0)
            continue;
        if ((*set >> k & 1U) != 0)
            return fail(BAD_USAGE, "schedule: --cost has %s twice", known[k].name);
        *set |= 1U << k;
        if (!number_parse(skip_blanks(equals + 1), &value) || !(value >= 0.0 && value <= 1e12))
            return fail(BAD_USAGE, "schedule: --cost %s is invalid; use a time from 0 to 1e12", item);
        *known[k].value = value;
        return OK;
    }
    return fail(BAD_USAGE, "schedule: --cost \"%s\" is invalid; use f=1,i=1,w=1,b=2,comm=0 or a part of it",
                item);
}

/* Converts the time of a B to a multiple of i + w. If only B was measured, its halves are unknown. */
static enum status set_b(const char *text, unsigned set, struct cost_table *costs)
{
    bool i = (set >> COST_I & 1U) != 0, w = (set >> COST_W & 1U) != 0;
    double b = costs->b, halves = costs->chunk.i + costs->chunk.w;
    if ((set >> COST_B & 1U) == 0)
        return OK;
    if (i != w)
        return fail(BAD_USAGE, "schedule: --cost %s: with b, give both i and w, or neither", text);
    costs->b = 0.0;
    costs->b_alone = !i;
    if (costs->b_alone)
        costs->chunk.i = costs->chunk.w = b / 2.0;
    else if (halves > 0.0 && b > 0.0)
        costs->b = b / halves;
    else if (halves > 0.0 || b > 0.0)
        return fail(BAD_USAGE, "schedule: --cost %s: a B is I and W together; make b and i + w more than 0",
                    text);
    return OK;
}

enum status parse_costs(const char *text, bool with_file, struct cost_table *whole)
{
    enum { COMM = 1U << COST_COMM };
    *whole = (struct cost_table){.chunk = {.f = 1, .i = 1, .w = 1}};
    struct text item = {0};
    enum status status = OK;
    unsigned set = 0;
    for (const char *at = text; status == OK && at != NULL;) {
        size_t length = strcspn(at, ","), shown = length;
        while (shown > 0 && strchr(" \t", at[shown - 1]) != NULL)
            shown--;
        text_free(&item);
        text_add_bytes(&item, at, shown);
        status = set_cost(whole, item.chars, &set);
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    text_free(&item);
    TRY(status);
    TRY(set_b(text, set, whole));
    if (with_file && (set & ~(unsigned)COMM) != 0)
        return fail(BAD_USAGE,
                    "schedule: --cost %s and --cost-file both set the times of F, I and W; with a file, "
                    "use only --cost comm=0.1",
                    text);
    return whole->chunk.f + whole->chunk.i + whole->chunk.w > 0.0
               ? OK
               : fail(BAD_USAGE, "schedule: --cost %s: all times are 0; set at least one", text);
}

struct cost_table costs_of_chunks(const struct cost_table *whole, int v)
{
    struct cost_table costs = *whole;
    costs.chunk = cost_of_part(whole->chunk, v);
    return costs;
}

void add_costs(const struct cost_table *whole, int v, struct text *out)
{
    const struct stage_cost *rank = &whole->chunk;
    if (whole->of_stage != NULL)
        text_add(out, "F, I, W of each stage: from its file");
    else if (whole->b_alone)
        text_add(out, "F, B of a whole rank: %g, %g", rank->f, rank->i + rank->w);
    else if (whole->b > 0.0)
        text_add(out, "F, I, W, B of a whole rank: %g, %g, %g, %g", rank->f, rank->i, rank->w,
                 whole->b * (rank->i + rank->w));
    else
        text_add(out, "F, I, W of a whole rank: %g, %g, %g", rank->f, rank->i, rank->w);
    if (whole->of_stage != NULL)
        v = 1;
    if (v == 0)
        text_add(out, " (of a chunk 1/v of that)");
    else if (v > 1)
        text_add(out, " (of a chunk 1/%d of that)", v);
    text_add(out, "; a message: %g", whole->wire);
}

void print_json_costs(const struct cost_table *whole)
{
    const struct stage_cost *rank = &whole->chunk;
    double halves = rank->i + rank->w;
    char number[NUMBER_CHARS];
    printf("\"cost\": {\"f\": %s, ", number_text(rank->f, number));
    if (!whole->b_alone) {
        printf("\"i\": %s, ", number_text(rank->i, number));
        printf("\"w\": %s, ", number_text(rank->w, number));
    }
    if (whole->b_alone || whole->b > 0.0)
        printf("\"b\": %s, ", number_text(whole->b_alone ? halves : whole->b * halves, number));
    printf("\"comm\": %s}", number_text(whole->wire, number));
}

enum status check_costs(const struct cost_table *whole, const char *name, bool split)
{
    return whole->b_alone && split
               ? fail(
                     BAD_USAGE,
                     "schedule: %s has I and W apart, and --cost has only b, the time of both; add i= and w=",
                     name)
               : OK;
}
