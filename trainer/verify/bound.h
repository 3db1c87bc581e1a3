// SPDX-License-Identifier: Apache-2.0
/* Error bounds: how far two correct runs may differ if they add the same terms in different orders.
 *
 * An fp32 sum of n terms has an error of about sqrt(n) * u times the root of its squared terms, u = 2^-24:
 * rounding errors are independent enough to grow as a random walk rather than linearly (Higham and Mary 2019,
 * doi:10.1137/18M1226312). An element of a gradient depends on all sums on the path to it: forward through
 * every layer, back down to its own, and over the tokens of the global batch. Independent errors add in
 * squares, so with N the number of terms of all those sums,
 *
 *     |g_layout - g_one| <= LAMBDA * sqrt(N) * u * s        s: the size of the element's own terms
 *
 * The size s is estimated from the gradient itself. An element (i, j) of a matrix is a sum over tokens of
 * dy_i * x_j, so with R, C and A the rms of its row, its column and of all, its terms have the size R * C /
 * A, exact for an outer product. But dy_i and x_j are sums themselves, and one that has cancelled keeps the
 * error of its terms, which are of average size: an error in dy_i of average size is multiplied by x_j, that
 * is by C, and one in x_j by R. Hence s = max(R * C / A, R, C). If each row belongs to one token
 * (embeddings), its dy_i come from that token only, and C is omitted: rare tokens keep their small bounds.
 *
 * This models the creation of errors and assumes that later ops propagate them unchanged. Their amplification
 * depends on the weights, and after a few large updates it can be tenfold: an absolute error of a logit or an
 * attention score is a relative error of its exponential, a norm divides by the magnitude of its row, and the
 * gradient of a well-predicted token is the small difference 1 - 1. Therefore the step is also run in
 * perturbed arithmetic (perturb.h), where each tensor between two ops is perturbed at random by about its
 * rounding error, and the resulting difference of a gradient is its measured response d. The response of a
 * single element may be small by chance in two runs, so the bound uses the largest of |d| and of R * C / A, R
 * and C as above, now of d:
 *
 *     |g_layout - g_one| <= LAMBDA * max(sqrt(N) * u * s, d)
 *
 * Two sums cancel systematically, and other tensors give the size of their terms. A bias has the terms of its
 * matrix's row (the input of q, k, v and fc1 is normalized). The derivatives of a softmax add up to zero: if
 * the values of all tokens agree, the gradients of q and k vanish (that of the key bias always does) except
 * for the errors of dout * v, times k and q.
 *
 * Adam: given equal moments from the previous step, the new weight is a function of g with at most one
 * turning point; its bound is the range of this function while g varies within its own bound. Where |g| is
 * below its bound, g/(|g| + eps) may change sign, and the weights may be two steps apart: that is the exact
 * limit of the arithmetic.
 *
 * DualPipe accumulates the microbatches of each direction separately, on two ranks, and then adds both sums.
 * One rank adds all of them in order. These are the same terms in another order, as with data parallelism: N
 * and the bounds are unchanged.
 *
 * The loss is a mean over tokens with independent errors: each has an error of u * sqrt(N) * the size of a
 * logit, and the rounding error of its own logarithm. The norm is checked against the gradients of the layout
 * itself: computed from the same values in fp64, block by block, it may differ only by the rounding of that
 * sum.
 *
 * With bf16 or fp16 activations (working type), every tensor between two ops is rounded to that type, by at
 * most u_w = 2^-8 or 2^-11 relative to each element, while sums still run in fp32. These roundings are also
 * independent. With R tensors stored on the path to an element, forward through every layer and back down to
 * its own, counting partial results and sums over tp separately, each contributes u_w * s, so that
 *
 *     |g_layout - g_one| <= LAMBDA * sqrt(N * u^2 + R * u_w^2) * s
 *
 * and the same for a logit in the loss. TF32 rounds the operands of each matmul instead, by at most u_w =
 * 2^-10; they are the same tensors. Errors that are equal in both runs do not count: weights are rounded
 * identically.
 *
 * The bound of the loss likewise is the larger of its two terms and LAMBDA times its own response.
 *
 * LAMBDA is not tuned per tensor or model. It is the number of standard deviations that the largest of
 * millions of elements may deviate, 8; for a single value such as the loss it is 3. */
#pragma once

#include "layers/parameters/param.h"
#include "trainer/recipe/recipe.h"

/* Number of terms of all sums on the path to the gradient of a row of `layer`; to the loss for `layer` =
 * num_layers + 1. */
double bound_terms(const struct params *params, const struct model_config *model, int layer, double tokens);

/* The matrix whose rows give the size of the terms of a bias; -1 for every other row. */
int bound_companion(const struct params *params, int row);

/* u_w; 0 if nothing is rounded beyond fp32. */
double bound_roundoff(enum dtype working, bool tf32);
/* Terms of the longest sum of any op, except sums over the vocabulary or over tokens. */
double bound_longest_sum(const struct model_config *model);
/* sqrt(N u^2 + R u_w^2): the relative standard deviation of an element. */
double bound_spread(const struct params *params, const struct model_config *model, double roundoff, int layer,
                    double tokens);

/* Lower bound on the terms of a gradient under a loss scale: fp16 rounds values below 2^-14 like 2^-14, in
 * steps of 2^-24, once for each token, times an input of about 1. 0 for other types. */
double bound_least(enum dtype working, double tokens);

/* Computes the bound of each element of the gradient of a row: bound[i] for i < rows * columns. gradients:
 * the whole tensors of all rows, since the bound of a bias uses its matrix. response: rms over the perturbed
 * runs of the difference of each element of this row, or NULL. least: lower bound on the size of the terms,
 * or 0. spread: of its layer. */
void bound_gradient(const struct params *params, int row, float *const *gradients, const float *response,
                    double least, double spread, float *bound);

/* The rms of x[0], x[stride], ...: the size of the terms of a sum. */
double bound_rms(const float *x, int64_t count, int64_t stride);
/* The rms of the logits as predicted from the head: hidden_size normalized inputs times weights. weights: the
 * whole tensors of all rows. */
double bound_logit(const struct params *params, float *const *weights, int64_t hidden_size);

/* logit: rms of the logits, or an estimate. response: difference of the loss in perturbed runs. */
double bound_loss(const struct params *params, const struct model_config *model, double roundoff,
                  double tokens, double loss, double logit, double response);

/* Bound of a norm relative to the norm computed from the same gradients. */
double bound_norm(double norm, double elements);

/* One AdamW step on an element. */
struct adam_element {
    double weight, m, v; // before the step
    double gradient;     // input of AdamW: after clipping
};
double bound_weight(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                    struct adam_element element, double gradient_bound);

/* The same for a bf16 weight with stochastic rounding by `half`, as in kernels/ops.h; `one`: the value on one
 * rank. Rounding is monotone and its random bits are known, so the result on another layout is between the
 * rounded ends of the bound above: mostly this is `one` itself, and the bound is 0. If a rounding threshold
 * is between the ends, it is one unit in the last place. */
double bound_weight_stochastic(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                               struct adam_element element, double gradient_bound, uint32_t half, double one);
