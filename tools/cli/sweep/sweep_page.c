// SPDX-License-Identifier: Apache-2.0
/* The data of the page of a sweep (tools/pages/sweep.js): heat maps of pairs of axes, the planned layouts,
 * and the others with their reasons. At most LISTED layouts are listed, which keeps the page below 2 MB. */
#include "base/memory.h"
#include "tools/cli/page.h"
#include "tools/cli/sweep/sweep_output.h"

#include <math.h>

enum { LISTED = 5000, MAX_MAPS = 6 };

/* NAN and infinity become null. */
static void add_number(const char *key, double value, struct text *out)
{
    char number[NUMBER_CHARS];
    text_add(out, "\"%s\": %s", key, isfinite(value) ? number_text(value, number) : "null");
}

static void add_string(const char *key, const char *value, struct text *out)
{
    text_add(out, "\"%s\": ", key);
    text_add_json(out, value);
}

/* The value of each axis, as an index. */
static void add_values(const struct sweep *sweep, int64_t number, struct text *out)
{
    for (int i = 0; i < sweep->file->axis_count; i++)
        text_add(out, "%s%d", i == 0 ? "\"values\": [" : ", ", sweep_value(sweep->file, number, i));
    text_add(out, sweep->file->axis_count > 0 ? "]" : "\"values\": []");
}

/* ---- heat maps ---- */

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

static void add_cell(const struct sweep *sweep, const struct cell *cell, struct text *out)
{
    text_add(out, "{");
    add_number("step_s", cell->step_s, out);
    text_add(out, ", ");
    add_number("bound_s", cell->bound_s, out);
    text_add(out, ", \"reason\": %d, ", cell->reason);
    add_values(sweep, cell->number, out);
    text_add(out, "}");
}

static void add_map(const struct sweep *sweep, int a, int b, struct text *out)
{
    text_add(out, "{\"rows\": %d, \"columns\": %d, \"cells\": [", a, b);
    for (int i = 0; i < sweep->file->axes[a].count; i++) {
        text_add(out, i == 0 ? "[" : ",\n[");
        for (int k = 0; k < sweep->file->axes[b].count; k++) {
            const struct cell cell = find_cell(sweep, a, i, b, k);
            text_add(out, k == 0 ? "" : ", ");
            add_cell(sweep, &cell, out);
        }
        text_add(out, "]");
    }
    text_add(out, "]}");
}

static void add_maps(const struct sweep *sweep, struct text *out)
{
    const struct sweep_file *file = sweep->file;
    int maps = 0;
    text_add(out, "\"maps\": [");
    for (int a = 0; a < file->axis_count; a++)
        for (int b = a + 1; b < file->axis_count && maps < MAX_MAPS; b++)
            if (file->axes[a].count > 1 && file->axes[b].count > 1) {
                text_add(out, maps++ > 0 ? ",\n" : "\n");
                add_map(sweep, a, b, out);
            }
    if (maps == 0 && file->axis_count > 0)
        add_map(sweep, 0, 0, out);
    text_add(out, "],\n");
}

/* ---- the sweep ---- */

static void add_cluster(const struct sweep *sweep, struct text *out)
{
    struct recipe *recipe = NULL;
    AUTO(text) basis = {0};
    if (sweep->best_count == 0 || sweep_recipe(sweep, sweep->layouts[sweep->best[0]].number, &recipe) != OK)
        return;
    text_add(out, "\"cluster\": {");
    add_string("profile", recipe->cluster.profile, out);
    text_add(out, ", \"ranks\": %d, \"nodes\": %d},\n", recipe_world_size(recipe),
             (int)recipe->cluster.nodes);
    sweep_basis_text(sweep, &basis);
    add_string("basis", text_chars(&basis), out);
    text_add(out, ",\n");
    recipe_destroy(recipe);
}

static void add_counts(const struct sweep *sweep, struct text *out)
{
    static const char *const names[SWEEP_STATES] = {
        [SWEEP_PLANNED] = "planned", [SWEEP_TIGHT] = "tight",   [SWEEP_TOO_LARGE] = "too_large",
        [SWEEP_INVALID] = "invalid", [SWEEP_FAILED] = "failed", [SWEEP_SLOWER] = "slower"};
    add_string("base", sweep->file->base, out);
    text_add(out, ", \"total\": %lld, \"counts\": {", (long long)sweep->file->layouts);
    for (int i = 0; i < SWEEP_STATES; i++)
        text_add(out, "%s\"%s\": %lld", i > 0 ? ", " : "", names[i], (long long)sweep->counts[i]);
    text_add(out, "},\n\"axes\": [");
    for (int i = 0; i < sweep->file->axis_count; i++) {
        const struct sweep_axis *axis = &sweep->file->axes[i];
        text_add(out, i > 0 ? ",\n{" : "\n{");
        add_string("label", axis->label, out);
        text_add(out, ", \"values\": [");
        for (int k = 0; k < axis->count; k++) {
            text_add(out, k > 0 ? ", " : "");
            text_add_json(out, axis->texts[k]);
        }
        text_add(out, "]}");
    }
    text_add(out, "],\n");
}

static int data_ranks(const struct sweep *sweep, int64_t number)
{
    struct recipe *recipe = NULL;
    const int ranks = sweep_recipe(sweep, number, &recipe) == OK ? recipe->parallel.data_parallel_size : 0;
    recipe_destroy(recipe);
    return ranks;
}

/* Fastest first -> their number. */
static size_t add_planned(const struct sweep *sweep, const struct sweep_measured *measured, struct text *out)
{
    size_t rows = 0;
    text_add(out, "\"layouts\": [");
    for (; rows < sweep->best_count && rows < LISTED; rows++) {
        const struct sweep_layout *layout = &sweep->layouts[sweep->best[rows]];
        text_add(out, rows > 0 ? ",\n{" : "\n{");
        add_number("step_s", layout->step_s, out);
        text_add(out, ", ");
        add_number("tflops", layout->tflops_per_rank, out);
        text_add(out, ", ");
        add_number("mfu", layout->mfu, out);
        text_add(out, ", ");
        add_number("bubble", layout->bubble_fraction, out);
        text_add(out, ", \"bytes\": %lld, \"dp\": %d, ", (long long)layout->needed_bytes,
                 data_ranks(sweep, layout->number));
        if (measured != NULL) {
            add_string("run", run_state_name(measured[rows].state), out);
            text_add(out, ", ");
            add_number("measured_s", measured[rows].state == RUN_DONE ? measured[rows].step_s : NAN, out);
            text_add(out, ", ");
        }
        add_values(sweep, layout->number, out);
        text_add(out, "}");
    }
    text_add(out, "],\n");
    return rows;
}

/* rows: layouts listed so far. */
static void add_others(const struct sweep *sweep, size_t rows, struct text *out)
{
    int64_t shown = 0;
    text_add(out, "\"reasons\": [");
    for (int i = 0; i < sweep->reason_count; i++) {
        text_add(out, "%s{\"count\": %lld, ", i > 0 ? ",\n" : "\n", (long long)sweep->reasons[i].count);
        add_string("what", sweep->reasons[i].what, out);
        text_add(out, ", ");
        add_string("example", sweep->reasons[i].example, out);
        text_add(out, "}");
    }
    text_add(out, "],\n\"others\": [");
    for (size_t i = 0; i < sweep->count && rows < LISTED; i++) {
        const struct sweep_layout *layout = &sweep->layouts[i];
        if (layout->state == SWEEP_PLANNED)
            continue;
        text_add(out, "%s{\"reason\": %d, ", shown++ > 0 ? ",\n" : "\n", layout->reason);
        add_number("bound_s", layout->reason >= 0 ? NAN : layout->bound_s, out);
        text_add(out, ", ");
        add_values(sweep, layout->number, out);
        text_add(out, "}");
        rows++;
    }
    text_add(out, "],\n\"unlisted\": %lld}\n",
             (long long)(sweep->file->layouts - (int64_t)sweep->best_count - shown));
}

void sweep_page(const struct sweep *sweep, const struct sweep_measured *measured, const char *command,
                struct text *out)
{
    AUTO(text) data = {0};
    text_add(&data, "{");
    add_cluster(sweep, &data);
    add_counts(sweep, &data);
    add_maps(sweep, &data);
    const size_t rows = add_planned(sweep, measured, &data);
    add_others(sweep, rows, &data);
    page_add(
        &(struct page){.script = "sweep.js", .title = sweep->file->path, .command = command, .data = &data},
        out);
}
