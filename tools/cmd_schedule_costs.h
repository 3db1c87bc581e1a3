// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* What --cost says has one meaning in all of the command: F, I and W of one microbatch on one rank, over all
 * the chunks of that rank. A schedule with v chunks takes 1/v of it for each. */

/* "f=1,i=1,w=1,comm=0", and any part of it; NULL: these. BAD_USAGE names the part that is wrong. */
MUST_USE enum status parse_costs(const char *text, struct cost_table *whole);

/* The costs of a schedule's stages. */
struct cost_table costs_of_chunks(const struct cost_table *whole, int v);

/* "F, I, W of a whole rank: 1, 1, 1 (of a chunk 1/2 of that); a message: 0". v 0: "1/v". */
void add_costs(const struct cost_table *whole, int v, struct text *out);
