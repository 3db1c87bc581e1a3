// SPDX-License-Identifier: Apache-2.0
/* Which bytes of a device's memory belong to whom: the arithmetic of a pool, on addresses that nobody
 * follows. First fit in address order; neighbours that are free become one.
 *
 *     piece   |#### run ####|. free .|#### run ####|........ free ........|
 *
 * The cuda device lays out its memory by it, and the dry device too: who asks for the same in the same order
 * gets the same places. So a rehearsal says how large a piece must be for a run to need no other. */
#pragma once

#include "base/status.h"

#include <stddef.h>

struct first_fit;

MUST_USE enum status first_fit_create(struct first_fit **out);
void first_fit_destroy(struct first_fit *fit); // takes NULL

/* `bytes` from `data` on, aligned to 256, may be handed out from now on. The newest piece is looked at first.
 */
MUST_USE enum status first_fit_add(struct first_fit *fit, void *data, size_t bytes);

/* Aligned to 256 bytes, and never touching another run. *out is NULL where no piece has room. */
MUST_USE enum status first_fit_take(struct first_fit *fit, size_t bytes, void **out);
void first_fit_give(struct first_fit *fit, void *data);

/* What first_fit_take(bytes) wants of a piece; 0: no piece can have it. */
size_t first_fit_room(size_t bytes);

/* The end of what was ever handed out of the newest piece, counted from its begin: a piece of so many bytes
 * would have done. */
size_t first_fit_reached(const struct first_fit *fit);
