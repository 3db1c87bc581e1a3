// SPDX-License-Identifier: Apache-2.0
/* State shared by all ranks of the process. */
#include "base/memory.h"
#include "schedules/csv/csv.h"
#include "schedules/simulate.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/engine/rank_state.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status run_tokenizer(const struct recipe *recipe, struct tokenizer **out)
{
    if (recipe->tokenizer.tokenizer_type == TOKENIZER_NONE)
        return fail(BAD_RECIPE, "tokenizer.tokenizer_type is none: there is no tokenizer to encode text; set "
                                "tokenizer.tokenizer_type to that of the model");
    struct tokenizer_config config = {
        .type = recipe_tokenizer_name(recipe),
        .vocab_file = recipe->tokenizer.vocab_file,
        .merge_file = recipe->tokenizer.merge_file,
        .tokenizer_model = recipe->tokenizer.tokenizer_model,
    };
    const enum status status = tokenizer_create(&config, out);
    if (status == IO_ERROR) // a file that is missing
        return fail(BAD_RECIPE, "tokenizer.%s: %s; restore the file, or use a copy of it: tokenizer.%s=PATH",
                    config.tokenizer_model != NULL ? "tokenizer_model" : "vocab_file and merge_file",
                    fail_text(), config.tokenizer_model != NULL ? "tokenizer_model" : "vocab_file");
    TRY(status);
    int64_t size = tokenizer_vocab_size(*out), allowed = recipe->model.vocab_size;
    const char *file = config.tokenizer_model != NULL ? config.tokenizer_model : config.vocab_file;
    if (file == NULL || size <= allowed)
        return OK;
    tokenizer_destroy(*out);
    *out = NULL;
    return fail(BAD_RECIPE,
                "model.vocab_size %lld is smaller than the vocabulary of %lld of tokenizer.%s %s; use "
                "model.vocab_size=%lld",
                (long long)allowed, (long long)size,
                file == config.vocab_file ? "vocab_file" : "tokenizer_model", file, (long long)size);
}

static enum status source_list(const struct recipe_sources *from, struct data_source_config **out)
{
    *out = memory_zeroed(from->count, sizeof **out, "data sources");
    for (size_t i = 0; i < from->count; i++)
        (*out)[i] = (struct data_source_config){from->list[i].path, from->list[i].weight};
    return OK;
}

/* The end-of-document id of the tokenizer; -1 if the recipe does not define one. */
static enum status end_of_document(const struct recipe *recipe, int32_t *out)
{
    *out = -1;
    if (recipe->tokenizer.tokenizer_type == TOKENIZER_NONE || !recipe_needs_tokenizer(recipe))
        return OK;
    struct tokenizer *tokenizer = NULL;
    TRY(run_tokenizer(recipe, &tokenizer));
    *out = tokenizer_end_of_document(tokenizer);
    tokenizer_destroy(tokenizer);
    return OK;
}

static enum status open_data(const struct recipe *recipe, struct data **out)
{
    char split[3 * NUMBER_CHARS + 3], part[3][NUMBER_CHARS];
    snprintf(split, sizeof split, "%s,%s,%s", number_text(recipe->data.split[0], part[0]),
             number_text(recipe->data.split[1], part[1]), number_text(recipe->data.split[2], part[2]));
    struct data_config config = {
        .mock = recipe->data.mock_data,
        .train_count = recipe->data.mock_data ? 0 : (int)recipe->data.train.count,
        .valid_count = recipe->data.mock_data ? 0 : (int)recipe->data.valid.count,
        .split = recipe->data.mock_data || recipe->data.valid.count > 0 ? NULL : split,
        .seed = recipe->seed,
        .seq_length = recipe->model.seq_length,
        .vocab_size = recipe->model.vocab_size,
        .reset_position_ids = recipe->data.reset_position_ids,
        .reset_attention_mask = recipe->data.reset_attention_mask,
        .eod_mask_loss = recipe->data.eod_mask_loss,
        .loss_mask = recipe->data.loss_mask,
        .pack_documents = recipe->data.pack_documents,
        .truncate_documents = recipe->data.truncate_documents,
    };
    TRY(end_of_document(recipe, &config.end_of_document));
    struct data_source_config *train = NULL, *valid = NULL;
    enum status status = source_list(&recipe->data.train, &train);
    if (status == OK)
        status = source_list(&recipe->data.valid, &valid);
    config.train = train;
    config.valid = valid;
    if (status == OK)
        status = data_open(&config, out);
    if (status == OK && recipe->train.eval_interval > 0)
        status = data_require(*out, DATA_VALID);
    free(train);
    free(valid);
    return status;
}

/* A schedule file may have changed since the recipe was checked. */
static enum status read_schedule(const struct recipe *recipe, struct schedule **out)
{
    const struct recipe_pipeline *pipeline = &recipe->pipeline;
    struct schedule *s = NULL;
    TRY(schedule_read_csv(pipeline->schedule_file, &s));
    if (s->p == pipeline->file.p && s->m == pipeline->file.m && s->v == pipeline->file.v) {
        *out = s;
        return OK;
    }
    schedule_destroy(s);
    return fail(BAD_SCHEDULE, "%s changed after the recipe was read", pipeline->schedule_file);
}

static enum status build_schedule(const struct recipe *recipe, struct schedule **out)
{
    if (recipe->pipeline.schedule_file != NULL)
        return read_schedule(recipe, out);
    const struct recipe_auto *times = &recipe->pipeline.search;
    struct stage_cost whole = {times->f, times->i, times->w};
    struct cost_table costs = {.chunk = cost_of_part(whole, recipe->pipeline.virtual_stages),
                               .wire = times->comm};
    struct schedule_options options = {
        .name = recipe->pipeline.schedule,
        .p = recipe->parallel.pipeline_parallel_size,
        .m = (int)recipe_microbatches(recipe),
        .v = recipe->pipeline.virtual_stages,
        .microbatch_group_size = recipe->pipeline.microbatch_group_size,
        .costs = &costs,
        .memory_limit = times->memory_limit,
    };
    return schedule_build(&options, out);
}

static enum status table_of_layers(const struct recipe *recipe, int stages, int **out)
{
    *out = memory_zeroed((size_t)stages + 1, sizeof **out, "the table of stages");
    for (int stage = 0; stage < stages; stage++)
        (*out)[stage] = (int)recipe_stage_first_layer(recipe, stage);
    (*out)[stages] = (int)recipe->model.num_layers;
    return OK;
}

int run_stage_of_layer(const struct run *run, int layer)
{
    int stage = 0, end = run->schedule->stages; // the last stage that begins at or before the layer
    while (end - stage > 1) {
        const int middle = stage + (end - stage) / 2;
        if (layer >= run->stage_first_layer[middle])
            stage = middle;
        else
            end = middle;
    }
    return stage;
}

int run_rank_of_layer(const struct run *run, int layer)
{
    return schedule_rank(run->schedule, run_stage_of_layer(run, layer), 0);
}

static enum status create_mesh(const struct recipe *recipe, struct run *out)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const struct degrees degrees = {
        .tp = parallel->tensor_parallel_size,
        .cp = parallel->context_parallel_size,
        .ep = parallel->expert_parallel_size,
        .dp = parallel->data_parallel_size,
        .pp = parallel->pipeline_parallel_size,
    };
    TRY(tracing_parse(getenv("CUBOID_TRACE"), getenv("CUBOID_TRACE_FILE"), &out->tracing));
    return mesh_create(degrees, parallel->rank_order, &out->mesh);
}

static enum status create(const struct recipe *recipe, bool with_data, struct run *out)
{
    TRY(create_mesh(recipe, out));
    if (!out->has_callers_schedule)
        TRY(build_schedule(recipe, &out->schedule));
    TRY(table_of_layers(recipe, out->schedule->stages, &out->stage_first_layer));
    return with_data ? open_data(recipe, &out->data) : OK;
}

static enum status create_unscheduled(const struct recipe *recipe, struct run *out)
{
    const int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    TRY(create_mesh(recipe, out));
    return table_of_layers(recipe, stages, &out->stage_first_layer);
}

static enum status destroy_unless(enum status status, struct run *run)
{
    if (status != OK)
        run_destroy(run);
    return status;
}

enum status run_create(const struct recipe *recipe, bool with_data, struct run *out)
{
    return run_create_with_schedule(recipe, NULL, with_data, out);
}

enum status run_create_with_schedule(const struct recipe *recipe, struct schedule *schedule, bool with_data,
                                     struct run *out)
{
    *out = (struct run){.recipe = recipe, .schedule = schedule, .has_callers_schedule = schedule != NULL};
    return destroy_unless(create(recipe, with_data, out), out);
}

enum status run_create_unscheduled(const struct recipe *recipe, struct run *out)
{
    *out = (struct run){.recipe = recipe};
    return destroy_unless(create_unscheduled(recipe, out), out);
}

void run_destroy(struct run *run)
{
    data_close(run->data);
    if (!run->has_callers_schedule)
        schedule_destroy(run->schedule);
    free(run->stage_first_layer);
    if (run->model_files != NULL)
        model_files_free(run->model_files);
    free(run->model_files);
    *run = (struct run){0};
}
