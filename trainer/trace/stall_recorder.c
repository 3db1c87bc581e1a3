// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/stall_recorder.h"

#include "parallel/observe_world.h"

#include <math.h>
#include <stdlib.h>

static enum status begin(struct stalls *stalls, int position, struct stream *stream, int *out)
{
    if (stalls->marks.count == stalls->capacity) {
        const int capacity = 2 * stalls->capacity + 64;
        int *more = realloc(stalls->position, (size_t)capacity * sizeof *more);
        if (more == NULL)
            return fail(NO_MEMORY, "no memory for the times of a step");
        stalls->position = more;
        stalls->capacity = capacity;
    }
    stalls->position[stalls->marks.count] = position;
    return mark_pairs_begin(&stalls->marks, stream, out);
}

static void see(void *context, const struct observation *seen)
{
    struct stall_recorder *r = context;
    struct stalls *stalls = &r->banks[r->bank];
    const bool is_stall = seen->what == OBSERVED_MESSAGE || seen->what == OBSERVED_WAIT;
    if (!is_stall || r->position < 0 || r->status != OK || seen->stream != r->compute ||
        r->compute->device->replaying != NULL)
        return;
    if (seen->enqueued && r->open >= 0) {
        r->status = mark_pairs_end(&stalls->marks, r->open, r->compute);
        r->open = -1;
    } else if (!seen->enqueued && r->open < 0) {
        r->status = begin(stalls, r->position, r->compute, &r->open);
    }
}

enum status stall_recorder_attach(struct stall_recorder *recorder, struct device *device, struct world *world)
{
    const struct device_traits *traits = device_traits(device_name(device));
    *recorder = (struct stall_recorder){.position = -1, .open = -1};
    if (traits->synchronous || !traits->computes)
        return OK;
    const struct observer observer = {
        .notify = see, .context = recorder, .ignores_time = true, .sees_enqueued = true};
    TRY(device_observe(device, observer));
    return world_observe(world, observer);
}

void stall_recorder_close(struct stall_recorder *recorder)
{
    for (int i = 0; i < 2; i++) {
        mark_pairs_free(&recorder->banks[i].marks);
        free(recorder->banks[i].position);
    }
    *recorder = (struct stall_recorder){.position = -1, .open = -1};
}

void stall_recorder_begin(struct stall_recorder *recorder, int position, struct stream *compute)
{
    if (recorder->fresh)
        recorder->banks[recorder->bank].marks.count = 0;
    recorder->fresh = false;
    recorder->position = position;
    recorder->compute = compute;
}

void stall_recorder_end(struct stall_recorder *recorder)
{
    recorder->position = -1;
}

void stall_recorder_end_step(struct stall_recorder *recorder)
{
    recorder->bank = 1 - recorder->bank;
    recorder->fresh = true;
}

void stall_recorder_restart(struct stall_recorder *recorder)
{
    recorder->fresh = true;
}

void stall_recorder_previous(const struct stall_recorder *recorder, double *stalled_s)
{
    const struct stalls *stalls = &recorder->banks[recorder->bank];
    for (int i = 0; i < stalls->marks.count; i++)
        stalled_s[stalls->position[i]] +=
            recorder->status == OK ? mark_pairs_seconds(&stalls->marks, i) : (double)NAN;
}
