// SPDX-License-Identifier: Apache-2.0
/* One self-contained page without scripts. The plot has logarithmic axes of equal scale: on the diagonal the
 * prediction equals the published value, and the shaded band is 10 % to each side. Experiments are
 * distinguished by colour (Okabe and Ito) and by shape. */
#include "tools/cli/html.h"
#include "tools/cli/table/table_output.h"

#include <math.h>
#include <string.h>

enum { SIZE = 560, LEFT = 70, TOP = 20, BOTTOM = 50, HUES = 7, SHAPES = 4 };

static const char *const hues[HUES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#e69f00", "#56b4e9", "#7f7f7f"};

/* ---- the plot ---- */

struct axes {
    double low, high; // range of both axes, as decimal logarithms
};

static double pixels(const struct axes *axes, double seconds)
{
    return SIZE * (log10(seconds) - axes->low) / (axes->high - axes->low);
}

static double x_of(const struct axes *axes, double seconds)
{
    return LEFT + pixels(axes, seconds);
}

static double y_of(const struct axes *axes, double seconds)
{
    return TOP + SIZE - pixels(axes, seconds);
}

static bool is_plotted(const struct table_row *row)
{
    return row->reason == NULL && row->printed.seconds > 0.0 && row->step_s > 0.0;
}

static bool find_axes(const struct table *table, struct axes *out)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        if (!is_plotted(row))
            continue;
        low = fmin(low, fmin(row->step_s, row->printed.seconds));
        high = fmax(high, fmax(row->step_s, row->printed.seconds));
    }
    *out = (struct axes){log10(low) - 0.08, log10(high) + 0.08};
    return isfinite(low);
}

/* The distance of ticks on axes that span less than a decade: 1, 2 or 5 times a power of ten. */
static double tick_distance(const struct axes *axes)
{
    enum { MIN_TICKS = 4 };
    const double range = (pow(10.0, axes->high) - pow(10.0, axes->low)) / MIN_TICKS;
    const double power = pow(10.0, floor(log10(range)));
    return power * (range >= 5.0 * power ? 5.0 : range >= 2.0 * power ? 2.0 : 1.0);
}

static void add_tick(const struct axes *axes, double value, struct text *out)
{
    const double at = pixels(axes, value);
    char label[NUMBER_CHARS];
    if (at < 0.0 || at > SIZE)
        return;
    snprintf(label, sizeof label, "%g", value);
    text_add(out,
             "<path class=\"axis\" d=\"M%.1f %dv6M%d %.1fh-6\"/>"
             "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>"
             "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
             LEFT + at, TOP + SIZE, LEFT, TOP + SIZE - at, LEFT + at, TOP + SIZE + 20, label, LEFT - 10,
             TOP + SIZE - at + 4, label);
}

static void add_ticks(const struct axes *axes, struct text *out)
{
    static const double steps[] = {1, 2, 5};
    if (axes->high - axes->low < 1.0) {
        const double distance = tick_distance(axes);
        for (double k = ceil(pow(10.0, axes->low) / distance); k * distance <= pow(10.0, axes->high);
             k += 1.0)
            add_tick(axes, k * distance, out);
        return;
    }
    for (int power = (int)floor(axes->low) - 1; power <= (int)ceil(axes->high); power++)
        for (int k = 0; k < 3; k++)
            add_tick(axes, steps[k] * pow(10.0, power), out);
}

/* A mark around (x, y): circle, square, diamond or triangle. */
static void add_mark(struct text *out, double x, double y, size_t group)
{
    const char *hue = hues[group % HUES];
    switch (group % SHAPES) {
    case 0:
        text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"", x, y, hue);
        break;
    case 1:
        text_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"%s\"", x - 3.5, y - 3.5,
                 hue);
        break;
    case 2:
        text_add(out, "<path d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\" fill=\"%s\"", x, y - 5, hue);
        break;
    default:
        text_add(out, "<path d=\"M%.1f %.1fl5 9h-10z\" fill=\"%s\"", x, y - 5, hue);
    }
}

static size_t group_of(const struct table *table, const struct table_row *row)
{
    size_t g = 0;
    while (strcmp(table->groups[g].paper, row->row->cell[PUBLISHED_PAPER]) != 0)
        g++;
    return g;
}

static void add_points(const struct table *table, const struct axes *axes, struct text *out)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct table_row *row = &table->rows[i];
        if (!is_plotted(row))
            continue;
        add_mark(out, x_of(axes, row->printed.seconds), y_of(axes, row->step_s), group_of(table, row));
        text_add(out, " fill-opacity=\"0.8\"><title>");
        html_escaped(out, row->row->cell[PUBLISHED_MODEL]);
        text_add(out, ", %s: published %.4g s, predicted %.4g s (%+.1f %%)</title></%s>\n", row->layout,
                 row->printed.seconds, row->step_s, 100.0 * table_error(row->step_s, row->printed.seconds),
                 group_of(table, row) % SHAPES == 0   ? "circle"
                 : group_of(table, row) % SHAPES == 1 ? "rect"
                                                      : "path");
    }
}

static void add_legend(const struct table *table, struct text *out)
{
    for (size_t g = 0; g < table->group_count; g++) {
        const double y = TOP + 18.0 + 18.0 * (double)g;
        add_mark(out, LEFT + 16, y - 4, g);
        text_add(out, "/><text x=\"%d\" y=\"%.0f\">", LEFT + 28, y);
        html_escaped(out, table->groups[g].paper);
        text_add(out, "</text>\n");
    }
}

static void add_plot(const struct table *table, struct text *out)
{
    struct axes axes;
    if (!find_axes(table, &axes))
        return;
    const double band = SIZE * log10(1.1) / (axes.high - axes.low);
    text_add(out,
             "<svg width=\"%d\" height=\"%d\" role=\"img\" "
             "aria-label=\"predicted against published step time\">\n",
             LEFT + SIZE + 20, TOP + SIZE + BOTTOM);
    text_add(out,
             "<clipPath id=\"frame\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n"
             "<path class=\"band\" clip-path=\"url(#frame)\" d=\"M%d %.1fL%d %.1fV%.1fL%d %.1fz\"/>\n"
             "<path class=\"axis\" d=\"M%d %dh%dv%dh%dzl%d %d\"/>\n",
             LEFT, TOP, SIZE, SIZE, LEFT, TOP + SIZE - band, LEFT + SIZE, TOP - band, TOP + band, LEFT,
             TOP + SIZE + band, LEFT, TOP + SIZE, SIZE, -SIZE, -SIZE, SIZE, -SIZE);
    add_ticks(&axes, out);
    add_points(table, &axes, out);
    add_legend(table, out);
    text_add(out,
             "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">published, s</text>\n"
             "<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">predicted, s</text>\n"
             "</svg>\n",
             LEFT + SIZE / 2, TOP + SIZE + 42, TOP + SIZE / 2);
}

/* ---- the tables ---- */

static void add_cell(struct text *out, const char *format, double value)
{
    text_add(out, "<td>");
    if (isfinite(value) && value != 0.0)
        text_add(out, format, value);
    text_add(out, "</td>");
}

static void add_errors(struct text *out, const char *paper, const char *what,
                       const struct table_errors *errors)
{
    if (errors->count == 0)
        return;
    text_add(out, "<tr>");
    html_text_cell(out, paper);
    html_text_cell(out, what);
    text_add(out, "<td>%zu</td>", errors->count);
    add_cell(out, "%.1f %%", 100.0 * errors->median);
    add_cell(out, "%.1f %%", 100.0 * errors->p90);
    add_cell(out, "%+.1f %%", 100.0 * errors->bias);
    add_cell(out, "%+.1f %%", 100.0 * errors->worst);
    text_add(out, "</tr>\n");
}

static void add_summary(const struct table *table, struct text *out)
{
    text_add(out,
             "<table>\n<tr><th class=\"text\">experiment</th><th class=\"text\">error of</th><th>rows</th>"
             "<th>median</th><th>90th percentile</th><th>bias</th><th>worst</th></tr>\n");
    for (size_t g = 0; g < table->group_count; g++) {
        const struct table_group *group = &table->groups[g];
        add_errors(out, group->paper, "step time", &group->step);
        add_errors(out, group->paper, "step time, scaled by one factor", &group->scaled);
        add_errors(out, group->paper, "constant utilization", &group->by_utilization);
        add_errors(out, group->paper, "FLOPs plus bytes, no schedule", &group->by_roofline);
        add_errors(out, group->paper, "memory", &group->memory);
    }
    text_add(out, "</table>\n");
}

static void add_row(const struct table_row *row, struct text *out)
{
    const struct published_row *cells = row->row;
    text_add(out, "<tr>");
    html_text_cell(out, cells->cell[PUBLISHED_PAPER]);
    html_text_cell(out, cells->cell[PUBLISHED_MODEL]);
    add_cell(out, "%.0f", published_gpus(cells));
    html_text_cell(out, row->reason != NULL ? row->reason : row->layout);
    add_cell(out, "%.4g", row->printed.seconds);
    add_cell(out, "%.4g", row->step_s);
    add_cell(out, "%+.1f %%", 100.0 * table_error(row->step_s, row->printed.seconds));
    add_cell(out, "%.4g", 1e-9 * row->printed_bytes);
    add_cell(out, "%.4g", 1e-9 * row->bytes);
    add_cell(out, "%+.1f %%", 100.0 * table_error(row->bytes, row->printed_bytes));
    html_text_cell(out, cells->cell[PUBLISHED_STATUS]);
    html_text_cell(out, row->fit == FIT_OK ? "fits" : row->fit == FIT_OOM ? "OOM" : "");
    html_text_cell(out, cells->cell[PUBLISHED_NOTES]);
    html_text_cell(out, row->warning != NULL ? row->warning : "");
    text_add(out, "</tr>\n");
}

static void add_profiles(const struct table *table, struct text *out)
{
    const struct table_row *row = table->rows;
    for (; (row = table_next_profile(table, NULL, row)) != NULL; row++) {
        text_add(out, "<p>Profile ");
        html_escaped(out, row->profile);
        text_add(out, ": ");
        html_escaped(out, row->basis);
        text_add(out, ".</p>\n");
    }
}

void table_html(const struct table *table, const struct table_title *title, struct text *out)
{
    html_begin(out, title->name);
    text_add(out, "<p>");
    html_escaped(out, title->description);
    text_add(out, "</p>\n");
    add_profiles(table, out);
    add_plot(table, out);
    text_add(out, "<p>Shaded: within 10 %% of the published value.</p>\n");
    add_summary(table, out);
    text_add(out,
             "<table>\n<tr><th class=\"text\">experiment</th><th class=\"text\">model</th><th>GPUs</th>"
             "<th class=\"text\">layout</th><th>published, s</th><th>predicted, s</th><th>error</th>"
             "<th>published, GB</th><th>predicted, GB</th><th>error</th><th class=\"text\">status</th>"
             "<th class=\"text\">predicted</th><th class=\"text\">notes</th><th class=\"text\">warning</th>"
             "</tr>\n");
    for (size_t i = 0; i < table->count; i++)
        add_row(&table->rows[i], out);
    text_add(out, "</table>\n");
    html_end(out);
}
