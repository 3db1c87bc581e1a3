// SPDX-License-Identifier: Apache-2.0
/* One row per legal layout, with the columns of published tables (trainer/plan/rows/rows.h). The values of
 * the axes are also in the column `overrides`: `cuboid table FILE --recipe BASE` plans the same recipes. */
#include "tools/cli/sweep/sweep_output.h"
#include "trainer/plan/rows/rows.h"

#include <stdlib.h>
#include <string.h>

struct row {
    struct text cell[PUBLISHED_COLUMNS];
};

static void set_number(struct row *row, enum published_column column, double value)
{
    char number[NUMBER_CHARS];
    text_add(&row->cell[column], "%s", number_text(value, number));
}

static void set_text(struct row *row, enum published_column column, const char *text)
{
    text_add(&row->cell[column], "%s", text);
}

static void set_model(struct row *row, const struct model_config *model)
{
    set_number(row, PUBLISHED_LAYERS, (double)model->num_layers);
    set_number(row, PUBLISHED_HIDDEN, (double)model->hidden_size);
    set_number(row, PUBLISHED_HEADS, (double)model->num_attention_heads);
    set_number(row, PUBLISHED_FFN, (double)model->ffn_hidden_size);
    set_number(row, PUBLISHED_VOCAB, (double)model->vocab_size);
    set_number(row, PUBLISHED_SEQ, (double)model->seq_length);
}

static void set_layout(struct row *row, const struct recipe *recipe)
{
    static const char *const granularities[] = {"none", "selective", "full"};
    const struct recipe_parallel *parallel = &recipe->parallel;
    set_number(row, PUBLISHED_GPUS, recipe_world_size(recipe));
    set_number(row, PUBLISHED_TP, parallel->tensor_parallel_size);
    set_number(row, PUBLISHED_PP, parallel->pipeline_parallel_size);
    set_number(row, PUBLISHED_DP, parallel->data_parallel_size);
    set_number(row, PUBLISHED_VPP, recipe->pipeline.virtual_stages);
    set_number(row, PUBLISHED_MICRO_BATCH, (double)recipe->train.micro_batch_size);
    set_number(row, PUBLISHED_GLOBAL_BATCH, (double)recipe->train.global_batch_size);
    set_text(row, PUBLISHED_SCHEDULE, recipe->pipeline.schedule);
    set_text(row, PUBLISHED_RECOMPUTE, granularities[recipe->layers.recompute.granularity]);
    set_text(row, PUBLISHED_SEQ_PARALLEL, recipe->layers.sequence_parallel ? "yes" : "no");
    set_text(row, PUBLISHED_PRECISION, recipe_dtype_name(recipe));
    set_number(row, PUBLISHED_ZERO_STAGE, recipe->data_parallel.zero_stage);
}

static void set_figures(struct row *row, const struct sweep_layout *layout, int ranks)
{
    if (layout->bytes > 0)
        set_number(row, PUBLISHED_MEMORY_GB, 1e-9 * (double)layout->bytes);
    if (layout->state != SWEEP_PLANNED) {
        set_text(row, PUBLISHED_STATUS,
                 layout->state == SWEEP_TOO_LARGE ? "oom"
                 : layout->state == SWEEP_SLOWER  ? "slower"
                                                  : "failed");
        return;
    }
    set_text(row, PUBLISHED_STATUS, "ok");
    set_number(row, PUBLISHED_STEP_TIME_S, layout->step_s);
    set_number(row, PUBLISHED_TFLOPS_PER_GPU, layout->tflops_per_rank);
    set_number(row, PUBLISHED_TOKENS_PER_S_PER_GPU, layout->tokens_per_s / ranks);
    if (layout->mfu > 0.0)
        set_number(row, PUBLISHED_MFU_PCT, 100.0 * layout->mfu);
}

/* "cluster.profile=P" and the axes. */
static void set_overrides(struct row *row, const struct sweep *sweep, const struct sweep_layout *layout,
                          const struct recipe *recipe)
{
    struct text *out = &row->cell[PUBLISHED_OVERRIDES];
    sweep_layout_text(sweep->file, layout->number, out);
    for (int i = 0; i < sweep->file->axis_count; i++)
        if (strcmp(sweep->file->axes[i].key, "cluster.profile") == 0)
            return;
    text_add(out, " cluster.profile=%s", recipe->cluster.profile);
}

static enum status add_row(const struct sweep *sweep, const struct sweep_layout *layout, struct text *out)
{
    struct row row = {0};
    struct recipe *recipe = NULL;
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    set_text(&row, PUBLISHED_PAPER, sweep->file->path);
    set_text(&row, PUBLISHED_MODEL, recipe->name);
    set_text(&row, PUBLISHED_GPU_TYPE, recipe->cluster.profile);
    set_text(&row, PUBLISHED_SOURCE, "cuboid sweep, predicted");
    if (layout->reason >= 0)
        set_text(&row, PUBLISHED_NOTES, sweep->reasons[layout->reason].what);
    else
        text_add(&row.cell[PUBLISHED_NOTES], "step time at least %.6g s", layout->bound_s);
    set_model(&row, &recipe->model);
    set_layout(&row, recipe);
    set_figures(&row, layout, recipe_world_size(recipe));
    set_overrides(&row, sweep, layout, recipe);
    for (int column = 0; column < PUBLISHED_COLUMNS; column++) {
        if (column > 0)
            text_add(out, ",");
        csv_add_cell(out, text_chars(&row.cell[column]));
        text_free(&row.cell[column]);
    }
    text_add(out, "\n");
    recipe_destroy(recipe);
    return OK;
}

enum status sweep_csv(const struct sweep *sweep, struct text *out)
{
    published_header(out);
    for (size_t i = 0; i < sweep->best_count; i++)
        TRY(add_row(sweep, &sweep->layouts[sweep->best[i]], out));
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].state != SWEEP_PLANNED && sweep->layouts[i].state != SWEEP_REFUSED)
            TRY(add_row(sweep, &sweep->layouts[i], out));
    return OK;
}
