// SPDX-License-Identifier: Apache-2.0
/* A traced run of a tiny model with processes as ranks: the test starts its own executable under mpirun, once
 * per rank, and these write the trace to a file.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (launched_is_rank(argc))
 *             return launched_rank(argv);
 *         ... MUST(launch(&(struct launch){.mpirun = argv[1], .program = argv[0], ...}, &trace)); */
#pragma once

#include "tests/support/tiny.h"
#include "tests/support/trace.h"

struct launch {
    const char *mpirun, *program; // paths
    const struct tiny *tiny;
    enum tiny_family family;
    const char *common, *layout;
    bool goes_on, synchronous; // as in trace_options
};

/* PEER_LOST if mpirun's exit status is not 0. */
MUST_USE enum status launch(const struct launch *what, struct trace *out);

/* Whether this process was started by launch(). */
bool launched_is_rank(int argc);
/* Its exit status. */
int launched_rank(char **argv);
