// SPDX-License-Identifier: Apache-2.0
/* Judges the ranks: whether to report, and the report. */
#pragma once

#include "trainer/progress/monitor_processes.h"

/* Of the primary process, at each poll: exchanges progress with other nodes, and reports if necessary; then
 * it does not return. passed_ns: since the last poll. */
void monitor_judge(struct monitor *m, int64_t passed_ns);
