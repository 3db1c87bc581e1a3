// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/timeline_rows.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { MILLISECONDS = 1000 };

static bool is_shown(const struct span *span, double origin_s)
{
    return span->name[0] != 0 && span->end_s > origin_s;
}

/* In the order of rows, then of time. */
static int by_row(const void *left, const void *right)
{
    const struct span *a = *(const struct span *const *)left, *b = *(const struct span *const *)right;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return (a->begin_s > b->begin_s) - (a->begin_s < b->begin_s);
}

static struct trace_slice slice_of(const struct span *span, double origin_s)
{
    const double begin_s = span->begin_s > origin_s ? span->begin_s - origin_s : 0.0;
    return (struct trace_slice){.name = span->name,
                                .kind = event_kind_name((enum event_kind)span->kind),
                                .start = begin_s * MILLISECONDS,
                                .end = (span->end_s - origin_s) * MILLISECONDS,
                                .bytes = span->bytes};
}

static const enum trace_row_class class_of_kind[EVENT_KINDS] = {
    [EVENT_STEP] = ROW_STEP,          [EVENT_OPTIMIZER] = ROW_OPTIMIZER, [EVENT_REDUCTION] = ROW_COLLECTIVES,
    [EVENT_GATHER] = ROW_COLLECTIVES, [EVENT_TRANSFER] = ROW_TRANSFERS,  [EVENT_COPY] = ROW_COPIES,
};

#define ROWS "the rows of a timeline"

/* Appends the row of spans[0..count). */
static void add_row(struct timeline_rows *rows, int rank, const struct span *const *spans, int count,
                    double origin_s)
{
    const struct span *first = spans[0];
    const bool is_alone = first->kind == EVENT_STEP || first->kind == EVENT_OPTIMIZER;
    struct text name = {0};
    struct trace_slice *slices = memory_zeroed((size_t)count, sizeof *slices, ROWS);
    rows->list = memory_resized(rows->list, (size_t)rows->count + 1, sizeof *rows->list, ROWS);
    text_add(&name, "%s", event_kind_name((enum event_kind)first->kind));
    if (!is_alone)
        text_add(&name, " (%s)", first->stream_name);
    for (int i = 0; i < count; i++)
        slices[i] = slice_of(spans[i], origin_s);
    rows->list[rows->count++] = (struct trace_row){.rank = rank,
                                                   .class = class_of_kind[first->kind],
                                                   .name = name.chars,
                                                   .slices = slices,
                                                   .count = count};
}

static bool same_row(const struct span *a, const struct span *b)
{
    return a->kind == b->kind && a->stream == b->stream;
}

void timeline_rows_add(struct timeline_rows *rows, int rank, const struct span *spans, int64_t count,
                       double origin_s)
{
    AUTO_FREE const struct span **shown = memory_zeroed((size_t)count + 1, sizeof *shown, ROWS);
    int found = 0, end;
    for (int64_t i = 0; i < count; i++)
        if (is_shown(&spans[i], origin_s))
            shown[found++] = &spans[i];
    qsort(shown, (size_t)found, sizeof *shown, by_row);
    for (int i = 0; i < found; i = end) {
        for (end = i + 1; end < found && same_row(shown[i], shown[end]); end++)
            continue;
        add_row(rows, rank, shown + i, end - i, origin_s);
    }
}

void timeline_rows_free(struct timeline_rows *rows)
{
    for (int i = 0; i < rows->count; i++) {
        free((void *)(uintptr_t)rows->list[i].slices);
        free((void *)(uintptr_t)rows->list[i].name);
    }
    free(rows->list);
    *rows = (struct timeline_rows){0};
}
