// SPDX-License-Identifier: Apache-2.0
/* Traced runs of a tiny model with processes as ranks: the test starts its own executable under mpirun, once
 * per rank, and these write the traces to files. Several runs share the processes: starting them takes longer
 * than a run.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (launched_is_rank(argc, argv))
 *             return launched_rank(argc, argv);
 *         struct mpirun mpirun = {argv[1], argv[0], &tiny};
 *         struct launch runs[] = {{TINY_GPT, "", "pp=2"}, {TINY_GPT, "", "pp=4"}};
 *         MUST(launch(&mpirun, runs, 2, traces)); */
#pragma once

#include "tests/support/tiny.h"
#include "tests/support/trace.h"

struct mpirun {
    const char *path, *program;
    const struct tiny *tiny;
};

struct launch {
    enum tiny_family family;
    const char *common, *layout;
    bool looks_ahead, synchronous; // as in trace_options
};

/* Starts mpirun once for each number of ranks that occurs. PEER_LOST if an exit status is not 0. */
MUST_USE enum status launch(const struct mpirun *mpirun, const struct launch *runs, int count,
                            struct trace *out);

/* Whether this process was started by launch(). */
bool launched_is_rank(int argc, char **argv);
/* Its exit status. */
int launched_rank(int argc, char **argv);
