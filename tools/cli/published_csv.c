// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/published_csv.h"

void published_set_number(struct published_cells *row, enum published_column column, double value)
{
    char number[NUMBER_CHARS];
    text_add(&row->cell[column], "%s", number_text(value, number));
}

void published_set_text(struct published_cells *row, enum published_column column, const char *text)
{
    text_add(&row->cell[column], "%s", text);
}

static void set_model(struct published_cells *row, const struct model_config *model)
{
    published_set_number(row, PUBLISHED_LAYERS, (double)model->num_layers);
    published_set_number(row, PUBLISHED_HIDDEN, (double)model->hidden_size);
    published_set_number(row, PUBLISHED_HEADS, (double)model->num_attention_heads);
    published_set_number(row, PUBLISHED_FFN, (double)model->ffn_hidden_size);
    published_set_number(row, PUBLISHED_VOCAB, (double)model->vocab_size);
    published_set_number(row, PUBLISHED_SEQ, (double)model->seq_length);
}

static void set_layout(struct published_cells *row, const struct recipe *recipe)
{
    static const char *const granularities[] = {"none", "selective", "full"};
    const struct recipe_parallel *parallel = &recipe->parallel;
    published_set_number(row, PUBLISHED_GPUS, recipe_world_size(recipe));
    published_set_number(row, PUBLISHED_TP, parallel->tensor_parallel_size);
    published_set_number(row, PUBLISHED_PP, parallel->pipeline_parallel_size);
    published_set_number(row, PUBLISHED_DP, parallel->data_parallel_size);
    published_set_number(row, PUBLISHED_VPP, recipe->pipeline.virtual_stages);
    published_set_number(row, PUBLISHED_MICRO_BATCH, (double)recipe->train.micro_batch_size);
    published_set_number(row, PUBLISHED_GLOBAL_BATCH, (double)recipe->train.global_batch_size);
    published_set_text(row, PUBLISHED_SCHEDULE, recipe->pipeline.schedule);
    published_set_text(row, PUBLISHED_RECOMPUTE, granularities[recipe->layers.recompute.granularity]);
    published_set_text(row, PUBLISHED_SEQ_PARALLEL, recipe->layers.sequence_parallel ? "yes" : "no");
    published_set_text(row, PUBLISHED_PRECISION, recipe_dtype_name(recipe));
    published_set_number(row, PUBLISHED_ZERO_STAGE, recipe->data_parallel.zero_stage);
}

void published_set_recipe(struct published_cells *row, const struct recipe *recipe)
{
    published_set_text(row, PUBLISHED_MODEL, recipe->name);
    if (recipe->cluster.profile != NULL)
        published_set_text(row, PUBLISHED_GPU_TYPE, recipe->cluster.profile);
    set_model(row, &recipe->model);
    set_layout(row, recipe);
}

void published_end_row(struct published_cells *row, struct text *out)
{
    for (int column = 0; column < PUBLISHED_COLUMNS; column++) {
        if (column > 0)
            text_add(out, ",");
        csv_add_cell(out, text_chars(&row->cell[column]));
        text_free(&row->cell[column]);
    }
    text_add(out, "\n");
}
