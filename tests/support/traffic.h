// SPDX-License-Identifier: Apache-2.0
/* Statistics of a rank's messages: an observer that counts calls and bytes by the name of the group. */
#pragma once

#include "parallel/observe_world.h"

enum { TRAFFIC_ROWS = 32 };

struct traffic_row {
    char name[32]; // of the group; comms of the same name share a row
    int64_t calls[CALL_COUNT], bytes[CALL_COUNT];
};

struct traffic {
    struct traffic_row rows[TRAFFIC_ROWS];
    int count;
};

/* `traffic`, initially {0}, must outlive what is observed. */
struct observer traffic_observer(struct traffic *traffic);

/* The counts of a group; zeros if it sent no message. */
struct traffic_row traffic_of(const struct traffic *traffic, const char *name);
