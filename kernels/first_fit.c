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

struct piece {
    struct piece *next;
    uintptr_t begin;
    size_t reached;
    struct run *runs;
};

struct first_fit {
    struct piece *pieces;
};

enum status first_fit_create(struct first_fit **out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? OK : fail(NO_MEMORY, "no memory for a pool");
}

void first_fit_destroy(struct first_fit *fit)
{
    while (fit != NULL && fit->pieces != NULL) {
        struct piece *piece = fit->pieces;
        fit->pieces = piece->next;
        while (piece->runs != NULL) {
            struct run *run = piece->runs;
            piece->runs = run->next;
            free(run);
        }
        free(piece);
    }
    free(fit);
}

enum status first_fit_add(struct first_fit *fit, void *data, size_t bytes)
{
    struct piece *piece = malloc(sizeof *piece);
    struct run *run = malloc(sizeof *run);
    if (piece == NULL || run == NULL) {
        free(piece);
        free(run);
        return fail(NO_MEMORY, "no memory for a pool");
    }
    *run = (struct run){.begin = (uintptr_t)data, .bytes = bytes, .free = true};
    *piece = (struct piece){.next = fit->pieces, .begin = run->begin, .runs = run};
    fit->pieces = piece;
    return OK;
}

size_t first_fit_room(size_t bytes)
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

enum status first_fit_take(struct first_fit *fit, size_t bytes, void **out)
{
    size_t room = first_fit_room(bytes);
    *out = NULL;
    for (struct piece *piece = fit->pieces; piece != NULL && room > 0; piece = piece->next)
        for (struct run *run = piece->runs; run != NULL; run = run->next) {
            if (!run->free || run->bytes < room)
                continue;
            TRY(cut(run, room));
            run->free = false;
            size_t end = run->begin - piece->begin + room;
            piece->reached = end > piece->reached ? end : piece->reached;
            *out = (void *)run->begin;
            return OK;
        }
    return OK;
}

void first_fit_give(struct first_fit *fit, void *data)
{
    for (struct piece *piece = fit->pieces; piece != NULL; piece = piece->next) {
        struct run *before = NULL, *run = piece->runs;
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
    die(__FILE__, __LINE__, "first_fit_give", "%p does not belong to this pool", data);
}

size_t first_fit_reached(const struct first_fit *fit)
{
    return fit->pieces != NULL ? fit->pieces->reached : 0;
}
