// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/tape/step_recorder.h"

#include "layers/parameters/gradients.h"
#include "trainer/plan/tape/tape_section.h"

#include <stdlib.h>
#include <string.h>

/* The last run of an action of this kind. */
struct repeatable {
    const struct stage *stage;
    enum action_kind kind;
    int64_t bytes[PART_COUNT]; // allocated, before and after it
    struct tape_section *section;
};

struct step_recorder {
    struct tape_recorder *recorder;
    struct repeatable *list;
    int count;
    struct step_recorder_counts counts;
};

enum status step_recorder_create(struct tape_recorder *recorder, struct step_recorder **out)
{
    struct step_recorder *r = calloc(1, sizeof *r);
    if (r == NULL)
        return fail(NO_MEMORY, "no memory to record a step");
    r->recorder = recorder;
    *out = r;
    return OK;
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

/* True if the action changes nothing but the streams. */
static bool only_enqueues(const struct stage_ops *ops)
{
    const struct weights *weights = ops->pass->env->weights;
    const bool adds = action_traits(ops->kind)->backward_weight;
    return ops->pass->training && weights->sharded == NULL &&
           !(adds && (ops->pass->is_last || gradients_communicates(weights->gradients, false)));
}

static struct memory_use memory_of(const struct stage_ops *ops)
{
    return device_memory(ops->pass->env->weights->device);
}

static bool has_bytes(const struct memory_use *use, const int64_t *bytes)
{
    return memcmp(use->now_bytes, bytes, sizeof use->now_bytes) == 0;
}

/* Returns the entry of an action, added at its first use; NULL: no memory. */
static struct repeatable *entry_of(struct step_recorder *r, const struct stage_ops *ops)
{
    for (int i = 0; i < r->count; i++)
        if (r->list[i].stage == ops->stage && r->list[i].kind == ops->kind)
            return &r->list[i];
    struct repeatable *list = realloc(r->list, ((size_t)r->count + 1) * sizeof *list);
    if (list == NULL)
        return NULL;
    r->list = list;
    list[r->count] = (struct repeatable){.stage = ops->stage, .kind = ops->kind};
    return &list[r->count++];
}

/* Runs an action as a section, which is kept if it can be repeated. */
static enum status run_section(struct step_recorder *r, struct repeatable *entry, const struct stage_ops *ops,
                               struct graph **graph)
{
    const struct memory_use before = memory_of(ops);
    struct tape_section *section = NULL;
    tape_section_destroy(entry->section);
    entry->section = NULL;
    TRY(tape_section_begin(r->recorder, &section));
    enum status status = stage_ops_run(ops, graph);
    const bool repeats = tape_section_end(r->recorder, section);
    const struct memory_use after = memory_of(ops);
    if (status == OK && repeats && has_bytes(&after, before.now_bytes)) {
        entry->section = section;
        memcpy(entry->bytes, after.now_bytes, sizeof entry->bytes);
    } else
        tape_section_destroy(section);
    return status;
}

enum status step_recorder_run(struct step_recorder *r, const struct stage_ops *ops, struct graph **graph)
{
    struct repeatable *entry = only_enqueues(ops) ? entry_of(r, ops) : NULL;
    if (entry != NULL && entry->section != NULL) {
        const struct memory_use use = memory_of(ops);
        if (has_bytes(&use, entry->bytes)) {
            tape_section_repeat(r->recorder, entry->section);
            r->counts.repeated++;
            return OK;
        }
    }
    r->counts.run++;
    return entry != NULL ? run_section(r, entry, ops, graph) : stage_ops_run(ops, graph);
}
