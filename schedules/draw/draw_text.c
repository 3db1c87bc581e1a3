// SPDX-License-Identifier: Apache-2.0
#include "schedules/draw/draw_text.h"

#include "schedules/families/family.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* STYLE_CELL and above: an index into the palette, and a flag for a critical cell. */
enum style { STYLE_BLANK, STYLE_IDLE, STYLE_CELL, STYLE_CRITICAL = 1 << 16 };

/* Background colours of xterm's 256, for a kind of action: even and odd chunk, even and odd microbatch.
 * tools/dev/palette.py checks that colour-blind readers can tell the kinds apart. */
static const struct {
    int background[2][2];
    const char *legend;
} palette[] = {
    [FORWARD] = {.background = {{32, 39}, {69, 111}}, .legend = "F forward"},
    [BACKWARD] = {.background = {{166, 202}, {173, 209}}, .legend = "B backward"},
    [BACKWARD_INPUT] = {.background = {{220, 184}, {226, 228}}, .legend = "I backward, input"},
    [BACKWARD_WEIGHT] = {.background = {{43, 50}, {115, 158}}, .legend = "W backward, weights"},
    [SEND_ACTIVATION] = {.legend = NULL}, // messages are not drawn
    [RECV_ACTIVATION] = {.legend = NULL},
    [SEND_GRADIENT] = {.legend = NULL},
    [RECV_GRADIENT] = {.legend = NULL},
};
_Static_assert(sizeof palette / sizeof *palette == ACTION_KIND_COUNT, "one row for each kind of action");

struct chart {
    const struct schedule *s;
    const struct simulation *sim;
    bool colour;
    int width;        // columns of the time axis
    double scale;     // columns per unit of time
    bool crowded;     // an action has no column of its own
    int *min_columns; // [ACTION_KIND_COUNT][stages] columns of the narrowest cell of a kind and stage
    char *glyph;      // [width] the row being drawn
    int *style;       // [width]
};

static int style_of(const struct schedule *s, struct action a)
{
    int chunk = schedule_chunk(s, a.stage, a.microbatch) % 2;
    return STYLE_CELL + 4 * (int)a.kind + 2 * chunk + a.microbatch % 2;
}

static int background_of(int style)
{
    int cell = (style & ~STYLE_CRITICAL) - STYLE_CELL;
    return palette[cell / 4].background[cell / 2 % 2][cell % 2];
}

static int digits(int number)
{
    int count = 1;
    for (; number > 9; number /= 10)
        count++;
    return count;
}

static int *min_columns_of(const struct chart *c, struct action a)
{
    return &c->min_columns[(size_t)a.kind * (size_t)c->s->stages + (size_t)a.stage];
}

/* Writes the first of "7F10", "F10", then "10" (with colours, which show the kind) or "F" (without) that fits
 * the narrowest cell of this kind and stage: cells of equal length get labels of the same form although
 * columns are rounded. Without colours a cell gets at least "F", since an empty one would look idle. With
 * colours all microbatches have the form of the last one. */
static void label(const struct chart *c, struct action a, char out[ACTION_CHARS])
{
    int columns = *min_columns_of(c, a), number = digits(c->colour ? c->s->m - 1 : a.microbatch);
    int stage = c->s->chunks > 1 ? digits(a.stage) : 0;
    const char *kind = action_traits(a.kind)->text;
    out[0] = 0;
    if (stage > 0 && stage + 1 + number <= columns)
        action_text(a, out);
    else if (1 + number <= columns)
        snprintf(out, ACTION_CHARS, "%s%d", kind, a.microbatch);
    else if (c->colour && number <= columns)
        snprintf(out, ACTION_CHARS, "%d", a.microbatch);
    else if (!c->colour)
        snprintf(out, ACTION_CHARS, "%s", kind);
}

static int column(const struct chart *c, double time)
{
    double at = floor(time * c->scale + 0.5);
    return at < 0.0 ? 0 : at > c->width ? c->width : (int)at;
}

struct cell {
    int first, columns;
};

/* The columns of action `index` of a rank. Each action of an overlapped pair gets half of its time. */
static struct cell cell_of(const struct chart *c, int rank, int index)
{
    const struct action *a = &c->s->ranks[rank].actions[index];
    const struct action_time *time = &c->sim->times[c->sim->first[rank] + index];
    int part = index > 0 && a[-1].overlaps_next ? 1 : 0;
    double share = (time->end - time->start) / (part == 1 || a->overlaps_next ? 2 : 1);
    int first = column(c, time->start + share * part);
    return (struct cell){first, column(c, time->start + share * (part + 1)) - first};
}

static void measure_cells(struct chart *c)
{
    for (int i = 0; i < ACTION_KIND_COUNT * c->s->stages; i++)
        c->min_columns[i] = INT_MAX;
    for (int rank = 0; rank < c->s->p; rank++)
        for (int i = 0; i < c->s->ranks[rank].count; i++) {
            int columns = cell_of(c, rank, i).columns,
                *least = min_columns_of(c, c->s->ranks[rank].actions[i]);
            *least = columns < *least ? columns : *least;
            c->crowded =
                c->crowded || (columns == 0 && action_traits(c->s->ranks[rank].actions[i].kind)->computes);
        }
}

/* Draws one action into the row: its label, a line for its duration, and without colours a gap before the
 * next cell. */
static void draw_cell(const struct chart *c, int rank, int index)
{
    struct action a = c->s->ranks[rank].actions[index];
    struct cell cell = cell_of(c, rank, index);
    bool critical = c->sim->times[c->sim->first[rank] + index].critical;
    char text[ACTION_CHARS];
    label(c, a, text);
    int length = (int)strlen(text);
    for (int i = 0; i < cell.columns; i++) {
        bool gap = !c->colour && i == cell.columns - 1 && cell.columns > length && !c->crowded;
        char fill = c->colour || gap ? ' ' : c->crowded ? text[0] : '-';
        c->glyph[cell.first + i] = i < length ? text[i] : fill;
        c->style[cell.first + i] = style_of(c->s, a) | (critical ? STYLE_CRITICAL : 0);
    }
}

static void emit_row(const struct chart *c, struct text *out)
{
    int style = STYLE_BLANK;
    for (int i = 0; i < c->width; i++) {
        if (c->colour && c->style[i] != style) {
            style = c->style[i];
            if (style >= STYLE_CELL)
                text_add(out, "\033[0;%s38;5;16;48;5;%dm", style & STYLE_CRITICAL ? "1;4;" : "",
                         background_of(style));
            else
                text_add(out, style == STYLE_IDLE ? "\033[0;2m" : "\033[0m");
        }
        text_add_bytes(out, &c->glyph[i], 1);
    }
    if (c->colour)
        text_add(out, "\033[0m");
}

static void draw_rank(const struct chart *c, int rank, struct text *out)
{
    const struct action_list *list = &c->s->ranks[rank];
    const struct rank_time *total = &c->sim->ranks[rank];
    int first = column(c, total->first_start), last = column(c, total->last_end);
    for (int i = 0; i < c->width; i++) {
        bool idle = i >= first && i < last;
        c->glyph[i] = idle ? '.' : ' ';
        c->style[i] = idle ? STYLE_IDLE : STYLE_BLANK;
    }
    for (int i = 0; i < list->count; i++)
        if (action_traits(list->actions[i].kind)->computes)
            draw_cell(c, rank, i);
    double span = total->last_end - total->first_start;
    text_add(out, "rank %-3d|", rank);
    emit_row(c, out);
    text_add(out, "| %5.1f %% idle  peak %.4g\n", span > 0.0 ? 100.0 * total->bubble / span : 0.0,
             (double)total->peak / c->s->v);
}

/* Draws round times below the chart, at least twelve columns apart. */
static void draw_axis(const struct chart *c, struct text *out)
{
    double step = pow(10.0, floor(log10(12.0 / c->scale)));
    while (step * c->scale < 12.0)
        step *= step * c->scale * 2.0 >= 12.0 ? 2.0 : 5.0;
    int at = 0;
    text_add(out, "         "); // as wide as "rank 0  |"
    for (int tick = 0; tick * step <= c->sim->makespan; tick++) {
        int to = column(c, tick * step);
        char number[NUMBER_CHARS];
        snprintf(number, sizeof number, "%.10g", tick * step);
        if (to < at || to + (int)strlen(number) > c->width + 1)
            continue;
        text_add(out, "%*s%s", to - at, "", number);
        at = to + (int)strlen(number);
    }
    text_add(out, "\n");
}

static void draw_title(const struct chart *c, struct text *out)
{
    const struct schedule *s = c->s;
    int peak = 0, worst = 0;
    bool used[ACTION_KIND_COUNT] = {false};
    for (int rank = 0; rank < s->p; rank++) {
        peak = c->sim->ranks[rank].peak > peak ? c->sim->ranks[rank].peak : peak;
        worst = c->sim->ranks[rank].bubble > c->sim->ranks[worst].bubble ? rank : worst;
        for (int i = 0; i < s->ranks[rank].count; i++)
            used[s->ranks[rank].actions[i].kind] = true;
    }
    double span = c->sim->ranks[worst].last_end - c->sim->ranks[worst].first_start;
    text_add(out, "%s   p %d, m %d, v %d   step time %.10g, bubble %.10g (%.1f %%), peak %.4g microbatch%s",
             s->family->about.name, s->p, s->m, s->v, c->sim->makespan, c->sim->bubble,
             span > 0.0 ? 100.0 * c->sim->bubble / span : 0.0, (double)peak / s->v, peak == s->v ? "" : "es");
    for (int kind = 0; c->colour && kind < ACTION_KIND_COUNT; kind++)
        if (used[kind] && palette[kind].legend != NULL)
            text_add(out, "   \033[38;5;16;48;5;%dm %s \033[0m", palette[kind].background[0][1],
                     palette[kind].legend);
    text_add(out, "\n");
}

/* Chooses the columns per unit of time: enough for the label of the shortest action and a gap; on a narrower
 * terminal, a whole number for the shortest action, so that equal cells stay equal; if not even one fits, the
 * whole width. */
static void choose_scale(struct chart *c, int columns)
{
    double wanted = 0.0, shortest = 0.0;
    for (int rank = 0; rank < c->s->p; rank++) {
        const struct action_time *times = c->sim->times + c->sim->first[rank];
        for (int i = 0; i < c->s->ranks[rank].count; i++) {
            struct action a = c->s->ranks[rank].actions[i];
            double time = times[i].end - times[i].start;
            if (!action_traits(a.kind)->computes || time <= 0.0)
                continue;
            int length = 1 + digits(a.microbatch) + (c->s->chunks > 1 ? digits(a.stage) : 0); // of label()
            double per_unit = (length + 1.0) / time;
            wanted = per_unit > wanted ? per_unit : wanted;
            shortest = shortest <= 0.0 || time < shortest ? time : shortest;
        }
    }
    // Left and right of the chart: "rank 12 |" and "|  75.0 % idle  peak 10.5".
    enum { MARGIN = 34, LEAST = 20 };
    int available = columns - MARGIN > LEAST ? columns - MARGIN : LEAST;
    double makespan = c->sim->makespan > 0.0 ? c->sim->makespan : 1.0;
    double fits = available / makespan;
    if (wanted > 0.0 && ceil(wanted) <= fits)
        c->scale = ceil(wanted);
    else
        c->scale = fits * shortest >= 1.0 ? floor(fits * shortest) / shortest
                   : fits >= 1.0          ? floor(fits)
                                          : fits;
    c->width = (int)floor(makespan * c->scale + 0.5);
}

void draw_text(const struct schedule *schedule, const struct simulation *simulation,
               const struct draw_options *options, struct text *out)
{
    struct chart c = {.s = schedule, .sim = simulation, .colour = options->colour};
    choose_scale(&c, options->columns > 0 ? options->columns : 120);
    c.glyph = malloc((size_t)c.width + 1);
    c.style = calloc((size_t)c.width + 1, sizeof *c.style);
    c.min_columns = calloc(ACTION_KIND_COUNT * (size_t)schedule->stages, sizeof *c.min_columns);
    CHECK(c.glyph != NULL && c.style != NULL && c.min_columns != NULL);
    measure_cells(&c);
    draw_title(&c, out);
    for (int rank = 0; rank < schedule->p; rank++)
        draw_rank(&c, rank, out);
    draw_axis(&c, out);
    if (c.crowded)
        text_add(out, "some actions are too short to draw: use a wider terminal, or --svg FILE\n");
    free(c.min_columns);
    free(c.style);
    free(c.glyph);
}

/* ---- the critical path ---- */

static int rank_of(const struct simulation *sim, int64_t index)
{
    int low = 0, high = sim->p; // binary search: a path can visit every rank many times
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(index >= sim->first[middle] ? &low : &high) = middle;
    }
    return low;
}

static struct action action_at(const struct schedule *s, const struct simulation *sim, int64_t index)
{
    int rank = rank_of(sim, index);
    return s->ranks[rank].actions[index - sim->first[rank]];
}

/* Stores the computing actions of the path in order of time; returns their count. */
static int64_t path_of(const struct schedule *s, const struct simulation *sim, int64_t *path)
{
    int64_t count = 0;
    for (int64_t i = sim->last; i >= 0; i = sim->times[i].cause)
        if (action_traits(action_at(s, sim, i).kind)->computes)
            path[count++] = i;
    for (int64_t i = 0; i < count / 2; i++) {
        int64_t other = path[i];
        path[i] = path[count - 1 - i];
        path[count - 1 - i] = other;
    }
    return count;
}

/* Prints actions path[0 .. count), all of one rank. */
static void add_section(const struct schedule *s, const struct simulation *sim, const int64_t *path,
                        int64_t count, struct text *out)
{
    char first[ACTION_CHARS], last[ACTION_CHARS];
    action_text(action_at(s, sim, path[0]), first);
    action_text(action_at(s, sim, path[count - 1]), last);
    text_add(out, "rank %d: %s", rank_of(sim, path[0]), first);
    if (count == 2)
        text_add(out, " %s", last);
    else if (count > 2)
        text_add(out, " .. %s (%lld)", last, (long long)count);
}

void draw_path(const struct schedule *schedule, const struct simulation *simulation, struct text *out)
{
    enum { SHOWN = 5 }; // sections at either end
    int64_t *path = malloc(((size_t)simulation->first[schedule->p] + 1) * sizeof *path);
    int64_t *begin = malloc(((size_t)simulation->first[schedule->p] + 2) * sizeof *begin);
    CHECK(path != NULL && begin != NULL);
    int64_t count = path_of(schedule, simulation, path), sections = 0;
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || rank_of(simulation, path[i]) != rank_of(simulation, path[i - 1]))
            begin[sections++] = i;
    begin[sections] = count;
    for (int64_t k = 0; k < sections; k++) {
        if (k == SHOWN && sections > 2 * SHOWN + 1) {
            k = sections - SHOWN;
            text_add(out, "; %lld more", (long long)(k - SHOWN));
        }
        text_add(out, "%s", k > 0 ? "; " : "");
        add_section(schedule, simulation, path + begin[k], begin[k + 1] - begin[k], out);
    }
    free(begin);
    free(path);
}
