// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/verify.h"

#include "base/memory.h"
#include "base/text.h"

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

/* Number of parameter lines: within their bounds, those with the largest ratios; outside, at most this
 * many. */
enum { SHOWN_WITHIN = 20, SHOWN_OUTSIDE = 40 };

struct line {
    int row;
    enum verify_quantity quantity;
    struct verify_worst worst;
};

/* Order of a forward pass: by parameter, then by quantity. */
static int in_forward_order(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int row = (x->row > y->row) - (x->row < y->row);
    return row != 0 ? row : (int)x->quantity - (int)y->quantity;
}

/* All that are outside in forward order, then the others by descending ratio. */
static int by_relevance(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    bool x_outside = x->worst.ratio > 1.0, y_outside = y->worst.ratio > 1.0;
    if (x_outside != y_outside)
        return x_outside ? -1 : 1;
    if (!x_outside && x->worst.ratio != y->worst.ratio)
        return x->worst.ratio > y->worst.ratio ? -1 : 1;
    return in_forward_order(a, b);
}

/* Prints error, bound and their ratio; a bound of 0 has no ratio. */
static void print_numbers(const char *name, const char *quantity, double error, double bound, FILE *to)
{
    double ratio = error / bound;
    fprintf(to, "  %-34s %-9s %10.3e ", name, quantity, error);
    if (bound > 0.0 && isfinite(ratio))
        fprintf(to, "%10.3e %9.3f", bound, ratio);
    else
        fprintf(to, "%10s %9s", bound > 0.0 ? "-" : "exact", "-");
}

static const char *verdict_of(double error, double bound)
{
    return error <= bound ? "" : isnan(error) ? "  OUTSIDE: not finite" : "  OUTSIDE";
}

static void print_report_line(const struct verify_report *report, const struct line *line, FILE *to)
{
    const char *name = report->names[line->row], *quantity = quantity_names[line->quantity];
    const struct verify_worst *w = &line->worst;
    if (line->quantity == VERIFY_REPLICAS) {
        fprintf(to, "  %-34s %-9s %10.0f elements differ between ranks that hold the same  step %d%s\n", name,
                quantity, w->error, w->step, w->error > 0.0 ? "  OUTSIDE" : "");
        return;
    }
    print_numbers(name, quantity, w->error, w->bound, to);
    fprintf(to, "  step %d, element %lld%s\n", w->step, (long long)w->element,
            verdict_of(w->error, w->bound));
}

static double loss_difference(const struct verify_step *step)
{
    return fabs(step->loss[0] - step->loss[1]);
}

static void print_steps(const struct verify_report *report, FILE *to)
{
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        double loss = loss_difference(step), norm = fabs(step->norm[0] - step->norm[1]);
        print_numbers("loss", "", loss, step->loss_bound, to);
        fprintf(to, "  step %d%s\n", s + 1, verdict_of(loss, step->loss_bound));
        print_numbers("gradient norm", "", norm, step->norm_bound, to);
        fprintf(to, "  step %d%s\n", s + 1, verdict_of(norm, step->norm_bound));
    }
}

/* Prints where to look first. */
static void print_where(const struct verify_report *report, FILE *to)
{
    int outside[VERIFY_QUANTITIES] = {0};
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        for (int row = 0; row < report->rows; row++)
            outside[q] += report->worst[q][row].ratio > 1.0;
    bool loss = false;
    for (int s = 0; s < report->steps; s++)
        loss = loss || !(loss_difference(&report->step[s]) <= report->step[s].loss_bound);
    if (outside[VERIFY_INITIAL] > 0)
        fputs("Initial weights differ: look at the initialization first.\n", to);
    else if (loss)
        fputs("The loss differs: look at the forward pass and its data first.\n", to);
    else if (outside[VERIFY_GRADIENT] > 0)
        fputs("The loss agrees and gradients differ: the backward pass runs from the head to the embedding, "
              "so the "
              "last\nparameter outside is the nearest to the cause.\n",
              to);
    else if (outside[VERIFY_WEIGHT] + outside[VERIFY_M] + outside[VERIFY_V] > 0)
        fputs("Gradients agree and the updated state differs: look at the optimizer first.\n", to);
}

void verify_print(const struct verify_report *report, bool all, FILE *to)
{
    AUTO_FREE struct line *lines =
        memory_zeroed((size_t)report->rows * VERIFY_QUANTITIES + 1, sizeof *lines, "a report of verify");
    int count = 0, outside = 0;
    for (int row = 0; row < report->rows; row++)
        for (int q = 0; q < VERIFY_QUANTITIES; q++) {
            const struct verify_worst *w = &report->worst[q][row];
            bool compared = w->step > 0 || w->ratio > 0.0;
            if (compared && (w->ratio > 0.0 || (all && q == VERIFY_GRADIENT)))
                lines[count++] = (struct line){row, (enum verify_quantity)q, *w};
            outside += w->ratio > 1.0;
        }
    int shown = outside > SHOWN_OUTSIDE ? SHOWN_OUTSIDE : outside + SHOWN_WITHIN;
    shown = all || shown > count ? count : shown;
    qsort(lines, (size_t)count, sizeof *lines, by_relevance);
    qsort(lines, (size_t)shown, sizeof *lines, in_forward_order);
    fprintf(to, "  %-34s %-9s %10s %10s %9s\n", "worst element of", "", "error", "bound", "ratio");
    print_steps(report, to);
    for (int i = 0; i < shown; i++)
        print_report_line(report, &lines[i], to);
    if (count > shown)
        fprintf(to, "  ... and %d more, %s (--all prints them)\n", count - shown,
                outside > shown ? "some outside" : "none worse");
    if (count == 0)
        fputs("  every gradient, weight and moment is bit-identical (--all prints them)\n", to);
    fputs("gradient norm: as the layout reports it, against the fp64 norm of the layout's own gradients\n",
          to);
    fputs("a weight's ratio near 1: neighbouring fp32 values, or an AdamW update whose gradient is below its "
          "bound\n",
          to);
    if (report->outside > 0)
        print_where(report, to);
}

/* The quantity with the largest finite ratio. The ratio of a weight is close to 1 even in a correct layout if
 * its gradient is smaller than its bound. */
static const char *worst_quantity(const struct verify_report *report)
{
    const char *worst = "loss";
    double largest = 0.0;
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        double loss = loss_difference(step) / step->loss_bound;
        double norm = fabs(step->norm[0] - step->norm[1]) / step->norm_bound;
        if (isfinite(loss))
            largest = fmax(largest, loss);
        if (isfinite(norm) && norm > largest) {
            largest = norm;
            worst = "gradient norm";
        }
    }
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        for (int row = 0; row < report->rows; row++)
            if (isfinite(report->worst[q][row].ratio) && report->worst[q][row].ratio > largest) {
                largest = report->worst[q][row].ratio;
                worst = quantity_names[q];
            }
    return worst;
}

/* Rounded down: 100.0 means all. */
static double percent_identical(const struct verify_total *total)
{
    return floor(1000.0 * (double)total->identical / (double)total->compared) / 10.0;
}

static void print_total(const struct verify_report *report, enum verify_quantity quantity, FILE *to)
{
    const struct verify_total *total = &report->total[quantity];
    char count[NUMBER_CHARS];
    fprintf(to, "%ss: %.1f %% of %s values bit-identical", quantity_names[quantity], percent_identical(total),
            count_text((double)total->compared, count));
    if (total->relative > 0.0)
        fprintf(to, "; largest difference %.1e in %s (%.1e of its rms); rounding may reach %.1e",
                total->error, report->names[total->row], total->relative, total->bound);
    fputc('\n', to);
}

static void print_loss(const struct verify_report *report, FILE *to)
{
    const struct verify_step *worst = &report->step[0];
    for (int s = 1; s < report->steps; s++)
        if (loss_difference(&report->step[s]) > loss_difference(worst))
            worst = &report->step[s];
    fprintf(to, "loss: %.9g, one rank %.9g: difference %.1e; rounding may reach %.1e\n", worst->loss[0],
            worst->loss[1], loss_difference(worst), worst->loss_bound);
}

static bool is_identical(const struct verify_report *report)
{
    for (int s = 0; s < report->steps; s++)
        if (report->step[s].loss[0] != report->step[s].loss[1])
            return false;
    for (int q = VERIFY_GRADIENT; q < VERIFY_QUANTITIES; q++)
        if (report->total[q].identical < report->total[q].compared)
            return false;
    return true;
}

static void print_differences(const struct verify_report *report, FILE *to)
{
    print_loss(report, to);
    print_total(report, VERIFY_GRADIENT, to);
    print_total(report, VERIFY_WEIGHT, to);
    fputs(
        "rounding may reach: 8 standard deviations (loss: 3) of the errors of all sums before a value "
        "or, if larger,\n    8 times what random rounding changed on one rank; a weight: what AdamW makes of "
        "that (docs/verify.md)\n",
        to);
}

void verify_print_verdict(const struct verify_report *report, FILE *to)
{
    bool identical = is_identical(report);
    if (!identical)
        print_differences(report, to);
    if (report->unbounded > 0)
        fprintf(to, "FAIL: %d outside bounds, %d of them not finite or not bit-identical\n", report->outside,
                report->unbounded);
    else if (report->outside > 0)
        fprintf(to, "FAIL: %d outside bounds, the farthest a %s at %.4g times its bound\n", report->outside,
                worst_quantity(report), report->largest);
    else if (identical)
        fputs("PASS: every loss, gradient, weight and moment is bit-identical\n", to);
    else
        fprintf(to,
                "PASS: all differences are within rounding; an error of %.2g %% of the rms of a gradient "
                "would be found\n",
                100.0 * report->visible);
}

/* ---- what a comparison cannot show ---- */

static int64_t microbatches_of(const struct recipe *r)
{
    return r->train.global_batch_size / r->train.micro_batch_size / r->parallel.data_parallel_size;
}

/* Prints the parts of a step that this recipe lacks, on one line. */
static void print_absent(const struct recipe *r, FILE *to)
{
    const struct {
        bool absent;
        const char *what;
    } parts[] = {
        {r->parallel.data_parallel_size == 1, "reduction over data-parallel ranks (dp=1)"},
        {microbatches_of(r) == 1, "accumulation over microbatches (a rank has one)"},
        {r->model.hidden_dropout <= 0.0 && r->model.attention_dropout <= 0.0, "dropout (both are 0)"},
        {!r->data.reset_attention_mask, "masks between documents (data.reset_attention_mask=false)"},
        {!r->data.reset_position_ids, "positions of documents (data.reset_position_ids=false)"},
        {r->optimizer.weight_decay <= 0.0, "weight decay (optimizer.weight_decay=0)"},
        {r->optimizer.clip_grad <= 0.0, "clipping (optimizer.clip_grad=0)"},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].absent)
            fprintf(to, "%s%s",
                    count++ > 0 ? ", " : "not checked, because this recipe does not use it: ", parts[i].what);
    if (count > 0)
        fputc('\n', to);
}

void verify_print_hints(const struct recipe *layout, const struct recipe *one_rank, int steps, FILE *to)
{
    int64_t batch = layout->train.micro_batch_size;
    int tp = layout->parallel.tensor_parallel_size;
    if (recipe_world_size(layout) == 1 && !recipe_layouts_differ(layout, one_rank)) {
        fputs("hint: this layout is one rank, compared with itself; set tp, pp or dp\n", to);
        return;
    }
    if (layout->layers.sequence_parallel && batch % tp == 0)
        fprintf(to,
                "hint: train.micro_batch_size=%lld is a multiple of tp=%d, so with sequence_parallel each "
                "rank has "
                "whole\n"
                "      samples, and a wrong index of a token in its sample stays hidden; set "
                "train.micro_batch_size=1\n",
                (long long)batch, tp);
    if (steps == 1)
        fputs("hint: the first step begins with zero biases and moments, which hide faults; use --steps 2 or "
              "more\n",
              to);
    print_absent(layout, to);
}
