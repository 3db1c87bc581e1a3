// SPDX-License-Identifier: Apache-2.0
#include "planner/tape/step_recorder.h"

#include "base/memory.h"
#include "planner/tape/tape_recorder.h"

#include <stdlib.h>
#include <string.h>

/* An action that has been run, and may be repeated. */
struct repeatable {
    const struct stage *stage;
    enum action_kind kind;
    int64_t bytes[PART_COUNT];        // allocated, before and after it
    struct arena_state before, after; // of ZeRO stages 2 and 3
    struct tape_section *section;     // NULL: it cannot be repeated
};

struct step_recorder {
    struct tape_recorder *recorder;
    struct repeatable *list;
    int count;
    struct step_recorder_counts counts;
};

struct step_recorder *step_recorder_create(struct tape_recorder *recorder)
{
    struct step_recorder *r = memory_zeroed(1, sizeof *r, "the recorder of a step");
    r->recorder = recorder;
    return r;
}

void step_recorder_destroy(struct step_recorder *recorder)
{
    if (recorder == NULL)
        return;
    for (int i = 0; i < recorder->count; i++)
        tape_section_destroy(recorder->list[i].section);
    free(recorder->list);
    free(recorder);
}

struct step_recorder_counts step_recorder_counts(const struct step_recorder *recorder)
{
    return recorder->counts;
}

static const struct weights *weights_of(const struct stage_ops *ops)
{
    return ops->pass->context->weights;
}

/* True if the action affects only the streams and the arenas. */
static bool only_enqueues(const struct stage_ops *ops)
{
    return ops->pass->training && !(action_traits(ops->kind)->backward_weight && ops->pass->is_last);
}

static struct memory_use memory_of(const struct stage_ops *ops)
{
    return device_memory(weights_of(ops)->device);
}

static bool has_bytes(const struct memory_use *use, const int64_t *bytes)
{
    return memcmp(use->now_bytes, bytes, sizeof use->now_bytes) == 0;
}

/* Returns the entry of an action and its state, added at its first use. */
static struct repeatable *entry_of(struct step_recorder *r, const struct stage_ops *ops,
                                   const struct arena_state *state)
{
    for (int i = 0; i < r->count; i++)
        if (r->list[i].stage == ops->stage && r->list[i].kind == ops->kind &&
            arena_state_equals(&r->list[i].before, state))
            return &r->list[i];
    r->list = memory_resized(r->list, (size_t)r->count + 1, sizeof *r->list, "the recorder of a step");
    r->list[r->count] = (struct repeatable){.stage = ops->stage, .kind = ops->kind};
    return &r->list[r->count++];
}

/* Runs an action and records it as a section, which is kept if it can be repeated. */
static enum status run_section(struct step_recorder *r, struct repeatable *entry, const struct stage_ops *ops,
                               const struct arena_state *state, struct graph **graph)
{
    const struct memory_use before = memory_of(ops);
    tape_section_destroy(entry->section);
    entry->section = NULL;
    entry->before = *state;
    struct tape_section *section = tape_section_begin(r->recorder);
    enum status status = stage_ops_run(ops, graph);
    const bool repeats = tape_section_end(r->recorder, section);
    const struct memory_use after = memory_of(ops);
    if (status == OK && repeats && has_bytes(&after, before.now_bytes)) {
        entry->section = section;
        entry->after = arena_state_of(weights_of(ops));
        memcpy(entry->bytes, after.now_bytes, sizeof entry->bytes);
    } else
        tape_section_destroy(section);
    return status;
}

/* Returns false without any effect if the action has to be run. */
static bool repeat(struct step_recorder *r, const struct repeatable *entry, const struct stage_ops *ops,
                   const struct arena_state *state)
{
    const struct memory_use use = memory_of(ops);
    struct event outer[TAPE_SECTION_OUTER];
    if (entry->section == NULL || !has_bytes(&use, entry->bytes))
        return false;
    const int count = tape_section_outer(r->recorder, entry->section, outer);
    if (!arena_state_events(&entry->before, state, outer, count))
        return false;
    tape_section_repeat(r->recorder, entry->section, outer);
    arena_state_repeat(weights_of(ops), &entry->before, &entry->after, r->recorder, entry->section);
    r->counts.repeated++;
    return true;
}

enum status step_recorder_run(struct step_recorder *recorder, const struct stage_ops *ops,
                              struct graph **graph)
{
    const struct arena_state state = arena_state_of(weights_of(ops));
    if (recorder->recorder->items > TAPE_MAX_ITEMS)
        return fail(NOT_SUPPORTED, "the step is too long for a tape");
    struct repeatable *entry = only_enqueues(ops) ? entry_of(recorder, ops, &state) : NULL;
    if (entry != NULL && repeat(recorder, entry, ops, &state))
        return OK;
    recorder->counts.run++;
    return entry != NULL ? run_section(recorder, entry, ops, &state, graph) : stage_ops_run(ops, graph);
}
