// SPDX-License-Identifier: Apache-2.0
/* One row per valid layout, with the columns of published tables (planner/published/published.h). The
 * values of the axes are also in the column `overrides`: `cuboid table FILE --recipe BASE` plans the same
 * recipes. */
#include "tools/cli/published_csv.h"
#include "tools/cli/sweep/sweep_output.h"

#include <stdlib.h>
#include <string.h>

static void set_figures(struct published_cells *row, const struct sweep_layout *layout, int ranks)
{
    if (layout->bytes > 0)
        published_set_number(row, PUBLISHED_MEMORY_GB, 1e-9 * (double)layout->bytes);
    if (layout->state != SWEEP_PLANNED) {
        published_set_text(row, PUBLISHED_STATUS,
                           layout->state == SWEEP_TOO_LARGE ? "oom"
                           : layout->state == SWEEP_TIGHT   ? "tight"
                           : layout->state == SWEEP_SLOWER  ? "slower"
                                                            : "failed");
        return;
    }
    published_set_text(row, PUBLISHED_STATUS, "ok");
    published_set_number(row, PUBLISHED_STEP_TIME_S, layout->step_s);
    published_set_number(row, PUBLISHED_TFLOPS_PER_GPU, layout->tflops_per_rank);
    published_set_number(row, PUBLISHED_TOKENS_PER_S_PER_GPU, layout->tokens_per_s / ranks);
    if (layout->mfu >= 0.01) // smaller values would be rejected as a wrong unit
        published_set_number(row, PUBLISHED_MFU_PCT, 100.0 * layout->mfu);
}

/* Fills `overrides`: the axes, other keys without a column, and "cluster.profile=P". */
static void set_overrides(struct published_cells *row, const struct sweep *sweep,
                          const struct sweep_layout *layout, const struct recipe *recipe)
{
    struct text *out = &row->cell[PUBLISHED_OVERRIDES];
    sweep_layout_text(sweep->file, layout->number, out);
    recipe_planned_text(recipe, out);
    for (int i = 0; i < sweep->file->axis_count; i++)
        if (strcmp(sweep->file->axes[i].key, "cluster.profile") == 0)
            return;
    text_add(out, " cluster.profile=%s", recipe->cluster.profile);
}

static enum status add_row(const struct sweep *sweep, const struct sweep_layout *layout, struct text *out)
{
    struct published_cells row = {0};
    struct recipe *recipe = NULL;
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    published_set_text(&row, PUBLISHED_PAPER, sweep->file->path);
    published_set_text(&row, PUBLISHED_SOURCE, "cuboid sweep, predicted");
    if (layout->reason >= 0)
        published_set_text(&row, PUBLISHED_NOTES, sweep->reasons[layout->reason].what);
    else
        text_add(&row.cell[PUBLISHED_NOTES], "step time at least %.6g s", layout->bound_s);
    published_set_recipe(&row, recipe);
    set_figures(&row, layout, recipe_world_size(recipe));
    set_overrides(&row, sweep, layout, recipe);
    published_end_row(&row, out);
    recipe_destroy(recipe);
    return OK;
}

enum status sweep_csv(const struct sweep *sweep, struct text *out)
{
    published_header(out);
    for (size_t i = 0; i < sweep->best_count; i++)
        TRY(add_row(sweep, &sweep->layouts[sweep->best[i]], out));
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].state != SWEEP_PLANNED && sweep->layouts[i].state != SWEEP_INVALID)
            TRY(add_row(sweep, &sweep->layouts[i], out));
    return OK;
}
