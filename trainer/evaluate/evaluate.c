// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/evaluate.h"

#include "base/clock.h"
#include "base/memory.h"
#include "trainer/checkpoint/load.h"
#include "trainer/data/recipe_data.h"
#include "trainer/engine/agree.h"

#include <math.h>
#include <stdlib.h>

/* Shared by the ranks of this process; rank 0 writes the result. `status` and `why`: the result of the
 * preparation, which a process reports through the world: the others would wait for it. */
struct evaluation {
    const struct evaluate_options *options;
    enum status status;
    struct text why;
    struct run run;
    struct tokenizer *tokenizer;   // NULL: none
    struct token_windows *windows; // of a dataset; or
    struct choice_task task;       // of options.task
    double *log_likelihood;        // [task.choice_count] written by rank 0
    struct evaluate_result result;
};

double evaluate_bits_per_byte(const struct evaluate_result *result)
{
    return result->text_size > 0.0 ? result->loss * result->tokens / (log(2.0) * result->text_size) : NAN;
}

static struct window_source source_of(const struct evaluation *evaluation)
{
    return evaluation->options->task != NULL ? choice_task_source(&evaluation->task)
                                             : token_windows_source(evaluation->windows);
}

/* Adds the scores of windows [begin, begin + count), in their order. */
static void add_scores(const struct evaluation *evaluation, const struct scorer *scorer, int64_t begin,
                       int64_t count, struct evaluate_result *out)
{
    const bool stores = evaluation->log_likelihood != NULL && scorer->state->world->rank == 0;
    for (int64_t i = 0; i < count; i++) {
        const struct window_score *score = &scorer->scores[i];
        out->loss += score->loss;
        out->tokens += score->tokens;
        out->text_size += score->text_size;
        if (stores)
            evaluation->log_likelihood[begin + i] = -score->loss;
    }
}

static enum status score_all(const struct evaluation *evaluation, struct scorer *scorer,
                             struct evaluate_result *out)
{
    const struct evaluate_options *o = evaluation->options;
    const struct window_source source = source_of(evaluation);
    const bool reports = scorer->state->world->rank == 0 && o->progress != NULL;
    for (int64_t begin = 0; begin < source.count; begin += scorer->capacity) {
        const int64_t left = source.count - begin, count = left < scorer->capacity ? left : scorer->capacity;
        TRY(scorer_run(scorer, &source, begin, count));
        add_scores(evaluation, scorer, begin, count, out);
        if (reports)
            o->progress(o->context, begin + count, source.count);
    }
    if (!(out->tokens > 0.0))
        return fail(BAD_DATA, "all tokens are masked by data.eod_mask_loss; set data.eod_mask_loss=false");
    out->loss /= out->tokens;
    return OK;
}

/* There are only forward passes: no training key would reduce the memory. */
static enum status explain(enum status status)
{
    if (status != NO_DEVICE_MEMORY)
        return status;
    return fail(status, "%s; use a smaller train.micro_batch_size, or more tp or pp", fail_text());
}

static enum status evaluate_rank(const struct evaluation *evaluation, struct rank_state *state,
                                 struct scorer *scorer, struct evaluate_result *out)
{
    TRY(checkpoint_load(state, evaluation->options->checkpoint, CHECKPOINT_WEIGHTS));
    TRY(rank_agree(state, scorer_create(state, scorer)));
    const double begin = clock_s();
    *out = (struct evaluate_result){.step = state->step, .windows = source_of(evaluation).count};
    if (evaluation->windows != NULL)
        out->documents = token_windows_documents(evaluation->windows);
    TRY(score_all(evaluation, scorer, out));
    out->seconds = clock_s() - begin;
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct evaluation *evaluation = argument;
    struct rank_state state;
    struct scorer scorer = {.state = NULL};
    struct evaluate_result result = {.step = 0};
    if (evaluation->status != OK)
        return fail(evaluation->status, "%s", text_chars(&evaluation->why));
    // After a failure of this rank alone, peers may still use its memory; the process ends.
    enum status status =
        explain(rank_create(&evaluation->run, world, &(struct rank_options){.training = false}, &state));
    TRY(status);
    status = explain(evaluate_rank(evaluation, &state, &scorer, &result));
    if (status == OK && world->rank == 0)
        evaluation->result = result;
    scorer_destroy(&scorer);
    rank_destroy(&state);
    return status;
}

/* Reads the dataset, or the items of a task. */
static enum status open_source(struct evaluation *evaluation)
{
    const struct evaluate_options *o = evaluation->options;
    const struct token_windows_config config = {.recipe = o->recipe,
                                                .tokenizer = evaluation->tokenizer,
                                                .data = o->data,
                                                .split = o->split,
                                                .by_document = o->by_document};
    if (o->task == NULL)
        return token_windows_open(&config, &evaluation->windows);
    if (evaluation->tokenizer == NULL)
        return fail(BAD_RECIPE, "--task needs a tokenizer; set tokenizer.tokenizer_type");
    TRY(choice_task_read(o->task, o->recipe, evaluation->tokenizer, &evaluation->task));
    evaluation->log_likelihood = memory_zeroed((size_t)evaluation->task.choice_count,
                                               sizeof *evaluation->log_likelihood, "the choices of a task");
    return OK;
}

static enum status prepare(struct evaluation *evaluation)
{
    const struct evaluate_options *o = evaluation->options;
    const struct recipe *recipe = o->recipe;
    if (!device_traits(recipe->cluster.device)->computes)
        return fail(BAD_RECIPE,
                    "cluster.device %s computes nothing and cannot evaluate; use cluster.device=cpu",
                    recipe->cluster.device);
    if (recipe->tokenizer.tokenizer_type != TOKENIZER_NONE)
        TRY(recipe_create_tokenizer(recipe, &evaluation->tokenizer));
    TRY(open_source(evaluation));
    return run_create(recipe, false, &evaluation->run);
}

static enum status run_world(struct evaluation *evaluation)
{
    struct launcher launcher;
    TRY(launcher_find(&launcher));
    if (evaluation->status != OK)
        text_add(&evaluation->why, "%s", fail_text());
    if (evaluation->status != OK && launcher.size <= 1)
        return evaluation->status;
    const struct world_options world = recipe_world(evaluation->options->recipe, evaluation->options->size);
    return world_run_as(&world, rank_main, evaluation);
}

/* One line of JSON for each item: its line, its answer, and what each metric chooses. */
static void add_samples(const struct evaluation *evaluation, struct text *out)
{
    const struct choice_task *task = &evaluation->task;
    const double *scores = evaluation->log_likelihood;
    char number[NUMBER_CHARS];
    for (int64_t i = 0; i < task->item_count; i++) {
        const struct choice_item *item = &task->items[i];
        text_add(out, "{\"line\": %lld, \"correct\": %d", (long long)item->line, item->correct);
        for (int metric = 0; metric < CHOICE_METRICS; metric++)
            text_add(out, ", \"%s\": %d", choice_metric_name((enum choice_metric)metric),
                     choice_task_chosen(task, scores, item, (enum choice_metric)metric));
        text_add(out, ", \"log_likelihood\": [");
        for (int k = 0; k < item->count; k++)
            text_add(out, "%s%s", k > 0 ? ", " : "", number_text(scores[item->first + k], number));
        text_add(out, "]}\n");
    }
}

static void add_accuracy(struct evaluation *evaluation)
{
    const struct choice_task *task = &evaluation->task;
    evaluation->result.items = task->item_count;
    choice_task_accuracy(task, evaluation->log_likelihood, evaluation->result.accuracy);
    if (evaluation->options->samples != NULL)
        add_samples(evaluation, evaluation->options->samples);
}

enum status evaluate(const struct evaluate_options *options, struct evaluate_result *out)
{
    struct evaluation evaluation = {.options = options};
    evaluation.status = prepare(&evaluation);
    const enum status status = run_world(&evaluation);
    if (status == OK && options->task != NULL)
        add_accuracy(&evaluation);
    run_destroy(&evaluation.run);
    token_windows_close(evaluation.windows);
    choice_task_free(&evaluation.task);
    free(evaluation.log_likelihood);
    tokenizer_destroy(evaluation.tokenizer);
    text_free(&evaluation.why);
    if (status == OK)
        *out = evaluation.result;
    return status;
}
