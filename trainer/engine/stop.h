// SPDX-License-Identifier: Apache-2.0
/* Stop and save on request: one thread of the process receives the signals of resilience.exit_signal and
 * resilience.save_signal.
 *
 *   before the first step   the process prints a line and exits at once: 75 if there is a complete checkpoint
 *                           to resume from, else 1
 *   during training         the first signal is recorded; the ranks query it between steps (stop_requested),
 *                           agree on it in the all-reduce of the step, save, and exit with 75
 *   a second SIGINT         the process exits at once with 1, without saving
 *
 * Signals are blocked in every thread, so that they never interrupt a system call of a rank. Caution: a
 * blocked signal that is not in the list would have no effect at all; stop_create() unblocks it. */
#pragma once

#include "trainer/recipe/recipe.h"

struct stop;

/* Handles the recipe's exit signals and save signals (NULL: none), and unblocks the other signals that a
 * recipe can name. signals NULL: the recipe is not read yet; SIGTERM and SIGINT exit the process, and
 * SIGUSR1 and SIGUSR2 remain pending.
 * is_rank_zero: this process prints for the job. Call it before starting other threads; the signals stay
 * blocked afterwards. */
MUST_USE enum status stop_create(const struct recipe_names *signals, const struct recipe_names *save,
                                 bool is_rank_zero, struct stop **out);
/* Stops handling signals. Accepts NULL. */
void stop_destroy(struct stop *stop);

/* Sets the checkpoint to resume from, for a signal before the first step: "step 7 is saved in runs/a". */
void stop_set_checkpoint(struct stop *stop, const char *where);
/* Sets the monitor to notify before a signal ends the process. After it has reported a hang, the launcher's
 * signals to the other processes are expected, and print nothing. NULL: none. */
struct monitor;
void stop_set_monitor(struct stop *stop, struct monitor *monitor);
/* Marks the start of the first step: signals are recorded from now on. Any rank may call it, more than once.
 * Accepts NULL. */
void stop_training(struct stop *stop);

/* Returns whether a signal has been recorded; false for NULL. */
bool stop_requested(const struct stop *stop);
/* Returns the number of save signals so far; 0 for NULL. */
int stop_saves(const struct stop *stop);
