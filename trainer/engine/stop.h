// SPDX-License-Identifier: Apache-2.0
/* Stopping on request: the signals of resilience.exit_signal, received by one thread of the process.
 *
 *   before the first step   the process ends at once, with a line: 75 when there is a complete checkpoint to
 *                           resume from, else 1
 *   from then on            the first signal is recorded; the ranks query it between steps (stop_requested),
 *                           agree on it in the step's reduction, save, and end with 75
 *   a second SIGINT         ends the process at once, with 1, without a save
 *
 * Signals are blocked in every thread, so that no system call of a rank is interrupted. The trap: a signal
 * that is blocked and not in the list would have no effect at all; stop_create() unblocks it. */
#pragma once

#include "trainer/recipe/recipe.h"

struct stop;

/* Receives the recipe's exit signals, and unblocks the others that a recipe can name. signals NULL: the
 * recipe is still to be read, and all of them end the process. `is_primary`: this process prints for the job.
 * Call it before other threads are started; afterwards the signals stay blocked. */
MUST_USE enum status stop_create(const struct recipe_names *signals, bool is_primary, struct stop **out);
/* Receives none any more. Takes NULL. */
void stop_destroy(struct stop *stop);

/* The checkpoint to resume from, for a signal before the first step: "step 7 is saved in runs/a". */
void stop_set_checkpoint(struct stop *stop, const char *where);
/* The first step begins: signals are recorded from now on. Any rank may call it, also twice. Takes NULL. */
void stop_training(struct stop *stop);

/* Whether a signal has come since; NULL: never. */
bool stop_requested(const struct stop *stop);
/* Whether it was this one. */
bool stop_came(const struct stop *stop, int signal_number);
