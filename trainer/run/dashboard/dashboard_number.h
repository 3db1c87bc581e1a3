// SPDX-License-Identifier: Apache-2.0
/* A number of a line of metrics.jsonl. */
#pragma once

enum { DASHBOARD_NAME_CHARS = 64, DASHBOARD_NUMBERS = 64 };

struct dashboard_number {
    char name[DASHBOARD_NAME_CHARS]; // loss, memory_bytes/weights, ranks/wait_s/most
    double value;                    // finite
};
