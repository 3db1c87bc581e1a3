// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/schedule/cmd_schedule_print.h"

#include "schedules/csv/csv.h"
#include "schedules/draw/draw.h"
#include "schedules/draw/draw_text.h"
#include "tools/cli/schedule/cmd_schedule_costs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void print_schedule_list(void)
{
    const struct schedule_about *about;
    for (int i = 0; (about = schedule_about(i)) != NULL; i++)
        printf("%-12s %s\n%-12s supports %s\n", about->name, about->summary, "", about->supports);
}

/* Returns the rank with the largest bubble. */
int worst_rank(const struct simulation *simulation)
{
    int worst = 0;
    for (int rank = 1; rank < simulation->p; rank++)
        worst = simulation->ranks[rank].bubble > simulation->ranks[worst].bubble ? rank : worst;
    return worst;
}

double bubble_fraction(const struct simulation *simulation)
{
    const struct rank_time *worst = &simulation->ranks[worst_rank(simulation)];
    double span = worst->last_end - worst->first_start;
    return span > 0.0 ? worst->bubble / span : 0.0;
}

bool terminal_colours(int file)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool wanted = no_color == NULL || *no_color == 0; // no-color.org
    return wanted && isatty(file) == 1 && term != NULL && *term != 0 && strcmp(term, "dumb") != 0;
}

void print_schedule_text(const struct simulated *simulated)
{
    const struct schedule *s = simulated->schedule;
    const struct simulation *sim = simulated->simulation;
    enum { SHOWN_RANKS = 32 };
    struct text out = {0};
    struct winsize window = {0};
    if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0)
        window.ws_col = 0;
    draw_text(s, sim,
              &(struct draw_options){.columns = window.ws_col, .colour = terminal_colours(STDOUT_FILENO)},
              &out);
    text_add(&out, "step time %.10g, bubble %.10g on rank %d (%.1f %%), peaks", sim->makespan, sim->bubble,
             worst_rank(sim), 100.0 * bubble_fraction(sim));
    for (int rank = 0; rank < sim->p && rank < SHOWN_RANKS; rank++)
        text_add(&out, " %.4g", (double)sim->ranks[rank].peak / s->v);
    text_add(&out, "%s\ncritical path: ", sim->p > SHOWN_RANKS ? " ..." : "");
    draw_path(s, sim, &out);
    text_add(&out, "\n");
    add_costs(simulated->whole, s->v, &out);
    text_add(&out, "\n");
    fputs(out.chars, stdout);
    text_free(&out);
}

void print_schedule_times(const struct simulated *simulated)
{
    const struct schedule *s = simulated->schedule;
    const struct simulation *sim = simulated->simulation;
    char action[ACTION_CHARS], start[NUMBER_CHARS], end[NUMBER_CHARS];
    puts("rank,position,action,kind,stage,chunk,microbatch,peer,start,end,critical");
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_time *time = &sim->times[sim->first[rank] + i];
            printf("%d,%d,%s,%s,%d,%d,%d,", rank, i, action_text(a, action), action_traits(a.kind)->text,
                   a.stage, schedule_chunk(s, a.stage, a.microbatch), a.microbatch);
            if (a.peer >= 0)
                printf("%d", a.peer);
            printf(",%s,%s,%d\n", number_text(time->start, start), number_text(time->end, end),
                   time->critical);
        }
}

enum status print_schedule_csv(const struct simulated *simulated)
{
    struct text out = {0};
    enum status status = schedule_write_csv(simulated->schedule, &out);
    if (status == OK)
        fputs(text_chars(&out), stdout);
    text_free(&out);
    return status;
}

static void json_actions(const struct schedule *s, const struct simulation *sim, int rank)
{
    char action[ACTION_CHARS], start[NUMBER_CHARS], end[NUMBER_CHARS];
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        const struct action_time *time = &sim->times[sim->first[rank] + i];
        printf("%s\n      {\"action\": \"%s\", \"kind\": \"%s\", \"stage\": %d, \"chunk\": %d, "
               "\"microbatch\": %d, ",
               i > 0 ? "," : "", action_text(a, action), action_traits(a.kind)->text, a.stage,
               schedule_chunk(s, a.stage, a.microbatch), a.microbatch);
        if (a.peer >= 0)
            printf("\"peer\": %d, ", a.peer);
        printf("\"start\": %s, \"end\": %s, \"critical\": %s}", number_text(time->start, start),
               number_text(time->end, end), time->critical ? "true" : "false");
    }
}

static void json_stage_costs(const struct schedule *s, const struct cost_table *costs)
{
    char f[NUMBER_CHARS], i[NUMBER_CHARS], w[NUMBER_CHARS];
    printf(" \"cost\": {\"comm\": %s, \"stages\": [", number_text(costs->wire, f));
    for (int stage = 0; stage < s->stages; stage++) {
        const struct stage_cost *cost = &costs->of_stage[stage];
        printf("%s{\"f\": %s, \"i\": %s, \"w\": %s}", stage > 0 ? ", " : "", number_text(cost->f, f),
               number_text(cost->i, i), number_text(cost->w, w));
    }
    puts("]},");
}

void print_schedule_json(const struct simulated *simulated)
{
    const struct schedule *s = simulated->schedule;
    const struct simulation *sim = simulated->simulation;
    const struct cost_table *costs = simulated->whole;
    char a[NUMBER_CHARS], b[NUMBER_CHARS], c[NUMBER_CHARS], d[NUMBER_CHARS], e[NUMBER_CHARS];
    struct text name = {0};
    text_add_json(&name, simulated->name);
    printf("{\"schedule\": %s, \"p\": %d, \"m\": %d, \"v\": %d,\n", name.chars, s->p, s->m, s->v);
    text_free(&name);
    if (costs->of_stage != NULL)
        json_stage_costs(s, costs);
    else {
        printf(" ");
        print_json_costs(costs);
        printf(",\n");
    }
    printf(" \"makespan\": %s, \"bubble\": %s, \"bubble_fraction\": %s,\n \"ranks\": [",
           number_text(sim->makespan, a), number_text(sim->bubble, b), number_text(bubble_fraction(sim), c));
    for (int rank = 0; rank < s->p; rank++) {
        const struct rank_time *time = &sim->ranks[rank];
        printf("%s\n  {\"rank\": %d, \"first_start\": %s, \"last_end\": %s, \"busy\": %s, \"bubble\": %s, "
               "\"peak\": %d, \"peak_whole\": %s, \"actions\": [",
               rank > 0 ? "," : "", rank, number_text(time->first_start, a), number_text(time->last_end, b),
               number_text(time->busy, c), number_text(time->bubble, d), time->peak,
               number_text((double)time->peak / s->v, e));
        json_actions(s, sim, rank);
        printf("]}");
    }
    puts("]}");
}

/* ---- files ---- */

enum status write_schedule_svg(const struct simulated *simulated, bool critical, const struct output *to,
                               bool report)
{
    struct text content = {0}, note = {0};
    add_costs(simulated->whole, simulated->schedule->v, &note);
    draw_svg(&(struct drawing){.title = simulated->name,
                               .schedule = simulated->schedule,
                               .simulation = simulated->simulation},
             1, &(struct svg_options){.critical = critical, .note = note.chars}, &content);
    enum status status = output_write(to, &content, report);
    text_free(&note);
    text_free(&content);
    return status;
}

enum status write_schedule_trace(const struct simulated *simulated, const struct output *to, bool report)
{
    enum { MICROSECONDS = 1000 }; // a unit of time is displayed as a millisecond
    struct text content = {0};
    draw_trace(&(struct drawing){.title = simulated->name,
                                 .schedule = simulated->schedule,
                                 .simulation = simulated->simulation},
               1, MICROSECONDS, &content);
    enum status status = output_write(to, &content, report);
    text_free(&content);
    return status;
}
