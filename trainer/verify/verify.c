// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/verify.h"

#include "base/memory.h"
#include "layers/model.h"
#include "trainer/verify/bound.h"
#include "trainer/verify/verify_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- perturbed runs ---- */

enum { PERTURBED_RUNS = 2 };
#define RESPONSE "the gradients of perturbed runs"

/* The rms difference between the perturbed runs of one step and the one-rank run. */
struct response {
    int rows;
    float **gradient; // [rows] whole tensors of unscaled sums; NULL where there are none
    double loss;
};

static struct response response_create(const struct params *params)
{
    struct response out = {.rows = params->count};
    out.gradient = memory_zeroed((size_t)params->count, sizeof *out.gradient, RESPONSE);
    for (int row = 0; row < params->count; row++) {
        const struct param *param = &params->list[row];
        if (param->tie < 0)
            out.gradient[row] =
                memory_zeroed((size_t)(param->dim[0] * param->dim[1]), sizeof(float), RESPONSE);
    }
    return out;
}

static void response_free(struct response *response)
{
    for (int row = 0; response->gradient != NULL && row < response->rows; row++)
        free(response->gradient[row]);
    free(response->gradient);
    *response = (struct response){0};
}

/* Adds a run; the first resets the response. */
static void response_add(struct response *response, const struct snapshot *one, const struct snapshot *other,
                         bool first)
{
    double loss = other->loss - one->loss, before = first ? 0.0 : response->loss * response->loss;
    response->loss = sqrt(before + loss * loss / PERTURBED_RUNS);
    for (int row = 0; row < response->rows; row++)
        for (int64_t i = 0; i < one->count[row]; i++) {
            float *r = &response->gradient[row][i];
            double moved = (double)other->tensor[SNAPSHOT_GRADIENT][row][i] -
                           (double)one->tensor[SNAPSHOT_GRADIENT][row][i];
            double sum = first ? 0.0 : (double)*r * (double)*r;
            *r = (float)sqrt(sum + moved * moved / PERTURBED_RUNS);
        }
}

/* ---- comparison ---- */

/* Inputs of the comparison of one step. */
struct comparison {
    const struct recipe *recipe;
    const struct params *params;
    const struct snapshot *begin, *one, *layout;
    const struct response *response;
    int64_t step; // counts from 1
    struct verify_report *report;
};

/* size: of the tensor. compared: its ratio is computed here. */
static void note(struct verify_report *report, enum verify_quantity quantity, int row, double size,
                 struct verify_worst compared)
{
    double error = compared.error, bound = compared.bound;
    // A bound of zero requires bitwise equality.
    compared.ratio = error > 0.0 ? (bound > 0.0 ? error / bound : INFINITY) : 0.0;
    if (isnan(error))
        compared.ratio = INFINITY;
    struct verify_worst *worst = &report->worst[quantity][row];
    if (compared.ratio > worst->ratio || (worst->step == 0 && quantity >= VERIFY_GRADIENT))
        *worst = compared;
    struct verify_total *total = &report->total[quantity];
    total->compared++;
    total->identical += error == 0.0;
    if (size > 0.0 && error / size > total->relative) {
        total->error = error;
        total->bound = bound;
        total->relative = error / size;
        total->row = row;
    }
}

static void note_replicas(struct verify_report *report, int row, int step, const struct snapshot *layout,
                          enum snapshot_kind kind)
{
    double differs = (double)atomic_load(&layout->differs[kind][row]);
    note(report, VERIFY_REPLICAS, row, 0.0, (struct verify_worst){.error = differs, .step = step});
}

static double clip_factor(const struct recipe_optimizer *optimizer, const struct snapshot *s)
{
    double coefficient = optimizer->clip_grad > 0.0 ? optimizer->clip_grad / (s->grad_norm + 1e-6) : 1.0;
    return coefficient < 1.0 ? coefficient : 1.0;
}

static double value(const struct snapshot *s, enum snapshot_kind kind, int row, int64_t i)
{
    return (double)s->tensor[kind][row][i];
}

static double rms_of(const struct snapshot *s, enum snapshot_kind kind, int row)
{
    return bound_rms(s->tensor[kind][row], s->count[row], 1);
}

/* The size of a channel of q, k or v: hidden_size normalized inputs times weights. */
static double channel_size(const struct comparison *c, int layer, enum param_role which)
{
    int matrix = params_weight(c->params, layer, which);
    int norm = params_weight(c->params, layer, ROLE_ATTENTION_NORM);
    return rms_of(c->begin, SNAPSHOT_WEIGHT, matrix) * rms_of(c->begin, SNAPSHOT_WEIGHT, norm) *
           sqrt((double)c->recipe->model.hidden_size);
}

/* Size of the terms in the gradients of q and k before the derivatives of the softmax cancel: dout * v, times
 * k for q, and times q for k. dout is taken from the gradient of v's weights. 0 for other rows. */
static double size_before_softmax(const struct comparison *c, const struct param *row)
{
    if (row->role != ROLE_QUERY && row->role != ROLE_KEY)
        return 0.0;
    int v = params_weight(c->params, row->layer, ROLE_VALUE);
    return rms_of(c->one, SNAPSHOT_GRADIENT, v) * channel_size(c, row->layer, ROLE_VALUE) *
           channel_size(c, row->layer, row->role == ROLE_QUERY ? ROLE_KEY : ROLE_QUERY);
}

/* Tokens with a loss; 1 if there is none, where loss and gradients are 0. */
static double tokens_of(const struct snapshot *s)
{
    return fmax(s->tokens, 1.0);
}

/* Divisor from the summed gradients to those of the mean loss. */
static double divisor_of(const struct snapshot *s)
{
    return tokens_of(s) * s->loss_scale;
}

/* The rms of a gradient of the mean loss. The terms of a bias are those of its matrix: they may cancel. */
static double gradient_size(const struct comparison *c, int row)
{
    int matrix = bound_companion(c->params, row);
    double of_matrix = matrix >= 0 ? rms_of(c->one, SNAPSHOT_GRADIENT, matrix) : 0.0;
    return fmax(rms_of(c->one, SNAPSHOT_GRADIENT, row), of_matrix) / divisor_of(c->one);
}

static void compare_gradients(const struct comparison *c, int row, const float *bound)
{
    double divisor = divisor_of(c->one), size = gradient_size(c, row);
    for (int64_t i = 0; i < c->one->count[row]; i++) {
        double g = value(c->one, SNAPSHOT_GRADIENT, row, i) / divisor, delta = (double)bound[i] / divisor;
        double other = value(c->layout, SNAPSHOT_GRADIENT, row, i) / divisor_of(c->layout);
        note(c->report, VERIFY_GRADIENT, row, size,
             (struct verify_worst){
                 .error = fabs(other - g), .bound = delta, .element = i, .step = (int)c->step});
    }
    if (size > 0.0) // an error of this size in every element exceeds the bound of one
        c->report->visible =
            fmax(c->report->visible, bound_rms(bound, c->one->count[row], 1) / divisor / size);
}

/* Bound of a weight's difference from one rank. */
static double weight_bound(const struct comparison *c, int row, int64_t i, struct philox rounding,
                           struct adam_element element, double delta)
{
    const struct recipe *r = c->recipe;
    const struct param *param = &c->params->list[row];
    if (r->precision.main_params_dtype == F32)
        return bound_weight(&r->optimizer, c->step, param->decay, element, delta);
    uint32_t word = philox_word(rounding, (uint64_t)c->step, (uint64_t)i / 2);
    return bound_weight_stochastic(&r->optimizer, c->step, param->decay, element, delta,
                                   word >> 16 * (i % 2) & 0xffffU, value(c->one, SNAPSHOT_WEIGHT, row, i));
}

static void compare_after(const struct comparison *c, enum verify_quantity quantity, int row, int64_t i,
                          double size, double bound)
{
    static const enum snapshot_kind kinds[] = {
        [VERIFY_WEIGHT] = SNAPSHOT_WEIGHT, [VERIFY_M] = SNAPSHOT_M, [VERIFY_V] = SNAPSHOT_V};
    enum snapshot_kind kind = kinds[quantity];
    note(c->report, quantity, row, size,
         (struct verify_worst){.error = fabs(value(c->layout, kind, row, i) - value(c->one, kind, row, i)),
                               .bound = bound,
                               .element = i,
                               .step = (int)c->step});
}

/* Compares the results of AdamW. norm_share: the relative bound of the norm, which clipping divides by. */
static void compare_state(const struct comparison *c, int row, const float *bound, double norm_share)
{
    const struct recipe_optimizer *o = &c->recipe->optimizer;
    const struct snapshot *one = c->one;
    const double sizes[] = {rms_of(one, SNAPSHOT_WEIGHT, row), rms_of(one, SNAPSHOT_M, row),
                            rms_of(one, SNAPSHOT_V, row)};
    const struct philox rounding = stochastic_named(c->recipe->seed, c->params->list[row].name);
    double scale = clip_factor(o, one) / divisor_of(one), u = 0x1p-24;
    for (int64_t i = 0; i < one->count[row]; i++) {
        double g = value(one, SNAPSHOT_GRADIENT, row, i) * scale;
        double delta = (double)bound[i] * scale + fabs(g) * (norm_share + 2.0 * u);
        struct adam_element element = {
            .weight = value(c->begin, SNAPSHOT_WEIGHT, row, i),
            .m = value(c->begin, SNAPSHOT_M, row, i),
            .v = value(c->begin, SNAPSHOT_V, row, i),
            .gradient = g,
        };
        double m = value(one, SNAPSHOT_M, row, i), v = value(one, SNAPSHOT_V, row, i);
        compare_after(c, VERIFY_WEIGHT, row, i, sizes[0], weight_bound(c, row, i, rounding, element, delta));
        compare_after(c, VERIFY_M, row, i, sizes[1],
                      (1.0 - o->adam_beta1) * delta + 4.0 * u * (fabs(m) + fabs(element.m)));
        compare_after(c, VERIFY_V, row, i, sizes[2],
                      (1.0 - o->adam_beta2) * (2.0 * fabs(g) * delta + delta * delta) +
                          4.0 * u * (v + element.v));
    }
}

static double roundoff_of(const struct recipe *recipe)
{
    return bound_roundoff(recipe->precision.params_dtype, recipe->kernels.tf32);
}

/* Computes the bounds of a row's gradient, summed over tokens, per element. */
static float *bounds_of_row(const struct comparison *c, int row)
{
    const struct param *param = &c->params->list[row];
    float *out = memory_zeroed((size_t)c->one->count[row] + 1, sizeof *out, "the bounds of a parameter");
    enum dtype working = c->recipe->precision.params_dtype;
    double least = fmax(size_before_softmax(c, param), bound_least(working, tokens_of(c->one)));
    bound_gradient(
        c->params, row, c->one->tensor[SNAPSHOT_GRADIENT], c->response->gradient[row], least,
        bound_spread(c->params, &c->recipe->model, roundoff_of(c->recipe), param->layer, tokens_of(c->one)),
        out);
    return out;
}

static void compare_rows(const struct comparison *c, bool state, double norm_share)
{
    for (int row = 0; row < c->params->count; row++) {
        if (c->one->count[row] == 0)
            continue;
        AUTO_FREE float *bound = bounds_of_row(c, row);
        if (state)
            compare_state(c, row, bound, norm_share);
        else
            compare_gradients(c, row, bound);
        for (int kind = 0; kind < SNAPSHOT_KINDS && !state; kind++)
            note_replicas(c->report, row, (int)c->step, c->layout, (enum snapshot_kind)kind);
    }
}

/* The norm of the summed gradients, every parameter counted once. */
static double norm_of(const struct snapshot *s, double *elements)
{
    long double sum = 0.0L;
    *elements = 0.0;
    for (int row = 0; row < s->rows; row++) {
        *elements += (double)s->count[row];
        for (int64_t i = 0; i < s->count[row]; i++) {
            double g = value(s, SNAPSHOT_GRADIENT, row, i);
            sum += (long double)(g * g);
        }
    }
    return (double)sqrtl(sum) / divisor_of(s);
}

static void compare_step(const struct comparison *c)
{
    double elements, norm = norm_of(c->layout, &elements), one = c->one->grad_norm;
    double logit = bound_logit(c->params, c->begin->tensor[SNAPSHOT_WEIGHT], c->recipe->model.hidden_size);
    c->report->step[c->step - 1] = (struct verify_step){
        .loss = {c->layout->loss, c->one->loss},
        .loss_bound = bound_loss(c->params, &c->recipe->model, roundoff_of(c->recipe), tokens_of(c->one),
                                 c->one->loss, logit, c->response->loss),
        .norm = {c->layout->grad_norm, norm},
        .norm_bound = bound_norm(norm, elements),
    };
    compare_rows(c, false, 0.0);
    // Clipping divides by the norm, whose difference follows from that of the gradients.
    compare_rows(c, true, one > 0.0 ? fabs(norm - one) / one : 0.0);
}

static void compare_initial(const struct params *params, const struct snapshot *one,
                            const struct snapshot *layout, struct verify_report *report)
{
    for (int row = 0; row < params->count; row++) {
        for (int64_t i = 0; i < one->count[row]; i++)
            note(report, VERIFY_INITIAL, row, 0.0,
                 (struct verify_worst){.error = fabs(value(layout, SNAPSHOT_WEIGHT, row, i) -
                                                     value(one, SNAPSHOT_WEIGHT, row, i)),
                                       .element = i});
        // Also compares the replicas: the first step begins with the weights of the one-rank run, which would
        // hide a difference.
        note_replicas(report, row, 0, layout, SNAPSHOT_WEIGHT);
    }
}

/* ---- verification ---- */

static struct verify_report report_create(const struct params *params, int steps)
{
    struct verify_report out = {.rows = params->count, .steps = steps};
    out.names = memory_zeroed((size_t)params->count, sizeof *out.names, "a report of verify");
    out.step = memory_zeroed((size_t)steps, sizeof *out.step, "a report of verify");
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        out.worst[q] = memory_zeroed((size_t)params->count, sizeof *out.worst[q], "a report of verify");
    for (int i = 0; i < params->count; i++)
        memcpy(out.names[i], params->list[i].name, sizeof out.names[i]);
    return out;
}

void verify_report_free(struct verify_report *report)
{
    free(report->names);
    free(report->step);
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        free(report->worst[q]);
    *report = (struct verify_report){0};
}

static double ratio_of(double a, double b, double bound)
{
    double ratio = a == b ? 0.0 : fabs(a - b) / bound;
    return isnan(ratio) ? INFINITY : ratio;
}

static void count_ratio(struct verify_report *report, double ratio)
{
    report->outside += ratio > 1.0;
    report->unbounded += isinf(ratio);
    if (isfinite(ratio))
        report->largest = fmax(report->largest, ratio);
}

static void summarize(struct verify_report *report)
{
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        count_ratio(report, ratio_of(step->loss[0], step->loss[1], step->loss_bound));
        count_ratio(report, ratio_of(step->norm[0], step->norm[1], step->norm_bound));
    }
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        for (int row = 0; row < report->rows; row++)
            count_ratio(report, report->worst[q][row].ratio);
}

/* Copies of the model: the state at the beginning of a step, at its end, and the layout's initial weights. */
struct copies {
    struct snapshot begin, one, layout, initial, perturbed;
    struct response response;
};

/* Initial loss scale of the search in a step. Above 2^17 the gradient of a logit exceeds the range of
 * fp16. */
static double first_scale(const struct recipe *recipe)
{
    struct loss_scale scale = loss_scale_of(recipe);
    return scale.fixed ? scale.scale : fmin(scale.scale, 0x1p17);
}

/* The runs of a step. */
struct runs {
    struct verify_run one, layout, perturbed;
};

/* A quantized operand jumps when it crosses from one representable value to the next: a perturbed run would
 * measure these jumps, which changes of the pipeline or data degree do not cause. */
static bool is_perturbed(const struct recipe *recipe)
{
    const struct linear_precision *precision = &recipe->layers.precision;
    return !linear_precision_quantizes(precision);
}

static enum status run_perturbed(const struct verify_options *options, struct runs *runs,
                                 struct response *response)
{
    runs->perturbed.skipped = false;
    for (int draw = 1; draw <= PERTURBED_RUNS && !runs->perturbed.skipped; draw++) {
        if (!is_perturbed(options->one_rank.recipe))
            return OK;
        runs->perturbed.draw = draw;
        TRY(verify_run(&options->one_rank, (struct step_observer){0}, &runs->perturbed));
        if (!runs->perturbed.skipped)
            response_add(response, runs->one.end, runs->perturbed.end, draw == 1);
    }
    return OK;
}

/* Runs one step of all runs; halves the scale as long as any of them overflows. */
static enum status run_all(const struct verify_options *options, struct runs *runs, struct response *response,
                           double *scale)
{
    const struct recipe_precision *precision = &options->one_rank.recipe->precision;
    struct verify_run *one = &runs->one, *layout = &runs->layout;
    for (;; *scale = fmax(*scale * 0.5, precision->min_loss_scale)) {
        one->loss_scale = layout->loss_scale = runs->perturbed.loss_scale = *scale;
        TRY(verify_run(&options->one_rank, (struct step_observer){0}, one));
        if (!one->skipped)
            TRY(verify_run(&options->layout, options->injected, layout));
        if (!one->skipped && !layout->skipped)
            TRY(run_perturbed(options, runs, response));
        if (!one->skipped && !layout->skipped && !runs->perturbed.skipped)
            return OK;
        if (precision->loss_scale > 0.0 || *scale <= precision->min_loss_scale)
            return fail(
                NOT_FINITE,
                "step %lld: gradients of %s are not finite with a loss scale of %g, and no smaller one "
                "is allowed; a smaller precision.%s may work",
                (long long)one->steps_done + 1, layout->skipped ? "this layout" : "one rank", *scale,
                precision->loss_scale > 0.0 ? "loss_scale" : "min_loss_scale");
    }
}

static void print_progress(const struct verify_options *options, int step, const struct snapshot *layout,
                           const struct snapshot *one)
{
    const char *reference = recipe_world_size(options->one_rank.recipe) > 1 ? "one replica" : "one rank";
    fprintf(options->progress, "step %d/%d  loss %.9g (%s %.9g)  gradient norm %.9g (%s %.9g)\n", step,
            options->steps, layout->loss, reference, one->loss, layout->grad_norm, reference, one->grad_norm);
}

static enum status verify_steps(const struct verify_options *options, const struct params *params,
                                struct copies *copies, struct verify_report *out)
{
    double scale = first_scale(options->one_rank.recipe);
    for (int s = 0; s < options->steps; s++) {
        struct runs runs = {
            .one = {.steps_done = s, .begin = s > 0 ? &copies->begin : NULL, .end = &copies->one},
            .layout = {.steps_done = s, .begin = &copies->begin, .end = &copies->layout},
            .perturbed = {.steps_done = s, .begin = &copies->begin, .end = &copies->perturbed},
        };
        runs.one.initial = s == 0 ? &copies->begin : NULL;
        runs.layout.initial = s == 0 ? &copies->initial : NULL;
        TRY(run_all(options, &runs, &copies->response, &scale));
        if (s == 0)
            compare_initial(params, &copies->begin, &copies->initial, out);
        struct comparison comparison = {
            options->one_rank.recipe,
            params,
            &copies->begin,
            &copies->one,
            &copies->layout,
            &copies->response,
            s + 1,
            out,
        };
        compare_step(&comparison);
        if (options->progress != NULL)
            print_progress(options, s + 1, &copies->layout, &copies->one);
        struct snapshot begin = copies->begin; // the next step begins at the end of the one-rank run
        copies->begin = copies->one;
        copies->one = begin;
    }
    return OK;
}

enum status verify(const struct verify_options *options, struct verify_report *out)
{
    AUTO(params) params = {0};
    struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    struct copies copies = {0};
    TRY(params_declare(&options->layout.recipe->model, &one_each, false, &params));
    *out = report_create(&params, options->steps);
    struct snapshot *all[] = {&copies.begin, &copies.one, &copies.layout, &copies.initial, &copies.perturbed};
    enum { ALL = sizeof all / sizeof *all };
    for (int i = 0; i < ALL; i++)
        *all[i] = snapshot_create(&params);
    copies.response = response_create(&params);
    const enum status status = verify_steps(options, &params, &copies, out);
    if (status == OK)
        summarize(out);
    for (int i = 0; i < ALL; i++)
        snapshot_destroy(all[i]);
    response_free(&copies.response);
    return status;
}
