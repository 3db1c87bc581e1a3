// SPDX-License-Identifier: Apache-2.0
/* How far two right runs may lie apart when they add the same numbers in another order.
 *
 * A sum of n terms in fp32 is off by about sqrt(n) * u times the root of its squared terms, u = 2^-24:
 * rounding errors are independent enough to walk rather than to march (Higham and Mary 2019,
 * doi:10.1137/18M1226312). An element of a gradient hangs on all sums on the way to it: forward through every
 * layer, back down to its own, and over the tokens of the global batch. Independent errors add in squares, so
 * with N the number of terms of all those sums,
 *
 *     |g_layout - g_one| <= LAMBDA * sqrt(N) * u * s        s: the size of the element's own terms
 *
 * Of s, what is left of the terms tells. An element (i, j) of a matrix is a sum over tokens of dy_i * x_j, so
 * with R, C and A the rms of its row, its column and of all, its terms have the size R * C / A, exact for an
 * outer product. But dy_i and x_j are sums themselves, and one that has cancelled keeps the error of its
 * terms, which are as large as everybody's: an error in dy_i of the usual size comes in with x_j, that is
 * with C, and one in x_j with R. Hence s = max(R * C / A, R, C). Where a row belongs to a token, its dy_i are
 * that token's own, and C stays out: rare tokens keep their small bounds.
 *
 * All this counts how errors arise, and assumes that the next op propagates them unchanged. How much it
 * magnifies them depends on the weights, and after a few large updates it can be tenfold: an absolute error
 * of a logit or an attention score is a relative error of its exponential, a norm divides by the magnitude of
 * its row, and the gradient of a well-predicted token is the small difference 1 - 1. So the step is
 * also run in perturbed arithmetic (perturb.h), where each tensor between two ops is off at random by
 * what rounding makes of it, and what that has done to a gradient is its measured response d. An element's
 * own share of two runs may be small by chance, so it is the largest of |d| and of R * C / A, R and C as
 * above, now of d:
 *
 *     |g_layout - g_one| <= LAMBDA * max(sqrt(N) * u * s, d)
 *
 * Two sums cancel by nature, and other tensors tell the size of their terms. A bias has the terms of its
 * matrix's row (the input of q, k, v and fc1 is normalised). The derivatives of a softmax add up to zero:
 * where the values of all tokens agree, nothing is left of the gradients of q and k (and of the key bias
 * never anything), but the errors of dout * v are, times k and q.
 *
 * Adam: with the moments of the step before equal, the new weight is a function of g that turns in one place
 * at most; its bound is how far it moves while g moves within its own. Where |g| is below its bound, g/(|g| +
 * eps) may turn its sign, and the weight may be two steps apart: that is what the arithmetic allows, and no
 * more.
 *
 * DualPipe adds the microbatches of each direction apart, on two ranks, and then both sums. One rank adds all
 * of them in order. The same terms in another order, as with data parallelism: N and the bounds are the same.
 *
 * The loss is a mean over tokens whose errors are independent: each is off by u * sqrt(N) * the size of a
 * logit, and by the rounding of its own logarithm. The norm is held
 * against the gradients that the layout itself has: made of the same numbers in fp64, block by block, it may
 * be off by the rounding of that sum only.
 *
 * Where activations are bf16 or f16 (working type), every tensor between two ops has been rounded to it, by
 * u_w = 2^-8 or 2^-11 at most of each element, while sums still run in fp32. These roundings are independent
 * too. Of R tensors stored on the way to an element, forward through every layer and back down to its own,
 * parts and sums over tp each for themselves, the share of each is u_w * s, so that
 *
 *     |g_layout - g_one| <= LAMBDA * sqrt(N * u^2 + R * u_w^2) * s
 *
 * and the same of a logit for the loss. TF32 rounds the operands of each product instead, by u_w = 2^-10 at
 * most; they are the same tensors. What is equal in both runs counts for nothing: weights are rounded
 * alike.
 *
 * The loss likewise has the larger of its two terms and LAMBDA times its own response.
 *
 * LAMBDA is not tuned per tensor or model. It is how many standard deviations the largest of millions of
 * elements may stray, 8; for a single number, as the loss is, it is 3. */
#pragma once

#include "layers/parameters/param.h"
#include "trainer/recipe/recipe.h"

/* Terms of all sums on the way to the gradient of a row of `layer`; to the loss with `layer` num_layers + 1.
 */
double bound_terms(const struct model_config *model, int layer, double tokens);

/* The matrix whose rows tell how large the terms of a bias's elements are; -1 for every other row. */
int bound_companion(const struct params *params, int row);

/* Tensors of activations that are rounded on that way. */
double bound_roundings(const struct model_config *model, int layer);
/* u_w; 0 where nothing is rounded that fp32 has not rounded before. */
double bound_roundoff(enum dtype working, bool tf32);
/* The terms of the longest sum of any op but those over the vocabulary or over tokens. */
double bound_longest_sum(const struct model_config *model);
/* sqrt(N u^2 + R u_w^2): the standard deviation of what an element hangs on, relatively. */
double bound_spread(const struct model_config *model, double roundoff, int layer, double tokens);

/* How large the terms of a gradient are at least, when it comes with the factor of a loss scale: f16 rounds
 * what is below 2^-14 as if it were that large, in steps of 2^-24, and of these there is one for each token,
 * times an input of about 1. 0 in other types. */
double bound_least(enum dtype working, double tokens);

/* Per element of the gradient of a row: bound[i] for i < rows * columns. gradients: the whole tensors of all
 * rows, since a bias asks its matrix. response: how far perturbed runs have moved each element of this row
 * (the rms over the runs), or NULL. least: how large the terms are at least, where something else tells; 0
 * where nothing does. spread: of its layer. */
MUST_USE enum status bound_gradient(const struct params *params, int row, float *const *gradients,
                                    const float *response, double least, double spread, float *bound);

/* The rms of x[0], x[stride], ...: the size of a sum's terms. */
double bound_rms(const float *x, int64_t count, int64_t stride);
/* The rms of the logits as it follows from the head: normalised inputs, H of them, times weights. weights:
 * the whole tensors of all rows. */
double bound_logit(const struct params *params, float *const *weights, int64_t hidden_size);

/* logit: the rms of the logits, or an estimate of it. response: how far perturbed runs have moved the loss.
 */
double bound_loss(const struct model_config *model, double roundoff, double tokens, double loss, double logit,
                  double response);

/* Of a norm against the same gradients' norm: elements of them. */
double bound_norm(double norm, double elements);

/* What one AdamW step does to an element. */
struct adam_element {
    double weight, m, v; // before
    double gradient;     // as AdamW sees it: clipped
};
double bound_weight(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                    struct adam_element element, double gradient_bound);

/* The same of a bf16 weight that is rounded stochastically by `half`, as in kernels/ops.h; `one`: what one
 * rank has. Rounding is monotone and its bits are known, so what another layout may come to lies between the
 * ends of the bound above, rounded: mostly that is `one` itself, and the bound 0. Where a decision lies
 * between the ends, it is one unit in the last place. */
double bound_weight_stochastic(const struct recipe_optimizer *optimizer, int64_t step, bool decays,
                               struct adam_element element, double gradient_bound, uint32_t half, double one);
