// SPDX-License-Identifier: Apache-2.0
/* All sizes are pixels of an SVG shown at its natural size. A README is about 800 pixels wide and scales a
 * wider picture down, so a chart is at most PAGE_WIDTH wide, unless its cells would be too narrow for their
 * numbers; text is then at least 9 pixels high on the page.
 *
 * One file supports light and dark pages: a media query switches the text and the background. The
 * background is part of the picture, so that it is legible even if the page ignores the reader's setting.
 * Cells have the same colours in both modes, light enough for dark text. */
#include "schedules/draw/draw.h"

#include "schedules/draw/svg.h"

#include <math.h>
#include <string.h>

enum {
    LEFT = 58,   // of the time axis: "rank 12"
    RIGHT = 152, // after it: "27.3 % idle, peak 4.75"
    TOP = 56,    // of the first row: two lines of title
    NOTE = 17,   // the note's line, where there is one
    PITCH = 32,  // from row to row
    CELL = 28,   // height of a cell
    AXIS = 34,   // below the last row
    LEGEND = 32, // at the bottom of the picture
    LEGEND_LINE = 20,
    LINE = 6, // height of a line below the actions
    LINE_PITCH = 8,
    LINES_GAP = 4, // after the lines of a rank
    PAGE_WIDTH = 870,
    MAX_WIDTH = 12000,
    MAX_HINTS = 4096, // cells with a tooltip: their action and times
};

#define DIGIT 6.6 // width of a digit in a cell

/* Fills of a rank's first and last chunk; other chunks are interpolated. I has a bar near the top edge, W
 * near the bottom edge, and B both, so that kinds are distinguishable without hue. tools/dev/palette.py
 * checks this table for colour-blind readers. */
static const struct {
    struct colour dark, light, bar;
    bool bar_above, bar_below;
    const char *legend;
} palette[] = {
    [FORWARD] = {{76, 169, 243}, {142, 226, 254}, .legend = "F forward"},
    [BACKWARD] = {{207, 94, 26}, {241, 168, 123}, {92, 32, 0}, true, true, "B backward, I and W together"},
    [BACKWARD_INPUT] = {{249, 179, 0}, {248, 239, 136}, {122, 76, 0}, true, false, "I backward, input"},
    [BACKWARD_WEIGHT] = {{0, 151, 115}, {121, 197, 185}, {0, 54, 42}, false, true, "W backward, weights"},
    [SEND_ACTIVATION] = {.legend = NULL}, // messages are not drawn
    [RECV_ACTIVATION] = {.legend = NULL},
    [SEND_GRADIENT] = {.legend = NULL},
    [RECV_GRADIENT] = {.legend = NULL},
};
_Static_assert(sizeof palette / sizeof *palette == ACTION_KIND_COUNT, "one row for each kind of action");

/* Lines below the actions of a rank. */
static const struct {
    const char *class, *legend;
    enum cell_class cell;
} lines[ROW_CLASSES] = {
    [ROW_STEP] = {.class = NULL}, // not drawn
    [ROW_OPTIMIZER] = {"optimizer", "optimizer", CELL_OTHER},
    [ROW_COLLECTIVES] = {"collective", "reductions, gathers", CELL_COLLECTIVE},
    [ROW_TRANSFERS] = {"transfer", "transfers", CELL_P2P},
    [ROW_COPIES] = {"copy", "copies", CELL_COPY},
};

struct picture {
    const struct svg_options *options;
    const struct drawing *drawing; // the one being drawn
    double scale;                  // pixels for a unit of time
    double width;                  // of the time axis
    double top;                    // of the drawing's first row
    double pitch;                  // from rank to rank of the drawing
    int chunks;                    // the most of any drawing
    double title;                  // height above a drawing's first row
    bool hints;
    bool used[ACTION_KIND_COUNT];
    bool has_lines; // in any drawing
    struct text *out;
};

/* ---- size ---- */

static bool has_line(const struct drawing *drawing, enum trace_row_class class)
{
    bool found = false;
    for (int i = 0; i < drawing->row_count && lines[class].class != NULL; i++)
        found = found || drawing->rows[i].class == class;
    return found;
}

/* The line of a class below the actions of a rank, counted from 0; for ROW_CLASSES their number. */
static int line_of(const struct drawing *drawing, enum trace_row_class class)
{
    int line = 0;
    for (int i = 0; i < (int)class; i++)
        line += has_line(drawing, (enum trace_row_class)i);
    return line;
}

static double pitch_of(const struct drawing *drawing)
{
    const int count = line_of(drawing, ROW_CLASSES);
    return count > 0 ? PITCH + count * LINE_PITCH + LINES_GAP : PITCH;
}

/* The end of the last action, or of what is drawn below the actions. */
static double end_of(const struct drawing *drawing)
{
    double end = drawing->simulation->makespan;
    for (int i = 0; i < drawing->row_count; i++) {
        const struct trace_row *row = &drawing->rows[i];
        if (lines[row->class].class != NULL && row->count > 0)
            end = fmax(end, row->slices[row->count - 1].end);
    }
    return end;
}

struct colour svg_action_colour(enum action_kind kind)
{
    return palette[kind].dark;
}

static struct colour shade(enum action_kind kind, int chunk, int chunks)
{
    const struct colour *dark = &palette[kind].dark, *light = &palette[kind].light;
    int last = chunks > 1 ? chunks - 1 : 1;
    return (struct colour){dark->red + (light->red - dark->red) * chunk / last,
                           dark->green + (light->green - dark->green) * chunk / last,
                           dark->blue + (light->blue - dark->blue) * chunk / last};
}

static void add_stops(struct text *out, double from, double to, struct colour c)
{
    for (int end = 0; end < 2; end++)
        text_add(out, "<stop offset=\"%.7g\" stop-color=\"#%02x%02x%02x\"/>", end == 0 ? from : to,
                 (unsigned)c.red, (unsigned)c.green, (unsigned)c.blue);
}

/* Bars are hard steps of a gradient fill, so that every cell is one rectangle. They are inset: at the edge
 * they would be invisible on a dark page. */
static void add_fill(struct picture *x, enum action_kind kind, int chunk)
{
    const double edge = 0.06, bar = 0.12; // of the cell's height
    struct colour fill = shade(kind, chunk, x->chunks);
    double from = 0.0;
    text_add(x->out, "<linearGradient id=\"%s%d\" x2=\"0\" y2=\"1\">", action_traits(kind)->text, chunk);
    for (int below = 0; below < 2; below++) {
        if (!(below ? palette[kind].bar_below : palette[kind].bar_above))
            continue;
        double start = below ? 1.0 - edge - bar : edge;
        add_stops(x->out, from, start, fill);
        add_stops(x->out, start, start + bar, palette[kind].bar);
        from = start + bar;
    }
    add_stops(x->out, from, 1.0, fill);
    text_add(x->out, "</linearGradient>\n");
}

static void add_style(struct picture *x)
{
    text_add(x->out, "<style>text{fill:#1d2733;font-size:12px}.h{font-size:16px;font-weight:bold}"
                     ".s{fill:#5b6b7a}.n{fill:#0b141d;text-anchor:middle;font-size:11.5px}"
                     ".half{font-size:10.5px}.m{text-anchor:middle}.page{fill:#ffffff}"
                     ".idle{fill:#e4e8ec}.grid{stroke:#5b6b7a;stroke-width:.6;stroke-opacity:.35}"
                     ".path{fill:none;stroke:#c2185b;stroke-width:2}");
    for (int kind = 0; kind < ACTION_KIND_COUNT; kind++)
        for (int chunk = 0; x->used[kind] && chunk < x->chunks; chunk++) {
            const char *name = action_traits((enum action_kind)kind)->text;
            text_add(x->out, ".%s%d{fill:url(#%s%d)}", name, chunk, name, chunk);
        }
    for (int i = 0; x->has_lines && i < ROW_CLASSES; i++) {
        const struct colour c = svg_cell_colour(lines[i].cell);
        if (lines[i].class != NULL)
            text_add(x->out, ".%s{fill:#%02x%02x%02x}", lines[i].class, (unsigned)c.red, (unsigned)c.green,
                     (unsigned)c.blue);
    }
    text_add(x->out, "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9fb0c0}.n{fill:#0b141d}"
                     ".page{fill:#0d1117}.idle{fill:#303c48}.grid{stroke:#9fb0c0}.path{stroke:#ff5c9e}}"
                     "</style>\n");
    for (int kind = 0; kind < ACTION_KIND_COUNT; kind++)
        for (int chunk = 0; x->used[kind] && chunk < x->chunks; chunk++)
            add_fill(x, (enum action_kind)kind, chunk);
}

/* ---- cells ---- */

/* The first action of an overlapped pair is the upper half. */
struct box {
    double x, y, width, height;
    bool half;
};

static struct box box_of(const struct picture *x, int rank, int position)
{
    const struct action_list *list = &x->drawing->schedule->ranks[rank];
    const struct simulation *sim = x->drawing->simulation;
    struct action_time time = sim->times[sim->first[rank] + position];
    struct box box = {.x = LEFT + time.start * x->scale,
                      .y = x->top + rank * x->pitch,
                      .width = (time.end - time.start) * x->scale,
                      .height = CELL};
    bool upper = list->actions[position].overlaps_next && position + 1 < list->count &&
                 !(sim->times[sim->first[rank] + position + 1].start > time.start);
    bool lower = position > 0 && list->actions[position - 1].overlaps_next &&
                 !(sim->times[sim->first[rank] + position - 1].start < time.start);
    box.half = upper || lower;
    box.height = box.half ? CELL / 2.0 - 0.5 : CELL;
    box.y += lower ? CELL / 2.0 + 0.5 : 0.0;
    // A gap of one pixel between neighbours; less where the cell is narrow.
    box.width -= box.width > 4.0 ? 1.0 : box.width * 0.25;
    return box;
}

static void draw_cell(struct picture *x, int rank, int position)
{
    const struct schedule *s = x->drawing->schedule;
    const struct simulation *sim = x->drawing->simulation;
    struct action a = s->ranks[rank].actions[position];
    struct action_time time = sim->times[sim->first[rank] + position];
    struct box box = box_of(x, rank, position);
    char name[ACTION_CHARS], number[NUMBER_CHARS];
    int digits = snprintf(number, sizeof number, "%d", a.microbatch);
    text_add(x->out, "<rect class=\"%s%d\" x=\"%.7g\" y=\"%.7g\" width=\"%.7g\" height=\"%.7g\" rx=\"1.5\"",
             action_traits(a.kind)->text, schedule_chunk(s, a.stage, a.microbatch), svg_round(box.x),
             svg_round(box.y), svg_round(box.width), svg_round(box.height));
    if (x->hints)
        text_add(x->out, "><title>%s: %.6g to %.6g</title></rect>", action_text(a, name), time.start,
                 time.end);
    else
        text_add(x->out, "/>");
    if (digits * (box.half ? 6.0 : DIGIT) <= box.width)
        text_add(x->out, "<text class=\"n%s\" x=\"%.7g\" y=\"%.7g\">%s</text>", box.half ? " half" : "",
                 svg_round(box.x + box.width / 2.0),
                 svg_round(box.y + box.height / 2.0 + (box.half ? 3.8 : 4.2)), number);
    text_add(x->out, "\n");
}

/* Neighbours less than a third of a pixel apart are drawn as one, if one of them is that narrow, too. */
static void draw_line(struct picture *x, const struct trace_row *row)
{
    enum { SMALL_PER_PIXEL = 3 };
    const double small = 1.0 / (SMALL_PER_PIXEL * x->scale);
    const double y = x->top + row->rank * x->pitch + PITCH + LINE_PITCH * line_of(x->drawing, row->class);
    for (int i = 0, end; i < row->count; i = end) {
        const struct trace_slice *first = &row->slices[i];
        double until = first->end;
        for (end = i + 1; end < row->count && row->slices[end].start - until < small &&
                          fmin(until - first->start, row->slices[end].end - row->slices[end].start) < small;
             end++)
            until = fmax(until, row->slices[end].end);
        text_add(x->out, "<rect class=\"%s\" x=\"%.7g\" y=\"%.7g\" width=\"%.7g\" height=\"%d\"",
                 lines[row->class].class, svg_round(LEFT + first->start * x->scale), svg_round(y),
                 svg_round(fmax(until - first->start, small) * x->scale), LINE);
        if (x->hints) {
            text_add(x->out, "><title>");
            svg_add_escaped(x->out, first->name);
            text_add(x->out, end - i > 1 ? " and %d more: " : ": ", end - i - 1);
            text_add(x->out, "%.6g to %.6g</title></rect>\n", first->start, until);
        } else
            text_add(x->out, "/>\n");
    }
}

static void draw_rank(struct picture *x, int rank)
{
    const struct action_list *list = &x->drawing->schedule->ranks[rank];
    const struct simulation *sim = x->drawing->simulation;
    const struct rank_time *total = &sim->ranks[rank];
    double y = x->top + rank * x->pitch, span = total->last_end - total->first_start;
    text_add(x->out, "<text x=\"4\" y=\"%.7g\">rank %d</text>", svg_round(y + 18), rank);
    text_add(x->out, "<rect class=\"idle\" x=\"%.7g\" y=\"%.7g\" width=\"%.7g\" height=\"%d\"/>\n",
             svg_round(LEFT + total->first_start * x->scale), svg_round(y), svg_round(span * x->scale), CELL);
    for (int i = 0; i < list->count; i++)
        if (action_traits(list->actions[i].kind)->computes)
            draw_cell(x, rank, i);
    for (int i = 0; i < list->count && x->options->critical; i++) {
        struct box box = box_of(x, rank, i);
        if (sim->times[sim->first[rank] + i].critical && action_traits(list->actions[i].kind)->computes)
            text_add(
                x->out,
                "<rect class=\"path\" x=\"%.7g\" y=\"%.7g\" width=\"%.7g\" height=\"%.7g\" rx=\"1.5\"/>\n",
                svg_round(box.x), svg_round(box.y), svg_round(box.width), svg_round(box.height));
    }
    text_add(x->out, "<text class=\"s\" x=\"%.7g\" y=\"%.7g\">%.1f %% idle, peak %.4g</text>\n",
             svg_round(LEFT + x->width + 10), svg_round(y + 18),
             span > 0.0 ? 100.0 * total->bubble / span : 0.0, (double)total->peak / x->drawing->schedule->v);
    for (int i = 0; i < x->drawing->row_count; i++)
        if (x->drawing->rows[i].rank == rank && lines[x->drawing->rows[i].class].class != NULL)
            draw_line(x, &x->drawing->rows[i]);
}

/* ---- axis, title, legend ---- */

static void draw_axis(struct picture *x)
{
    const struct simulation *sim = x->drawing->simulation;
    const double step = svg_tick_step(x->scale), bottom = x->top + sim->p * x->pitch;
    for (int tick = 0; tick * step <= end_of(x->drawing) * (1 + 1e-12); tick++) {
        double at = LEFT + tick * step * x->scale;
        text_add(x->out, "<path class=\"grid\" d=\"M%.7g %.7gV%.7g\"/>", svg_round(at), svg_round(x->top - 3),
                 svg_round(bottom + 3));
        text_add(x->out, "<text class=\"s m\" x=\"%.7g\" y=\"%.7g\">%.7g%s%s</text>\n", svg_round(at),
                 svg_round(bottom + 17), tick * step, x->options->unit != NULL ? " " : "",
                 x->options->unit != NULL ? x->options->unit : "");
    }
}

static int worst_rank(const struct simulation *sim)
{
    int worst = 0;
    for (int rank = 1; rank < sim->p; rank++)
        worst = sim->ranks[rank].bubble > sim->ranks[worst].bubble ? rank : worst;
    return worst;
}

static void draw_title(struct picture *x)
{
    const struct schedule *s = x->drawing->schedule;
    const struct simulation *sim = x->drawing->simulation;
    const struct rank_time *worst = &sim->ranks[worst_rank(sim)];
    double span = worst->last_end - worst->first_start;
    const char *unit = x->options->unit != NULL ? x->options->unit : "";
    int least = sim->ranks[0].peak, largest = least;
    for (int rank = 1; rank < s->p; rank++) {
        least = sim->ranks[rank].peak < least ? sim->ranks[rank].peak : least;
        largest = sim->ranks[rank].peak > largest ? sim->ranks[rank].peak : largest;
    }
    text_add(x->out, "<text class=\"h\" x=\"4\" y=\"%.7g\">", svg_round(x->top - x->title + 22));
    svg_add_escaped(x->out, x->drawing->title);
    text_add(x->out,
             "</text>\n<text class=\"s\" x=\"4\" y=\"%.7g\">p %d, m %d, v %d: step time %.6g%s%s, bubble "
             "%.6g%s%s (%.1f %%; without warm-up and drain), peak ",
             svg_round(x->top - x->title + 42), s->p, s->m, s->v, sim->makespan, *unit != 0 ? " " : "", unit,
             sim->bubble, *unit != 0 ? " " : "", unit, span > 0.0 ? 100.0 * sim->bubble / span : 0.0);
    if (least < largest)
        text_add(x->out, "%.4g to ", (double)least / s->v);
    text_add(x->out, "%.4g microbatch%s</text>\n", (double)largest / s->v, largest == s->v ? "" : "es");
    if (x->options->note == NULL)
        return;
    text_add(x->out, "<text class=\"s\" x=\"4\" y=\"%.7g\">", svg_round(x->top - x->title + 42 + NOTE));
    svg_add_escaped(x->out, x->options->note);
    text_add(x->out, "</text>\n");
}

static void draw_drawing(struct picture *x)
{
    draw_title(x);
    draw_axis(x);
    for (int rank = 0; rank < x->drawing->schedule->p; rank++)
        draw_rank(x, rank);
}

/* One swatch, or `shades` of them from the first chunk's to the last's, then its label; returns the x
 * of the next entry. */
static double legend_entry(struct picture *x, double at, double y, const char *class, int shades,
                           const char *words)
{
    for (int i = 0; i < (shades > 0 ? shades : 1); i++) {
        text_add(x->out, "<rect class=\"%s", class);
        if (shades > 0)
            text_add(x->out, "%d", shades > 1 ? i * (x->chunks - 1) / (shades - 1) : 0);
        text_add(x->out, "\" x=\"%.7g\" y=\"%.7g\" width=\"14\" height=\"16\" rx=\"1.5\"/>", svg_round(at),
                 svg_round(y - 12));
        at += 15;
    }
    text_add(x->out, "<text x=\"%.7g\" y=\"%.7g\">%s</text>\n", svg_round(at + 4), svg_round(y), words);
    return at + 6.4 * (double)strlen(words) + 18;
}

static void draw_legend(struct picture *x, double y)
{
    enum { MAX_SHADES = 4 };
    int shades = x->chunks < MAX_SHADES ? x->chunks : MAX_SHADES;
    double at = 4;
    for (int kind = 0; kind < ACTION_KIND_COUNT; kind++)
        if (x->used[kind] && palette[kind].legend != NULL)
            at = legend_entry(x, at, y, action_traits((enum action_kind)kind)->text, shades,
                              palette[kind].legend);
    at = legend_entry(x, at, y, "idle", 0, "bubble");
    if (x->options->critical)
        legend_entry(x, at, y, "path", 0, "critical path");
    y += x->has_lines ? LEGEND_LINE : 0;
    at = 4;
    for (int i = 0; x->has_lines && i < ROW_CLASSES; i++)
        if (lines[i].class != NULL)
            at = legend_entry(x, at, y, lines[i].class, 0, lines[i].legend);
    if (x->chunks > 1)
        text_add(x->out,
                 "<text class=\"s\" x=\"4\" y=\"%.7g\">dark: chunk 0, light: chunk %d of a rank</text>\n",
                 svg_round(y + LEGEND_LINE + 2), x->chunks - 1);
}

/* Chooses the scale at which numbers fit the cells of the kind that is shortest on average, up to
 * MAX_WIDTH. */
static void choose_scale(struct picture *x, const struct drawing *drawings, int count)
{
    double sum[ACTION_KIND_COUNT] = {0.0}, last = 0.0, shortest = INFINITY;
    int64_t cells[ACTION_KIND_COUNT] = {0}, all = 0;
    int m = 1;
    for (int d = 0; d < count; d++) {
        const struct schedule *s = drawings[d].schedule;
        const struct simulation *sim = drawings[d].simulation;
        last = fmax(last, end_of(&drawings[d]));
        x->has_lines = x->has_lines || line_of(&drawings[d], ROW_CLASSES) > 0;
        for (int i = 0; i < drawings[d].row_count; i++)
            all += drawings[d].rows[i].count;
        m = s->m > m ? s->m : m;
        x->chunks = s->chunks > x->chunks ? s->chunks : x->chunks;
        for (int rank = 0; rank < s->p; rank++)
            for (int i = 0; i < s->ranks[rank].count; i++) {
                struct action_time time = sim->times[sim->first[rank] + i];
                enum action_kind kind = s->ranks[rank].actions[i].kind;
                x->used[kind] = true;
                sum[kind] += time.end - time.start;
                cells[kind]++;
                all += action_traits(kind)->computes ? 1 : 0;
            }
    }
    for (int kind = 0; kind < ACTION_KIND_COUNT; kind++)
        if (action_traits((enum action_kind)kind)->computes && sum[kind] > 0.0 &&
            sum[kind] / (double)cells[kind] < shortest)
            shortest = sum[kind] / (double)cells[kind];
    const double least = PAGE_WIDTH - LEFT - RIGHT, wanted = 2.2 + DIGIT * snprintf(NULL, 0, "%d", m - 1);
    double width = isfinite(shortest) ? last * wanted / shortest : least;
    width = width < least ? least : width > MAX_WIDTH ? MAX_WIDTH : width;
    x->hints = all <= MAX_HINTS;
    x->width = width;
    x->scale = last > 0.0 ? width / last : 1.0;
}

void draw_svg(const struct drawing *drawings, int count, const struct svg_options *options, struct text *out)
{
    struct picture x = {.options = options, .out = out};
    choose_scale(&x, drawings, count);
    x.title = options->note != NULL ? TOP + NOTE : TOP;
    const double legend = LEGEND + LEGEND_LINE * ((x.chunks > 1) + x.has_lines);
    double height = legend;
    for (int d = 0; d < count; d++)
        height += x.title + drawings[d].schedule->p * pitch_of(&drawings[d]) + AXIS;
    double width = LEFT + x.width + RIGHT;
    text_add(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.7g %.7g\" width=\"%.7g\" height=\"%.7g\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n",
        svg_round(width), svg_round(height), svg_round(width), svg_round(height));
    add_style(&x);
    text_add(out, "<rect class=\"page\" x=\"0\" y=\"0\" width=\"%.7g\" height=\"%.7g\" rx=\"6\"/>\n",
             svg_round(width), svg_round(height));
    x.top = x.title;
    for (int d = 0; d < count; d++) {
        x.drawing = &drawings[d];
        x.pitch = pitch_of(x.drawing);
        draw_drawing(&x);
        x.top += x.title + drawings[d].schedule->p * x.pitch + AXIS;
    }
    draw_legend(&x, height - legend + 18);
    text_add(out, "</svg>\n");
}
