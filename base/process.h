// SPDX-License-Identifier: Apache-2.0
/* Commands of other programs, with their output. */
#pragma once

#include "base/text.h"

#include <sys/types.h>

/* Runs argv[0], found on PATH, with `input` (NULL: none) as its standard input. Appends its output to
 * `out`, and its errors to `errors`. *exit: its exit status; 128 + the number of the signal that killed it;
 * 127 if there is no such program. IO_ERROR, NO_MEMORY. */
MUST_USE enum status process_capture(char *const *argv, const char *input, struct text *out,
                                     struct text *errors, int *exit);

/* Starts argv[0] in a process group of its own, with an empty standard input and a pipe for its errors:
 * *errors is the end to read. No signal is blocked in it. It gets SIGTERM when this process ends. */
MUST_USE enum status process_start(char *const *argv, pid_t *child, int *errors);

/* Returns the exit status, or 128 + the signal, of a status of waitpid(). */
int process_exit(int wait_status);

/* Appends the path of this executable. IO_ERROR. */
MUST_USE enum status process_program(struct text *out);

/* Appends a word that a shell reads back as `word`. */
void text_add_shell_word(struct text *out, const char *word);
