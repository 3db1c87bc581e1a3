// SPDX-License-Identifier: Apache-2.0
/* What a training run has done, in a form that two runs can be compared by, to the bit: loss and gradient
 * norm of every step, the loss of an evaluation at the end, and for every parameter one number made of all
 * bits of its weights and moments. That number is a sum over elements of a hash of (which element, its bits),
 * so it can be added up by any ranks in any order: threads, processes, and every layout get the same. */
#pragma once

#include "trainer/engine/rank_state.h"

enum { TRACE_MOST_STEPS = 20, TRACE_MOST_ROWS = 400 };

struct trace {
    int steps, rows;
    double loss[TRACE_MOST_STEPS], grad_norm[TRACE_MOST_STEPS];
    double valid_loss;
    int rollbacks, ahead; // updates that ranks took back; steps that began ahead of a verdict. Not compared
    int64_t hash[TRACE_MOST_ROWS];
    char names[TRACE_MOST_ROWS][PARAM_NAME_CHARS];
};

struct trace_options {
    const char *transport; // "local": threads of this process; "mpi": under a launcher
    bool evaluates_often;  // after each step: it must change nothing
    int64_t stop_after;    // saves a checkpoint after this step, and ends without an evaluation; 0: does not
    bool resume;           // from recipe->checkpoint.save
    bool goes_on;          // lets ranks run into the next step, where nothing else follows
    bool synchronous;      // over mpi: a send is done only when it was received
    struct hooks hooks;
};

/* NOT_FINITE as a run would say it. Trains to step recipe->train.train_iters, and evaluates. Under a launcher
 * only the process of rank 0 gets a trace. *out keeps what it knows of steps before the one that is resumed
 * from. */
MUST_USE enum status trace_run(const struct recipe *recipe, const struct trace_options *options,
                               struct trace *out);

/* The first thing in which two traces differ, in words; false when there is none. */
bool trace_differs(const struct trace *a, const struct trace *b, struct text *why);

/* As bytes, for the same program on the same machine. */
MUST_USE enum status trace_write(const struct trace *trace, const char *path);
MUST_USE enum status trace_read(const char *path, struct trace *out);
