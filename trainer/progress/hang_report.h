// SPDX-License-Identifier: Apache-2.0
/* The reports of a hang, each in one line. */
#pragma once

#include "trainer/progress/hang.h"

/* The report, one line without a newline; nothing for HANG_NONE. */
void hang_report(const struct hang *hang, const struct hang_finding *finding, struct text *out);

/* "2 of 8 processes have not connected after 60 s: ranks 3, 5; ...", in one line. connected[size]: the ranks
 * that have; to: " to node b" if those of other nodes are unknown, else "". */
void hang_report_missing(const bool *connected, int size, const char *to, double waited_s, struct text *out);
