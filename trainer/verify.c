// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify.h"

#include "trainer/bound.h"
#include "trainer/rehearsal.h"
#include "trainer/snapshot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One step of one of the two runs. */
struct episode {
    struct run run;
    int64_t steps_done;           // before
    const struct snapshot *begin; // NULL: from the initial weights
    struct snapshot *initial;     // NULL: not wanted
    struct snapshot *end;
    double loss_scale; // 0: none
    bool skipped;      // it was too large, and there is no end
};

/* ---- running ---- */

static enum status take_all(struct snapshot *snapshot, struct worker *worker)
{
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
        TRY(snapshot_take(snapshot, worker, (enum snapshot_kind)kind));
    return snapshot_take_amax(snapshot, worker);
}

static enum status give_state(const struct snapshot *snapshot, struct worker *worker)
{
    TRY(snapshot_give(snapshot, worker, SNAPSHOT_WEIGHT));
    TRY(snapshot_give(snapshot, worker, SNAPSHOT_M));
    TRY(snapshot_give_amax(snapshot, worker));
    return snapshot_give(snapshot, worker, SNAPSHOT_V);
}

static enum status one_step(struct episode *episode, struct world *world, struct worker *worker)
{
    struct step_result result;
    TRY(worker_create(&episode->run, world, true, worker));
    if (episode->initial != NULL)
        TRY(snapshot_take(episode->initial, worker, SNAPSHOT_WEIGHT));
    if (episode->begin != NULL)
        TRY(give_state(episode->begin, worker));
    worker->step = episode->steps_done;
    worker->loss_scale.scale = episode->loss_scale;
    TRY(worker_step(worker, &result));
    if (!result.skipped)
        TRY(take_all(episode->end, worker));
    if (world->rank == 0) {
        episode->skipped = result.skipped;
        episode->end->loss = result.loss;
        episode->end->grad_norm = result.grad_norm;
        episode->end->tokens = result.tokens;
        episode->end->loss_scale = result.loss_scale;
    }
    worker_destroy(worker);
    return OK;
}

static enum status episode_rank(struct world *world, void *argument)
{
    struct episode *episode = argument;
    struct worker worker = {0};
    return rehearsal_explain(episode->run.recipe, &worker, one_step(episode, world, &worker));
}

static enum status play(const struct recipe *recipe, struct hooks hooks, struct episode *episode)
{
    enum status status = run_create(recipe, true, &episode->run);
    episode->run.hooks = hooks;
    const struct world_options options = recipe_world_of_threads(recipe, recipe_world_size(recipe));
    if (status == OK)
        status = world_run_as(&options, episode_rank, episode);
    run_destroy(&episode->run);
    return status;
}

/* ---- comparing ---- */

/* All that one step's comparison looks at. */
struct comparison {
    const struct recipe *recipe;
    const struct params *params;
    const struct snapshot *begin, *one, *layout;
    int64_t step; // from 1
    struct verify_report *report;
};

static void note(struct verify_report *report, enum verify_quantity quantity, int row, int step,
                 int64_t element, double error, double bound)
{
    // A bound of zero is a promise to the bit.
    double ratio = error > 0.0 ? (bound > 0.0 ? error / bound : INFINITY) : 0.0;
    if (isnan(error))
        ratio = INFINITY;
    struct verify_worst *worst = &report->worst[quantity][row];
    if (ratio > worst->ratio || (worst->step == 0 && quantity >= VERIFY_GRADIENT))
        *worst = (struct verify_worst){ratio, error, bound, element, step};
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

static int row_of_layer(const struct comparison *c, int layer, const char *name)
{
    char full[2 * PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    return params_find(c->params, full);
}

/* The size of a channel of q, k or v ("q"): normalised inputs, H of them, times weights. */
static double channel_size(const struct comparison *c, int layer, const char *which)
{
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "attention.%s.weight", which);
    int matrix = row_of_layer(c, layer, name), norm = row_of_layer(c, layer, "norm1.weight");
    return rms_of(c->begin, SNAPSHOT_WEIGHT, matrix) * rms_of(c->begin, SNAPSHOT_WEIGHT, norm) *
           sqrt((double)c->recipe->model.hidden_size);
}

/* What the gradients of q and k are made of before the derivatives of the softmax cancel: dout * v, on its
 * way to q times k, and to k times q. dout is what the gradient of v's weights is made of. 0 for other rows.
 */
static double size_before_softmax(const struct comparison *c, const struct param *row)
{
    bool of_q = strstr(row->name, ".attention.q.") != NULL, of_k = strstr(row->name, ".attention.k.") != NULL;
    if (!of_q && !of_k)
        return 0.0;
    int v = row_of_layer(c, row->layer, "attention.v.weight");
    return rms_of(c->one, SNAPSHOT_GRADIENT, v) * channel_size(c, row->layer, "v") *
           channel_size(c, row->layer, of_q ? "k" : "q");
}

/* Of the gradients as they are, to those of the mean loss. */
static double divisor_of(const struct snapshot *s)
{
    return s->tokens * s->loss_scale;
}

static void compare_gradients(const struct comparison *c, int row, const float *bound)
{
    double divisor = divisor_of(c->one);
    for (int64_t i = 0; i < c->one->count[row]; i++) {
        double g = value(c->one, SNAPSHOT_GRADIENT, row, i) / divisor, delta = (double)bound[i] / divisor;
        double other = value(c->layout, SNAPSHOT_GRADIENT, row, i) / divisor_of(c->layout);
        note(c->report, VERIFY_GRADIENT, row, (int)c->step, i, fabs(other - g), delta);
    }
}

/* How far the weight may be from one rank's. */
static double weight_bound(const struct comparison *c, int row, int64_t i, struct philox rounding,
                           struct adam_element element, double delta)
{
    const struct recipe *r = c->recipe;
    const struct param *param = &c->params->rows[row];
    if (recipe_main_dtype(r) == F32)
        return bound_weight(&r->optimizer, c->step, param->decay, element, delta);
    uint32_t word = philox_word(rounding, (uint64_t)c->step, (uint64_t)i / 2);
    return bound_weight_stochastic(&r->optimizer, c->step, param->decay, element, delta,
                                   word >> 16 * (i % 2) & 0xffffU, value(c->one, SNAPSHOT_WEIGHT, row, i));
}

/* What AdamW made of them. norm_share: the relative bound of the norm, which clipping divides by. */
static void compare_state(const struct comparison *c, int row, const float *bound, double norm_share)
{
    const struct recipe_optimizer *o = &c->recipe->optimizer;
    const struct snapshot *one = c->one, *layout = c->layout;
    const struct philox rounding = stochastic_named(c->recipe->seed, c->params->rows[row].name);
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
        note(c->report, VERIFY_WEIGHT, row, (int)c->step, i,
             fabs(value(layout, SNAPSHOT_WEIGHT, row, i) - value(one, SNAPSHOT_WEIGHT, row, i)),
             weight_bound(c, row, i, rounding, element, delta));
        note(c->report, VERIFY_M, row, (int)c->step, i, fabs(value(layout, SNAPSHOT_M, row, i) - m),
             (1.0 - o->adam_beta1) * delta + 4.0 * u * (fabs(m) + fabs(element.m)));
        note(c->report, VERIFY_V, row, (int)c->step, i, fabs(value(layout, SNAPSHOT_V, row, i) - v),
             (1.0 - o->adam_beta2) * (2.0 * fabs(g) * delta + delta * delta) + 4.0 * u * (v + element.v));
    }
}

static double roundoff_of(const struct recipe *recipe)
{
    return bound_roundoff(recipe_working_dtype(recipe), recipe->precision.allow_tf32);
}

/* The bounds of a row's gradient: of the sum over tokens, per element. */
static enum status bounds_of_row(const struct comparison *c, int row, float **out)
{
    const struct param *param = &c->params->rows[row];
    *out = calloc((size_t)c->one->count[row] + 1, sizeof **out);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory to compare %s", param->name);
    enum dtype working = recipe_working_dtype(c->recipe);
    double least = fmax(size_before_softmax(c, param), bound_least(working, c->one->tokens));
    return bound_gradient(
        c->params, row, c->one->tensor[SNAPSHOT_GRADIENT], least,
        bound_spread(&c->recipe->model, roundoff_of(c->recipe), param->layer, c->one->tokens), *out);
}

static enum status compare_rows(const struct comparison *c, bool state, double norm_share)
{
    for (int row = 0; row < c->params->count; row++) {
        if (c->one->count[row] == 0)
            continue;
        float *bound = NULL;
        enum status status = bounds_of_row(c, row, &bound);
        if (status == OK && state)
            compare_state(c, row, bound, norm_share);
        else if (status == OK)
            compare_gradients(c, row, bound);
        free(bound);
        TRY(status);
        for (int kind = 0; kind < SNAPSHOT_KINDS && !state; kind++)
            note(c->report, VERIFY_REPLICAS, row, (int)c->step, 0,
                 (double)atomic_load(&c->layout->differs[kind][row]), 0.0);
    }
    return OK;
}

/* The norm of the gradients as they are, every parameter once. */
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
    return (double)sqrtl(sum) / s->tokens / s->loss_scale;
}

static enum status compare_step(const struct comparison *c)
{
    double elements, norm = norm_of(c->layout, &elements), one = c->one->grad_norm;
    double logit = bound_logit(c->params, c->begin->tensor[SNAPSHOT_WEIGHT], c->recipe->model.hidden_size);
    c->report->step[c->step - 1] = (struct verify_step){
        .loss = {c->layout->loss, c->one->loss},
        .loss_bound =
            bound_loss(&c->recipe->model, roundoff_of(c->recipe), c->one->tokens, c->one->loss, logit),
        .norm = {c->layout->grad_norm, norm},
        .norm_bound = bound_norm(norm, elements),
    };
    TRY(compare_rows(c, false, 0.0));
    // Clipping divides by the norm, whose own difference follows from the gradients'.
    return compare_rows(c, true, one > 0.0 ? fabs(norm - one) / one : 0.0);
}

static void compare_initial(const struct params *params, const struct snapshot *one,
                            const struct snapshot *layout, struct verify_report *report)
{
    for (int row = 0; row < params->count; row++) {
        for (int64_t i = 0; i < one->count[row]; i++)
            note(report, VERIFY_INITIAL, row, 0, i,
                 fabs(value(layout, SNAPSHOT_WEIGHT, row, i) - value(one, SNAPSHOT_WEIGHT, row, i)), 0.0);
        // Of the others that hold it, too: the first step begins from one rank's weights, and would hide
        // them.
        note(report, VERIFY_REPLICAS, row, 0, 0, (double)atomic_load(&layout->differs[SNAPSHOT_WEIGHT][row]),
             0.0);
    }
}

/* ---- the whole ---- */

static enum status report_create(const struct params *params, int steps, struct verify_report *out)
{
    *out = (struct verify_report){.rows = params->count, .steps = steps};
    out->names = calloc((size_t)params->count, sizeof *out->names);
    out->step = calloc((size_t)steps, sizeof *out->step);
    bool good = out->names != NULL && out->step != NULL;
    for (int q = 0; q < VERIFY_QUANTITIES; q++) {
        out->worst[q] = calloc((size_t)params->count, sizeof *out->worst[q]);
        good = good && out->worst[q] != NULL;
    }
    for (int i = 0; good && i < params->count; i++)
        memcpy(out->names[i], params->rows[i].name, sizeof out->names[i]);
    return good ? OK : fail(NO_MEMORY, "no memory for the report");
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
    double ratio = fabs(a - b) / bound;
    return isnan(ratio) ? INFINITY : ratio;
}

static void summarise(struct verify_report *report)
{
    for (int s = 0; s < report->steps; s++) {
        const struct verify_step *step = &report->step[s];
        double worst[] = {ratio_of(step->loss[0], step->loss[1], step->loss_bound),
                          ratio_of(step->norm[0], step->norm[1], step->norm_bound)};
        for (int i = 0; i < 2; i++) {
            report->largest = fmax(report->largest, worst[i]);
            report->outside += worst[i] > 1.0;
        }
    }
    for (int q = 0; q < VERIFY_QUANTITIES; q++)
        for (int row = 0; row < report->rows; row++) {
            report->largest = fmax(report->largest, report->worst[q][row].ratio);
            report->outside += report->worst[q][row].ratio > 1.0;
        }
}

/* The four copies of the model: the state a step begins from, its two ends, and the layout's initial weights.
 */
struct copies {
    struct snapshot begin, one, layout, initial;
};

/* Where a search for the loss scale of a step begins. Above 2^17 the gradient of a logit is beyond f16. */
static double first_scale(const struct recipe *recipe)
{
    struct loss_scale scale = loss_scale_of(recipe);
    return scale.fixed ? scale.scale : fmin(scale.scale, 0x1p17);
}

/* One step of both, with half the scale where it overflows in either. */
static enum status play_both(const struct verify_options *options, struct episode *one,
                             struct episode *layout, double *scale)
{
    const struct recipe_precision *precision = &options->one_rank->precision;
    for (;; *scale = fmax(*scale * 0.5, precision->min_loss_scale)) {
        one->loss_scale = layout->loss_scale = *scale;
        TRY(play(options->one_rank, (struct hooks){0}, one));
        if (!one->skipped)
            TRY(play(options->layout, options->planted, layout));
        if (!one->skipped && !layout->skipped)
            return OK;
        if (precision->loss_scale > 0.0 || *scale <= precision->min_loss_scale)
            return fail(
                NOT_FINITE,
                "step %lld: gradients of %s are not finite with a loss scale of %g, and no smaller one "
                "is allowed; a smaller precision.%s may work",
                (long long)one->steps_done + 1, one->skipped ? "one rank" : "this layout", *scale,
                precision->loss_scale > 0.0 ? "loss_scale" : "min_loss_scale");
    }
}

static enum status verify_steps(const struct verify_options *options, const struct params *params,
                                struct copies *copies, struct verify_report *out)
{
    double scale = first_scale(options->one_rank);
    for (int s = 0; s < options->steps; s++) {
        struct episode one = {.steps_done = s, .begin = s > 0 ? &copies->begin : NULL, .end = &copies->one};
        struct episode layout = {.steps_done = s, .begin = &copies->begin, .end = &copies->layout};
        one.initial = s == 0 ? &copies->begin : NULL;
        layout.initial = s == 0 ? &copies->initial : NULL;
        TRY(play_both(options, &one, &layout, &scale));
        if (s == 0)
            compare_initial(params, &copies->begin, &copies->initial, out);
        struct comparison comparison = {
            options->one_rank, params, &copies->begin, &copies->one, &copies->layout, s + 1, out,
        };
        TRY(compare_step(&comparison));
        if (options->progress != NULL)
            fprintf(options->progress, "step %d/%d  loss %.9g (%s %.9g)  grad norm %.9g (%.9g)\n", s + 1,
                    options->steps, copies->layout.loss,
                    recipe_world_size(options->one_rank) > 1 ? "one replica" : "one rank", copies->one.loss,
                    copies->layout.grad_norm, copies->one.grad_norm);
        struct snapshot begin = copies->begin; // the next step begins where one rank's ended
        copies->begin = copies->one;
        copies->one = begin;
    }
    return OK;
}

enum status verify(const struct verify_options *options, struct verify_report *out)
{
    struct params params = {0};
    struct degrees one_each = {1, 1, 1, 1, 1};
    struct copies copies = {0};
    enum status status = params_declare(&options->layout->model, &one_each, false, &params);
    if (status == OK)
        status = report_create(&params, options->steps, out);
    struct snapshot *all[] = {&copies.begin, &copies.one, &copies.layout, &copies.initial};
    for (int i = 0; status == OK && i < 4; i++)
        status = snapshot_create(&params, all[i]);
    if (status == OK)
        status = verify_steps(options, &params, &copies, out);
    if (status == OK)
        summarise(out);
    for (int i = 0; i < 4; i++)
        snapshot_destroy(all[i]);
    params_free(&params);
    return status;
}
