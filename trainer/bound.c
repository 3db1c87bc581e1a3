// SPDX-License-Identifier: Apache-2.0
#include "trainer/bound.h"

#include "kernels/ops.h"
#include "trainer/learning_rate.h"

#include <math.h>
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

double bound_loss(const struct model_config *m, double tokens, double loss, double logit)
{
    double of_one_token = fabs(loss) + sqrt(bound_terms(m, (int)m->num_layers + 1, tokens)) * logit;
    return lambda_single * unit_roundoff * of_one_token / sqrt(tokens);
}

double bound_norm(double norm, double elements)
{
    // A running sum of n positive terms is half-way on average: its additions are off by u * sum * sqrt(n) /
    // 3 in the root of their squares. The root of the sum halves that; itself and a division round once each.
    double block = elements < (double)SQUARES_BLOCK ? elements : (double)SQUARES_BLOCK;
    double additions = block + elements / (double)SQUARES_BLOCK;
    return 0x1p-53 * norm * (2.0 + lambda_single * sqrt(additions) / 6.0);
}

static double rms(const float *x, int64_t count, int64_t stride)
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

enum status bound_gradient(const struct param *row, const float *gradient, const double *least, double terms,
                           float *bound)
{
    int64_t rows = row->dim[0], columns = row->dim[1];
    double factor = lambda * unit_roundoff * sqrt(terms), all = rms(gradient, rows * columns, 1);
    if (columns == 1) {
        for (int64_t i = 0; i < rows; i++) {
            bound[i] = (float)(factor * fmax(least[i], all));
        }
        return OK;
    }
    double *of_column = calloc((size_t)columns, sizeof *of_column);
    if (of_column == NULL)
        return fail(NO_MEMORY, "no memory for the bounds of %s", row->name);
    for (int64_t j = 0; j < columns; j++)
        of_column[j] = rms(gradient + j, rows, columns);
    for (int64_t i = 0; i < rows; i++) {
        double of_row = rms(gradient + i * columns, columns, 1);
        for (int64_t j = 0; j < columns; j++)
            bound[i * columns + j] =
                (float)(factor * fmax(least[i], size_of_terms(row, of_row, of_column[j], all)));
    }
    free(of_column);
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
