// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "schedules/csv/csv.h"
#include "tools/cli/options.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/schedule/cmd_schedule_compare.h"
#include "tools/cli/schedule/cmd_schedule_costs.h"
#include "tools/cli/schedule/cmd_schedule_print.h"
#include "tools/cli/schedule/cmd_schedule_progress.h"

#include <stdlib.h>
#include <string.h>

const char help_schedule[] =
    "cuboid schedule NAME -p P -m M [-v V] [--text|--times|--csv|--json] [--svg FILE [--critical]]\n"
    "                [--trace FILE]\n"
    "cuboid schedule FILE.csv [the same options]\n"
    "cuboid schedule auto -p P -m M [-v V] [--memory-limit A] ...\n"
    "cuboid schedule compare -p P -m M [-v V] [--json]\n"
    "cuboid schedule --list\n"
    "\n"
    "Generates the actions of P pipeline ranks for M microbatches, validates them and simulates them: the\n"
    "same lists that training runs.\n"
    "\n"
    "  cuboid schedule 1f1b -p 4 -m 8\n"
    "  cuboid schedule zb-h1 -p 4 -m 8 --cost f=1,i=1,w=1,comm=0.1 --svg zb-h1.svg --trace zb-h1.json\n"
    "  cuboid schedule compare -p 8 -m 32 --cost comm=0.1\n"
    "  cuboid schedule auto -p 8 -m 32 --cost f=1,i=1.2,w=0.8,comm=0.1 --memory-limit 8\n"
    "  cuboid schedule zb-v -p 4 -m 8 --csv > mine.csv; cuboid schedule mine.csv\n"
    "\n"
    "  FILE.csv  schedule in PyTorch's notation, which defines p, m and v: a line per rank, 0F3,0B3,...\n"
    "            A name with . or / in it is a file; pipeline.schedule_file trains with it\n"
    "  -p P      number of pipeline ranks\n"
    "  -m M      number of microbatches per step\n"
    "  -v V      number of virtual stages (model chunks) per rank (default: the schedule's own)\n"
    "  --text    chart with a row per rank (default). F forward, B backward; or I backward for the input,\n"
    "            W backward for the weights. Digits after the letter are the microbatch, before it the\n"
    "            stage. Without room for both, the stage is omitted first, then the letter (without\n"
    "            colors, the digits)\n"
    "  --times   a line per action: rank, index in its list, action, start and end\n"
    "  --csv     the schedule in PyTorch's notation, without transfers\n"
    "  --json    the data of --times, and the totals\n"
    "  --svg     picture; with --critical, the critical path is outlined\n"
    "  --trace   trace for ui.perfetto.dev or chrome://tracing, one unit of time as a millisecond.\n"
    "            FILE - is standard output, for --svg or --trace\n"
    "  --cost    f=1,i=1,w=1,comm=0 or a part of it: times of F, I and W of a microbatch on a whole rank,\n"
    "            and of a message between ranks. B takes i + w, or b=2; b alone is for schedules without I\n"
    "            and W. A chunk takes 1/V, so schedules with different V do the same work\n"
    "  --cost-file\n"
    "            times of each stage instead, for one schedule: lines stage,f,i,w such as 0,1.5,1.4,1.1\n"
    "  --memory-limit\n"
    "            with auto: number of microbatches whose activations (all chunks, from F to W) a rank may\n"
    "            hold (1f1b: P); 0: no limit. auto searches for these costs; without -v it takes the\n"
    "            better of 1 and 2\n"
    "  --list    list all schedules, their purpose and supported sizes\n"
    "  compare   all schedules that support P and M, shortest first, with V or, if they do not support it,\n"
    "            their default; auto with the best of 1, 2 and V. * marks schedules that hold all weights\n"
    "            twice, which auto does not consider\n"
    "\n"
    "The bubble is the idle time between a rank's first and last action, of the rank with the longest.\n"
    "A rank's idle share is its bubble divided by that time.\n"
    "The peak is the number of microbatches whose activations a rank holds at once; a chunk counts 1/V.\n"
    "Colors are used on a terminal only, unless NO_COLOR is set or TERM is dumb.\n";

enum { SVG, TRACE, OUTPUTS };

struct arguments {
    int64_t p, m, v;
    const char *cost, *cost_file, *limit_text, *name;
    struct output outputs[OUTPUTS];
    double limit;
    int stages; // number of stages in --cost-file
    bool text, times, csv, json, critical, list;
};

/* Not the name of a schedule. */
static bool is_file(const char *name)
{
    return strpbrk(name, "./") != NULL;
}

static enum status parse_limit(struct arguments *a)
{
    if (a->limit_text == NULL)
        return OK;
    if (a->name != NULL && strcmp(a->name, "auto") != 0 && strcmp(a->name, "compare") != 0)
        return fail(BAD_USAGE, "schedule: --memory-limit applies to auto and compare, not to %s", a->name);
    bool good =
        number_parse(a->limit_text, &a->limit) && (a->limit == 0.0 || (a->limit >= 1.0 && a->limit <= 1e9));
    return good ? OK
                : fail(BAD_USAGE,
                       "schedule: --memory-limit %s: use a number of microbatches from 1 to 1e9, or 0 for "
                       "no limit",
                       a->limit_text);
}

/* Returns the option that prints to standard output; NULL if there is none. */
static const char *printing(const struct arguments *a)
{
    return a->text ? "--text" : a->times ? "--times" : a->csv ? "--csv" : a->json ? "--json" : NULL;
}

/* Checks for contradicting and missing options. */
static enum status check(struct arguments *a)
{
    TRY(parse_limit(a));
    bool compare = a->name != NULL && strcmp(a->name, "compare") == 0;
    const struct output *svg = &a->outputs[SVG], *trace = &a->outputs[TRACE];
    if (a->text + a->times + a->csv + a->json > 1)
        return fail(BAD_USAGE, "schedule: --text, --times, --csv and --json are mutually exclusive");
    if (a->critical && svg->path == NULL)
        return fail(BAD_USAGE, "schedule: --critical needs --svg FILE; a chart prints the critical path "
                               "in its last line");
    if (compare && a->cost_file != NULL)
        return fail(BAD_USAGE, "schedule: --cost-file applies to one schedule, not to compare");
    if (compare && (a->times || a->csv || svg->path != NULL || trace->path != NULL))
        return fail(BAD_USAGE, "schedule: compare prints a table or --json; %s applies to one schedule",
                    a->times            ? "--times"
                    : a->csv            ? "--csv"
                    : svg->path != NULL ? "--svg"
                                        : "--trace");
    if (a->name == NULL)
        return fail(BAD_USAGE, "schedule: no schedule given; use cuboid schedule 1f1b -p 4 -m 8, or "
                               "--list for all");
    if (!is_file(a->name) && (a->p == 0 || a->m == 0))
        return fail(BAD_USAGE, "schedule: %s is missing; use cuboid schedule %s -p 4 -m 8",
                    a->p == 0 ? "-p, the number of ranks," : "-m, the number of microbatches,", a->name);
    const struct input inputs[] = {{"schedule", is_file(a->name) ? a->name : NULL}, {"costs", a->cost_file}};
    return outputs_check(a->outputs, OUTPUTS, inputs, 2, printing(a));
}

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){
        .outputs = {[SVG] = {"schedule", "--svg", NULL}, [TRACE] = {"schedule", "--trace", NULL}}};
    const struct option options[] = {
        {"-p", OPTION_INTEGER, &out->p, 1, SCHEDULE_MAX_RANKS},
        {"-m", OPTION_INTEGER, &out->m, 1, SCHEDULE_MAX_CELLS},
        {"-v", OPTION_INTEGER, &out->v, 1, SCHEDULE_MAX_CELLS},
        {"--cost", OPTION_TEXT, &out->cost, 0, 0},
        {"--cost-file", OPTION_TEXT, &out->cost_file, 0, 0},
        {"--memory-limit", OPTION_TEXT, &out->limit_text, 0, 0},
        {"--text", OPTION_FLAG, &out->text, 0, 0},
        {"--times", OPTION_FLAG, &out->times, 0, 0},
        {"--csv", OPTION_FLAG, &out->csv, 0, 0},
        {"--json", OPTION_FLAG, &out->json, 0, 0},
        {"--svg", OPTION_TEXT, &out->outputs[SVG].path, 0, 0},
        {"--critical", OPTION_FLAG, &out->critical, 0, 0},
        {"--trace", OPTION_TEXT, &out->outputs[TRACE].path, 0, 0},
        {"--list", OPTION_FLAG, &out->list, 0, 0},
    };
    const char **rest = memory_zeroed((size_t)argc, sizeof *rest, "the arguments");
    int count = 0;
    enum status status = options_parse(argc, argv, options, sizeof options / sizeof *options, rest, &count);
    out->name = count > 0 ? rest[0] : NULL;
    if (status == OK && count > 1)
        status = fail(BAD_USAGE, "schedule: expected one name, not %s and %s", rest[0], rest[1]);
    free(rest);
    TRY(status);
    return out->list ? OK : check(out);
}

/* Prints the chart on standard output unless another form is requested, and writes the files. These are
 * reported if that does not disturb the requested output. */
static enum status show(const struct arguments *a, const struct simulated *simulated)
{
    const struct output *svg = &a->outputs[SVG], *trace = &a->outputs[TRACE];
    bool report = printing(a) == NULL && !outputs_print(a->outputs, OUTPUTS);
    if (a->times)
        print_schedule_times(simulated);
    else if (a->csv)
        TRY(print_schedule_csv(simulated));
    else if (a->json)
        print_schedule_json(simulated);
    else if (a->text || (svg->path == NULL && trace->path == NULL))
        print_schedule_text(simulated);
    if (svg->path != NULL)
        TRY(write_schedule_svg(simulated, a->critical, svg, report));
    return trace->path != NULL ? write_schedule_trace(simulated, trace, report) : OK;
}

static enum status read_file(const struct arguments *a, struct schedule **out)
{
    struct schedule *s = NULL;
    enum status status = schedule_read_csv(a->name, &s);
    if (status != OK) // a missing file is probably a typing error
        return status == IO_ERROR ? BAD_USAGE : status;
    if ((a->p == 0 || a->p == s->p) && (a->m == 0 || a->m == s->m) && (a->v == 0 || a->v == s->v)) {
        *out = s;
        return OK;
    }
    status = fail(BAD_USAGE, "schedule: %s has p %d, m %d, v %d; remove -p, -m and -v to use them", a->name,
                  s->p, s->m, s->v);
    schedule_destroy(s);
    return status;
}

static enum status get(const struct arguments *a, const struct cost_table *whole,
                       const struct progress *progress, struct schedule **out)
{
    struct cost_table costs =
        a->v > 0 ? costs_of_chunks(whole, (int)a->v) : *whole; // in the form auto expects
    struct schedule_options options = {.name = a->name,
                                       .p = (int)a->p,
                                       .m = (int)a->m,
                                       .v = (int)a->v,
                                       .costs = &costs,
                                       .progress = progress,
                                       .memory_limit = a->limit};
    return is_file(a->name) ? read_file(a, out) : schedule_build(&options, out);
}

/* Checks the number of stages against --cost-file. */
static enum status check_stages(const struct arguments *a, int p, int v)
{
    return a->cost_file == NULL || p * (int64_t)v == a->stages
               ? OK
               : fail(BAD_USAGE,
                      "schedule: --cost-file %s has the times of %d stages; %s with p %d and v %d has %lld",
                      a->cost_file, a->stages, a->name, p, v, (long long)p * v);
}

/* Checked before any work. With as many stages as the file has, auto has no choice of v. */
static enum status choose_v(struct arguments *a)
{
    if (a->cost_file == NULL || is_file(a->name))
        return OK;
    bool searched = strcmp(a->name, "auto") == 0;
    int own = searched && a->stages >= a->p ? (int)(a->stages / a->p) : schedule_default_v(a->name);
    if (searched && a->v == 0)
        a->v = own;
    return own == 0 ? OK
                    : check_stages(a, (int)a->p,
                                   a->v > 0 ? (int)a->v : own); // unknown schedule: reported later
}

/* The second simulation and the drawing take the rest of the time. */
enum { BUILT_PERCENT = 75 };

static enum status run_one(const struct arguments *a, const struct cost_table *whole)
{
    struct schedule *schedule = NULL;
    struct simulation *simulation = NULL;
    struct reporter reporter;
    reporter_begin(&reporter, is_file(a->name) ? "file" : a->name);
    reporter_part(&reporter, reporter.what, 0.0, BUILT_PERCENT);
    enum status status = get(a, whole, &reporter.progress, &schedule);
    if (status == OK)
        status = check_stages(a, schedule->p, schedule->v);
    if (status == OK)
        status = check_costs(whole, a->name, schedule_has_kind(schedule, BACKWARD_INPUT));
    if (status == OK) {
        struct cost_table costs = costs_of_chunks(whole, schedule->v);
        status = simulate(schedule, &costs, NULL, &simulation);
    }
    reporter_end(&reporter);
    if (status == OK)
        status = show(a, &(struct simulated){a->name, schedule, whole, simulation});
    simulation_destroy(simulation);
    schedule_destroy(schedule);
    return status;
}

static enum status run_with(const struct arguments *a, const struct cost_table *whole)
{
    if (strcmp(a->name, "compare") == 0)
        TRY(compare_schedules(&(struct comparison){.p = (int)a->p,
                                                   .m = (int)a->m,
                                                   .v = (int)a->v,
                                                   .whole = *whole,
                                                   .memory_limit = a->limit,
                                                   .json = a->json}));
    else
        TRY(run_one(a, whole));
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? OK
                                                      : fail(IO_ERROR, "standard output cannot be written");
}

static enum status run(struct arguments *a)
{
    struct cost_table whole;
    struct stage_costs file = {.of_stage = NULL};
    TRY(parse_costs(a->cost, a->cost_file != NULL, &whole));
    if (a->cost_file != NULL)
        TRY(read_stage_costs(a->cost_file, &file));
    whole.of_stage = file.of_stage;
    a->stages = file.count;
    enum status status = choose_v(a);
    if (status == OK && !is_file(a->name)) // files have I and W, or may have them
        status =
            check_costs(&whole, a->name, strcmp(a->name, "auto") == 0 || strcmp(a->name, "compare") == 0);
    if (status == OK)
        status = run_with(a, &whole);
    stage_costs_free(&file);
    return status;
}

int cmd_schedule(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status(parse(argc, argv, &arguments));
    if (status != 0)
        return status;
    if (arguments.list)
        print_schedule_list();
    else
        status = exit_status(run(&arguments));
    return status;
}
