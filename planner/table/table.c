// SPDX-License-Identifier: Apache-2.0
#include "planner/table/table.h"

#include "base/memory.h"
#include "layers/model.h"
#include "layers/parameters/param.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/schedule/choose_schedule.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status load_profile(struct profile_cache *cache, const char *name)
{
    struct problems problems = {0};
    const enum status status = profile_cache_load(cache, name, &problems);
    problems_free(&problems);
    return status;
}

/* ---- results of a plan ---- */

static char *layout_text(const struct recipe *recipe)
{
    static const char *const granularities[] = {"", " selective", " full"};
    const struct recipe_parallel *parallel = &recipe->parallel;
    struct text text = {0};
    text_add(&text, "tp%d pp%d dp%d", parallel->tensor_parallel_size, parallel->pipeline_parallel_size,
             parallel->data_parallel_size);
    if (recipe->pipeline.virtual_stages > 1)
        text_add(&text, " v%d", recipe->pipeline.virtual_stages);
    text_add(&text, " b%lld", (long long)recipe->train.micro_batch_size);
    if (parallel->pipeline_parallel_size > 1)
        text_add(&text, " %s", recipe->pipeline.schedule);
    if (recipe->layers.sequence_parallel)
        text_add(&text, " sp");
    if (recipe->data_parallel.zero_stage > 0)
        text_add(&text, " z%d", recipe->data_parallel.zero_stage);
    text_add(&text, "%s", granularities[recipe->layers.recompute.granularity]);
    return text.chars;
}

static double roofline_s(const struct step_plan *plan)
{
    const struct cluster_profile *profile = plan->profile;
    const double peak = plan->run->recipe->logging.peak_flops;
    double seconds = 0.0;
    for (int r = 0; r < plan->count; r++)
        for (int lane = 0; lane < plan->tapes[r]->lane_count; lane++)
            for (int i = 0; i < plan->tapes[r]->lanes[lane].count; i++) {
                const struct tape_item *item = &plan->tapes[r]->lanes[lane].items[i];
                if (item->kind != TAPE_OP)
                    continue;
                const struct op_record *op = &plan->tapes[r]->ops[item->index];
                seconds += cost_class_of(op->kind) == COST_MEMORY
                               ? op->cost.bytes /
                                     (profile->device.memory_bandwidth * profile->model.memory_efficiency)
                               : op->cost.flops / (peak * profile->model.matmul_efficiency);
            }
    return seconds / plan->count;
}

static void take_times(struct table_row *row, const struct step_plan *plan)
{
    const struct recipe *recipe = plan->run->recipe;
    const double peak = recipe->logging.peak_flops, share = 1.0 / plan->step->count;
    const double tokens = (double)(recipe->train.global_batch_size * recipe->model.seq_length);
    row->step_s = plan->step_s;
    row->overhead_s = plan->profile->model.step_overhead_s;
    for (int i = 0; i < plan->step->count; i++) {
        for (int c = 0; c < COST_CLASSES; c++)
            row->run_s[c] += share * plan->step->ranks[i].run_s[c];
        for (int g = 0; g < PREDICT_GROUPS; g++)
            row->exposed_s[g] += share * plan->step->ranks[i].exposed_s[g];
        row->bubble_s += share * plan->step->ranks[i].bubble_s;
    }
    row->printed = published_step(row->row, &recipe->model, peak);
    if (peak > 0.0) {
        row->ideal_s = model_flops_per_token(&recipe->model) * tokens / (peak * plan->run->mesh.world);
        row->roofline_s = roofline_s(plan);
    }
}

/* Warns of a published rate that the device does not have: above its peak, or a step for which even the
 * causal half of attention would be. */
static void check_rate(const struct table_row *row, const struct recipe *recipe, struct text *text)
{
    const double peak = recipe->logging.peak_flops, rate = row->row->number[PUBLISHED_TFLOPS_PER_GPU] * 1e12;
    const double share = row->printed.seconds > 0.0 ? row->ideal_s / row->printed.seconds : 0.0;
    const double causal = share * model_causal_share(&recipe->model);
    if (peak > 0.0 && rate > peak)
        text_add(text,
                 "%.4g TFLOP/s are above the peak of a GPU, %.4g (%s): check tflops_per_gpu, precision "
                 "and gpu_type",
                 1e-12 * rate, 1e-12 * peak, recipe_dtype_name(recipe));
    else if (causal > 1.0)
        text_add(text,
                 "a step of %.4g s takes %.0f %% of the peak of the GPUs, even with the causal half of "
                 "attention: check its time, gpus, seq and global_batch",
                 row->printed.seconds, 100.0 * causal);
    else if (share > 1.0)
        text_add(text, "MFU %.0f %% counts all of attention; with the causal half it is %.0f %%",
                 100.0 * share, 100.0 * causal);
}

/* Warns if the columns describe a model of another size than `params_b`. */
static void check_size(const struct table_row *row, const struct recipe *recipe, struct text *text)
{
    static const double tolerance = 0.1;
    const double published = row->row->number[PUBLISHED_PARAMS_B];
    int64_t count = 0;
    if (isnan(published) || model_parameter_count(&recipe->model, &count) != OK)
        return;
    if (fabs(1e-9 * (double)count / published - 1.0) > tolerance)
        text_add(
            text,
            "%sthis model has %.3g billion parameters, not the %.4g of params_b: check ffn and vocab, and "
            "model.activation=swiglu, model.num_query_groups, model.tie_word_embeddings=false",
            text->length > 0 ? "; " : "", 1e-9 * (double)count, published);
}

/* Of the last stage: weights, gradients and optimizer state, and what is kept between steps. */
static double state_bytes(const struct step_plan *plan)
{
    static const enum part states[] = {PART_WEIGHTS, PART_MASTERS, PART_GRADIENTS, PART_MOMENTS};
    double bytes = (double)assumptions_of(plan->run->recipe)->kept_bytes;
    for (size_t k = 0; k < sizeof states / sizeof *states; k++)
        bytes += (double)plan->ranks[plan->count - 1].part_bytes[states[k]];
    return bytes;
}

static void take_memory(struct table_row *row, const struct step_plan *plan)
{
    const char *status = row->row->cell[PUBLISHED_STATUS], *figure = row->row->cell[PUBLISHED_FIGURE];
    const double printed = row->row->number[PUBLISHED_MEMORY_GB];
    const bool only_states = strcmp(figure, "model states") == 0;
    const int rank = strcmp(figure, "last stage") == 0 ? plan->count - 1 : plan->peak_rank;
    const bool of_device = assumptions_of(plan->run->recipe)->printed_memory == ASSUME_MEMORY_DEVICE;
    row->bytes = only_states ? state_bytes(plan)
                 : of_device ? (double)plan->needed_bytes
                             : (double)plan->ranks[rank].bytes;
    row->printed_bytes = isnan(printed) ? 0.0 : printed * 1e9;
    row->fit = only_states ? FIT_UNKNOWN : plan->fits ? FIT_OK : FIT_OOM;
    row->near_limit = llabs(plan->needed_bytes - plan->device_bytes) < TABLE_NEAR_GB * INT64_C(1000000000);
    const bool ran =
        strcmp(status, "ok") == 0 || (*status == 0 && *figure == 0 && row->printed.seconds > 0.0);
    row->printed_fit = ran ? FIT_OK : strcmp(status, "oom") == 0 ? FIT_OOM : FIT_UNKNOWN;
    row->may_shard = plan->run->recipe->data_parallel.zero_stage == 0 && plan->run->mesh.degrees.dp > 1 &&
                     published_is_missing(row->row->cell[PUBLISHED_ZERO_STAGE]);
    row->may_recompute = plan->run->recipe->layers.recompute.granularity == RECOMPUTE_NONE &&
                         published_is_missing(row->row->cell[PUBLISHED_RECOMPUTE]);
}

/* Plans a step of the recipe on its profile. */
static enum status plan_recipe(struct table_row *row, const struct recipe *recipe,
                               struct profile_cache *cache)
{
    struct run run;
    struct step_plan plan;
    TRY(load_profile(cache, recipe->cluster.profile));
    if (!table_row_has_gpu(row->row, cache->profile->device.name))
        return fail(
            BAD_RECIPE,
            "gpu_type %.60s is not the %s of cluster profile %s; use a profile of that GPU, or correct "
            "the column",
            row->row->cell[PUBLISHED_GPU_TYPE], cache->profile->device.name, recipe->cluster.profile);
    TRY(planned_run_create(recipe, &run));
    enum status status = step_plan_make(&run, cache->profile, &plan);
    if (status == OK) {
        struct text basis = {0};
        profile_basis_text(cache->profile, &basis);
        row->basis = basis.chars;
        take_times(row, &plan);
        take_memory(row, &plan);
        step_plan_free(&plan);
    }
    run_destroy(&run);
    return status;
}

/* Computes one layer's forward and backward pass of one microbatch: the time that one more layer adds to a
 * step. */
static void subtract(struct table_row *row, const struct table_row *more, double microbatches)
{
    const double share = 1.0 / microbatches;
    row->step_s = (more->step_s - row->step_s) * share;
    row->ideal_s = (more->ideal_s - row->ideal_s) * share;
    row->roofline_s = (more->roofline_s - row->roofline_s) * share;
    for (int c = 0; c < COST_CLASSES; c++)
        row->run_s[c] = (more->run_s[c] - row->run_s[c]) * share;
    for (int g = 0; g < PREDICT_GROUPS; g++)
        row->exposed_s[g] = (more->exposed_s[g] - row->exposed_s[g]) * share;
    row->bubble_s = (more->bubble_s - row->bubble_s) * share;
    row->overhead_s = 0.0;
}

static enum status predict(struct table_row *row, const struct table_options *options, struct text *reason,
                           struct profile_cache *cache)
{
    struct recipe *recipe = table_row_recipe(options, row->row, 0, reason), *longer = NULL;
    struct table_row more = {.row = row->row};
    enum status status = OK;
    if (recipe == NULL)
        return OK;
    row->layout = layout_text(recipe);
    row->dp = recipe->parallel.data_parallel_size;
    row->profile = text_copy(recipe->cluster.profile);
    status = plan_recipe(row, recipe, cache);
    if (status == OK && published_is_layer(row->row)) {
        longer = table_row_recipe(options, row->row, 1, reason);
        if (longer != NULL)
            status = plan_recipe(&more, longer, cache);
        subtract(row, &more, (double)recipe_microbatches(recipe));
        free(more.basis);
    }
    if (status == OK && options->measure == NULL) {
        struct text warning = {0};
        check_rate(row, recipe, &warning);
        check_size(row, recipe, &warning);
        row->warning = warning.chars;
    }
    if (status == OK && options->measure != NULL)
        status = options->measure(options->context, recipe, row, reason);
    recipe_destroy(recipe);
    recipe_destroy(longer);
    return status;
}

enum status table_predict(const struct published *published, const struct table_options *options,
                          struct table *out)
{
    struct profile_cache cache = {.name = NULL};
    enum status status = OK;
    *out =
        (struct table){.rows = memory_zeroed(published->count + 1, sizeof *out->rows, "the rows of a table"),
                       .count = published->count};
    for (size_t i = 0; i < published->count && status != NO_MEMORY; i++) {
        struct table_row *row = &out->rows[i];
        struct text reason = {0};
        row->row = &published->rows[i];
        if (options->progress != NULL)
            options->progress(options->context, i, published->count);
        status = predict(row, options, &reason, &cache);
        if (status != OK)
            text_add(&reason, "%s", fail_text());
        if (reason.length > 0)
            row->reason = text_copy(reason.chars);
        text_free(&reason);
    }
    profile_cache_free(&cache);
    if (status == NO_MEMORY) {
        table_free(out);
        return status;
    }
    table_summarize(out);
    return OK;
}

void table_free(struct table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        free(table->rows[i].reason);
        free(table->rows[i].layout);
        free(table->rows[i].profile);
        free(table->rows[i].basis);
        free(table->rows[i].warning);
    }
    free(table->rows);
    free(table->groups);
    *table = (struct table){.rows = NULL};
}

const struct shipped_table *table_shipped(const char *name)
{
    for (const struct shipped_table *table = shipped_tables; table->name != NULL; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

/* Length of the beginning of `text` that has the letters and digits of `name`; 0: another beginning. */
static size_t begins_with(const char *text, const char *name)
{
    size_t at = 0;
    for (; *name != 0; name++) {
        if (!isalnum((unsigned char)*name))
            continue;
        while (text[at] != 0 && !isalnum((unsigned char)text[at]))
            at++;
        if (tolower((unsigned char)text[at]) != tolower((unsigned char)*name))
            return 0;
        at++;
    }
    return at;
}

const struct shipped_table *table_of_paper(const char *paper)
{
    const struct shipped_table *found = NULL;
    size_t longest = 0;
    if (begins_with(paper, "Megatron-LM README") > 0) // its table has the name of the GPU
        return table_shipped("megatron-h100");
    for (const struct shipped_table *table = shipped_tables; table->name != NULL; table++) {
        const size_t length = begins_with(paper, table->name);
        if (length > longest && *table->csv != 0) {
            found = table;
            longest = length;
        }
    }
    return found;
}
