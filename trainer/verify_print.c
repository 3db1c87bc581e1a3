// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify.h"

#include <math.h>
#include <stdlib.h>

static const char *const quantity_names[VERIFY_QUANTITIES] = {
    [VERIFY_INITIAL] = "initial",
    [VERIFY_REPLICAS] = "replicas",
    [VERIFY_GRADIENT] = "gradient",
    [VERIFY_WEIGHT] = "weight",
    [VERIFY_M] = "m",
    [VERIFY_V] = "v",
};

struct line {
    int row;
    enum verify_quantity quantity;
    struct verify_worst worst;
};

static int worst_first(const void *a, const void *b)
{
    double x = ((const struct line *)a)->worst.ratio, y = ((const struct line *)b)->worst.ratio;
    return (x < y) - (x > y);
}

static void print_line(const struct verify_report *report, const struct line *line, FILE *to)
{
    const char *name = report->names[line->row];
    const struct verify_worst *w = &line->worst;
    if (line->quantity == VERIFY_REPLICAS)
        fprintf(to, "  %-34s %-9s %10.0f elements differ between ranks that hold the same  (step %d)\n", name,
                quantity_names[line->quantity], w->error, w->step);
    else
        fprintf(to, "  %-34s %-9s %10.3e %10.3e %9.3f  step %d, element %lld%s\n", name,
                quantity_names[line->quantity], w->error, w->bound, w->ratio, w->step, (long long)w->element,
                w->ratio > 1.0 ? "  OUTSIDE" : "");
}

static void print_steps(const struct verify_report *report, FILE *to)
{
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        double loss = fabs(step->loss[0] - step->loss[1]), norm = fabs(step->norm[0] - step->norm[1]);
        fprintf(to, "  %-34s %-9s %10.3e %10.3e %9.3f  step %d%s\n", "loss", "", loss, step->loss_bound,
                loss / step->loss_bound, s + 1, loss <= step->loss_bound ? "" : "  OUTSIDE");
        fprintf(to, "  %-34s %-9s %10.3e %10.3e %9.3f  step %d%s\n", "gradient norm", "", norm,
                step->norm_bound, norm / step->norm_bound, s + 1,
                norm <= step->norm_bound ? "" : "  OUTSIDE");
    }
}

void verify_print(const struct verify_report *report, bool all, FILE *to)
{
    struct line *lines = calloc((size_t)report->rows * VERIFY_QUANTITIES + 1, sizeof *lines);
    int count = 0;
    if (lines == NULL)
        return;
    for (int row = 0; row < report->rows; row++)
        for (int q = 0; q < VERIFY_QUANTITIES; q++) {
            const struct verify_worst *w = &report->worst[q][row];
            bool compared = w->step > 0 || w->ratio > 0.0;
            if (compared && (w->ratio > 0.0 || (all && q == VERIFY_GRADIENT)))
                lines[count++] = (struct line){row, (enum verify_quantity)q, *w};
        }
    qsort(lines, (size_t)count, sizeof *lines, worst_first);
    fprintf(to, "  %-34s %-9s %10s %10s %9s\n", "the worst element of", "", "error", "bound", "ratio");
    print_steps(report, to);
    int shown = all || report->outside > 20 ? (all ? count : 40) : 20 + report->outside;
    for (int i = 0; i < count && i < shown; i++)
        print_line(report, &lines[i], to);
    if (count > shown)
        fprintf(to, "  ... and %d more, none worse (--all shows them)\n", count - shown);
    free(lines);
}
