// SPDX-License-Identifier: Apache-2.0
/* The files that cuboid schedule writes beside what it prints. Everything that is wrong with their names is
 * said before any work is done; the trap is one file under two names, one of which would take the other's
 * place. */
#pragma once

#include "base/text.h"

struct output {
    const char *option; // "--svg"
    const char *path;   // NULL: not asked for; "-": standard output
};

/* BAD_USAGE where one cannot be written, or is standard output although `printing` (the option that asks for
 * it; NULL) or another has that, or is the same file as another or as an input (NULL: there is none). */
MUST_USE enum status outputs_check(const struct output *outputs, int count, const char *const inputs[2],
                                   const char *printing);
/* Whether one of them is standard output. */
bool outputs_print(const struct output *outputs, int count);
/* `say`: on standard output, what was written. */
MUST_USE enum status output_write(const struct output *output, const struct text *content, bool say);
