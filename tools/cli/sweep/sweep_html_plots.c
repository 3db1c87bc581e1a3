// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/html.h"
#include "tools/cli/sweep/sweep_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- heat map ---- */

/* The fastest layout with a given value of each of two axes. */
struct cell {
    double step_s, bound_s; // INFINITY: none
    int64_t number;
    int reason; // of a layout without a plan; -1: none
};

static struct cell find_cell(const struct sweep *sweep, int a, int value_a, int b, int value_b)
{
    struct cell cell = {.step_s = INFINITY, .bound_s = INFINITY, .reason = -1};
    for (size_t i = 0; i < sweep->count; i++) {
        const struct sweep_layout *layout = &sweep->layouts[i];
        if (sweep_value(sweep->file, layout->number, a) != value_a ||
            sweep_value(sweep->file, layout->number, b) != value_b)
            continue;
        if (layout->state == SWEEP_PLANNED && layout->step_s < cell.step_s) {
            cell.step_s = layout->step_s;
            cell.number = layout->number;
        } else if (layout->state == SWEEP_SLOWER)
            cell.bound_s = fmin(cell.bound_s, layout->bound_s);
        else if (layout->state != SWEEP_PLANNED && cell.reason < 0)
            cell.reason = layout->reason;
    }
    return cell;
}

/* The Viridis palette, from yellow (0, fast) to dark blue (1): safe for colour-blind readers. */
static void add_colour(double share, struct text *out)
{
    static const int stops[5][3] = {
        {253, 231, 37}, {94, 201, 98}, {33, 145, 140}, {59, 82, 139}, {68, 1, 84}};
    const double at = 4.0 * fmin(fmax(share, 0.0), 1.0);
    const int low = at >= 4.0 ? 3 : (int)at;
    int colour[3];
    for (int i = 0; i < 3; i++)
        colour[i] = (int)lround(stops[low][i] + (at - low) * (stops[low + 1][i] - stops[low][i]));
    text_add(out, " style=\"background:#%02x%02x%02x;color:%s\"", colour[0], colour[1], colour[2],
             share < 0.55 ? "#000" : "#fff");
}

static void add_cell(const struct sweep *sweep, const struct cell *cell, double fastest, struct text *out)
{
    struct text layout = {0};
    if (isfinite(cell->step_s)) {
        text_add(out, "<td");
        add_colour(log(cell->step_s / fastest) / log(2.0), out); // darkest at twice the fastest step
        sweep_layout_text(sweep->file, cell->number, &layout);
    } else {
        text_add(out, "<td class=\"none\"");
        if (cell->reason >= 0)
            text_add(&layout, "%s", sweep->reasons[cell->reason].what);
    }
    text_add(out, " title=\"");
    html_escaped(out, text_chars(&layout));
    if (isfinite(cell->step_s))
        text_add(out, "\">%.4g</td>", cell->step_s);
    else if (isfinite(cell->bound_s))
        text_add(out, "\">&#8805; %.4g</td>", cell->bound_s);
    else
        text_add(out, "\">-</td>");
    text_free(&layout);
}

void sweep_html_map(const struct sweep *sweep, int a, int b, struct text *out)
{
    const struct sweep_axis *rows = &sweep->file->axes[a], *columns = &sweep->file->axes[b];
    const double fastest = sweep->best_count > 0 ? sweep->layouts[sweep->best[0]].step_s : 1.0;
    text_add(out, "<table class=\"map\">\n<tr><th class=\"text\">");
    html_escaped(out, rows->label);
    text_add(out, " \\ ");
    html_escaped(out, columns->label);
    text_add(out, "</th>");
    for (int k = 0; k < columns->count; k++) {
        text_add(out, "<th>");
        html_escaped(out, columns->texts[k]);
        text_add(out, "</th>");
    }
    text_add(out, "</tr>\n");
    for (int i = 0; i < rows->count; i++) {
        text_add(out, "<tr><th class=\"text\">");
        html_escaped(out, rows->texts[i]);
        text_add(out, "</th>");
        for (int k = 0; k < columns->count; k++) {
            const struct cell cell = find_cell(sweep, a, i, b, k);
            add_cell(sweep, &cell, fastest, out);
        }
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table>\n");
}

/* ---- time against memory ---- */

enum { WIDTH = 640, HEIGHT = 420, LEFT = 70, TOP = 10, TICKS = 6, NAMED = 200 };

struct axes {
    double x[2], y[2];
};

static double gib_of(const struct sweep_layout *layout)
{
    return (double)layout->needed_bytes / (1 << 30);
}

static double x_of(const struct axes *axes, double gib)
{
    return LEFT + WIDTH * (gib - axes->x[0]) / (axes->x[1] - axes->x[0]);
}

static double y_of(const struct axes *axes, double step_s)
{
    return TOP + HEIGHT * (1.0 - (step_s - axes->y[0]) / (axes->y[1] - axes->y[0]));
}

static void widen(double range[2])
{
    const double margin = fmax(0.05 * (range[1] - range[0]), 0.01 * range[1]);
    range[0] = fmax(range[0] - margin, 0.0);
    range[1] += margin;
}

static struct axes find_axes(const struct sweep *sweep)
{
    struct axes axes = {{INFINITY, 0.0}, {INFINITY, 0.0}};
    for (size_t i = 0; i < sweep->best_count; i++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[i]];
        axes.x[0] = fmin(axes.x[0], gib_of(layout));
        axes.x[1] = fmax(axes.x[1], gib_of(layout));
        axes.y[0] = fmin(axes.y[0], layout->step_s);
        axes.y[1] = fmax(axes.y[1], layout->step_s);
    }
    widen(axes.x);
    widen(axes.y);
    return axes;
}

static void begin_plot(const char *what, struct text *out)
{
    text_add(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
             LEFT + WIDTH + 20, TOP + HEIGHT + 50, LEFT + WIDTH + 20, TOP + HEIGHT + 50, what);
}

/* The distance of ticks: 1, 2 or 5 times a power of ten. */
static double tick_step(const double range[2])
{
    const double least = (range[1] - range[0]) / TICKS, power = pow(10.0, floor(log10(least)));
    const double digit = least / power;
    return power * (digit <= 1.0 ? 1.0 : digit <= 2.0 ? 2.0 : digit <= 5.0 ? 5.0 : 10.0);
}

/* x, y: the names of the axes. */
static void add_ticks(const struct axes *axes, const char *x, const char *y, struct text *out)
{
    text_add(out, "<rect class=\"axis\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, TOP, WIDTH,
             HEIGHT);
    const double step_x = tick_step(axes->x), step_y = tick_step(axes->y);
    for (double at = ceil(axes->x[0] / step_x); at * step_x <= axes->x[1]; at += 1.0)
        text_add(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>\n",
                 x_of(axes, at * step_x), TOP + HEIGHT + 18, at * step_x);
    for (double at = ceil(axes->y[0] / step_y); at * step_y <= axes->y[1]; at += 1.0)
        text_add(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", LEFT - 8,
                 y_of(axes, at * step_y) + 4, at * step_y);
    text_add(out,
             "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n"
             "<text x=\"14\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 14 %d)\">%s</text>\n",
             LEFT + WIDTH / 2, TOP + HEIGHT + 40, x, TOP + HEIGHT / 2, TOP + HEIGHT / 2, y);
}

/* Layouts on the front, and the fastest ones, have a tooltip. */
static void add_point(const struct sweep *sweep, const struct axes *axes, size_t index, bool on_front,
                      struct text *out)
{
    const struct sweep_layout *layout = &sweep->layouts[sweep->best[index]];
    text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"", x_of(axes, gib_of(layout)),
             y_of(axes, layout->step_s), on_front ? 5 : 3, on_front ? "#d55e00" : "#0072b2");
    if (on_front || index < NAMED) {
        struct text text = {0};
        sweep_layout_text(sweep->file, layout->number, &text);
        text_add(out, "><title>");
        html_escaped(out, text_chars(&text));
        text_add(out, ": %.4g s, %.4g GiB</title></circle>\n", layout->step_s, gib_of(layout));
        text_free(&text);
    } else
        text_add(out, "/>\n");
}

void sweep_html_front(const struct sweep *sweep, struct text *out)
{
    const struct axes axes = find_axes(sweep);
    struct text line = {0}, front = {0};
    double least = INFINITY;
    if (sweep->best_count == 0)
        return;
    text_add(out, "<h2>Time against memory</h2>\n<p>Orange: no other planned layout is faster with as little "
                  "memory.</p>\n");
    begin_plot("step time against memory", out);
    add_ticks(&axes, "peak memory of a device, GiB", "step, s", out);
    // Fastest first: a layout is on the front if it needs less than all faster ones.
    for (size_t i = 0; i < sweep->best_count; i++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[i]];
        const bool on_front = gib_of(layout) < least;
        if (!on_front) {
            add_point(sweep, &axes, i, false, out);
            continue;
        }
        least = gib_of(layout);
        const double x = x_of(&axes, least), y = y_of(&axes, layout->step_s);
        text_add(&line, line.length == 0 ? "M%.1f %.1f" : "V%.1f", line.length == 0 ? x : y, y);
        text_add(&line, "H%.1f", x);
        add_point(sweep, &axes, i, true, &front);
    }
    text_add(out, "<path d=\"%s\" stroke=\"#d55e00\" fill=\"none\"/>\n%s</svg>\n", line.chars, front.chars);
    text_free(&line);
    text_free(&front);
}

/* ---- measured against predicted ---- */

static void add_run(const struct sweep *sweep, const struct axes *axes, size_t index, double measured_s,
                    struct text *out)
{
    const struct sweep_layout *layout = &sweep->layouts[sweep->best[index]];
    struct text text = {0};
    sweep_layout_text(sweep->file, layout->number, &text);
    text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#0072b2\"><title>",
             x_of(axes, layout->step_s), y_of(axes, measured_s));
    html_escaped(out, text_chars(&text));
    text_add(out, ": %.4g s, predicted %.4g s</title></circle>\n", measured_s, layout->step_s);
    text_free(&text);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Appends "median error 2.1 %, 90th percentile 4.0 %". errors: absolute values, sorted by this function. */
static void add_errors(double *errors, size_t count, struct text *out)
{
    qsort(errors, count, sizeof *errors, ascending);
    const double median = 0.5 * (errors[(count - 1) / 2] + errors[count / 2]);
    text_add(out,
             "<h2>Measured against predicted</h2>\n<p>%zu runs: median error %.1f %%, 90th percentile %.1f "
             "%%.</p>\n",
             count, 100.0 * median, 100.0 * errors[(9 * count + 9) / 10 - 1]);
}

void sweep_html_measured(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out)
{
    struct axes axes = {{INFINITY, 0.0}, {INFINITY, 0.0}};
    double *errors = calloc(sweep->best_count + 1, sizeof *errors);
    size_t count = 0;
    for (size_t i = 0; errors != NULL && i < sweep->best_count; i++) {
        const double predicted_s = sweep->layouts[sweep->best[i]].step_s, is_s = measured[i].step_s;
        if (measured[i].state != RUN_DONE)
            continue;
        errors[count++] = fabs(predicted_s / is_s - 1.0);
        axes.x[0] = fmin(axes.x[0], fmin(predicted_s, is_s)); // equal axes
        axes.x[1] = fmax(axes.x[1], fmax(predicted_s, is_s));
    }
    if (count >= 2) {
        widen(axes.x);
        axes.y[0] = axes.x[0];
        axes.y[1] = axes.x[1];
        add_errors(errors, count, out);
        begin_plot("measured against predicted step time", out);
        add_ticks(&axes, "predicted step, s", "measured step, s", out);
        text_add(out, "<path d=\"M%d %dL%d %d\" stroke=\"#888\"/>\n", LEFT, TOP + HEIGHT, LEFT + WIDTH, TOP);
        for (size_t i = 0; i < sweep->best_count; i++)
            if (measured[i].state == RUN_DONE)
                add_run(sweep, &axes, i, measured[i].step_s, out);
        text_add(out, "</svg>\n");
    }
    free(errors);
}
