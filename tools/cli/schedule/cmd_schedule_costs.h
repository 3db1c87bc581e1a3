// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedules/simulate.h"

/* What --cost says has one meaning in all of the command: F, I and W of one microbatch on one rank, over all
 * the chunks of that rank. A schedule with v chunks takes 1/v of it for each. */

/* "f=1,i=1,w=1,comm=0", and any part of it; NULL: these. b=2 is what a B takes, else I and W together;
 * without i and w they are unknown. BAD_USAGE names the part that is wrong; with a file, which says the
 * others, that is all but comm. */
MUST_USE enum status parse_costs(const char *text, bool with_file, struct cost_table *whole);

/* The times of each stage, from a file: what one stage takes, not a rank. */
struct stage_costs {
    const char *path;
    struct stage_cost *of_stage; // [count]; NULL: there is no file
    int count;
};
/* BAD_USAGE names the file, the line and what works. */
MUST_USE enum status read_stage_costs(const char *path, struct stage_costs *out);
void stage_costs_free(struct stage_costs *costs);

/* The costs of a schedule's stages: those of a whole rank in v parts, or each as `whole` says. */
struct cost_table costs_of_chunks(const struct cost_table *whole, int v);

/* "F, I, W of a whole rank: 1, 1, 1 (of a chunk 1/2 of that); a message: 0", with v 0 "1/v". Where each stage
 * has its own: "F, I, W of each stage: as its file says; a message: 0". */
void add_costs(const struct cost_table *whole, int v, struct text *out);
/* As JSON: "cost": {"f": 1, "i": 1, "w": 1, "comm": 0}, with "b" where it was said. */
void print_json_costs(const struct cost_table *whole);

/* BAD_USAGE where a schedule with I and W of their own (`split`) is to be played, and only a B's time is
 * known. */
MUST_USE enum status check_costs(const struct cost_table *whole, const char *name, bool split);
