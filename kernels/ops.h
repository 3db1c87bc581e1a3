// SPDX-License-Identifier: Apache-2.0
/* An op is data: a kind and its arguments, in one struct. The doors below check shapes and submit it;
 * cpu runs it (one switch in kernels/cpu/run.c), strict keeps a copy and runs it late, dry counts it,
 * cuda launches it. So no caller knows a backend, and a new op is one struct, one door and one case.
 *
 * Letters: B sequences, S tokens each, T = B*S rows (row b*S + s), H hidden, F ffn, V vocabulary,
 * A heads, G key/value groups, D head dimension. Under tensor parallelism every size here is this
 * rank's share. 2-D operands may have a row stride, never a column stride.
 *
 * Types: activations, their gradients and weights have one working type, f32, bf16 or f16, the same for all
 * operands of an op; a shape below without a type is of it. Sums over a row or over tokens stay f32: mean,
 * rstd, lse, all of the loss but the logits, gradients of weights. Every op computes in fp32 and rounds each
 * result once.
 *
 * Laws: activations are overwritten (=); gradients of weights are added to (+=), in microbatch order.
 * Sums run in a fixed order that depends on shapes only, never on threads, alignment or vector
 * tails. Everything that changes from step to step or microbatch to microbatch is read from device
 * memory. */
#pragma once

#include "base/philox.h"
#include "kernels/device.h"
#include "kernels/number_format.h"

/* Dropout that every layout draws alike: the mask of element (token, column) is a function of
 * (generator, the token's global sample, its place in it, column), never of where the token is stored.
 * With word = philox_word(generator, sample, place * columns + column), an element is kept when
 * philox_uniform(word) >= probability, and scaled by 1 / (1 - probability). */
struct dropout {
    float probability;             // 0: none; the rest is then unread
    struct philox generator;       // named by seed and site ("layers.3.mlp.dropout")
    const int64_t *sample;         // [T] global sample counter of each token
    const int32_t *place;          // [T] index in its sample, 0..S-1
    int64_t columns, column_begin; // the global width of a row, and where this slice begins
};

enum op_kind {
    OP_GEMM,
    OP_FILL,
    OP_COPY,
    OP_CAST,
    OP_TO_DEVICE,
    OP_TO_HOST,
    OP_ADD,
    OP_ADD_PARTS,
    OP_POISON,
    OP_INIT_NORMAL,
    OP_COLUMN_SUM,
    OP_NORM_FORWARD,
    OP_NORM_BACKWARD,
    OP_ACTIVATION_FORWARD,
    OP_ACTIVATION_BACKWARD,
    OP_ROPE,
    OP_ATTENTION_FORWARD,
    OP_ATTENTION_BACKWARD,
    OP_EMBEDDING_FORWARD,
    OP_EMBEDDING_BACKWARD,
    OP_RESIDUAL_FORWARD,
    OP_RESIDUAL_BACKWARD,
    OP_RESIDUAL_NORM_FORWARD,
    OP_RESIDUAL_NORM_BACKWARD,
    OP_LOSS_MAX,
    OP_LOSS_SUM,
    OP_LOSS_FINISH,
    OP_LOSS_BACKWARD,
    OP_SQUARES,
    OP_SUM,
    OP_CLIP,
    OP_ADAMW,
    OP_MAGNITUDE,
    OP_QUANTISE,
    OP_HADAMARD,
    OP_KIND_COUNT
};
const char *op_name(enum op_kind kind);

enum activation_kind {
    ACTIVATION_GELU,      // x/2 (1 + erf(x/sqrt 2))
    ACTIVATION_GELU_TANH, // its tanh form, as in GPT-2
    ACTIVATION_SWIGLU,    // silu(x[:, :F]) * x[:, F:]
};

/* What comes behind a product, as if the op that is named here ran next: at most one of the three. A device
 * that is asked to (device_options.epilogues) does it where the product is made, without c's way through
 * memory: then the activation, or its slope, is multiplied before c, or dy, is rounded to the working type,
 * not after. */
struct epilogue {
    enum activation_kind activation; // of `after` and `before`; not swiglu, whose x is wider than its y
    struct tensor after;             // [M, N] = activation_forward(x = c)
    struct tensor before;            // [M, N] x: c = activation_backward(x, dy = the product)
    struct tensor bias_gradient; // f32[M] += column_sum(a), of c the gradient of a weight: a is transposed
};

/* c[M, N] = op(a)[M, K] op(b)[K, N] (+ bias[N]) (+ what c held, when accumulate). c may be f32 where a and b
 * are not: the gradient of a weight, and only an f32 c is added to. */
struct gemm {
    struct tensor a, b, c;
    struct tensor bias; // {0}: none; [N] of a's type
    bool transpose_a;   // a is [K, M]
    bool transpose_b;   // b is [N, K]
    bool accumulate;
    struct epilogue epilogue; // {0}: none
};

struct fill {
    struct tensor out;
    float value;
};
/* out = in, same shape and type, either may have a row stride. */
struct copy {
    struct tensor in, out;
};
/* out = in, the same shape, each f32, bf16 or f16: rounded to the nearest, ties to even; NaN stays NaN, and
 * what is too large for f16 becomes infinite. */
struct cast {
    struct tensor in, out;
};
/* Bytes between host and device memory: submitted by copy_to_device and copy_to_host (device.h). */
struct transfer {
    void *to;
    const void *from;
    size_t bytes;
};
/* out += in, f32 or f64. */
struct add {
    struct tensor in, out;
};
/* out[N] = the rows of parts[R, N] added up in their order: what a transport makes of the parts of R
 * ranks, to the bit. R >= 1. */
struct add_parts {
    struct tensor parts, out;
};
/* The caller is done with this memory: strict makes it NaN, the others do nothing. */
struct poison {
    struct tensor out;
};
/* Of any working type: element (i, j) of this slice of a global [rows, columns] matrix is
 * std * normal(generator, (row_begin + i) * columns + column_begin + j). */
struct init_normal {
    struct tensor out; // [I, J]
    struct philox generator;
    float std;
    int64_t row_begin, column_begin, columns;
};
/* out[N] += sum over rows of in[T, N]: a bias gradient. */
struct column_sum {
    struct tensor in, out;
};

enum norm_kind { NORM_LAYER, NORM_RMS };
/* y = (x - mean) * rstd * weight + bias  (LayerNorm, 1607.06450)
 * y = x * rstd * weight                  (RMSNorm, 1910.07467: mean is 0 and unread, bias {0}) */
struct norm_forward {
    enum norm_kind kind;
    struct tensor x, weight, bias; // [T, H], [H], [H]
    float epsilon;
    struct tensor y;          // [T, H]
    struct tensor mean, rstd; // f32[T]
};
/* dx = dresidual + the gradient for x;  dweight = , dbias = this microbatch's share (overwritten, not added).
 * dresidual is what comes down the residual stream beside the norm: {0} where nothing does; it may be dx. */
struct norm_backward {
    enum norm_kind kind;
    struct tensor dy, x, weight, mean, rstd;
    struct tensor dresidual, dx;  // [T, H]
    struct tensor dweight, dbias; // f32[H]; dbias {0} for RMSNorm
};

struct activation_forward {
    enum activation_kind kind;
    struct tensor x; // [T, F], for swiglu [T, 2F]: gate, then up
    struct tensor y; // [T, F]
};
struct activation_backward {
    enum activation_kind kind;
    struct tensor x, dy;
    struct tensor dx; // the shape of x; may be dy, but for swiglu
};

/* Rotary positions (2104.09864), in place on [T, heads * D], in the half-rotated pairing (i, i + D/2):
 * angle = position * base^(-2i/D). Angle, sine and cosine in double precision, rounded to fp32 once: at
 * position 100000 an fp32 angle would be off by 0.004. inverse: rotate back. */
enum { ROPE_HEAD_DIM_MAX = 2048 };
struct rope {
    struct tensor x;
    const int32_t *position; // [T]
    int64_t head_dim;        // even, at most ROPE_HEAD_DIM_MAX
    double base;
    bool inverse;
};

/* Causal attention with blockwise softmax (2205.14135): memory grows with S, never S*S.
 * Query head h reads group h / (A/G). Token s sees token r of its sequence when r <= s and, where
 * documents are given, document[s] == document[r]. Dropout keys: (sample, head, s, r) as element
 * (head * S + s) * S + r of the sample, with the *global* head. */
struct attention_forward {
    struct tensor q, k, v; // [T, A*D], [T, G*D], [T, G*D]: columns of one fused matrix, or not
    int64_t batch, sequence, head_dim;
    float scale;
    const int32_t *document; // [T] or NULL
    struct dropout dropout;  // sample [T]; place unused; columns = S; column_begin = this rank's first head
    struct tensor out;       // [T, A*D]
    struct tensor lse;       // f32[A, T]: log of the sum of exponentials, for the backward pass
};
struct attention_backward {
    struct attention_forward forward; // with its results
    struct tensor dout;
    struct tensor dq, dk, dv; // overwritten
};

/* out[t] = table[id[t] - begin], 0 where id[t] is outside [begin, begin + rows): another rank holds it.
 * accumulate: added to out (positions on top of tokens). */
struct embedding_forward {
    struct tensor table; // [rows, H]
    const int32_t *id;   // [T]
    int64_t begin, rows; // rows may be fewer than the table's (padding)
    struct tensor out;   // [T, H]
    bool accumulate;
};
/* dtable[id[t] - begin] += dout[t], in token order. */
struct embedding_backward {
    const int32_t *id;
    int64_t begin, rows;
    struct tensor dout, dtable;
};

/* out = residual + dropout(x + bias).  residual and bias may be {0}; out may be x or residual. */
struct residual_forward {
    struct tensor x, bias, residual, out; // [T, H], [H], [T, H], [T, H]
    struct dropout dropout;
};
/* dx = dout through the same dropout mask. dx may be dout. */
struct residual_backward {
    struct tensor dout, dx;
    struct dropout dropout;
};

/* Both, one after the other and with the same bits, but a row is not read again between them: the sum of a
 * branch, and its norm (norm.x is residual.out); and back, the norm, and the mask of the branch before it
 * (residual.dout is norm.dx, and may be residual.dx where nothing is dropped). */
struct residual_norm_forward {
    struct residual_forward residual;
    struct norm_forward norm;
};
struct residual_norm_backward {
    struct norm_backward norm;
    struct residual_backward residual;
};

/* Cross entropy over a vocabulary cut across ranks (1909.08053, section 3): between the three steps
 * the caller reduces `max` (maximum) and `sum` and `target` (sum) over the tensor-parallel group.
 * `columns` of the logits are real; the rest is padding and is never read. `begin` is the global
 * index of column 0. */
struct loss_max {
    struct tensor logits; // [T, V]
    int64_t columns;
    struct tensor max; // f32[T]
};
struct loss_sum {
    struct tensor logits, max;
    const int32_t *label; // [T] global ids
    int64_t begin, columns;
    struct tensor sum;    // f32[T]: sum of exp(logit - max) over this rank's columns
    struct tensor target; // f32[T]: logit[label] - max where this rank holds the label, else 0
};
/* loss[t] = mask[t] * (log(sum) - target);  sample_loss[b] = its fp64 sum over the S tokens of row b,
 * sample_tokens[b] = the sum of the mask. */
struct loss_finish {
    struct tensor sum, target;
    const float *mask;                        // [T]
    struct tensor sample_loss, sample_tokens; // f64[B]
};
/* logits become their own gradient: scale * mask[t] * (exp(logit - max)/sum - [column is the label]), padding
 * columns 0. Not divided by the number of tokens: that happens once, in the optimizer. */
struct loss_backward {
    struct tensor logits, max, sum;
    const int32_t *label;
    const float *mask;
    int64_t begin, columns;
    const float *scale; // one, in device memory: the loss scale; NULL: 1
};

/* out[b] = sum of squares of block b of x, in fp64. A block is whole rows, as many as have SQUARES_BLOCK
 * elements together, and at least one: so it is a part of a tensor that does not depend on who holds which of
 * its blocks. x is dense, f32[N], whose rows have one element, or f32[R, C]. */
enum { SQUARES_BLOCK = 1024 };
struct squares {
    struct tensor x;
    struct tensor out; // f64[squares_blocks(x)]
};
int64_t squares_block_rows(int64_t columns); // of every block but the last
int64_t squares_blocks(struct tensor x);
/* out[0] = the sum of x, in an order that N alone says: on the CPU that of the index. */
struct sum {
    struct tensor x;   // f64[N]
    struct tensor out; // f64[1]
};

/* squares(), sum() and adamw() also take a list of what they do, of which nobody writes what another member
 * touches: a GPU does it in one launch. A launch for each of a model's tensors takes longer than the smaller
 * ones are worked on. The list itself is read before the call returns. */
struct squares_list {
    const struct squares *at;
    int64_t count;
};
struct sum_list {
    const struct sum *at;
    int64_t count;
};

/* From the sums of the whole world to what AdamW multiplies gradients by, on the device, so that no host has
 * to look. With L, N and Q the sums of loss, tokens and squares, each in index order, in fp64:
 * result = { L / N, sqrt(Q) / N / S, N, S },  gradient_scale = min(1, limit / (result[1] + 1e-6)) / N / S
 * (Megatron's clip coefficient; limit 0: no clipping). Without any token nothing is scaled: N counts as 1.
 * S is the loss scale, which the gradients have come with. Where there is one, a norm that is not finite
 * means that they have overflowed: then the step is to be skipped, and gradient_scale is 0 besides. */
struct adamw_hyper;
struct clip {
    struct tensor loss, tokens; // f64[G], one per sample of the global batch
    struct tensor squares;      // f64[n], one per tensor and tensor-parallel share
    double limit;               // of the norm
    const float *loss_scale;    // one, in device memory; NULL: S is 1, and nothing is ever skipped
    struct adamw_hyper *hyper;  // gradient_scale and skip are written
    struct tensor result;       // f64[4]: loss and gradient norm per token, tokens, loss scale
};

/* AdamW (1711.05101) on a dense slice. g = gradient * hyper->gradient_scale, and with r = 1 - beta
 *
 *     m = (m - r1 m) + r1 g        v = (v - r2 v) + r2 g g
 *     w -= lr ((m / correction1) / (sqrt(v / correction2) + epsilon) + weight_decay w)
 *
 * The host forms r in double precision and rounds it once, and no fp32 beta occurs: 1 - beta from a beta in
 * fp32 is 1.3e-5 too small for beta = 0.999 and 1.7e-4 too large for 0.9999, and a correct r next to such a
 * beta lets v drift by as much over 1 / r steps, since the weights of a mean then no longer add up to 1.
 *
 * `working`, where there is one,
 * becomes the new weight, rounded: what the layers compute with, and not where updates add up, since one of
 * less than 2^-9 of a weight would be lost in bf16 (1710.03740). */
struct adamw_hyper { // in device memory; rewritten each step
    float lr, one_minus_beta1, one_minus_beta2, epsilon;
    float correction1, correction2; // 1 - beta^step
    float gradient_scale;           // clip / tokens / loss scale
    float weight_decay;
    float skip;    // not 0: this step changes nothing
    uint64_t step; // from 1
};

/* A weight without a master is bf16[N] itself. The step is computed in fp32 and rounded stochastically, so
 * that it is right in the mean, however small it is beside the weight (2010.06192); where rounding to the
 * nearest would stand still. Element i is number n = begin + (first + i) / width * columns + (first + i) %
 * width of the whole tensor, and is rounded with the lower half of word (n / 2) of the step's stream where n
 * is even, and with the upper one where it is odd: philox_word(generator, hyper->step, n / 2). So every
 * layout rounds alike. */
struct stochastic {
    struct philox generator;
    int64_t begin, width, columns; // of the slice: its first number, its row; the row of the whole tensor
    int64_t first;                 // elements of the slice before these N
};
struct adamw {
    struct tensor weight, gradient, m, v; // f32[N]; the weight f32 or bf16
    const struct adamw_hyper *hyper;
    bool decay;                   // false: weight_decay is not applied to this slice
    struct tensor working;        // {0}, or bf16 or f16 [N]
    struct stochastic stochastic; // read where `weight` is bf16
};
struct adamw_list {
    const struct adamw *at; // all in one type, with working weights of one type
    int64_t count;
};

/* How large numbers are, from which scales follow. The sum is exact: of |x| to the nearest 2^-24, while it is
 * below 2^29, so that it does not depend on who adds what. Inf and NaN show as what they are. */
enum magnitude_kind {
    MAGNITUDE_LARGEST,        // out f32[1]: the largest |x|
    MAGNITUDE_LARGEST_IN_ROW, // out f32[R]
    MAGNITUDE_SUM,            // out f64[1]: of all |x|
};
struct magnitude {
    enum magnitude_kind kind;
    struct tensor in, out; // in [R, C]
    bool accumulate;       // with what out held: the larger, or the sum
};

/* How a scale follows from the magnitude a of the numbers that share it. Powers of two, so that scaling
 * rounds nothing, or what a published recipe says, in fp32 operation by operation. */
enum scale_rule {
    SCALE_POWER_OF_TWO, // the least 2^e with a <= largest * 2^e; 1 where a is 0
    SCALE_E8M0_DOWN,    // 2^(floor(log2 a) - exponent of the largest), e8m0: Microscaling 1.0, section 6.3
    SCALE_E8M0_UP,      // the least 2^e with a <= largest * 2^e, e8m0: 2506.08027
    SCALE_E4M3, // two levels (NVFP4, 2509.25149, appendix C): with up = largest * 448 / the tensor's a,
                // each block has code = e4m3(a / largest * up), and the scale is code * (1 / up)
    SCALE_FULL, // max(a, 1e-5) / largest, in fp32 (BitNet b1.58)
};
enum { QUANTIZE_BLOCK_MAX = 128 };

/* out = in as a small format with scales can hold it: round(in / scale) * scale. Blocks of
 * block_rows x block_columns elements share a scale, the last ones in a direction may be smaller; in rows
 * they begin anew every `period`. Without blocks all share the one of `magnitude`, or each row has its own.
 * What is not finite becomes NaN, and the numbers that share a scale with it where the scale is found here: a
 * GPU would saturate, but a run wants to hear of it. */
struct quantize {
    struct tensor in, out; // [R, C], f32[R, C]; out may be in
    enum number_format format;
    enum scale_rule scale;
    int64_t block_rows, block_columns; // each 1 .. 128, columns a divisor of that; 0, 0: no blocks
    int64_t period;                    // 0: none
    struct tensor magnitude;           // without blocks, and for SCALE_E4M3: f32[1]; or f32[R]; or f64[1]
    double divisor;                    // the magnitude is divided by it: the elements of a sum; 0: 1
    /* Stochastic rounding where sample is given: element (row, column) rounds by philox_word(generator,
     * sample[row], place[row] * columns + column_begin + column). */
    struct philox generator;
    const int64_t *sample;         // [R]
    const int32_t *place;          // [R]
    int64_t columns, column_begin; // the global width of a row, and where this slice begins
};

/* A random Hadamard transform along rows: of each block of 16, out = H D in / 4, with H the Hadamard matrix
 * in Sylvester's order and D signs, minus where the lowest bit of philox_word(signs, 0, row in the block) is
 * set. H D / 4 is orthogonal, so the products of two matrices over their rows stay what they were. */
enum { HADAMARD_ROWS = 16 };
struct hadamard {
    struct tensor in, out; // [R, C], f32[R, C], R a multiple of 16; out may be in
    struct philox signs;
};

struct op {
    enum op_kind kind;
    union {
        struct gemm gemm;
        struct fill fill;
        struct copy copy;
        struct cast cast;
        struct transfer transfer;
        struct add add;
        struct add_parts add_parts;
        struct poison poison;
        struct init_normal init_normal;
        struct column_sum column_sum;
        struct norm_forward norm_forward;
        struct norm_backward norm_backward;
        struct activation_forward activation_forward;
        struct activation_backward activation_backward;
        struct rope rope;
        struct attention_forward attention_forward;
        struct attention_backward attention_backward;
        struct embedding_forward embedding_forward;
        struct embedding_backward embedding_backward;
        struct residual_forward residual_forward;
        struct residual_backward residual_backward;
        struct residual_norm_forward residual_norm_forward;
        struct residual_norm_backward residual_norm_backward;
        struct loss_max loss_max;
        struct loss_sum loss_sum;
        struct loss_finish loss_finish;
        struct loss_backward loss_backward;
        struct squares_list squares;
        struct sum_list sum;
        struct clip clip;
        struct adamw_list adamw;
        struct magnitude magnitude;
        struct quantize quantize;
        struct hadamard hadamard;
    };
};

/* A copy that does without the caller's list, which lies behind the op in the same piece of *bytes: for a
 * device that runs ops later. The caller calls free(). NULL: no memory. */
struct op *op_copy(const struct op *op, size_t *bytes);

/* The temporary memory that an op takes of a device with these options (name, stands_for, threads, attention,
 * any_order), of which only dimensions and types are looked at. One buffer is for all ops of a device (the
 * CPU) or of a stream (cuda), as large as the largest needs. */
size_t op_scratch_bytes(const struct op *op, const struct device_options *options);

/* The doors: each checks its arguments (BAD_ARGUMENT with the shapes) and submits. */
MUST_USE enum status gemm(struct stream *stream, struct gemm args);
/* Only what gemm() has behind the product: for a caller who made that in another way. */
MUST_USE enum status gemm_epilogue(struct stream *stream, struct gemm args);
bool epilogue_is_none(const struct epilogue *epilogue);
MUST_USE enum status fill(struct stream *stream, struct fill args);
MUST_USE enum status copy(struct stream *stream, struct copy args);
MUST_USE enum status cast(struct stream *stream, struct cast args);
MUST_USE enum status add(struct stream *stream, struct add args);
MUST_USE enum status add_parts(struct stream *stream, struct add_parts args);
MUST_USE enum status poison(struct stream *stream, struct poison args);
MUST_USE enum status init_normal(struct stream *stream, struct init_normal args);
MUST_USE enum status column_sum(struct stream *stream, struct column_sum args);
MUST_USE enum status norm_forward(struct stream *stream, struct norm_forward args);
MUST_USE enum status norm_backward(struct stream *stream, struct norm_backward args);
MUST_USE enum status activation_forward(struct stream *stream, struct activation_forward args);
MUST_USE enum status activation_backward(struct stream *stream, struct activation_backward args);
MUST_USE enum status rope(struct stream *stream, struct rope args);
MUST_USE enum status attention_forward(struct stream *stream, struct attention_forward args);
MUST_USE enum status attention_backward(struct stream *stream, struct attention_backward args);
MUST_USE enum status embedding_forward(struct stream *stream, struct embedding_forward args);
MUST_USE enum status embedding_backward(struct stream *stream, struct embedding_backward args);
MUST_USE enum status residual_forward(struct stream *stream, struct residual_forward args);
MUST_USE enum status residual_backward(struct stream *stream, struct residual_backward args);
MUST_USE enum status residual_norm_forward(struct stream *stream, struct residual_norm_forward args);
MUST_USE enum status residual_norm_backward(struct stream *stream, struct residual_norm_backward args);
MUST_USE enum status loss_max(struct stream *stream, struct loss_max args);
MUST_USE enum status loss_sum(struct stream *stream, struct loss_sum args);
MUST_USE enum status loss_finish(struct stream *stream, struct loss_finish args);
MUST_USE enum status loss_backward(struct stream *stream, struct loss_backward args);
MUST_USE enum status squares(struct stream *stream, struct squares args);
MUST_USE enum status squares_each(struct stream *stream, struct squares_list all);
MUST_USE enum status sum(struct stream *stream, struct sum args);
MUST_USE enum status sum_each(struct stream *stream, struct sum_list all);
MUST_USE enum status clip(struct stream *stream, struct clip args);
MUST_USE enum status adamw(struct stream *stream, struct adamw args);
MUST_USE enum status adamw_each(struct stream *stream, struct adamw_list all);
MUST_USE enum status magnitude(struct stream *stream, struct magnitude args);
MUST_USE enum status quantize(struct stream *stream, struct quantize args);
MUST_USE enum status hadamard(struct stream *stream, struct hadamard args);
