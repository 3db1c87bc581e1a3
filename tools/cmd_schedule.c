// SPDX-License-Identifier: Apache-2.0
#include "tools/cmd_schedule.h"

#include "schedules/draw_text.h"
#include "tools/options.h"
#include "tools/recipe_argument.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char help[] =
    "cuboid schedule NAME -p P -m M [-v V] [--text|--csv|--json] [--cost f=1,i=1,w=1,comm=0]\n"
    "cuboid schedule --list\n"
    "\n"
    "Builds the actions of P pipeline ranks for M microbatches, checks that they are sound, and plays them\n"
    "against a clock: the very lists that training runs.\n"
    "\n"
    "  cuboid schedule 1f1b -p 4 -m 8\n"
    "  cuboid schedule zb-h1 -p 4 -m 8 --cost f=1,i=1,w=1,comm=0.1\n"
    "  cuboid schedule interleaved -p 4 -m 8 -v 2 --csv > interleaved.csv\n"
    "\n"
    "  -p P     pipeline ranks\n"
    "  -m M     microbatches of a step\n"
    "  -v V     virtual stages, chunks of the model on each rank (default: the schedule's own)\n"
    "  --text   a chart, a row per rank (default). F forward, B backward; or I backward for the input and\n"
    "           W backward for the weights. The digits are the microbatch's, in front of the letter the "
    "stage's.\n"
    "  --csv    a line per action: rank, place in its list, what it is, when it begins and ends\n"
    "  --json   the same, with the totals\n"
    "  --cost   the time of F, I and W of one stage (a B is I and W together), and of a message between "
    "ranks\n"
    "  --list   the schedules there are, what each is for, and what it takes\n"
    "\n"
    "The bubble is the time a rank waits between its first action and its last, of the rank that waits "
    "longest.\n"
    "The peak is how many microbatches' activations a rank holds at once, over all its chunks.\n";

struct arguments {
    int64_t p, m, v;
    const char *cost, *name;
    bool text, csv, json, list, help, short_help;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){0};
    const struct option options[] = {
        {"-p", OPTION_INTEGER, &out->p, 1, INT_MAX}, {"-m", OPTION_INTEGER, &out->m, 1, INT_MAX},
        {"-v", OPTION_INTEGER, &out->v, 1, INT_MAX}, {"--cost", OPTION_TEXT, &out->cost, 0, 0},
        {"--text", OPTION_FLAG, &out->text, 0, 0},   {"--csv", OPTION_FLAG, &out->csv, 0, 0},
        {"--json", OPTION_FLAG, &out->json, 0, 0},   {"--list", OPTION_FLAG, &out->list, 0, 0},
        {"--help", OPTION_FLAG, &out->help, 0, 0},   {"-h", OPTION_FLAG, &out->short_help, 0, 0},
    };
    const char **rest = calloc((size_t)argc, sizeof *rest);
    int count = 0;
    if (rest == NULL)
        return fail(NO_MEMORY, "no memory for the arguments");
    enum status status = options_parse(argc, argv, options, sizeof options / sizeof *options, rest, &count);
    out->name = count > 0 ? rest[0] : NULL;
    if (status == OK && count > 1)
        status = fail(BAD_USAGE, "schedule: one name at a time: %s, or %s?", rest[0], rest[1]);
    free(rest);
    TRY(status);
    if (out->help || out->short_help || out->list)
        return OK;
    if (out->text + out->csv + out->json > 1)
        return fail(BAD_USAGE, "schedule: --text, --csv and --json exclude each other");
    if (out->name == NULL)
        return fail(BAD_USAGE, "schedule: which one? cuboid schedule 1f1b -p 4 -m 8; --list shows all");
    if (out->p == 0 || out->m == 0)
        return fail(BAD_USAGE, "schedule: %s is missing: cuboid schedule %s -p 4 -m 8",
                    out->p == 0 ? "-p, the number of ranks," : "-m, the number of microbatches,", out->name);
    return OK;
}

/* ---- costs ---- */

static enum status set_cost(struct cost_table *costs, const char *item)
{
    const struct {
        const char *name;
        double *value;
    } known[] = {
        {"f", &costs->chunk.f}, {"i", &costs->chunk.i}, {"w", &costs->chunk.w}, {"comm", &costs->wire}};
    const char *equals = strchr(item, '=');
    size_t length = equals != NULL ? (size_t)(equals - item) : 0;
    double value;
    for (size_t k = 0; equals != NULL && k < sizeof known / sizeof *known; k++) {
        if (strlen(known[k].name) != length || strncmp(known[k].name, item, length) != 0)
            continue;
        if (!number_parse(equals + 1, &value) || !(value >= 0.0 && value <= 1e12))
            return fail(BAD_USAGE, "schedule: --cost %s: a time from 0 to 1e12 works", item);
        *known[k].value = value;
        return OK;
    }
    return fail(BAD_USAGE, "schedule: --cost \"%s\": f=1,i=1,w=1,comm=0 works, and any part of it", item);
}

static enum status parse_costs(const char *text, struct cost_table *out)
{
    *out = (struct cost_table){.chunk = {.f = 1, .i = 1, .w = 1}};
    struct text item = {0};
    enum status status = OK;
    for (const char *at = text; status == OK && at != NULL;) {
        size_t length = strcspn(at, ",");
        text_free(&item);
        text_add_bytes(&item, at, length);
        status = set_cost(out, item.chars);
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    text_free(&item);
    TRY(status);
    return out->chunk.f + out->chunk.i + out->chunk.w > 0.0
               ? OK
               : fail(BAD_USAGE, "schedule: --cost %s: something must take time", text);
}

/* ---- what is printed ---- */

static void print_list(void)
{
    const struct schedule_about *about;
    for (int i = 0; (about = schedule_about(i)) != NULL; i++)
        printf("%-12s %s\n%-12s takes %s\n", about->name, about->idea, "", about->takes);
}

/* The rank whose bubble is the schedule's. */
static int worst_rank(const struct simulation *sim)
{
    int worst = 0;
    for (int rank = 1; rank < sim->p; rank++)
        worst = sim->ranks[rank].bubble > sim->ranks[worst].bubble ? rank : worst;
    return worst;
}

static double bubble_fraction(const struct simulation *sim)
{
    const struct rank_time *worst = &sim->ranks[worst_rank(sim)];
    double span = worst->last_end - worst->first_start;
    return span > 0.0 ? worst->bubble / span : 0.0;
}

static void print_text(const struct schedule *s, const struct simulation *sim)
{
    enum { SHOWN_RANKS = 32 };
    struct text out = {0};
    struct winsize window = {0};
    bool terminal = isatty(STDOUT_FILENO) == 1;
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0)
        window.ws_col = 0;
    draw_text(s, sim, &(struct draw_options){.columns = window.ws_col, .colour = terminal}, &out);
    text_add(&out, "makespan %.6g, bubble %.6g on rank %d (%.1f %%), peaks", sim->makespan, sim->bubble,
             worst_rank(sim), 100.0 * bubble_fraction(sim));
    for (int rank = 0; rank < sim->p && rank < SHOWN_RANKS; rank++)
        text_add(&out, " %d", sim->ranks[rank].peak);
    text_add(&out, "%s\n", sim->p > SHOWN_RANKS ? " ..." : "");
    fputs(out.chars, stdout);
    text_free(&out);
}

static void print_csv(const struct schedule *s, const struct simulation *sim)
{
    char action[ACTION_CHARS], start[NUMBER_CHARS], end[NUMBER_CHARS];
    puts("rank,position,action,kind,stage,chunk,microbatch,peer,start,end,critical");
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_time *time = &sim->times[sim->first[rank] + i];
            printf("%d,%d,%s,%s,%d,%d,%d,", rank, i, action_text(a, action), action_fact(a.kind)->text,
                   a.stage, schedule_chunk(s, a.stage, a.microbatch), a.microbatch);
            if (a.peer >= 0)
                printf("%d", a.peer);
            printf(",%s,%s,%d\n", number_text(time->start, start), number_text(time->end, end),
                   time->critical);
        }
}

static void json_actions(const struct schedule *s, const struct simulation *sim, int rank)
{
    char action[ACTION_CHARS], start[NUMBER_CHARS], end[NUMBER_CHARS];
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        const struct action_time *time = &sim->times[sim->first[rank] + i];
        printf("%s\n      {\"action\": \"%s\", \"kind\": \"%s\", \"stage\": %d, \"chunk\": %d, "
               "\"microbatch\": %d, ",
               i > 0 ? "," : "", action_text(a, action), action_fact(a.kind)->text, a.stage,
               schedule_chunk(s, a.stage, a.microbatch), a.microbatch);
        if (a.peer >= 0)
            printf("\"peer\": %d, ", a.peer);
        printf("\"start\": %s, \"end\": %s, \"critical\": %s}", number_text(time->start, start),
               number_text(time->end, end), time->critical ? "true" : "false");
    }
}

static void print_json(const struct schedule *s, const struct simulation *sim, const struct cost_table *costs,
                       const char *name)
{
    char a[NUMBER_CHARS], b[NUMBER_CHARS], c[NUMBER_CHARS], d[NUMBER_CHARS];
    printf("{\"schedule\": \"%s\", \"p\": %d, \"m\": %d, \"v\": %d,\n", name, s->p, s->m, s->v);
    printf(" \"cost\": {\"f\": %s, \"i\": %s, \"w\": %s, \"comm\": %s},\n", number_text(costs->chunk.f, a),
           number_text(costs->chunk.i, b), number_text(costs->chunk.w, c), number_text(costs->wire, d));
    printf(" \"makespan\": %s, \"bubble\": %s, \"bubble_fraction\": %s,\n \"ranks\": [",
           number_text(sim->makespan, a), number_text(sim->bubble, b), number_text(bubble_fraction(sim), c));
    for (int rank = 0; rank < s->p; rank++) {
        const struct rank_time *time = &sim->ranks[rank];
        printf("%s\n  {\"rank\": %d, \"first_start\": %s, \"last_end\": %s, \"busy\": %s, \"bubble\": %s, "
               "\"peak\": %d, \"actions\": [",
               rank > 0 ? "," : "", rank, number_text(time->first_start, a), number_text(time->last_end, b),
               number_text(time->busy, c), number_text(time->bubble, d), time->peak);
        json_actions(s, sim, rank);
        printf("]}");
    }
    puts("]}");
}

/* ---- the command ---- */

static enum status run(const struct arguments *a)
{
    struct cost_table costs;
    struct schedule *schedule = NULL;
    struct simulation *simulation = NULL;
    TRY(parse_costs(a->cost, &costs));
    TRY(schedule_build(
        &(struct schedule_options){.name = a->name, .p = (int)a->p, .m = (int)a->m, .v = (int)a->v},
        &schedule));
    enum status status = simulate(schedule, &costs, NULL, &simulation);
    if (status == OK && a->csv)
        print_csv(schedule, simulation);
    else if (status == OK && a->json)
        print_json(schedule, simulation, &costs, a->name);
    else if (status == OK)
        print_text(schedule, simulation);
    if (status == OK && (fflush(stdout) != 0 || ferror(stdout) != 0))
        status = fail(IO_ERROR, "standard output cannot be written");
    simulation_destroy(simulation);
    schedule_destroy(schedule);
    return status;
}

int cmd_schedule(int argc, char **argv)
{
    struct arguments arguments;
    int status = exit_status(parse(argc, argv, &arguments));
    if (status != 0)
        return status;
    if (arguments.help || arguments.short_help)
        fputs(help, stdout);
    else if (arguments.list)
        print_list();
    else
        status = exit_status(run(&arguments));
    return status;
}
