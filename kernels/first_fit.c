// SPDX-License-Identifier: Apache-2.0
#include "kernels/first_fit.h"

#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { ALIGNMENT = 256 };

/* A block, free or allocated; all blocks of a segment in address order. */
struct block {
    struct block *next;
    uintptr_t begin;
    size_t bytes;
    bool free;
};

struct segment {
    struct segment *next;
    uintptr_t begin;
    size_t high_water;
    struct block *blocks;
};

struct first_fit {
    struct segment *segments;
};

struct first_fit *first_fit_create(void)
{
    return memory_zeroed(1, sizeof(struct first_fit), "a pool");
}

void first_fit_destroy(struct first_fit *fit)
{
    while (fit != NULL && fit->segments != NULL) {
        struct segment *segment = fit->segments;
        fit->segments = segment->next;
        while (segment->blocks != NULL) {
            struct block *block = segment->blocks;
            segment->blocks = block->next;
            free(block);
        }
        free(segment);
    }
    free(fit);
}

void first_fit_add(struct first_fit *fit, void *data, size_t bytes)
{
    struct segment *segment = memory_zeroed(1, sizeof *segment, "a pool");
    struct block *block = memory_zeroed(1, sizeof *block, "a pool");
    *block = (struct block){.begin = (uintptr_t)data, .bytes = bytes, .free = true};
    *segment = (struct segment){.next = fit->segments, .begin = block->begin, .blocks = block};
    fit->segments = segment;
}

size_t first_fit_occupied(size_t bytes)
{
    // One alignment unit more than requested: a kernel that writes past its end does not hit the next block
    // at once.
    return bytes <= SIZE_MAX / 2 ? (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT : 0;
}

/* Splits `block` after its first `bytes`. */
static void split(struct block *block, size_t bytes)
{
    if (block->bytes == bytes)
        return;
    struct block *rest = memory_zeroed(1, sizeof *rest, "a pool");
    *rest = (struct block){
        .next = block->next, .begin = block->begin + bytes, .bytes = block->bytes - bytes, .free = true};
    block->next = rest;
    block->bytes = bytes;
}

void *first_fit_alloc(struct first_fit *fit, size_t bytes)
{
    size_t occupied = first_fit_occupied(bytes);
    for (struct segment *segment = fit->segments; segment != NULL && occupied > 0; segment = segment->next)
        for (struct block *block = segment->blocks; block != NULL; block = block->next) {
            if (!block->free || block->bytes < occupied)
                continue;
            split(block, occupied);
            block->free = false;
            size_t end = block->begin - segment->begin + occupied;
            segment->high_water = end > segment->high_water ? end : segment->high_water;
            return (void *)block->begin;
        }
    return NULL;
}

void first_fit_free(struct first_fit *fit, void *data)
{
    for (struct segment *segment = fit->segments; segment != NULL; segment = segment->next) {
        struct block *before = NULL, *block = segment->blocks;
        while (block != NULL && block->begin != (uintptr_t)data) {
            before = block;
            block = block->next;
        }
        if (block == NULL)
            continue;
        CHECK(!block->free);
        block->free = true;
        if (before == NULL || !before->free)
            before = block;
        while (before->next != NULL && before->next->free) {
            struct block *next = before->next;
            before->bytes += next->bytes;
            before->next = next->next;
            free(next);
        }
        return;
    }
    die(__FILE__, __LINE__, "first_fit_free", "%p does not belong to this pool", data);
}

size_t first_fit_high_water(const struct first_fit *fit)
{
    return fit->segments != NULL ? fit->segments->high_water : 0;
}
