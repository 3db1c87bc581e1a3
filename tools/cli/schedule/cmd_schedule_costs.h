// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* Costs (--cost) have one meaning in the whole command: F, I and W of one microbatch on one rank, over all
 * chunks of that rank. In a schedule with v chunks each takes 1/v of it. */

/* Parses "f=1,i=1,w=1,comm=0" or a part of it; NULL: these values. b=2 is the time of a B, by default that
 * of I and W; without i and w these are unknown. BAD_USAGE names the invalid part; with a cost file, which
 * has the other times, everything but comm is invalid. */
MUST_USE enum status parse_costs(const char *text, bool with_file, struct cost_table *whole);

/* Times of each stage, from a file: of one stage, not of a rank. */
struct stage_costs {
    const char *path;
    struct stage_cost *of_stage; // [count]; NULL: no file
    int count;
};
/* BAD_USAGE names the file, the line and the valid form. */
MUST_USE enum status read_stage_costs(const char *path, struct stage_costs *out);
void stage_costs_free(struct stage_costs *costs);

/* Sets the costs of the stages of a schedule: `whole` rank divided by v, or per stage. */
struct cost_table costs_of_chunks(const struct cost_table *whole, int v);

/* Formats "F, I, W of a whole rank: 1, 1, 1 (of a chunk 1/2 of that); a message: 0", with v 0 "1/v"; with
 * a cost file "F, I, W of each stage: from its file; a message: 0". */
void add_costs(const struct cost_table *whole, int v, struct text *out);
/* Formats JSON: "cost": {"f": 1, "i": 1, "w": 1, "comm": 0}, with "b" if it was given. */
void print_json_costs(const struct cost_table *whole);

/* BAD_USAGE if a schedule with separate I and W (`split`) is simulated, and only the time of a B is known. */
MUST_USE enum status check_costs(const struct cost_table *whole, const char *name, bool split);
