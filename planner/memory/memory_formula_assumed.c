// SPDX-License-Identifier: Apache-2.0
#include "planner/memory/memory_formula.h"

#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"

#include <stdlib.h>

struct memory_assume memory_assumed(const struct recipe *recipe)
{
    enum { MOMENTS = 2, MOMENT_BYTES = 4 };
    const struct assumptions *assume = assumptions_of(recipe);
    const int optimizer = assume->optimizer_bytes_per_parameter;
    struct memory_assume out =
        assume->programs == ASSUME_PAPERS
            ? memory_of_papers
            : memory_of_working(recipe->precision.params_dtype, recipe->precision.main_params_dtype);
    if (assume_stores_scores(assume)) {
        out.unfused_attention = true;
        out.stored_masks = recipe->model.attention_dropout > 0.0 || out.stored_masks;
    }
    if (assume->dropout_masks == ASSUME_MASKS_STORED && recipe->model.hidden_dropout > 0.0)
        out.stored_masks = true;
    out.unfused_norm = assume->norm == ASSUME_UNFUSED;
    out.unfused_activation = assume->activation == ASSUME_UNFUSED;
    if (assume->gradient_dtype != ASSUME_DTYPE_OWN)
        out.gradient = assume->gradient_dtype == ASSUME_DTYPE_BF16 ? 2 : 4;
    if (optimizer > 0) {
        out.moment = optimizer < MOMENTS * MOMENT_BYTES ? optimizer / MOMENTS : MOMENT_BYTES;
        out.master = optimizer - MOMENTS * out.moment;
    }
    out.logits = assume->logits_bytes_per_element;
    out.whole_logits = assume->logits == ASSUME_LOGITS_WHOLE;
    return out;
}

/* Adds the bytes that each action of the rank's list allocates, and those that are free after it. */
static void add_changes(const struct schedule *schedule, const struct slot_lifetimes *lifetimes,
                        const struct slot_use *slots, int64_t *change)
{
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        for (int tensor = 0; tensor < schedule->chunks * schedule->m; tensor++) {
            const struct slot_lifetime *alive = &lifetimes->of[lifetime][tensor];
            const int64_t bytes = slots[tensor / schedule->m * SLOT_LIFETIMES + lifetime].bytes;
            if (alive->begin < 0)
                continue;
            change[alive->begin] += bytes;
            change[alive->end + 1] -= bytes;
        }
}

int64_t memory_shared_saving(const struct schedule *schedule, int pp, const struct slot_use *slots)
{
    const int actions = schedule->ranks[pp].count;
    int64_t allocated = 0, now = 0, most = 0;
    struct slot_lifetimes lifetimes;
    slot_lifetimes_create(schedule, pp, &lifetimes);
    AUTO_FREE int64_t *change =
        memory_zeroed((size_t)actions + 2, sizeof *change, "the memory of a rank at each action");
    add_changes(schedule, &lifetimes, slots, change);
    for (int i = 0; i <= actions; i++) {
        now += change[i];
        most = now > most ? now : most;
    }
    for (int chunk = 0; chunk < schedule->chunks; chunk++)
        for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++) {
            const struct slot_use *use = &slots[chunk * SLOT_LIFETIMES + lifetime];
            allocated += use->slots * use->bytes;
        }
    slot_lifetimes_destroy(&lifetimes);
    return allocated - most;
}
