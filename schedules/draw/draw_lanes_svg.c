// SPDX-License-Identifier: Apache-2.0
/* Sizes are pixels, as in draw_svg.c. A picture has a rectangle for each slice that is at least a pixel wide;
 * narrower ones are merged, so its size is limited by its width and not by the number of slices. */
#include "schedules/draw/draw_lanes.h"

#include "schedules/draw/svg.h"

#include <math.h>
#include <string.h>

enum {
    LEFT = 150, // of the time axis: "pp 12  activations"
    RIGHT = 34, // half of the last tick
    TOP = 56,   // of the first row: two lines of title
    PITCH = 17, // from lane to lane
    CELL = 14,
    GAP = 9, // between ranks
    AXIS = 34,
    LEGEND = 52, // two lines
    LEGEND_LINE = 20,
    PAGE_WIDTH = 870,
    MAX_WIDTH = 12000,
    MAX_HINTS = 20000, // cells with a tooltip
};

#define WANTED_CELL 22.0 // mean width of an action: three digits
#define NEAR        0.3  // distance at which narrow cells are merged

static const struct {
    const char *class, *legend;
    struct colour fill; // of actions: svg_action_colour()
} classes[CELL_CLASSES] = {
    [FORWARD] = {"F", "F forward", {0, 0, 0}},
    [BACKWARD] = {"B", "B backward", {0, 0, 0}},
    [BACKWARD_INPUT] = {"I", "I backward, input", {0, 0, 0}},
    [BACKWARD_WEIGHT] = {"W", "W backward, weights", {0, 0, 0}},
    [CELL_OTHER] = {"other", "other ops", {215, 199, 146}},
    [CELL_P2P] = {"p2p", "point-to-point", {160, 179, 194}},
    [CELL_COLLECTIVE] = {"coll", "collective", {227, 121, 152}},
    [CELL_COPY] = {"copy", "host copy", {212, 198, 187}},
};

/* Slices that are drawn as one cell, with the class of the ops or of the messages among them, whichever take
 * longer. */
struct cell {
    const struct lane_slice *first;
    double begin_s, end_s;
    double ops_s, messages_s;
    int ops_class, messages_class;
    int count; // of actions and messages
};

struct picture {
    const struct lane_drawing *drawing;
    double scale; // pixels for a second
    double width; // of the time axis
    double y;     // of the row
    int64_t hints;
    bool used[CELL_CLASSES];
    bool critical;
    struct text *out;
};

/* ---- classes ---- */

struct colour svg_cell_colour(enum cell_class class)
{
    return classes[class].fill;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "3F7": F of stage 3, microbatch 7, which it sets. CELL_OTHER: not an action that computes. */
static int kind_of(const char *action, const char **microbatch)
{
    const char *c = action;
    while (is_digit(*c))
        c++;
    for (int kind = 0; kind < ACTION_KIND_COUNT && c > action; kind++) {
        const char *letter = action_traits((enum action_kind)kind)->text;
        const size_t length = strlen(letter);
        *microbatch = c + length;
        if (strncmp(c, letter, length) == 0 && is_digit(c[length]))
            return action_traits((enum action_kind)kind)->computes ? kind : CELL_OTHER;
    }
    return CELL_OTHER;
}

static int class_of(const struct lane_slice *slice)
{
    const char *microbatch;
    if (slice->is_copy)
        return CELL_COPY;
    if (slice->message != NULL)
        return slice->from >= 0 ? CELL_P2P : CELL_COLLECTIVE;
    return kind_of(slice->action, &microbatch);
}

/* ---- cells ---- */

static int class_of_cell(const struct cell *cell)
{
    return cell->ops_s >= cell->messages_s ? cell->ops_class : cell->messages_class;
}

static void add_rectangle(struct picture *x, const char *class, double begin_s, double end_s)
{
    double width = (end_s - begin_s) * x->scale;
    width -= width > 4.0 ? 0.7 : 0.0; // a gap between neighbours
    text_add(x->out, "<rect class=\"%s\" x=\"%.7g\" y=\"%.7g\" width=\"%.7g\" height=\"%d\"", class,
             svg_round(LEFT + begin_s * x->scale), svg_round(x->y), svg_round(width > NEAR ? width : NEAR),
             CELL);
}

static void add_hint(struct picture *x, const struct cell *cell)
{
    text_add(x->out, "><title>");
    svg_add_escaped(x->out, cell->first->action);
    if (cell->first->message != NULL && class_of_cell(cell) == cell->messages_class && cell->ops_s <= 0.0) {
        text_add(x->out, ": ");
        svg_add_escaped(x->out, cell->first->message);
        text_add(x->out, ", %lld bytes", (long long)cell->first->bytes);
    }
    text_add(x->out, cell->count > 1 ? " and %d more: " : ": ", cell->count - 1);
    text_add(x->out, "%.6g to %.6g ms</title></rect>", 1e3 * cell->begin_s, 1e3 * cell->end_s);
}

static void draw_cell(struct picture *x, const struct cell *cell)
{
    if (cell->count == 0)
        return;
    const int class = class_of_cell(cell);
    x->used[class] = true;
    add_rectangle(x, classes[class].class, cell->begin_s, cell->end_s);
    if (x->hints-- > 0)
        add_hint(x, cell);
    else
        text_add(x->out, "/>");
    text_add(x->out, "\n");
}

/* Whether a slice is drawn with the cell before it: it touches it, and either one of the two is narrow, and
 * they are alike or belong to one action, or both are ops of one action. */
static bool merges(const struct picture *x, const struct cell *cell, const struct lane_slice *slice)
{
    if (cell->count == 0)
        return false;
    const double between = (slice->begin_s - cell->end_s) * x->scale;
    const double narrower = fmin(cell->end_s - cell->begin_s, slice->end_s - slice->begin_s) * x->scale;
    const bool touches = between < (narrower < 1.0 ? NEAR : 1e-6);
    const bool alike = class_of(slice) == class_of_cell(cell),
               same_action = slice->action == cell->first->action;
    if (narrower < 1.0)
        return touches && (alike || same_action);
    return touches && alike && same_action && slice->message == NULL;
}

static void add_slice(struct cell *cell, const struct lane_slice *slice)
{
    const double seconds = slice->end_s - slice->begin_s;
    cell->count += cell->count == 0 || slice->action != cell->first->action;
    cell->end_s = slice->end_s > cell->end_s ? slice->end_s : cell->end_s;
    *(slice->message != NULL ? &cell->messages_s : &cell->ops_s) += seconds;
    *(slice->message != NULL ? &cell->messages_class : &cell->ops_class) = class_of(slice);
}

static void draw_row(struct picture *x, const struct lane_row *row)
{
    struct cell cell = {.count = 0};
    for (int i = 0; i < row->count; i++) {
        const struct lane_slice *slice = &row->slices[i];
        const bool same = i > 0 && slice->message != NULL && row->slices[i - 1].message != NULL &&
                          !(slice->begin_s > row->slices[i - 1].begin_s); // of one exchange
        if (same)
            continue;
        if (!merges(x, &cell, slice)) {
            draw_cell(x, &cell);
            cell = (struct cell){.first = slice, .begin_s = slice->begin_s};
        }
        add_slice(&cell, slice);
    }
    draw_cell(x, &cell);
}

/* Writes the microbatch on each action that is wide enough, messages included, and waits for less than half
 * of its time. */
static void label(struct picture *x, const struct lane_row *row)
{
    for (int i = 0, last; i < row->count; i = last + 1) {
        const char *microbatch;
        double busy_s = row->slices[i].end_s - row->slices[i].begin_s;
        for (last = i; last + 1 < row->count && row->slices[last + 1].action == row->slices[i].action;) {
            last++;
            busy_s += row->slices[last].end_s - row->slices[last].begin_s;
        }
        const double begin_s = row->slices[i].begin_s, end_s = row->slices[last].end_s;
        if (busy_s > 0.5 * (end_s - begin_s) && kind_of(row->slices[i].action, &microbatch) != CELL_OTHER &&
            6.2 * (double)strlen(microbatch) + 1.0 <= (end_s - begin_s) * x->scale)
            text_add(x->out, "<text class=\"n\" x=\"%.7g\" y=\"%.7g\">%s</text>\n",
                     svg_round(LEFT + (begin_s + end_s) / 2.0 * x->scale), svg_round(x->y + 10.8),
                     microbatch);
    }
}

/* Outlines the parts of a row that are on the critical path. */
static void outline(struct picture *x, const struct lane_row *row)
{
    for (int i = 0; i < row->count;) {
        const double begin_s = row->slices[i].begin_s;
        double end_s = begin_s;
        for (;
             i < row->count && row->slices[i].critical && (row->slices[i].begin_s - end_s) * x->scale < NEAR;
             i++)
            end_s = row->slices[i].end_s;
        if (end_s > begin_s) {
            add_rectangle(x, "path", begin_s, end_s);
            text_add(x->out, "/>\n");
            x->critical = true;
        } else {
            i++;
        }
    }
}

/* ---- the page ---- */

static void add_style(struct picture *x)
{
    text_add(x->out, "<style>text{fill:#1d2733;font-size:12px}.h{font-size:16px;font-weight:bold}"
                     ".s{fill:#5b6b7a}.n{fill:#0b141d;text-anchor:middle;font-size:10.5px}"
                     ".m{text-anchor:middle}.page{fill:#ffffff}.idle{fill:#e4e8ec}"
                     ".grid{stroke:#5b6b7a;stroke-width:.6;stroke-opacity:.35}"
                     ".path{fill:none;stroke:#c2185b;stroke-width:2}");
    for (int i = 0; i < CELL_CLASSES; i++) {
        const struct colour c =
            i < ACTION_KIND_COUNT ? svg_action_colour((enum action_kind)i) : classes[i].fill;
        if (classes[i].class != NULL)
            text_add(x->out, ".%s{fill:#%02x%02x%02x}", classes[i].class, (unsigned)c.red, (unsigned)c.green,
                     (unsigned)c.blue);
    }
    text_add(x->out, "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9fb0c0}.n{fill:#0b141d}"
                     ".page{fill:#0d1117}.idle{fill:#303c48}.grid{stroke:#9fb0c0}.path{stroke:#ff5c9e}}"
                     "</style>\n");
}

static void draw_title(struct picture *x)
{
    const char *const lines[] = {x->drawing->title, x->drawing->note};
    for (int i = 0; i < 2; i++) {
        text_add(x->out, "<text class=\"%s\" x=\"4\" y=\"%d\">", i == 0 ? "h" : "s", 22 + 20 * i);
        svg_add_escaped(x->out, lines[i]);
        text_add(x->out, "</text>\n");
    }
}

static void draw_axis(struct picture *x, double bottom)
{
    const double step_ms = svg_tick_step(x->scale / 1e3);
    for (int tick = 0; tick * step_ms <= 1e3 * x->drawing->step_s * (1 + 1e-12); tick++) {
        const double at = svg_round(LEFT + tick * step_ms / 1e3 * x->scale);
        text_add(x->out, "<path class=\"grid\" d=\"M%.7g %dV%.7g\"/>", at, TOP - 3, svg_round(bottom + 3));
        text_add(x->out, "<text class=\"s m\" x=\"%.7g\" y=\"%.7g\">%.7g ms</text>\n", at,
                 svg_round(bottom + 17), tick * step_ms);
    }
}

struct legend {
    double x, y;
};

/* Wraps at the right edge of the page. */
static void legend_entry(struct picture *x, struct legend *at, const char *class, const char *words)
{
    const double width = 6.2 * (double)strlen(words) + 32;
    if (at->x + width > LEFT + x->width + RIGHT)
        *at = (struct legend){.x = 4, .y = at->y + LEGEND_LINE};
    text_add(x->out, "<rect class=\"%s\" x=\"%.7g\" y=\"%.7g\" width=\"14\" height=\"14\"/>", class,
             svg_round(at->x), svg_round(at->y - 11));
    text_add(x->out, "<text x=\"%.7g\" y=\"%.7g\">%s</text>\n", svg_round(at->x + 18), svg_round(at->y),
             words);
    at->x += width;
}

static void draw_legend(struct picture *x, double y)
{
    struct legend at = {.x = 4, .y = y};
    for (int i = 0; i < CELL_CLASSES; i++)
        if (x->used[i])
            legend_entry(x, &at, classes[i].class, classes[i].legend);
    legend_entry(x, &at, "idle", "idle");
    if (x->critical)
        legend_entry(x, &at, "path", "critical path");
}

static bool begins_rank(const struct lane_drawing *drawing, int row)
{
    return row == 0 || drawing->rows[row].rank != drawing->rows[row - 1].rank;
}

/* Returns the lower edge of the last row. Lanes that are never busy are not drawn. */
static double draw_rows(struct picture *x)
{
    double y = TOP - GAP;
    for (int i = 0; i < x->drawing->count; i++) {
        const struct lane_row *row = &x->drawing->rows[i];
        y += begins_rank(x->drawing, i) ? GAP : 0;
        if (row->count == 0)
            continue;
        x->y = y;
        text_add(x->out, "<text x=\"4\" y=\"%.7g\">pp %d  ", svg_round(y + 11), row->rank);
        svg_add_escaped(x->out, row->name);
        text_add(x->out, "</text>");
        add_rectangle(x, "idle", 0.0, x->drawing->step_s);
        text_add(x->out, "/>\n");
        draw_row(x, row);
        label(x, row);
        outline(x, row);
        y += PITCH;
    }
    return y;
}

static double height_of(const struct lane_drawing *drawing)
{
    double height = TOP - GAP + AXIS + LEGEND;
    for (int i = 0; i < drawing->count; i++)
        height += (begins_rank(drawing, i) ? GAP : 0) + (drawing->rows[i].count > 0 ? PITCH : 0);
    return height;
}

/* Chooses the scale at which the mean action of a lane that computes is wide enough for its number. */
static void choose_scale(struct picture *x)
{
    const double least = PAGE_WIDTH - LEFT - RIGHT, step_s = x->drawing->step_s;
    double actions = 0.0, lanes = 0.0, width;
    for (int i = 0; i < x->drawing->count; i++) {
        const struct lane_row *row = &x->drawing->rows[i];
        if (!begins_rank(x->drawing, i))
            continue;
        lanes++;
        for (int k = 0; k < row->count; k++)
            actions += k == 0 || row->slices[k].action != row->slices[k - 1].action;
    }
    width = lanes > 0.0 ? WANTED_CELL * actions / lanes : least;
    x->width = width < least ? least : width > MAX_WIDTH ? MAX_WIDTH : width;
    x->scale = step_s > 0.0 ? x->width / step_s : 1.0;
    x->hints = MAX_HINTS;
}

void draw_lanes_svg(const struct lane_drawing *drawing, struct text *out)
{
    struct picture x = {.drawing = drawing, .out = out};
    const double height = height_of(drawing);
    choose_scale(&x);
    const double width = LEFT + x.width + RIGHT;
    text_add(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.7g %.7g\" width=\"%.7g\" "
             "height=\"%.7g\" font-family=\"Helvetica, Arial, sans-serif\">\n",
             svg_round(width), svg_round(height), svg_round(width), svg_round(height));
    add_style(&x);
    text_add(out, "<rect class=\"page\" x=\"0\" y=\"0\" width=\"%.7g\" height=\"%.7g\" rx=\"6\"/>\n",
             svg_round(width), svg_round(height));
    draw_title(&x);
    const double bottom = draw_rows(&x);
    draw_axis(&x, bottom);
    draw_legend(&x, height - LEGEND + 18);
    text_add(out, "</svg>\n");
}
