// SPDX-License-Identifier: Apache-2.0
/* Random cost tables for `auto`, and its results compared with the named families and the bound. A table has
 *
 *     p from 2 to most_p, m from 1 to most_m, v 1, 2 or open
 *     f, i, w of a whole rank from 0.5 to 1.5; in half of the tables each stage differs by up to 30 %
 *     a message: none in a quarter of the tables, else up to 0.3
 *     memory: no limit in a quarter of the tables, else from p/2 + 1 microbatches to 2p, an integer in most
 *
 * The same number gives the same table on every machine. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct auto_outcome {
    int p, m, v;          // as requested; v 0: open
    int chosen_v;         // of auto
    double limit;         // 0: none
    double makespan;      // of auto
    double peak;          // of auto, in full microbatches
    double named;         // of the shortest named schedule within the limit; 0 if there is none
    const char *shortest; // its name
    double bound;
};

MUST_USE enum status auto_table(uint64_t number, int most_p, int most_m, struct auto_outcome *out);

/* Sorts the outcomes by makespan / bound. */
void auto_sort(struct auto_outcome *outcomes, int count);
