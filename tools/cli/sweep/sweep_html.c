// SPDX-License-Identifier: Apache-2.0
/* The HTML page: heat maps of pairs of axes, time against memory, the planned layouts, and the others with
 * their reasons. At most LISTED layouts are listed, which keeps the page below 2 MB. */
#include "tools/cli/html.h"

#include "base/memory.h"
#include "tools/cli/sweep/sweep_output.h"

#include <string.h>

enum { LISTED = 5000, MAX_MAPS = 6 };

static void add_cluster(const struct sweep *sweep, const char *command, struct text *out)
{
    struct recipe *recipe = NULL;
    text_add(out, "<p><code>");
    html_escaped(out, command);
    text_add(out, "</code></p>\n");
    if (sweep->best_count == 0 || sweep_recipe(sweep, sweep->layouts[sweep->best[0]].number, &recipe) != OK)
        return;
    text_add(out, "<p>Cluster profile ");
    html_escaped(out, recipe->cluster.profile);
    text_add(out, ", %d ranks", recipe_world_size(recipe));
    if (recipe->cluster.nodes > 0)
        text_add(out, " on %d nodes", recipe->cluster.nodes);
    text_add(out, " in the fastest layout.</p>\n<p>");
    AUTO(text) basis = {0};
    sweep_basis_text(sweep, &basis);
    html_escaped(out, text_chars(&basis));
    text_add(out, "</p>\n");
    recipe_destroy(recipe);
}

static void add_counts(const struct sweep *sweep, struct text *out)
{
    text_add(out, "<p>%lld layouts of ", (long long)sweep->file->layouts);
    html_escaped(out, sweep->file->base);
    text_add(
        out,
        ": %lld planned, %lld slower by a lower bound of the step time, %lld do not fit, "
        "%lld fit but leave less than cluster.memory_headroom free, %lld rejected by rules, %lld that cannot "
        "be planned.</p>\n",
        (long long)sweep->counts[SWEEP_PLANNED], (long long)sweep->counts[SWEEP_SLOWER],
        (long long)sweep->counts[SWEEP_TOO_LARGE], (long long)sweep->counts[SWEEP_TIGHT],
        (long long)sweep->counts[SWEEP_INVALID], (long long)sweep->counts[SWEEP_FAILED]);
}

static void add_maps(const struct sweep *sweep, struct text *out)
{
    const struct sweep_file *file = sweep->file;
    int maps = 0;
    text_add(out,
             "<h2>Shortest step by pairs of keys</h2>\n<p>Seconds. Yellow: the fastest layout; dark blue: "
             "twice its step or more. Grey: no layout was planned; &#8805;: only a lower bound is "
             "known.</p>\n");
    for (int a = 0; a < file->axis_count; a++)
        for (int b = a + 1; b < file->axis_count && maps < MAX_MAPS; b++)
            if (file->axes[a].count > 1 && file->axes[b].count > 1) {
                sweep_html_map(sweep, a, b, out);
                maps++;
            }
    if (maps == 0 && file->axis_count > 0)
        sweep_html_map(sweep, 0, 0, out);
}

/* Adds a cell for the value of each axis. */
static void add_values(const struct sweep *sweep, int64_t number, struct text *out)
{
    for (int i = 0; i < sweep->file->axis_count; i++)
        html_text_cell(out, sweep->file->axes[i].texts[sweep_value(sweep->file, number, i)]);
}

static void add_axis_heads(const struct sweep *sweep, struct text *out)
{
    for (int i = 0; i < sweep->file->axis_count; i++) {
        text_add(out, "<th class=\"text\">");
        html_escaped(out, sweep->file->axes[i].label);
        text_add(out, "</th>");
    }
}

static void add_measured(const struct sweep_layout *layout, const struct sweep_measured *measured,
                         struct text *out)
{
    text_add(out, "<td class=\"text\">%s</td>", run_state_name(measured->state));
    if (measured->state == RUN_DONE)
        text_add(out, "<td>%.4g</td><td>%+.1f %%</td>", measured->step_s,
                 100.0 * (layout->step_s / measured->step_s - 1.0));
    else
        text_add(out, "<td>-</td><td>-</td>");
}

static void add_data_ranks(const struct sweep *sweep, int64_t number, struct text *out)
{
    struct recipe *recipe = NULL;
    if (sweep_recipe(sweep, number, &recipe) == OK)
        text_add(out, "<td>%d</td>", recipe->parallel.data_parallel_size);
    else
        text_add(out, "<td>-</td>");
    recipe_destroy(recipe);
}

static size_t add_planned(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out)
{
    size_t rows = 0;
    text_add(out,
             "<h2>Planned layouts, fastest first</h2>\n<table>\n<tr><th></th><th>step, s</th>"
             "<th>TFLOP/s</th><th>MFU</th><th>bubble</th><th>memory, GiB</th>%s<th>dp</th>",
             measured == NULL ? "" : "<th class=\"text\">run</th><th>measured, s</th><th>error</th>");
    add_axis_heads(sweep, out);
    text_add(out, "</tr>\n");
    for (; rows < sweep->best_count && rows < LISTED; rows++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[rows]];
        text_add(out,
                 "<tr><td>%zu</td><td>%.4g</td><td>%.4g</td><td>%.1f %%</td><td>%.1f %%</td><td>%.4g</td>",
                 rows + 1, layout->step_s, layout->tflops_per_rank, 100.0 * layout->mfu,
                 100.0 * layout->bubble_fraction, (double)layout->needed_bytes / (1 << 30));
        if (measured != NULL)
            add_measured(layout, &measured[rows], out);
        add_data_ranks(sweep, layout->number, out);
        add_values(sweep, layout->number, out);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table>\n");
    return rows;
}

static void add_reasons(const struct sweep *sweep, struct text *out)
{
    text_add(out, "<h2>Layouts without a plan, by reason</h2>\n<table>\n<tr><th></th><th>layouts</th>"
                  "<th class=\"text\">reason</th><th class=\"text\">example</th></tr>\n");
    for (int i = 0; i < sweep->reason_count; i++) {
        text_add(out, "<tr><td>%d</td><td>%lld</td>", i + 1, (long long)sweep->reasons[i].count);
        html_text_cell(out, sweep->reasons[i].what);
        html_text_cell(out, sweep->reasons[i].example);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table>\n");
}

/* Lists layouts that are not planned. rows: number of layouts listed so far. */
static void add_others(const struct sweep *sweep, size_t rows, struct text *out)
{
    const int64_t others = sweep->file->layouts - (int64_t)sweep->best_count;
    int64_t shown = 0;
    text_add(out, "<table>\n<tr><th>reason</th><th>at least, s</th>");
    add_axis_heads(sweep, out);
    text_add(out, "</tr>\n");
    for (size_t i = 0; i < sweep->count && rows < LISTED; i++) {
        const struct sweep_layout *layout = &sweep->layouts[i];
        if (layout->state == SWEEP_PLANNED)
            continue;
        if (layout->reason >= 0)
            text_add(out, "<tr><td>%d</td><td></td>", layout->reason + 1);
        else
            text_add(out, "<tr><td>slower</td><td>%.4g</td>", layout->bound_s);
        add_values(sweep, layout->number, out);
        text_add(out, "</tr>\n");
        rows++;
        shown++;
    }
    text_add(out, "</table>\n");
    if (shown < others)
        text_add(out, "<p>%lld more are not listed.</p>\n", (long long)(others - shown));
}

void sweep_html(const struct sweep *sweep, const struct sweep_measured *measured, const char *command,
                struct text *out)
{
    html_begin(out, sweep->file->path);
    add_cluster(sweep, command, out);
    add_counts(sweep, out);
    add_maps(sweep, out);
    sweep_html_front(sweep, out);
    if (measured != NULL)
        sweep_html_measured(sweep, measured, out);
    const size_t rows = add_planned(sweep, measured, out);
    add_reasons(sweep, out);
    add_others(sweep, rows, out);
    html_end(out);
}
