// SPDX-License-Identifier: Apache-2.0
#include "trainer/bound.h"

#include "kernels/ops.h"
#include "trainer/learning_rate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double unit_roundoff = 0x1p-24, lambda = 8.0, lambda_single = 3.0;

/* Terms of the sums of one block, in one direction. */
static double block_terms(const struct model_config *m)
{
    double query = (double)(m->num_attention_heads * m->kv_channels);
    return 2.0 * (double)m->hidden_size + (double)m->seq_length + query + (double)m->ffn_hidden_size +
           2.0 * (double)m->hidden_size; // the norms' own sums
}

double bound_terms(const struct model_config *m, int layer, double tokens)
{
    double forward = (double)m->num_layers * block_terms(m) + (double)(m->hidden_size + m->vocab_size);
    if (layer > m->num_layers)
        return forward;
    double below = (double)m->num_layers - (layer < 0 ? 0.0 : (double)layer);
    double backward = (double)m->vocab_size + below * block_terms(m);
    return forward + backward + tokens;
}

double bound_logit(const struct params *params, float *const *weights, int64_t hidden_size)
{
    int head = params_find(params, "head.weight");
    head = params->rows[head].tie >= 0 ? params->rows[head].tie : head;
    const int64_t *dim = params->rows[head].dim;
    return bound_rms(weights[head], dim[0] * dim[1], 1) * sqrt((double)hidden_size);
}

double bound_loss(const struct model_config *m, double tokens, double loss, double logit)
{
    double of_one_token = fabs(loss) + sqrt(bound_terms(m, (int)m->num_layers + 1, tokens)) * logit;
    return lambda_single * unit_roundoff * of_one_token / sqrt(tokens);
}

double bound_norm(double norm, double elements)
{
    // A running sum of n positive terms is half-way on average: its additions are off by u * sum * sqrt(n) /
    // 3 in the root of their squares. The root of the sum halves that; itself and a division round once each.
    // Blocks have more than half of SQUARES_BLOCK elements, but for the last of each tensor.
    double block = elements < (double)SQUARES_BLOCK ? elements : (double)SQUARES_BLOCK;
    double additions = block + 2.0 * elements / (double)SQUARES_BLOCK;
    return 0x1p-53 * norm * (2.0 + lambda_single * sqrt(additions) / 6.0);
}

double bound_rms(const float *x, int64_t count, int64_t stride)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i * stride] * (double)x[i * stride];
    return count > 0 ? sqrt(sum / (double)count) : 0.0;
}

/* True where a row belongs to a token or a position: then no error of other rows comes in. */
static bool has_row_per_token(const struct param *row)
{
    return row->layer == LAYER_EMBEDDING || strcmp(row->name, "head.weight") == 0;
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
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "%s", params->rows[row].name);
    char *suffix = strstr(name, ".bias");
    if (suffix == NULL)
        return -1;
    snprintf(suffix, sizeof name - (size_t)(suffix - name), ".weight");
    int matrix = params_find(params, name);
    return matrix >= 0 && params->rows[matrix].ndim == 2 ? matrix : -1;
}

/* Of a vector: its terms have one size, and a bias's at least that of its matrix's row. */
static void bound_vector(const struct params *params, int row, float *const *gradients, double least,
                         double factor, float *bound)
{
    int64_t count = params->rows[row].dim[0];
    int matrix = bound_companion(params, row);
    double size = fmax(least, bound_rms(gradients[row], count, 1));
    for (int64_t i = 0; i < count; i++) {
        int64_t columns = matrix >= 0 ? params->rows[matrix].dim[1] : 0;
        double of_matrix = matrix >= 0 ? bound_rms(gradients[matrix] + i * columns, columns, 1) : 0.0;
        bound[i] = (float)(factor * fmax(size, of_matrix));
    }
}

static enum status bound_matrix(const struct param *param, const float *gradient, double least, double factor,
                                float *bound)
{
    int64_t rows = param->dim[0], columns = param->dim[1];
    double *of_column = calloc((size_t)columns, sizeof *of_column),
           all = bound_rms(gradient, rows * columns, 1);
    if (of_column == NULL)
        return fail(NO_MEMORY, "no memory for the bounds of %s", param->name);
    for (int64_t j = 0; j < columns; j++)
        of_column[j] = bound_rms(gradient + j, rows, columns);
    for (int64_t i = 0; i < rows; i++) {
        double of_row = bound_rms(gradient + i * columns, columns, 1);
        for (int64_t j = 0; j < columns; j++)
            bound[i * columns + j] =
                (float)(factor * fmax(least, size_of_terms(param, of_row, of_column[j], all)));
    }
    free(of_column);
    return OK;
}

enum status bound_gradient(const struct params *params, int row, float *const *gradients, double least,
                           double terms, float *bound)
{
    const struct param *param = &params->rows[row];
    double factor = lambda * unit_roundoff * sqrt(terms);
    if (param->dim[1] != 1)
        return bound_matrix(param, gradients[row], least, factor, bound);
    bound_vector(params, row, gradients, least, factor, bound);
    return OK;
}

static double stepped(const struct recipe_optimizer *o, int64_t step, bool decays, struct adam_element e,
                      double g)
{
    double m = o->adam_beta1 * e.m + (1.0 - o->adam_beta1) * g;
    double v = o->adam_beta2 * e.v + (1.0 - o->adam_beta2) * g * g;
    double m_hat = m / (1.0 - pow(o->adam_beta1, (double)step)),
           v_hat = v / (1.0 - pow(o->adam_beta2, (double)step));
    double decay = decays ? o->weight_decay * e.weight : 0.0;
    return e.weight - learning_rate(o, step) * (m_hat / (sqrt(v_hat) + o->adam_eps) + decay);
}

double bound_weight(const struct recipe_optimizer *o, int64_t step, bool decays, struct adam_element e,
                    double gradient_bound)
{
    double here = stepped(o, step, decays, e, e.gradient);
    double below = stepped(o, step, decays, e, e.gradient - gradient_bound),
           above = stepped(o, step, decays, e, e.gradient + gradient_bound);
    double moves = fmax(fabs(below - here), fabs(above - here));
    // m and v in one element are not independent, so the update is not monotone everywhere in g; at zero it
    // turns.
    if (fabs(e.gradient) < gradient_bound)
        moves = fmax(moves, fabs(stepped(o, step, decays, e, 0.0) - here));
    // Inputs that differ round differently: the sum once, the update once for each of its operations.
    return moves + unit_roundoff * (2.0 * fabs(here) + 8.0 * fabs(here - e.weight));
}
