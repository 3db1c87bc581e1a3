// SPDX-License-Identifier: Apache-2.0
/* cuboid table: published runs, with predictions. */
#include "tools/cli/commands.h"

#include "base/clock.h"
#include "base/memory.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/page.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/table/table_argument.h"
#include "tools/cli/table/table_output.h"
#include "tools/cli/table/table_run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char help_table[] =
    "cuboid table NAME | FILE.csv [key=value ...] [--profile P] [--recipe R] [--html FILE] [--json]\n"
    "             [--run [RANKS]] [--launch WORDS] [--steps N] [--timeout S] [--run-dir DIR]\n"
    "cuboid table --list\n"
    "\n"
    "Predicts each run of a published scaling table, and prints predicted next to published step times and\n"
    "memory, with the errors of the predictions and of two baselines (docs/planning.md).\n"
    "\n"
    "  NAME           a shipped table (--list), with the assumptions of recipes/papers\n"
    "  FILE.csv       your own rows, with the columns of those tables (--columns), in any order. Each gives\n"
    "                 model, layout and batch sizes, and gpu_type chooses a profile (A100, H100 SXM, ...)\n"
    "  key=value      recipe keys for all rows; they override those of the row\n"
    "  --profile P    cluster profile, by name or path (default: the table's, or that of the gpu_type)\n"
    "  --recipe R     base recipe for the rows of FILE.csv: a path, or the name of a shipped table.\n"
    "                 Without it, that of the shipped table whose paper all rows name, if any; missing\n"
    "                 keys are inferred from names (a model called Llama or Qwen)\n"
    "  --html FILE    also write a page with a plot of predicted against published times\n"
    "  --json         print one JSON object\n"
    "  --run [RANKS]  run each row scaled down: a small model on at most RANKS ranks (default 8), with the\n"
    "                 same schedule, recomputation and kinds of parallelism; print measured next to\n"
    "                 predicted times. Needs the profile of this machine (cuboid doctor --profile FILE).\n"
    "                 Repeat the command to resume\n"
    "  --launch W, --steps N, --timeout S, --run-dir DIR (default: TABLE.runs): see cuboid sweep --help\n"
    "\n"
    "Exit status: 0 if any row was predicted; 1 if none was; 2 for a table that cannot be read.\n";

struct arguments {
    bool list, columns, json;
    const char *profile, *recipe, *html;
    int64_t run; // maximum number of ranks; -1: run nothing
    struct measure_options measure;
    const char **rest; // the table, then overrides
    int rest_count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.rest = memory_zeroed((size_t)argc + 1, sizeof(char *), "the arguments"),
                              .run = -1,
                              .measure = {.steps = 6, .timeout_s = 600.0}};
    const struct option options[] = {
        {"--list", OPTION_FLAG, &out->list, 0, 0},
        {"--columns", OPTION_FLAG, &out->columns, 0, 0},
        {"--json", OPTION_FLAG, &out->json, 0, 0},
        {"--profile", OPTION_TEXT, &out->profile, 0, 0},
        {"--recipe", OPTION_TEXT, &out->recipe, 0, 0},
        {"--html", OPTION_TEXT, &out->html, 0, 0},
        {"--run", OPTION_COUNT, &out->run, 0, 64},
        {"--steps", OPTION_INTEGER, &out->measure.steps, 2, 1e6},
        {"--launch", OPTION_TEXT, &out->measure.launch, 0, 0},
        {"--timeout", OPTION_REAL, &out->measure.timeout_s, 0.01, 1e9},
        {"--run-dir", OPTION_TEXT, &out->measure.dir, 0, 0},
    };
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    if (!out->list && !out->columns && out->rest_count == 0)
        return fail(BAD_USAGE, "no table given; use cuboid table NAME (cuboid table --list) or a FILE.csv");
    for (int i = 1; i < out->rest_count; i++)
        if (strchr(out->rest[i], '=') == NULL)
            return fail(BAD_USAGE, "%s is not key=value; one table at a time", out->rest[i]);
    const struct output page = {"table", "--html", out->html};
    const struct input inputs[] = {{"table", out->rest_count > 0 ? out->rest[0] : NULL},
                                   {"base recipe", out->recipe},
                                   {"cluster profile", out->profile}};
    return outputs_check(&page, 1, inputs, 3, "the report");
}

static int list(void)
{
    for (const struct shipped_table *table = shipped_tables; table->name != NULL; table++)
        if (*table->csv != 0)
            printf("%-16s %s\n", table->name, table->description);
    return 0;
}

static int print_columns(void)
{
    struct text header = {0};
    published_header(&header);
    fputs(header.chars, stdout);
    text_free(&header);
    return 0;
}

static void show_progress(void *context, size_t done, size_t count)
{
    progress_line_show(context, "%zu of %zu rows", done, count);
}

/* ---- one table ---- */

static enum status write_page(const struct table *table, const struct table_title *title,
                              const struct arguments *arguments)
{
    AUTO(text) data = {0};
    AUTO(text) command = {0};
    AUTO(text) page = {0};
    text_add(&command, "cuboid table");
    for (int i = 0; i < arguments->rest_count; i++)
        text_add(&command, " %s", arguments->rest[i]);
    if (arguments->profile != NULL)
        text_add(&command, " --profile %s", arguments->profile);
    if (arguments->recipe != NULL)
        text_add(&command, " --recipe %s", arguments->recipe);
    table_json(table, title, &data);
    page_add(
        &(struct page){.script = "table.js", .title = title->name, .command = command.chars, .data = &data},
        &page);
    return file_write_atomic(arguments->html, page.chars, page.length);
}

static enum status print(const struct table *table, const struct table_title *title,
                         const struct arguments *arguments)
{
    AUTO(text) out = {0};
    if (arguments->json) {
        table_json(table, title, &out);
        fputs(out.chars, stdout);
    } else
        table_print(table, title, stdout);
    return arguments->html != NULL ? write_page(table, title, arguments) : OK;
}

/* Checks the arguments that all rows share, so that an error is reported once. */
static enum status check_shared(const struct arguments *arguments)
{
    struct cluster_profile *profile = NULL;
    struct problems problems = {0};
    enum status status = OK;
    if (arguments->profile != NULL)
        status = profile_load(arguments->profile, &profile, &problems);
    TRY(problems_report(&problems, status));
    profile_destroy(profile);
    return table_check_shared(arguments->recipe, arguments->rest + 1, (size_t)arguments->rest_count - 1);
}

/* Runs the rows scaled down. */
static enum status run_table(const struct published *published, const struct table_options *options,
                             const struct arguments *arguments, struct table *out)
{
    struct measure_options measure = arguments->measure;
    struct text dir = {0};
    const char *slash = strrchr(arguments->rest[0], '/');
    text_add(&dir, "%s.runs", slash != NULL ? slash + 1 : arguments->rest[0]);
    if (measure.dir == NULL)
        measure.dir = dir.chars;
    const enum status status = table_run(published, options, &measure, (int)arguments->run, out);
    text_free(&dir);
    return status;
}

static int predict(const struct arguments *arguments)
{
    struct published published = {.path = NULL};
    struct table table;
    struct table_title title;
    struct progress_line progress = progress_line_begin();
    struct table_options options = {.profile = arguments->profile,
                                    .overrides = arguments->rest + 1,
                                    .override_count = (size_t)arguments->rest_count - 1,
                                    .progress = show_progress,
                                    .context = &progress};
    int status = exit_status_of_input(check_shared(arguments));
    if (status == 0)
        status = exit_status_of_input(
            table_open(arguments->rest[0], arguments->recipe, &published, &options.base, &title));
    if (status != 0)
        return status;
    title.measured = arguments->run >= 0;
    if (title.measured)
        status = exit_status(run_table(&published, &options, arguments, &table));
    else
        status = exit_status(table_predict(&published, &options, &table));
    progress_line_clear(&progress);
    if (status == 0) {
        size_t predicted = 0;
        status = exit_status(print(&table, &title, arguments));
        for (size_t i = 0; i < table.count; i++)
            predicted += table.rows[i].reason == NULL;
        status = status == 0 && predicted == 0 ? 1 : status;
        table_free(&table);
    }
    published_free(&published);
    return status;
}

int cmd_table(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status_of_input(parse(argc, argv, &arguments));
    if (status == 0)
        status = arguments.list ? list() : arguments.columns ? print_columns() : predict(&arguments);
    free(arguments.rest);
    return status;
}
