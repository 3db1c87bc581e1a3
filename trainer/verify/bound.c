// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/bound.h"

#include "base/memory.h"
#include "kernels/numbers/narrow.h"
#include "kernels/ops.h"
#include "trainer/optimizer/learning_rate.h"

#include <math.h>
#include <stdlib.h>

static const double unit_roundoff = 0x1p-24, lambda = 8.0, lambda_single = 3.0;

/* Contribution of a layer's weights to a path through it: terms of sums in one direction, and rounded tensors
 * forward and backward. */
struct path {
    double terms, forward, backward;
};

static struct path path_of_weight(const struct param *row, const struct model_config *m)
{
    double inputs = (double)row->dim[1];
    // A branch ends with a partial result, its sum over tp, and the residual stream after it; its backward
    // pass has the gradients of its output, of its inner tensor and of its operand, a partial result and its
    // sum over tp, and the gradient of the residual stream.
    enum { BRANCH_FORWARD = 3, BRANCH_BACKWARD = 3 + 3 };
    switch (row->role) { // no default: a new role is a compile error here
    case ROLE_ATTENTION_NORM:
    case ROLE_MLP_NORM:
        return (struct path){(double)row->dim[0], 1.0, 0.0};
    case ROLE_EMBEDDING_NORM: // and the gradient before it
        return (struct path){(double)row->dim[0], 1.0, 1.0};
    case ROLE_QUERY_NORM: // for both: q and k of one pair of heads, and their gradients
        return (struct path){2.0 * (double)row->dim[0], 1.0, 1.0};
    case ROLE_QUERY: // for k and v too: q, k and v, the rotated ones, scores, attention output
        return (struct path){inputs + (double)m->seq_length, 3.0, 1.0};
    case ROLE_MLP_UP: // for the gate too: operand and result of the activation function
        return (struct path){inputs, 2.0, 0.0};
    case ROLE_ATTENTION_OUT:
    case ROLE_MLP_DOWN:
        return (struct path){inputs, BRANCH_FORWARD, BRANCH_BACKWARD};
    case ROLE_KEY:
    case ROLE_VALUE:
    case ROLE_KEY_NORM:
    case ROLE_MLP_GATE:
    case ROLE_TOKEN_EMBEDDING: // both ends of the model are counted once, not for each path
    case ROLE_POSITION_EMBEDDING:
    case ROLE_FINAL_NORM:
    case ROLE_HEAD:
    case ROLE_COUNT:
        break;
    }
    return (struct path){0};
}

/* The sum over layers `first` and later. */
static struct path path_from(const struct params *params, const struct model_config *m, int first)
{
    struct path sum = {0};
    for (int i = 0; i < params->count; i++) {
        if (params->list[i].layer < first || params->list[i].is_bias)
            continue;
        struct path one = path_of_weight(&params->list[i], m);
        sum.terms += one.terms;
        sum.forward += one.forward;
        sum.backward += one.backward;
    }
    return sum;
}

double bound_terms(const struct params *params, const struct model_config *model, int layer, double tokens)
{
    double forward =
        path_from(params, model, LAYER_EMBEDDING).terms + (double)(model->hidden_size + model->vocab_size);
    if (layer > model->num_layers)
        return forward;
    double backward = (double)model->vocab_size + path_from(params, model, layer).terms;
    return forward + backward + tokens;
}

/* Number of rounded activation tensors on the path of bound_terms(). */
static double roundings(const struct params *params, const struct model_config *model, int layer)
{
    // The embedding and its sum; the result of the final norm, logits, their gradient and its sum; capped
    // logits.
    enum { OF_ENDS = 6 };
    double capped = model->final_logit_softcapping > 0.0 ? 1.0 : 0.0;
    double forward = path_from(params, model, LAYER_EMBEDDING).forward + OF_ENDS + capped;
    return layer > model->num_layers ? forward : forward + path_from(params, model, layer).backward;
}

/* Half a unit in the last place of 1; for TF32 a whole unit, since tensor cores may truncate. */
double bound_roundoff(enum dtype working, bool tf32)
{
    double fp32 = tf32 ? 0x1p-10 : 0.0;
    return working == BF16 ? 0x1p-8 : working == F16 ? 0x1p-11 : fp32;
}

double bound_longest_sum(const struct model_config *model)
{
    double query = (double)(model->num_attention_heads * model->kv_channels);
    return fmax(fmax((double)model->hidden_size, (double)model->ffn_hidden_size),
                fmax(query, (double)model->seq_length));
}

double bound_spread(const struct params *params, const struct model_config *model, double roundoff, int layer,
                    double tokens)
{
    double u = unit_roundoff, w = roundoff;
    return sqrt(bound_terms(params, model, layer, tokens) * u * u + roundings(params, model, layer) * w * w);
}

double bound_logit(const struct params *params, float *const *weights, int64_t hidden_size)
{
    int head = params_weight(params, params->layer_count - 2, ROLE_HEAD); // in the last layer
    head = params->list[head].tie >= 0 ? params->list[head].tie : head;
    const int64_t *dim = params->list[head].dim;
    return bound_rms(weights[head], dim[0] * dim[1], 1) * sqrt((double)hidden_size);
}

double bound_loss(const struct params *params, const struct model_config *model, double roundoff,
                  double tokens, double loss, double logit, double response)
{
    double spread = bound_spread(params, model, roundoff, (int)model->num_layers + 1, tokens);
    return fmax(lambda_single * (unit_roundoff * fabs(loss) + spread * logit) / sqrt(tokens),
                lambda * response);
}

double bound_norm(double norm, double elements)
{
    // A running sum of n positive terms is half its final value on average: the rms error of its additions is
    // u * sum * sqrt(n) / 3. The square root halves the relative error; it and a division round once each.
    // Blocks have more than half of SQUARES_BLOCK elements, except the last of each tensor.
    double block = elements < (double)SQUARES_BLOCK ? elements : (double)SQUARES_BLOCK;
    double additions = block + 2.0 * elements / (double)SQUARES_BLOCK;
    return 0x1p-53 * norm * (2.0 + lambda_single * sqrt(additions) / 6.0);
}

double bound_least(enum dtype working, double tokens)
{
    return working == F16 ? 0x1p-14 * sqrt(tokens) : 0.0;
}

double bound_rms(const float *x, int64_t count, int64_t stride)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i * stride] * (double)x[i * stride];
    return count > 0 ? sqrt(sum / (double)count) : 0.0;
}

/* True if each row belongs to a token or a position: errors of other rows then do not contribute. */
static bool has_row_per_token(const struct param *row)
{
    return row->role == ROLE_TOKEN_EMBEDDING || row->role == ROLE_POSITION_EMBEDDING ||
           row->role == ROLE_HEAD;
}

static double size_of_terms(const struct param *row, double of_row, double of_column, double all)
{
    if (!(all > 0.0))
        return 0.0;
    double size = fmax(of_row, of_row * of_column / all);
    return has_row_per_token(row) ? size : fmax(size, of_column);
}

int bound_companion(const struct params *params, int row)
{
    const struct param *param = &params->list[row];
    int matrix = param->is_bias ? params_weight(params, param->layer, param->role) : -1;
    return matrix >= 0 && params->list[matrix].ndim == 2 ? matrix : -1;
}

/* Inputs of all bounds of one gradient. */
struct sizes {
    const struct param *param;
    const float *gradient, *response; // response may be NULL
    double least, spread;
};

/* spread * the size of the terms, or the measured response of the element and its neighbours. */
static double bound_of(const struct sizes *s, double terms, double neighbours, int64_t i)
{
    double moved = s->response != NULL ? fmax(neighbours, (double)s->response[i]) : 0.0;
    return lambda * fmax(s->spread * fmax(s->least, terms), moved);
}

/* Bounds of a vector: all terms have one size; for a bias, at least that of its matrix's row. */
static void bound_vector(const struct params *params, const struct sizes *s, int matrix,
                         float *const *gradients, float *bound)
{
    int64_t count = s->param->dim[0];
    double size = bound_rms(s->gradient, count, 1),
           moved = s->response != NULL ? bound_rms(s->response, count, 1) : 0.0;
    for (int64_t i = 0; i < count; i++) {
        int64_t columns = matrix >= 0 ? params->list[matrix].dim[1] : 0;
        double of_matrix = matrix >= 0 ? bound_rms(gradients[matrix] + i * columns, columns, 1) : 0.0;
        bound[i] = (float)bound_of(s, fmax(size, of_matrix), moved, i);
    }
}

/* The rms of each column, followed by that of the whole matrix. */
static double *rms_of_columns(const float *x, int64_t rows, int64_t columns)
{
    double *rms = memory_zeroed((size_t)columns + 1, sizeof *rms, "the bounds of a parameter");
    for (int64_t j = 0; x != NULL && j < columns; j++)
        rms[j] = bound_rms(x + j, rows, columns);
    if (x != NULL)
        rms[columns] = bound_rms(x, rows * columns, 1);
    return rms;
}

static void bound_matrix(const struct sizes *s, float *bound)
{
    const struct param *param = s->param;
    int64_t rows = param->dim[0], columns = param->dim[1];
    AUTO_FREE double *g = rms_of_columns(s->gradient, rows, columns);
    AUTO_FREE double *d = rms_of_columns(s->response, rows, columns);
    for (int64_t i = 0; i < rows; i++) {
        double of_row = bound_rms(s->gradient + i * columns, columns, 1),
               moved_row = s->response != NULL ? bound_rms(s->response + i * columns, columns, 1) : 0.0;
        for (int64_t j = 0; j < columns; j++)
            bound[i * columns + j] =
                (float)bound_of(s, size_of_terms(param, of_row, g[j], g[columns]),
                                size_of_terms(param, moved_row, d[j], d[columns]), i * columns + j);
    }
}

void bound_gradient(const struct params *params, int row, float *const *gradients, const float *response,
                    double least, double spread, float *bound)
{
    const struct sizes sizes = {&params->list[row], gradients[row], response, least, spread};
    if (params->list[row].dim[1] != 1)
        bound_matrix(&sizes, bound);
    else
        bound_vector(params, &sizes, bound_companion(params, row), gradients, bound);
}

/* The arguments of the kernel (optimizer_hyper): 1 - beta, not beta, is rounded to fp32. */
struct adam {
    double lr, beta1, beta2, eps, correction1, correction2, weight_decay;
};

static struct adam adam_at(const struct recipe_optimizer *o, int64_t step)
{
    return (struct adam){
        .lr = (double)(float)learning_rate(o, step),
        .beta1 = 1.0 - (double)(float)(1.0 - o->adam_beta1),
        .beta2 = 1.0 - (double)(float)(1.0 - o->adam_beta2),
        .eps = (double)(float)o->adam_eps,
        .correction1 = (double)(float)(1.0 - pow(o->adam_beta1, (double)step)),
        .correction2 = (double)(float)(1.0 - pow(o->adam_beta2, (double)step)),
        .weight_decay = (double)(float)o->weight_decay,
    };
}

static double stepped(const struct adam *o, bool decays, struct adam_element e, double g)
{
    double m = o->beta1 * e.m + (1.0 - o->beta1) * g;
    double v = o->beta2 * e.v + (1.0 - o->beta2) * g * g;
    double decay = decays ? o->weight_decay * e.weight : 0.0;
    return e.weight - o->lr * (m / o->correction1 / (sqrt(v / o->correction2) + o->eps) + decay);
}

/* Finds the turning points of m_hat / (sqrt(v_hat) + eps) as a function of g. In the derivative the terms in
 * g^2 cancel, which leaves
 *     s g = a + e sqrt(a + k g^2),   s = beta1 m k / (1 - beta1), a = beta2 v, k = 1 - beta2,
 *                                    e = eps sqrt(1 - beta2^step)
 * and, squared, a quadratic equation; its extraneous root is harmless. NaN or infinite: no turning point. */
static void turning_gradients(const struct adam *o, struct adam_element element, double g[2])
{
    double k = 1.0 - o->beta2, s = o->beta1 * element.m * k / (1.0 - o->beta1);
    double a = o->beta2 * element.v, e2 = o->eps * o->eps * o->correction2;
    double square = s * s - e2 * k, root = sqrt(a * a * s * s - square * a * (a - e2));
    g[0] = (a * s + root) / square;
    g[1] = (a * s - root) / square;
}

double bound_weight(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                    struct adam_element element, double gradient_bound)
{
    const struct adam o = adam_at(optimizer, step);
    double here = stepped(&o, decays, element, element.gradient);
    double below = stepped(&o, decays, element, element.gradient - gradient_bound),
           above = stepped(&o, decays, element, element.gradient + gradient_bound);
    double moves = fmax(fabs(below - here), fabs(above - here));
    // m and v of one element are not independent: the update turns at zero in the first step, and elsewhere
    // later.
    double turns[3] = {0.0};
    turning_gradients(&o, element, turns + 1);
    for (int i = 0; i < 3; i++)
        if (fabs(turns[i] - element.gradient) < gradient_bound)
            moves = fmax(moves, fabs(stepped(&o, decays, element, turns[i]) - here));
    // Different inputs round differently: the sum once, both updates once per operation.
    return moves + unit_roundoff * (2.0 * fabs(here) + 8.0 * (fabs(here - element.weight) + moves));
}

/* The nearest fp32 value that is not closer to the other end. */
static double rounded_end(double end, float towards, uint32_t half)
{
    return (double)float_of_bf16(bf16_of_stochastic(nextafterf((float)end, towards), half));
}

double bound_weight_stochastic(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                               struct adam_element element, double gradient_bound, uint32_t half, double one)
{
    const struct adam o = adam_at(optimizer, step);
    double here = stepped(&o, decays, element, element.gradient);
    double bound = bound_weight(optimizer, step, decays, element, gradient_bound);
    double low = rounded_end(here - bound, -INFINITY, half), high = rounded_end(here + bound, INFINITY, half);
    return fmax(one - low, high - one);
}
