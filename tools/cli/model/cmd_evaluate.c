// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "tools/cli/model/model_argument.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/recipe_argument.h"
#include "trainer/evaluate/evaluate.h"
#include "trainer/files/yaml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char help_evaluate[] =
    "cuboid evaluate RECIPE|CHECKPOINT|RUN-DIR [key=value ...] [--data PREFIX] [--split valid|test]\n"
    "                [--by-document] [--task FILE.jsonl] [--samples FILE] [--json]\n"
    "\n"
    "Computes loss, perplexity and bits per byte of a trained model (docs/models/evaluation.md).\n"
    "Uses the newest complete checkpoint of the recipe's run or of the run directory, or the given\n"
    "checkpoint, on the layout of its recipe: as threads, or under mpirun or srun. Other dp and pp\n"
    "give bit-identical figures, another tp the same up to rounding.\n"
    "\n"
    "  cuboid evaluate runs/quickstart\n"
    "  cuboid evaluate runs/quickstart tp=1 pp=1 dp=1 --split test\n"
    "  cuboid evaluate runs/quickstart/checkpoints/step-00000600 --data runs/data/wikitext --json\n"
    "\n"
    "  --data PREFIX   evaluate all documents of this dataset (cuboid data prepare)\n"
    "  --split SPLIT   the documents of the recipe's data: valid (default) or test\n"
    "  --by-document   evaluate each document alone, from its first token, as lm-evaluation-harness does;\n"
    "                  default: all documents of a source as one stream, as in training\n"
    "  --task FILE     instead of a dataset: accuracy on multiple-choice items, a file of JSON lines in the\n"
    "                  form of HellaSwag or ARC, as lm-evaluation-harness computes it without examples\n"
    "  --samples FILE  write a line of JSON for each item of the task; the file must not exist\n"
    "  --json          print one JSON object\n"
    "\n"
    "Every token is predicted once, from at most model.seq_length tokens before it.\n";

struct arguments {
    const char *data, *split, *task, *samples;
    bool by_document, json;
    const char **rest; // model, then overrides
    int rest_count;
};

/* The process that prints and writes the files. */
static bool is_rank_zero(void)
{
    struct launcher launcher = {.rank = -1};
    return launcher_find(&launcher) != OK || launcher.rank <= 0;
}

static enum status check(const struct arguments *a)
{
    if (a->rest_count == 0)
        return fail(BAD_USAGE, "evaluate: no model given; use a recipe, a checkpoint or a run directory: "
                               "cuboid evaluate runs/quickstart");
    if ((a->data != NULL && a->data[0] == 0) || (a->task != NULL && a->task[0] == 0))
        return fail(BAD_USAGE, "evaluate: %s is empty; use %s", a->data != NULL ? "--data" : "--task",
                    a->data != NULL ? "the prefix of a dataset, made by cuboid data prepare"
                                    : "a file with an item on each line");
    if (a->split != NULL && strcmp(a->split, "valid") != 0 && strcmp(a->split, "test") != 0)
        return fail(BAD_USAGE, "evaluate: --split %s is invalid; use valid or test", a->split);
    if (a->split != NULL && a->data != NULL)
        return fail(BAD_USAGE, "evaluate: --split selects documents of the recipe's data, and --data all "
                               "documents of another dataset; use one of them");
    if (a->task != NULL && (a->data != NULL || a->split != NULL || a->by_document))
        return fail(BAD_USAGE,
                    "evaluate: --task replaces the dataset; remove --data, --split and --by-document");
    if (a->samples != NULL && a->task == NULL)
        return fail(BAD_USAGE, "evaluate: --samples writes the items of a task; add --task FILE");
    const struct output samples = {"evaluate", "--samples", a->samples};
    const struct input task = {"task", a->task};
    TRY(outputs_check(&samples, 1, &task, 1, "evaluate"));
    return is_rank_zero() ? output_refuse_existing(&samples) : OK;
}

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.rest = memory_zeroed((size_t)argc, sizeof *out->rest, "the arguments")};
    const struct option options[] = {
        {"--data", OPTION_TEXT, &out->data, 0, 0},
        {"--split", OPTION_TEXT, &out->split, 0, 0},
        {"--task", OPTION_TEXT, &out->task, 0, 0},
        {"--samples", OPTION_TEXT, &out->samples, 0, 0},
        {"--by-document", OPTION_FLAG, &out->by_document, 0, 0},
        {"--json", OPTION_FLAG, &out->json, 0, 0},
    };
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    return check(out);
}

/* ---- the result ---- */

/* JSON has neither NaN nor infinity. */
static void add_number(struct text *json, const char *key, double value)
{
    char number[NUMBER_CHARS];
    text_add(json, ", \"%s\": %s", key, isfinite(value) ? number_text(value, number) : "null");
}

static void print_task_json(const struct arguments *a, const char *checkpoint,
                            const struct evaluate_result *r)
{
    struct text json = {0};
    char key[40];
    text_add(&json, "{\"checkpoint\": ");
    text_add_json(&json, checkpoint);
    text_add(&json, ", \"step\": %lld, \"task\": ", (long long)r->step);
    text_add_json(&json, a->task);
    text_add(&json, ", \"items\": %lld", (long long)r->items);
    for (int metric = 0; metric < CHOICE_METRICS; metric++) {
        const char *name = choice_metric_name((enum choice_metric)metric);
        snprintf(key, sizeof key, "%s_stderr", name);
        add_number(&json, name, r->accuracy[metric].mean);
        add_number(&json, key, r->accuracy[metric].standard_error);
    }
    add_number(&json, "seconds", r->seconds);
    printf("%s}\n", json.chars);
    text_free(&json);
}

static void print_task(const struct arguments *a, const char *checkpoint, const struct evaluate_result *r)
{
    char time[NUMBER_CHARS];
    print_line(stdout, "checkpoint     %s, step %lld", checkpoint, (long long)r->step);
    print_line(stdout, "task           %s: %lld item%s", a->task, (long long)r->items,
               r->items == 1 ? "" : "s");
    for (int metric = 0; metric < CHOICE_METRICS; metric++) {
        const struct choice_accuracy *accuracy = &r->accuracy[metric];
        char error[NUMBER_CHARS] = "n/a"; // of a single item
        if (isfinite(accuracy->standard_error))
            snprintf(error, sizeof error, "%.4f", accuracy->standard_error);
        printf("%-14s %.4f (standard error %s)\n", choice_metric_name((enum choice_metric)metric),
               accuracy->mean, error);
    }
    printf("time           %s\n", seconds_text(r->seconds, time));
}

static void print_json(const struct arguments *a, const char *checkpoint, const struct evaluate_result *r)
{
    struct text json = {0};
    text_add(&json, "{\"checkpoint\": ");
    text_add_json(&json, checkpoint);
    text_add(&json, ", \"step\": %lld, ", (long long)r->step);
    text_add(&json, a->data != NULL ? "\"data\": " : "\"split\": ");
    text_add_json(&json, a->data != NULL ? a->data : a->split != NULL ? a->split : "valid");
    text_add(&json, ", \"by_document\": %s, \"documents\": %lld, \"windows\": %lld",
             a->by_document ? "true" : "false", (long long)r->documents, (long long)r->windows);
    add_number(&json, "tokens", r->tokens);
    add_number(&json, "bytes", r->text_size > 0.0 ? r->text_size : NAN);
    add_number(&json, "loss", r->loss);
    add_number(&json, "perplexity", exp(r->loss));
    add_number(&json, "bits_per_byte", evaluate_bits_per_byte(r));
    add_number(&json, "seconds", r->seconds);
    printf("%s}\n", json.chars);
    text_free(&json);
}

static void print_table(const struct arguments *a, const char *checkpoint, const struct evaluate_result *r)
{
    char time[NUMBER_CHARS];
    print_line(stdout, "checkpoint     %s, step %lld", checkpoint, (long long)r->step);
    print_line(stdout, "data           %s%s: %lld document%s, %.0f predicted tokens%s",
               a->data != NULL ? "" : "split ",
               a->data != NULL    ? a->data
               : a->split != NULL ? a->split
                                  : "valid",
               (long long)r->documents, r->documents == 1 ? "" : "s", r->tokens,
               a->by_document ? ", each document alone" : "");
    printf("loss           %.6f\nperplexity     %.6g\n", r->loss, exp(r->loss));
    if (r->text_size > 0.0)
        printf("bits per byte  %.6f (%.0f bytes)\n", evaluate_bits_per_byte(r), r->text_size);
    printf("time           %s (%.0f tokens/s)\n", seconds_text(r->seconds, time),
           r->seconds > 0.0 ? r->tokens / r->seconds : 0.0);
}

/* ---- running ---- */

static void show_progress(void *context, int64_t done, int64_t count)
{
    progress_line_show(context, "evaluating: window %lld of %lld", (long long)done, (long long)count);
}

static void print_result(const struct arguments *a, const char *checkpoint, const struct evaluate_result *r)
{
    if (a->task != NULL)
        (a->json ? print_task_json : print_task)(a, checkpoint, r);
    else
        (a->json ? print_json : print_table)(a, checkpoint, r);
}

static int run(const struct arguments *a, const char *checkpoint, const struct recipe *recipe, int size)
{
    struct text samples = {0};
    struct progress_line progress = progress_line_begin();
    const struct evaluate_options options = {
        .recipe = recipe,
        .size = size,
        .checkpoint = checkpoint,
        .data = a->data,
        .split = a->split != NULL && strcmp(a->split, "test") == 0 ? DATA_TEST : DATA_VALID,
        .by_document = a->by_document,
        .task = a->task,
        .samples = a->samples != NULL ? &samples : NULL,
        .progress = show_progress,
        .context = &progress,
    };
    struct evaluate_result result;
    enum status status = evaluate(&options, &result);
    progress_line_clear(&progress);
    const bool prints = status == OK && is_rank_zero();
    if (prints && a->samples != NULL)
        status = output_write(&(struct output){"evaluate", "--samples", a->samples}, &samples, false);
    if (prints && status == OK)
        print_result(a, checkpoint, &result);
    text_free(&samples);
    return exit_status_of_world(status);
}

static int run_command(const struct arguments *a)
{
    // With --data, the recipe has no other data: no warning or error is about it.
    struct text train = {0};
    text_add(&train, "data.train=[{path: ");
    yaml_add_string(&train, a->data != NULL ? a->data : "", NULL);
    text_add(&train, "}]");
    const char *const data[] = {train.chars, "data.valid=[]", "data.mock_data=false", "train.eval_interval=0",
                                NULL};
    const struct model_request request = {.command = "evaluate",
                                          .example = "",
                                          .words = a->rest,
                                          .count = a->rest_count,
                                          .defaults = a->data != NULL ? data : NULL};
    char *checkpoint = NULL;
    struct recipe *recipe = NULL;
    int size, status = model_argument(&request, &checkpoint, &recipe, &size);
    if (status == 0)
        status = run(a, checkpoint, recipe, size);
    recipe_destroy(recipe);
    free(checkpoint);
    text_free(&train);
    return status;
}

int cmd_evaluate(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status(parse(argc, argv, &arguments));
    if (status == 0)
        status = run_command(&arguments);
    free(arguments.rest);
    return status;
}
