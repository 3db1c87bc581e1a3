// SPDX-License-Identifier: Apache-2.0
/* cuboid sweep: the layouts of a recipe, planned and compared. */
#include "tools/cli/commands.h"

#include "base/clock.h"
#include "base/memory.h"
#include "planner/choose/choose.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/sweep/sweep_output.h"
#include "tools/cli/sweep/sweep_run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char help_sweep[] =
    "cuboid sweep SWEEP.yaml [key=value ...] [--top N] [--all] [-o FILE.csv] [--html FILE]\n"
    "             [--run [K]] [--launch WORDS] [--steps N] [--timeout S] [--run-dir DIR]\n"
    "\n"
    "Plans a recipe with every combination of the given values of some keys, and prints the fastest\n"
    "layouts that fit (docs/planning.md). Invalid layouts and those that do not fit are counted by reason.\n"
    "Needs a cluster profile, but neither data nor a GPU.\n"
    "\n"
    "  base: gpt3-175b.yaml                     a recipe, relative to the file\n"
    "  axes:                                    recipe keys and their values\n"
    "    tp: [1, 2, 4, 8]\n"
    "    pipeline.schedule: [1f1b, zb-h1]\n"
    "  constraints: [tp * pp <= 64]             optional\n"
    "\n"
    "  key=value      recipe keys that override the base\n"
    "  --top N        number of layouts to find and print (default 10). Layouts whose lower bound of the\n"
    "                 step time exceeds theirs are not planned\n"
    "  --all          plan all valid layouts that fit\n"
    "  -o FILE.csv    also write all valid layouts, with the columns of cuboid table --columns\n"
    "  --html FILE    also write a page: heat maps, time against memory, layouts without a plan\n"
    "\n"
    "  --run [K]      run the best K layouts, or all planned ones, with cuboid train on random tokens, and\n"
    "                 print measured next to predicted times. Repeat the command to resume\n"
    "  --launch W     launcher, such as \"mpirun -np {ranks}\"; without it, ranks are threads. slurm: job\n"
    "                 arrays, with the options of cuboid submit\n"
    "  --steps N      steps per run (default 6); the step time is the median without the first\n"
    "  --timeout S    seconds after which a run is killed (default 600)\n"
    "  --run-dir DIR  folder of the runs (default: SWEEP.yaml.runs)\n"
    "\n"
    "Exit status: 0 if a layout was planned; 1 if none was; 2 for a file or recipe that cannot be used.\n";

struct arguments {
    int64_t top;
    bool all;
    int64_t run, steps; // run: number of layouts to run; -1: none; 0: all
    double timeout_s;
    const char *launch, *run_dir;
    const char *csv, *html;
    const char **rest; // the file, overrides, and room for two more
    int rest_count;
};

/* Checks the outputs before the sweep, which may take long. */
static enum status check_outputs(const struct arguments *arguments)
{
    const struct output outputs[] = {{"sweep", "-o", arguments->csv}, {"sweep", "--html", arguments->html}};
    const struct input inputs[] = {{"sweep", arguments->rest[0]}};
    return outputs_check(outputs, 2, inputs, 1, "the report");
}

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.top = 10,
                              .run = -1,
                              .steps = 6,
                              .timeout_s = 600.0,
                              .rest = memory_zeroed((size_t)argc + 3, sizeof(char *), "the arguments")};
    const struct option options[] = {
        {"--top", OPTION_INTEGER, &out->top, 1, 1e6},
        {"--all", OPTION_FLAG, &out->all, 0, 0},
        {"--output", OPTION_TEXT, &out->csv, 0, 0},
        {"-o", OPTION_TEXT, &out->csv, 0, 0},
        {"--run", OPTION_COUNT, &out->run, 0, 1e6},
        {"--steps", OPTION_INTEGER, &out->steps, 2, 1e6},
        {"--timeout", OPTION_REAL, &out->timeout_s, 0.01, 1e9},
        {"--launch", OPTION_TEXT, &out->launch, 0, 0},
        {"--run-dir", OPTION_TEXT, &out->run_dir, 0, 0},
        {"--html", OPTION_TEXT, &out->html, 0, 0},
    };
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    if (out->rest_count == 0)
        return fail(BAD_USAGE, "no sweep given; use cuboid sweep SWEEP.yaml (cuboid sweep --help)");
    for (int i = 1; i < out->rest_count; i++)
        if (strchr(out->rest[i], '=') == NULL)
            return fail(BAD_USAGE, "%s is not key=value; one sweep at a time", out->rest[i]);
    for (int i = 1; i < out->rest_count; i++)
        if (strncmp(out->rest[i], "cluster.device=", strlen("cluster.device=")) == 0)
            return fail(BAD_USAGE,
                        "%s: a sweep uses cluster.device=dry, and --run the device of the recipe; set it "
                        "there, or set cluster.dry_device to plan for another",
                        out->rest[i]);
    TRY(check_outputs(out));
    out->rest[out->rest_count++] = "cluster.device=dry";
    return OK;
}

struct watch {
    struct progress_line progress;
    double begun; // start of the phase
    int phase;
};

static void show_progress(void *context, enum sweep_phase phase, int64_t done, int64_t count)
{
    struct watch *watch = context;
    const double now = clock_s();
    char left[NUMBER_CHARS];
    if (watch->phase != (int)phase) {
        watch->begun = now;
        watch->phase = (int)phase;
    }
    if (done > 0)
        progress_line_show(&watch->progress, "%s: %lld of %lld layouts, %s left",
                           phase == SWEEP_CHECKING ? "checking" : "planning", (long long)done,
                           (long long)count,
                           seconds_text((now - watch->begun) / (double)done * (double)(count - done), left));
}

/* ---- one sweep ---- */

static enum status suggest(struct sweep *sweep)
{
    struct text change = {0}, layout = {0};
    if (sweep->reason_count > 0)
        print_line(stdout, "no layout can be planned; most were rejected by: %s", sweep->reasons[0].what);
    const enum status status = sweep_smallest_change(sweep, &change, &layout);
    if (status == OK && change.length > 0)
        print_line(stdout, "smallest change of one axis that makes a layout possible: %s, with %s",
                   change.chars, layout.chars);
    else if (status == OK)
        fputs("no change of one axis was found that makes a layout possible\n", stdout);
    text_free(&change);
    text_free(&layout);
    return status;
}

static enum status write_csv(const struct sweep *sweep, const char *path)
{
    struct text csv = {0};
    enum status status = sweep_csv(sweep, &csv);
    if (status == OK)
        status = file_write_atomic(path, csv.chars, csv.length);
    text_free(&csv);
    return status;
}

static enum status write_html(const struct sweep *sweep, const struct sweep_measured *measured,
                              const struct arguments *arguments)
{
    struct text page = {0}, command = {0};
    text_add(&command, "cuboid sweep");
    for (int i = 0; i < arguments->rest_count; i++)
        if (strcmp(arguments->rest[i], "cluster.device=dry") != 0)
            text_add(&command, " %s", arguments->rest[i]);
    if (arguments->all)
        text_add(&command, " --all");
    else
        text_add(&command, " --top %lld", (long long)arguments->top);
    sweep_page(sweep, measured, command.chars, &page);
    const enum status status = file_write_atomic(arguments->html, page.chars, page.length);
    text_free(&page);
    text_free(&command);
    return status;
}

/* IO_ERROR if no layout was measured. */
static enum status check_measured(const struct sweep *sweep, const struct sweep_measured *measured,
                                  const char *dir)
{
    for (size_t i = 0; i < sweep->best_count; i++)
        if (measured[i].state == RUN_DONE)
            return OK;
    return fail(IO_ERROR, "no run succeeded; the logs are in %s/logs", dir);
}

static enum status run_best(const struct sweep *sweep, const struct arguments *arguments,
                            struct sweep_measured *measured)
{
    struct text dir = {0};
    text_add(&dir, "%s%s", arguments->run_dir != NULL ? arguments->run_dir : sweep->file->path,
             arguments->run_dir != NULL ? "" : ".runs");
    const struct sweep_run_options options = {.count = arguments->run,
                                              .measure = {.dir = dir.chars,
                                                          .launch = arguments->launch,
                                                          .steps = arguments->steps,
                                                          .timeout_s = arguments->timeout_s},
                                              .overrides = arguments->rest + 1,
                                              .override_count = (size_t)arguments->rest_count - 1};
    enum status status = sweep_run(sweep, &options, measured);
    if (status == OK)
        status = check_measured(sweep, measured, dir.chars);
    text_free(&dir);
    return status;
}

/* Runs the best layouts, and writes the page again with the measured times. */
static enum status run_and_show(const struct sweep *sweep, const struct arguments *arguments)
{
    struct sweep_measured *measured =
        memory_zeroed(sweep->best_count, sizeof *measured, "the runs of a sweep");
    enum status status = run_best(sweep, arguments, measured);
    if (status == OK && arguments->html != NULL)
        status = write_html(sweep, measured, arguments);
    free(measured);
    return status;
}

static enum status show(struct sweep *sweep, const struct arguments *arguments)
{
    sweep_print(sweep, arguments->top, stdout);
    if (sweep->best_count == 0)
        TRY(suggest(sweep));
    if (arguments->csv != NULL)
        TRY(write_csv(sweep, arguments->csv));
    if (arguments->html != NULL)
        TRY(write_html(sweep, NULL, arguments));
    return arguments->run >= 0 && sweep->best_count > 0 ? run_and_show(sweep, arguments) : OK;
}

/* Number of best layouts to find; 0: all. */
static int64_t best_of(const struct arguments *arguments)
{
    if (arguments->all || arguments->run == 0)
        return 0;
    return arguments->run > arguments->top ? arguments->run : arguments->top;
}

/* Schedules have their own virtual stages, not those that the base gives to its schedule, unless an axis or
 * the command line gives them. */
static void add_own_stages(struct arguments *arguments, const struct sweep_file *file)
{
    static const char *const keys[] = {"pipeline.virtual_stages",
                                       "pipeline.num_layers_per_virtual_pipeline_stage"};
    bool has_schedules = false, given = false;
    for (int i = 0; i < file->axis_count; i++) {
        has_schedules = has_schedules || strcmp(file->axes[i].key, "pipeline.schedule") == 0;
        given = given || strcmp(file->axes[i].key, keys[0]) == 0 || strcmp(file->axes[i].key, keys[1]) == 0;
    }
    for (int i = 1; i < arguments->rest_count; i++)
        given = given || override_sets_any(arguments->rest[i], keys, 2);
    if (has_schedules && !given)
        arguments->rest[arguments->rest_count++] = "pipeline.virtual_stages=auto";
}

static enum status read_and_make(struct arguments *arguments, struct sweep_file *file, struct sweep *sweep)
{
    struct problems problems = {0};
    struct watch watch = {.progress = progress_line_begin(), .phase = -1};
    struct sweep_options options = {.overrides = arguments->rest + 1,
                                    .best = best_of(arguments),
                                    .progress = show_progress,
                                    .context = &watch};
    enum status status = sweep_file_read(arguments->rest[0], file, &problems);
    if (status == OK) {
        add_own_stages(arguments, file);
        options.override_count = (size_t)arguments->rest_count - 1;
        status = sweep_make(file, &options, sweep, &problems);
        if (status != OK)
            sweep_file_free(file);
    }
    progress_line_clear(&watch.progress);
    problems_print(&problems, stderr);
    problems_free(&problems);
    return status;
}

static int run(struct arguments *arguments)
{
    struct sweep_file file;
    struct sweep sweep;
    int status = exit_status_of_input(read_and_make(arguments, &file, &sweep));
    if (status != 0)
        return status;
    if (arguments->run >= 0)
        status = exit_status_of_input(sweep_check_runs(&sweep, arguments->run));
    if (status == 0)
        status = exit_status(show(&sweep, arguments));
    status = status == 0 && sweep.best_count == 0 ? 1 : status;
    sweep_free(&sweep);
    sweep_file_free(&file);
    return status;
}

int cmd_sweep(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status_of_input(parse(argc, argv, &arguments));
    if (status == 0)
        status = run(&arguments);
    free(arguments.rest);
    return status;
}
