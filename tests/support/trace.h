// SPDX-License-Identifier: Apache-2.0
/* The trace of a training run, for bitwise comparison of two runs: loss and gradient norm of every step, the
 * loss of a final evaluation, and for every parameter one hash of all bits of its weights and moments. The
 * hash is a sum over elements of a hash of (index, bits), so ranks can add it in any order: threads,
 * processes, and every layout give the same. */
#pragma once

#include "trainer/engine/rank.h"

enum { TRACE_MAX_STEPS = 20, TRACE_MAX_ROWS = 400 };

struct trace {
    int steps, rows;
    double loss[TRACE_MAX_STEPS], grad_norm[TRACE_MAX_STEPS];
    double valid_loss;
    int rollbacks, ahead; // updates that were rolled back; steps started before validation. Not compared
    int64_t hash[TRACE_MAX_ROWS];
    char names[TRACE_MAX_ROWS][PARAM_NAME_CHARS];
};

struct trace_options {
    const char *transport; // "local": threads of this process; "mpi": under a launcher
    bool evaluates_often;  // after each step: must not affect training
    int64_t stop_after;    // saves a checkpoint after this step, and ends without an evaluation; 0: no
    bool resume;           // from recipe->checkpoint.save
    bool looks_ahead;      // ranks may start the next step before the current one is final
    bool synchronous;      // over mpi: a send completes only when it has been received
    struct step_observer observer;
};

/* NOT_FINITE as from a run. Trains to step recipe->train.train_iters, and evaluates. Under a launcher only
 * the process of rank 0 gets a trace. *out keeps its record of the steps before a resume. */
MUST_USE enum status trace_run(const struct recipe *recipe, const struct trace_options *options,
                               struct trace *out);

/* Runs `count` recipes one after the other on the same ranks; they need the same number of ranks. */
MUST_USE enum status trace_run_all(const struct recipe *const *recipes, const struct trace_options *options,
                                   int count, struct trace *out);

/* Describes the first difference of two traces; false if there is none. */
bool trace_differs(const struct trace *a, const struct trace *b, struct text *why);

/* In binary, for the same program on the same machine. */
MUST_USE enum status trace_write(const struct trace *trace, const char *path);
MUST_USE enum status trace_read(const char *path, struct trace *out);
