// SPDX-License-Identifier: Apache-2.0
#include "kernels/first_fit.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { ALIGNMENT = 256 };

/* A block, free or allocated; all blocks of a segment in address order. */
struct run {
    struct run *next;
    uintptr_t begin;
    size_t bytes;
    bool free;
};

struct segment {
    struct segment *next;
    uintptr_t begin;
    size_t reached;
    struct run *runs;
};

struct first_fit {
    struct segment *segments;
};

enum status first_fit_create(struct first_fit **out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? OK : fail(NO_MEMORY, "no memory for a pool");
}

void first_fit_destroy(struct first_fit *fit)
{
    while (fit != NULL && fit->segments != NULL) {
        struct segment *segment = fit->segments;
        fit->segments = segment->next;
        while (segment->runs != NULL) {
            struct run *run = segment->runs;
            segment->runs = run->next;
            free(run);
        }
        free(segment);
    }
    free(fit);
}

enum status first_fit_add(struct first_fit *fit, void *data, size_t bytes)
{
    struct segment *segment = malloc(sizeof *segment);
    struct run *run = malloc(sizeof *run);
    if (segment == NULL || run == NULL) {
        free(segment);
        free(run);
        return fail(NO_MEMORY, "no memory for a pool");
    }
    *run = (struct run){.begin = (uintptr_t)data, .bytes = bytes, .free = true};
    *segment = (struct segment){.next = fit->segments, .begin = run->begin, .runs = run};
    fit->segments = segment;
    return OK;
}

size_t first_fit_occupied(size_t bytes)
{
    // One alignment unit more than requested: a kernel that writes past its end does not hit the next block
    // at once.
    return bytes <= SIZE_MAX / 2 ? (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT : 0;
}

/* Splits `run` after its first `bytes`. */
static enum status cut(struct run *run, size_t bytes)
{
    if (run->bytes == bytes)
        return OK;
    struct run *rest = malloc(sizeof *rest);
    if (rest == NULL)
        return fail(NO_MEMORY, "no memory for a pool");
    *rest = (struct run){
        .next = run->next, .begin = run->begin + bytes, .bytes = run->bytes - bytes, .free = true};
    run->next = rest;
    run->bytes = bytes;
    return OK;
}

enum status first_fit_alloc(struct first_fit *fit, size_t bytes, void **out)
{
    size_t occupied = first_fit_occupied(bytes);
    *out = NULL;
    for (struct segment *segment = fit->segments; segment != NULL && occupied > 0; segment = segment->next)
        for (struct run *run = segment->runs; run != NULL; run = run->next) {
            if (!run->free || run->bytes < occupied)
                continue;
            TRY(cut(run, occupied));
            run->free = false;
            size_t end = run->begin - segment->begin + occupied;
            segment->reached = end > segment->reached ? end : segment->reached;
            *out = (void *)run->begin;
            return OK;
        }
    return OK;
}

void first_fit_free(struct first_fit *fit, void *data)
{
    for (struct segment *segment = fit->segments; segment != NULL; segment = segment->next) {
        struct run *before = NULL, *run = segment->runs;
        while (run != NULL && run->begin != (uintptr_t)data) {
            before = run;
            run = run->next;
        }
        if (run == NULL)
            continue;
        CHECK(!run->free);
        run->free = true;
        if (before == NULL || !before->free)
            before = run;
        while (before->next != NULL && before->next->free) {
            struct run *next = before->next;
            before->bytes += next->bytes;
            before->next = next->next;
            free(next);
        }
        return;
    }
    die(__FILE__, __LINE__, "first_fit_free", "%p does not belong to this pool", data);
}

size_t first_fit_reached(const struct first_fit *fit)
{
    return fit->segments != NULL ? fit->segments->reached : 0;
}
