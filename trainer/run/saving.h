// SPDX-License-Identifier: Apache-2.0
/* The saves of a run: to checkpoint.save, in the background or not, and in the memory of the nodes. All calls
 * are collective. */
#pragma once

#include "trainer/checkpoint/checkpoint.h"

struct saver {
    struct rank_state *rank_state;
    struct memory_checkpoints *memory; // NULL: none
    struct checkpoint_saving *saving;  // in the background; NULL: none
    struct step_observer observer;     // lets the copy of the state end before the update
    int64_t saved;                     // step of the last save; -1: none
    double saving_loss;                // validation loss of what is saved in the background; INFINITY: none
    bool written; // all ranks have written the checkpoint that is saved in the background
    bool due;     // agreed on by all ranks: save as soon as no look-ahead is in progress
};

/* Takes part in the steps of the rank; sets rank_state and observer. */
void saver_attach(struct saver *saver, struct rank_state *state);

/* The clock of rank 0 decides when to save next. */
void saver_plan(struct saver *saver);

/* Takes requests of all ranks from the statistics of the last step. */
void saver_read_requests(struct saver *saver);

/* True if the state may be saved, or a save finished, after `step`. */
bool saver_acts_after(const struct saver *saver, int64_t step);

/* *best: with checkpoint.keep_best, the state has a lower validation loss than all checkpoints of the run. */
MUST_USE enum status saver_is_best(const struct saver *saver, bool *best);

/* Saves to checkpoint.save; `last`: no step follows. */
MUST_USE enum status saver_save(struct saver *saver, bool last);

/* Publishes the checkpoint that is written in the background. If writing failed, the current state is saved
 * at once instead, and *saved is true. */
MUST_USE enum status saver_finish(struct saver *saver, bool *saved);

/* Saves in memory if that is due after the current step, unless checkpoint.save has the step already. */
MUST_USE enum status saver_save_in_memory(struct saver *saver);

/* Called after a step has failed with `failure`, which it returns. Publishes the checkpoint that is being
 * written in the background, since its copy in host memory is complete and of a step that succeeded; the
 * message of the failure then names it. Only if all ranks have failed alike, so that they can exchange
 * messages: for all but a single rank that is NOT_FINITE, which they have agreed on. Waits for the files at
 * most `SAVING_RESCUE_S` seconds. */
enum { SAVING_RESCUE_S = 600 };
MUST_USE enum status saver_rescue(struct saver *saver, enum status failure);
