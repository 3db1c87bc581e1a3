// SPDX-License-Identifier: Apache-2.0
/* A traced run of a tiny model whose ranks are processes: the test starts its own program under mpirun, once
 * for each rank, and these leave the trace in a file.
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

/* PEER_LOST when mpirun ends with another status than 0. */
MUST_USE enum status launch(const struct launch *what, struct trace *out);

/* Whether this process is one of launch(). */
bool launched_is_rank(int argc);
/* Its exit status. */
int launched_rank(char **argv);
