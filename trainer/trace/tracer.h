// SPDX-License-Identifier: Apache-2.0
/* CUBOID_TRACE: an observer (kernels/observe.h) that prints a line for each message, action and allocation.
 *
 *     step    rank   coordinates       time            action    what       bytes peer   group       number
 *     s000002 r00001 pp000 dp0000 tp01 00000093.417024 0F3       all_reduce 65536 -      tp[0,1]     #000012
 *     s000002 r00001 pp000 dp0000 tp01 00000093.417090 0SEND_F3  send        8192 r00003 pp_0>1[1,3] #000003
 *     s000002 r00001 pp000 dp0000 tp01 00000093.417113 0F4       action         0 -      -           -
 *
 * The columns are fixed and contain no spaces: `sort` merges the lines of several ranks by step and rank,
 * `sort -k6` by time, and `diff` compares two ranks (docs/debugging.md). The time is that of the monotonic
 * clock, which the processes of a machine share. A message is printed when it is enqueued: its
 * number counts the calls on its group, which is the same on all its ranks.
 *
 * Caution: step 0 is everything before the first step. */
#pragma once

#include "kernels/observe.h"

enum trace_kind { TRACE_COMM, TRACE_ACTION, TRACE_MEMORY, TRACE_KINDS };

struct tracing {
    bool any, of[TRACE_KINDS];
    const char *file; // "%r" stands for the rank; lines are appended. NULL: standard error. Not owned
};

/* Parses the values of CUBOID_TRACE ("comm,memory", "all") and CUBOID_TRACE_FILE; NULL: not set. BAD_USAGE
 * names the unknown word and lists the valid ones. */
MUST_USE enum status tracing_parse(const char *words, const char *file, struct tracing *out);

/* Formats one line, without a newline. False: this observation is not traced. */
enum { TRACE_LINE_CHARS = 400 };
bool trace_line(const struct tracing *tracing, const struct observation *seen, char out[TRACE_LINE_CHARS]);

/* Traces one rank: attaches to its device, and to the comms that its world creates from now on. *out is NULL
 * if nothing is traced. IO_ERROR if the file cannot be opened. Destroy it after the device is closed and the
 * world is no longer observed. */
struct world;
struct tracer;
MUST_USE enum status tracer_create(const struct tracing *tracing, struct device *device, struct world *world,
                                   struct tracer **out);
void tracer_destroy(struct tracer *tracer); // accepts NULL
