// SPDX-License-Identifier: Apache-2.0
/* Error bounds of a correct fp32 run against the golden values.
 *
 * Step 1 starts from identical weights, so its gradients are off by rounding alone: trainer/verify/bound.h's
 *
 *     |g - G| <= 8 sqrt(N) u s          u = 2^-24; N terms of size s in the sum; 8 standard deviations
 *
 * AdamW alone is recomputed in double precision over all steps, from the run's own gradients: weights and
 * moments are off by the rounding of a few operations in each step, which is added up (exact_step).
 *
 * Later steps start from weights that already differ, and no closed formula describes how that difference
 * grows. It is measured: one-rank runs whose gradients get noise as large as that bound in every step show
 * how far losses, norms and each weight drift (struct golden_spread). Rounding may cause the same drift.
 *
 * Pitfall: a key bias without RoPE adds one constant to all scores of a row, so its gradient is zero in
 * exact arithmetic. Adam makes full-size steps out of its rounding noise, and the spread includes them. */
#include "tests/ranks/training/golden.h"

#include "trainer/verify/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const golden_quantity_name[GOLDEN_QUANTITIES] = {
    [GOLDEN_INITIAL] = "initial weights", [GOLDEN_REPLICAS] = "replicas",  [GOLDEN_LOSS] = "loss",
    [GOLDEN_NORM] = "gradient norm",      [GOLDEN_GRADIENT] = "gradients", [GOLDEN_UPDATE] = "AdamW",
    [GOLDEN_WEIGHT] = "weights",
};

static const double unit = 0x1p-24, few = 8.0;

struct comparison {
    const struct golden *golden;
    const struct recipe *recipe;
    const struct params *params;
    const struct run_record *record;
    const struct golden_spread *spread;
    struct golden_verdict *out;
};

static void note(struct golden_verdict *out, enum golden_quantity quantity, const char *where, double error,
                 double bound)
{
    double ratio = error > 0.0 ? (bound > 0.0 ? error / bound : INFINITY) : 0.0;
    if (isnan(error) || isnan(bound))
        ratio = INFINITY;
    out->outside += ratio > 1.0;
    if (ratio > out->ratio[quantity] || out->where[quantity][0] == '\0') {
        out->ratio[quantity] = ratio;
        out->error[quantity] = error;
        snprintf(out->where[quantity], sizeof out->where[quantity], "%s", where);
    }
}

static double clip_factor(const struct recipe_optimizer *o, double norm)
{
    double factor = o->clip_grad > 0.0 ? o->clip_grad / (norm + 1e-6) : 1.0;
    return factor < 1.0 ? factor : 1.0;
}

/* Where the gradient is zero in exact arithmetic, the terms that cancel are one row of scores and one sum
 * over tokens; earlier rounding errors do not affect the cancellation. */
static double terms_of(const struct model_config *model, const struct params *params, const struct param *row,
                       double tokens)
{
    if (model->position_embedding != ROPE && row->role == ROLE_KEY && row->is_bias)
        return tokens + (double)(model->seq_length + model->kv_channels);
    return bound_terms(params, model, row->layer, tokens);
}

enum status golden_gradient_bound(const struct model_config *model, const struct params *params,
                                  const struct snapshot *now, double tokens, int row, float **out)
{
    *out = calloc((size_t)now->count[row] + 1, sizeof **out);
    if (*out == NULL)
        return fail(NO_MEMORY, "no memory for bounds");
    bound_gradient(params, row, now->tensor[SNAPSHOT_GRADIENT], NULL, 0.0,
                   unit * sqrt(terms_of(model, params, &params->list[row], tokens)), *out);
    return OK;
}

/* ---- comparing ---- */

static void compare_initial(struct comparison *c)
{
    for (int i = 0; i < c->golden->init_count; i++) {
        const struct golden_init *init = &c->golden->init[i];
        int row = params_find(c->params, init->name);
        bool there = row >= 0 && init->element < c->record->initial.count[row];
        double have = there ? (double)c->record->initial.tensor[SNAPSHOT_WEIGHT][row][init->element] : NAN;
        note(c->out, GOLDEN_INITIAL, init->name, fabs(have - init->value), 0.0);
    }
}

/* One element under AdamW in double precision, and its fp32 error bound: every operation and constant of the
 * kernel is off by `unit` of its result, to first order. */
struct exact {
    double w, m, v, w_error, m_error, v_error;
};

static void exact_step(struct exact *e, const struct recipe_optimizer *o, int step, double g, double decay)
{
    double r1 = 1.0 - o->adam_beta1, r2 = 1.0 - o->adam_beta2;
    double m = o->adam_beta1 * e->m + r1 * g, v = o->adam_beta2 * e->v + r2 * g * g;
    // r, its product, the difference and the sum; g has two roundings of its own.
    e->m_error = o->adam_beta1 * e->m_error + unit * ((1.0 + r1) * fabs(e->m) + 4.0 * r1 * fabs(g) + fabs(m));
    e->v_error = o->adam_beta2 * e->v_error + unit * ((1.0 + r2) * e->v + 7.0 * r2 * g * g + v);
    e->m = m, e->v = v;
    double c1 = 1.0 - pow(o->adam_beta1, step), c2 = 1.0 - pow(o->adam_beta2, step);
    double root = sqrt(v / c2) + o->adam_eps, update = m / c1 / root, decayed = decay * e->w;
    double update_error = e->m_error / c1 / root + 6.0 * unit * fabs(update);
    update_error += v > 0.0 ? fabs(update) * e->v_error / (2.0 * v) : 0.0;
    double w_error = update_error + unit * (3.0 * fabs(update) + 5.0 * fabs(decayed));
    e->w -= o->lr * (update + decayed);
    e->w_error = (1.0 + o->lr * decay) * e->w_error + o->lr * w_error + unit * fabs(e->w);
}

/* AdamW over all steps; only the gradients are the run's own. A systematic error in each step, such as a 1 -
 * beta computed in fp32, accumulates. */
static void compare_updates(struct comparison *c, int row)
{
    const struct recipe_optimizer *o = &c->recipe->optimizer;
    const struct param *param = &c->params->list[row];
    const double decay = param->ndim == 2 ? o->weight_decay : 0.0;
    for (int64_t i = 0; i < c->record->initial.count[row]; i++) {
        struct exact e = {.w = (double)c->record->initial.tensor[SNAPSHOT_WEIGHT][row][i]};
        for (int step = 1; step <= c->golden->steps; step++) {
            const struct snapshot *now = &c->record->step[step - 1];
            double scale = clip_factor(o, now->grad_norm) / now->tokens;
            exact_step(&e, o, step, (double)now->tensor[SNAPSHOT_GRADIENT][row][i] * scale, decay);
            const double want[] = {e.w, e.m, e.v}, bound[] = {e.w_error, e.m_error, e.v_error};
            const enum snapshot_kind kind[] = {SNAPSHOT_WEIGHT, SNAPSHOT_M, SNAPSHOT_V};
            for (int k = 0; k < 3; k++)
                note(c->out, GOLDEN_UPDATE, param->name, fabs((double)now->tensor[kind[k]][row][i] - want[k]),
                     bound[k]);
        }
    }
}

static void compare_gradient(struct comparison *c, int row, const float *bound)
{
    const struct golden_tensor *golden = golden_find(c->golden, c->params->list[row].name, true);
    const struct snapshot *now = &c->record->step[0];
    if (c->golden->gradient_count == 0)
        return;
    if (golden == NULL || golden->count != now->count[row]) {
        note(c->out, GOLDEN_GRADIENT, c->params->list[row].name, INFINITY, 1.0);
        return;
    }
    for (int64_t i = 0; i < golden->count; i++) {
        double have = (double)now->tensor[SNAPSHOT_GRADIENT][row][i] / now->tokens;
        note(c->out, GOLDEN_GRADIENT, golden->name, fabs(have - golden->value[i]),
             (double)bound[i] / now->tokens);
    }
}

/* Some golden files have no weights. */
static void compare_weight(struct comparison *c, int row)
{
    const struct golden_tensor *golden = golden_find(c->golden, c->params->list[row].name, false);
    const float *have = c->record->step[c->golden->steps - 1].tensor[SNAPSHOT_WEIGHT][row];
    double lr = c->recipe->optimizer.lr;
    for (int64_t i = 0; golden != NULL && i < golden->count; i++) {
        // Each step rounds the weight once, and an update of about lr a few times.
        double rounding = (double)c->golden->steps * unit * (fabs(golden->value[i]) + few * lr);
        note(c->out, GOLDEN_WEIGHT, golden->name, fabs((double)have[i] - golden->value[i]),
             rounding + c->spread->weight[row][i]);
    }
}

static void compare_numbers(struct comparison *c, int step)
{
    const struct snapshot *now = &c->record->step[step - 1];
    const struct model_config *model = &c->recipe->model;
    char where[PARAM_NAME_CHARS];
    snprintf(where, sizeof where, "step %d", step);
    double loss = c->golden->loss[step - 1], norm = c->golden->norm[step - 1];
    double logit = bound_logit(c->params, c->record->initial.tensor[SNAPSHOT_WEIGHT], model->hidden_size);
    note(c->out, GOLDEN_LOSS, where, fabs(now->loss - loss),
         bound_loss(c->params, model, 0.0, now->tokens, loss, logit, 0.0) + c->spread->loss[step - 1]);
    // A scalar, three standard deviations: as in the loss, the errors of the tokens are independent.
    double rounding =
        3.0 * unit * sqrt(bound_terms(c->params, model, LAYER_EMBEDDING, now->tokens) / now->tokens);
    note(c->out, GOLDEN_NORM, where, fabs(now->grad_norm - norm),
         norm * rounding + c->spread->norm[step - 1]);
}

static enum status compare_row(struct comparison *c, int step, int row)
{
    const struct snapshot *now = &c->record->step[step - 1];
    float *bound = NULL;
    enum status status = OK;
    if (step == 1)
        status = golden_gradient_bound(&c->recipe->model, c->params, now, now->tokens, row, &bound);
    if (status == OK && step == 1)
        compare_gradient(c, row, bound);
    free(bound);
    if (step == c->golden->steps) {
        compare_updates(c, row);
        compare_weight(c, row);
    }
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
        note(c->out, GOLDEN_REPLICAS, c->params->list[row].name,
             (double)atomic_load(&now->differs[kind][row]), 0.0);
    return status;
}

enum status golden_compare(const struct golden *golden, const struct recipe *recipe,
                           const struct params *params, const struct golden_spread *spread,
                           const struct run_record *record, struct golden_verdict *out)
{
    *out = (struct golden_verdict){0};
    struct comparison c = {golden, recipe, params, record, spread, out};
    compare_initial(&c);
    for (int step = 1; step <= golden->steps; step++) {
        compare_numbers(&c, step);
        for (int row = 0; row < params->count; row++)
            if (record->initial.count[row] > 0)
                TRY(compare_row(&c, step, row));
    }
    return OK;
}

/* ---- the spread ---- */

enum status golden_spread_create(const struct snapshot *model, int64_t steps, struct golden_spread *out)
{
    *out = (struct golden_spread){.rows = model->rows, .steps = steps};
    out->weight = calloc((size_t)model->rows, sizeof *out->weight);
    bool good = out->weight != NULL;
    for (int row = 0; good && row < model->rows; row++) {
        out->weight[row] = calloc((size_t)model->count[row] + 1, sizeof *out->weight[row]);
        good = out->weight[row] != NULL;
    }
    return good ? OK : fail(NO_MEMORY, "no memory for the spread of the weights");
}

void golden_spread_free(struct golden_spread *spread)
{
    for (int row = 0; spread->weight != NULL && row < spread->rows; row++)
        free(spread->weight[row]);
    free(spread->weight);
    *spread = (struct golden_spread){0};
}

/* sqrt(a^2 + (b - c)^2 / n): accumulates one of n runs into a root mean square. */
static double joined(double a, double b, double c)
{
    return sqrt(a * a + (b - c) * (b - c) / GOLDEN_NOISY_RUNS);
}

void golden_spread_add(struct golden_spread *spread, const struct run_record *quiet,
                       const struct run_record *noisy)
{
    for (int s = 0; s < spread->steps; s++) {
        spread->loss[s] = joined(spread->loss[s], noisy->step[s].loss, quiet->step[s].loss);
        spread->norm[s] = joined(spread->norm[s], noisy->step[s].grad_norm, quiet->step[s].grad_norm);
    }
    float **a = quiet->step[spread->steps - 1].tensor[SNAPSHOT_WEIGHT],
          **b = noisy->step[spread->steps - 1].tensor[SNAPSHOT_WEIGHT];
    for (int row = 0; row < spread->rows; row++)
        for (int64_t i = 0; i < quiet->initial.count[row]; i++)
            spread->weight[row][i] = joined(spread->weight[row][i], (double)a[row][i], (double)b[row][i]);
}
