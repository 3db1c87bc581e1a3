// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/recorder.h"

#include <stdio.h>
#include <string.h>

/* FNV-1a. */
static uint64_t hash(uint64_t so_far, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;
    for (size_t i = 0; i < count; i++)
        so_far = (so_far ^ from[i]) * UINT64_C(0x100000001b3);
    return so_far;
}

static int add_group(const struct comm *comm)
{
    const int *ranks = comm->ranks;
    struct progress_group group = {.id = hash(UINT64_C(0xcbf29ce484222325), comm->name, strlen(comm->name)),
                                   .size = comm->size};
    snprintf(group.name, sizeof group.name, "%s", comm->name);
    if (ranks != NULL) {
        group.id = hash(group.id, ranks, (size_t)comm->size * sizeof *ranks);
        group.first = ranks[0];
        group.stride = comm->size > 1 ? ranks[1] - ranks[0] : 1;
        for (int i = 2; i < comm->size; i++)
            if (ranks[i] - ranks[i - 1] != group.stride)
                group.stride = 0;
    }
    return progress_group(&group);
}

static int group_of(struct message_recorder *recorder, const struct observed_message *m)
{
    int index = 0;
    while (index < recorder->count && recorder->comm[index] != m->comm)
        index++;
    if (index == PROGRESS_GROUPS)
        return -1;
    // A new comm may have the address of an earlier one, so its group is looked up at its first call.
    if (index == recorder->count || m->sequence == 1)
        recorder->group[index] = add_group(m->comm);
    recorder->comm[index] = m->comm;
    recorder->count += index == recorder->count;
    return recorder->group[index];
}

static void see(void *context, const struct observation *seen)
{
    const struct observed_message *m = seen->message;
    progress_queue(
        (struct progress_message){
            .bytes = message_bytes(m),
            .group = group_of(context, m),
            .peer = m->peer >= 0 && m->comm->ranks != NULL ? m->comm->ranks[m->peer] : -1,
            .call = (uint8_t)m->call,
            .dtype = (uint8_t)m->data.dtype,
        },
        m->sequence);
}

enum status message_recorder_attach(struct message_recorder *recorder, struct world *world)
{
    *recorder = (struct message_recorder){.count = 0};
    if (!progress_is_published())
        return OK;
    return world_observe(world, (struct observer){.notify = see, .context = recorder, .ignores_time = true});
}
