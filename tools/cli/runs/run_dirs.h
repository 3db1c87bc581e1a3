// SPDX-License-Identifier: Apache-2.0
/* The run directories that a command line names. */
#pragma once

#include <stddef.h>

struct run_dirs {
    char **list; // owned
    int count;
};

/* Adds `dir` if it is a run directory (it has metrics.jsonl), else the run directories in it, by name, else
 * `dir` itself, so that its reader names what is wrong. */
void run_dirs_add(const char *dir, struct run_dirs *out);
void run_dirs_free(struct run_dirs *dirs);
