// SPDX-License-Identifier: Apache-2.0
#include "tests/support/traffic.h"

#include <stdio.h>
#include <string.h>

static struct traffic_row *find(struct traffic *traffic, const char *name)
{
    for (int i = 0; i < traffic->count; i++)
        if (strcmp(traffic->rows[i].name, name) == 0)
            return &traffic->rows[i];
    CHECK(traffic->count < TRAFFIC_ROWS);
    struct traffic_row *row = &traffic->rows[traffic->count++];
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

static void count(void *context, const struct observation *seen)
{
    const struct observed_message *message = seen->message;
    if (seen->what != OBSERVED_MESSAGE)
        return;
    struct traffic_row *row = find(context, message->comm->name);
    row->calls[message->call]++;
    row->bytes[message->call] += message_bytes(message);
}

struct observer traffic_observer(struct traffic *traffic)
{
    return (struct observer){.notify = count, .context = traffic};
}

struct traffic_row traffic_of(const struct traffic *traffic, const char *name)
{
    for (int i = 0; i < traffic->count; i++)
        if (strcmp(traffic->rows[i].name, name) == 0)
            return traffic->rows[i];
    return (struct traffic_row){.name = ""};
}
