// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/mark_pairs.h"

#include <stdlib.h>

enum { CHUNK = 256 }; // pairs that are created together

static enum status grow(struct mark_pairs *pairs, struct device *device)
{
    if (pairs->count < CHUNK * pairs->chunks)
        return OK;
    struct time_marks **marks = realloc(pairs->marks, ((size_t)pairs->chunks + 1) * sizeof *marks);
    if (marks == NULL)
        return fail(NO_MEMORY, "no memory for marks of time");
    pairs->marks = marks;
    TRY(time_marks_create(device, 2 * CHUNK, &pairs->marks[pairs->chunks]));
    pairs->chunks++;
    return OK;
}

static struct time_mark mark_of(const struct mark_pairs *pairs, int index, bool end)
{
    return (struct time_mark){pairs->marks[index / CHUNK], 2 * (index % CHUNK) + end};
}

static enum status set(const struct mark_pairs *pairs, int index, bool end, struct stream *stream)
{
    return time_marks_set(pairs->marks[index / CHUNK], mark_of(pairs, index, end).index, stream);
}

enum status mark_pairs_begin(struct mark_pairs *pairs, struct stream *stream, int *out)
{
    TRY(grow(pairs, stream_device(stream)));
    *out = pairs->count++;
    return set(pairs, *out, false, stream);
}

enum status mark_pairs_end(const struct mark_pairs *pairs, int index, struct stream *stream)
{
    return set(pairs, index, true, stream);
}

void mark_pairs_free(struct mark_pairs *pairs)
{
    for (int i = 0; i < pairs->chunks; i++)
        time_marks_destroy(pairs->marks[i]);
    free(pairs->marks);
    *pairs = (struct mark_pairs){0};
}

double mark_pairs_seconds(const struct mark_pairs *pairs, int index)
{
    return time_mark_between(mark_of(pairs, index, false), mark_of(pairs, index, true));
}

double mark_pairs_s(const struct mark_pairs *pairs, int index, bool end, const struct mark_clock *host)
{
    const struct time_mark mark = mark_of(pairs, index, end);
    return mark_clock_s(host, mark.marks, mark.index);
}
