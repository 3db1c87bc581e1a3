// SPDX-License-Identifier: Apache-2.0
/* A first-fit pool allocator over device addresses, which it never dereferences. First fit in address order;
 * adjacent free blocks are merged.
 *
 *     segment |#### block ##|. free .|#### block ##|........ free ........|
 *
 * Both cuda and dry use it, and equal allocation sequences give equal offsets. A dry run therefore predicts
 * how large a segment must be for a run to need no other. */
#pragma once

#include "base/status.h"

#include <stddef.h>

struct first_fit;

struct first_fit *first_fit_create(void);
void first_fit_destroy(struct first_fit *fit); // accepts NULL

/* Adds `bytes` from `data` on, aligned to 256, to the pool. The newest segment is searched first. */
void first_fit_add(struct first_fit *fit, void *data, size_t bytes);

/* An aligned (256 bytes), disjoint block; NULL if no segment has room. */
void *first_fit_alloc(struct first_fit *fit, size_t bytes);
void first_fit_free(struct first_fit *fit, void *data);

/* The bytes of a segment that first_fit_alloc(bytes) occupies; 0: no segment can hold it. */
size_t first_fit_occupied(size_t bytes);

/* The high-water mark of the newest segment, from its start: a segment of this size would have sufficed. */
size_t first_fit_high_water(const struct first_fit *fit);
