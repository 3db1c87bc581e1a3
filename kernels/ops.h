// SPDX-License-Identifier: Apache-2.0
/* An op is data: a kind and its arguments, in one struct. The functions below validate the arguments and
 * submit the op; cpu runs it (one switch in kernels/cpu/run.c), strict copies it and defers it, dry counts
 * it, cuda launches it. Callers are backend-independent.
 *
 * Letters: B sequences, S tokens each, T = B*S rows (row b*S + s), H hidden, F ffn, V vocabulary, A heads, G
 * key/value groups, D head dimension. Under tensor parallelism every size here is this rank's share. 2-D
 * operands may have a row stride, never a column stride.
 *
 * Types: activations, their gradients and weights have one working type, f32, bf16 or f16, the same for all
 * operands of an op; a shape without a type below has the working type. Reductions over a row or over tokens
 * stay f32: mean, rstd, lse, everything in the loss except the logits, gradients of weights. Every op
 * computes in fp32 and rounds each result once.
 *
 * Rules: activations are overwritten (=); gradients of weights are accumulated (+=), in microbatch order. The
 * order of every reduction depends on shapes only, never on threads, alignment or vector tails. Every value
 * that changes between steps or microbatches is read from device memory. */
#pragma once

#include "base/philox.h"
#include "kernels/activation.h"
#include "kernels/device.h"
#include "kernels/numbers/number_format.h"
#include "kernels/rope_scaling.h"

/* Layout-independent dropout: the mask of element (token, column) is a function of (generator, the token's
 * global sample, its position in the sample, column), never of where the token is stored. With word =
 * philox_word(generator, sample, sample_offset * columns + column), an element is kept when
 * philox_uniform(word) >= probability, and scaled by 1 / (1 - probability). */
struct dropout {
    float probability;             // 0: no dropout; the other fields are not read
    struct philox generator;       // keyed by seed and site ("layers.3.mlp.dropout")
    const int64_t *sample;         // [T] global sample counter of each token
    const int32_t *sample_offset;  // [T] token offset in its sample, 0..S-1
    int64_t columns, column_begin; // global width of a row; first column of this slice
};

/* Every op that a device computes, once: row(KIND, name, argument struct, the member that shows its size in
 * messages). From this list follow enum op_kind, the members of struct op, the names, and for each device the
 * prototypes `cpu_NAME()` and `cuda_NAME()` and the switch that calls them: a new op is a row here, a struct
 * and an entry point below, and its implementations. */
// clang-format off
#define OPS(row)                                                                                        \
    row(GEMM,                   gemm,                   gemm,                   a)                      \
    row(FILL,                   fill,                   fill,                   out)                    \
    row(COPY,                   copy,                   copy,                   out)                    \
    row(CAST,                   cast,                   cast,                   in)                     \
    row(ADD,                    add,                    add,                    out)                    \
    row(ADD_PARTS,              add_parts,              add_parts,              parts)                  \
    row(INIT_NORMAL,            init_normal,            init_normal,            out)                    \
    row(COLUMN_SUM,             column_sum,             column_sum,             in)                     \
    row(NORM_FORWARD,           norm_forward,           norm_forward,           x)                      \
    row(NORM_BACKWARD,          norm_backward,          norm_backward,          x)                      \
    row(ACTIVATION_FORWARD,     activation_forward,     activation_forward,     x)                      \
    row(ACTIVATION_BACKWARD,    activation_backward,    activation_backward,    x)                      \
    row(ROPE,                   rope,                   rope,                   x)                      \
    row(ATTENTION_FORWARD,      attention_forward,      attention_forward,      q)                      \
    row(ATTENTION_BACKWARD,     attention_backward,     attention_backward,     forward.q)              \
    row(EMBEDDING_FORWARD,      embedding_forward,      embedding_forward,      out)                    \
    row(EMBEDDING_BACKWARD,     embedding_backward,     embedding_backward,     dout)                   \
    row(RESIDUAL_FORWARD,       residual_forward,       residual_forward,       x)                      \
    row(RESIDUAL_BACKWARD,      residual_backward,      residual_backward,      dout)                   \
    row(RESIDUAL_NORM_FORWARD,  residual_norm_forward,  residual_norm_forward,  norm.x)                 \
    row(RESIDUAL_NORM_BACKWARD, residual_norm_backward, residual_norm_backward, norm.x)                 \
    row(SOFTCAP,                softcap,                softcap,                x)                      \
    row(LOSS_MAX,               loss_max,               loss_max,               logits)                 \
    row(LOSS_SUM,               loss_sum,               loss_sum,               logits)                 \
    row(LOSS_FINISH,            loss_finish,            loss_finish,            sum)                    \
    row(LOSS_BACKWARD,          loss_backward,          loss_backward,          logits)                 \
    row(SQUARES,                squares,                squares_list,           at[0].x)                \
    row(SUM,                    sum,                    sum_list,               at[0].x)                \
    row(CLIP,                   clip,                   clip,                   squares)                \
    row(ADAMW,                  adamw,                  adamw_list,             at[0].weight)           \
    row(MAGNITUDE,              magnitude,              magnitude,              in)                     \
    row(QUANTIZE,               quantize,               quantize,               in)                     \
    row(HADAMARD,               hadamard,               hadamard,               in)

enum op_kind {
#define OP_ROW(kind, name, args, size) OP_##kind,
    OPS(OP_ROW)
#undef OP_ROW
    OP_TO_DEVICE, // copies from and to host memory (struct transfer)
    OP_TO_HOST,
    OP_POISON,    // only `strict` does something
    OP_KIND_COUNT
};
// clang-format on
const char *op_name(enum op_kind kind);

/* The epilogue of a GEMM, equivalent to running the named op on the result: at most one of the three. A
 * device with kernel_options.epilogues fuses it into the GEMM, which saves a round trip of c through memory:
 * the activation, or its derivative, is then applied before c, or dy, is rounded to the working type, not
 * after. */
struct epilogue {
    enum activation activation;  // of `after` and `before`; not gated: x would be wider than y
    struct tensor after;         // [M, N] = activation_forward(x = c)
    struct tensor before;        // [M, N] x: c = activation_backward(x, dy = the GEMM's result)
    struct tensor bias_gradient; // f32[M] += column_sum(a), when c is a weight gradient: a is transposed
};

/* c[M, N] = op(a)[M, K] op(b)[K, N] (+ bias[N]) (+ c, when accumulate). c may be f32 with narrower a and b,
 * as for weight gradients; only an f32 c can be accumulated into. */
struct gemm {
    struct tensor a, b, c;
    struct tensor bias; // {0}: none; else [N] of a's type
    bool transpose_a;   // a is [K, M]
    bool transpose_b;   // b is [N, K]
    bool accumulate;
    struct epilogue epilogue; // {0}: none
};

struct fill {
    struct tensor out;
    float value;
};
/* out = in, same shape and type; either may have a row stride. */
struct copy {
    struct tensor in, out;
};
/* out = in, same shape, each f32, bf16 or f16: round to nearest, ties to even; NaN stays NaN, and f16
 * overflow becomes infinity. */
struct cast {
    struct tensor in, out;
};
/* A copy between host and device memory, submitted by copy_to_device and copy_to_host (device.h). */
struct transfer {
    void *to;
    const void *from;
    size_t bytes;
};
/* out += in, f32 or f64. */
struct add {
    struct tensor in, out;
};
/* out[N] = the sum of the rows of parts[R, N] in row order: bit-identical to a transport's reduction over R
 * ranks. R >= 1. */
struct add_parts {
    struct tensor parts, out;
};
/* Marks memory as dead: strict fills it with NaN, the other devices do nothing. */
struct poison {
    struct tensor out;
};
/* Any working type: element (i, j) of this slice of a global [rows, columns] matrix is std *
 * normal(generator, (row_begin + i) * columns + column_begin + j). */
struct init_normal {
    struct tensor out; // [I, J]
    struct philox generator;
    float std;
    int64_t row_begin, column_begin, columns;
};
/* out[N] += column sums of in[T, N]: a bias gradient. */
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
/* dx = dresidual + the gradient with respect to x. dweight and dbias are this microbatch's share
 * (overwritten, not accumulated). dresidual is the gradient of the residual stream: {0} if there is none; it
 * may alias dx. */
struct norm_backward {
    enum norm_kind kind;
    struct tensor dy, x, weight, mean, rstd;
    struct tensor dresidual, dx;  // [T, H]
    struct tensor dweight, dbias; // f32[H]; dbias {0} for RMSNorm
};

struct activation_forward {
    enum activation kind;
    struct tensor x; // [T, F], with a gate [T, 2F]: gate, then up
    struct tensor y; // [T, F]
};
struct activation_backward {
    enum activation kind;
    struct tensor x, dy;
    struct tensor dx; // same shape as x; may alias dy, except with a gate
};

/* Rotary position embedding (2104.09864), in place on [T, heads * D], pairing (i, i + D/2): angle = position
 * * base^(-2i/D). Angle, sine and cosine are computed in double precision and rounded to fp32 once: at
 * position 100000 an fp32 angle would be off by 0.004. inverse: the transpose, for gradients, which rotates
 * back. */
enum { ROPE_HEAD_DIM_MAX = 2048 };
struct rope {
    struct tensor x;
    const int32_t *position; // [T]
    int64_t head_dim;        // even, at most ROPE_HEAD_DIM_MAX
    double base;
    bool inverse;
    bool interleaved; // pairs (2i, 2i + 1), as in GPT-J
    int64_t rotated;  // r, even: the first channels of each head, which are rotated with r in place of D; the
                      // others are unchanged. 0: D
    struct rope_scaling scaling;
};
static inline int64_t rope_rotated(const struct rope *op)
{
    return op->rotated > 0 ? op->rotated : op->head_dim;
}

/* Causal attention with blockwise softmax (2205.14135): memory grows with S, never S*S. Query head h reads
 * group h / (A/G). Each of B sequences has S query rows and K key rows. Query row s is the token of key row
 * s + query_begin; it attends to key row r when r <= s + query_begin and, with documents, both tokens have
 * the same document. Self-attention has K = S and query_begin 0. A rank with some tokens of a sequence has
 * fewer query rows than key rows, or keys that all precede the queries (query_begin >= K); partial results
 * for other keys are combined through lse. Heads of q and k have D columns, those of v and out E columns.
 *
 * Sliding window (2004.05150): query row s attends to no key row before s + query_begin - window + 1, so to
 * `window` tokens with its own.
 *
 * Soft-capping (2408.00118): scores x become cap tanh(x / cap), before ALiBi and the mask.
 *
 * ALiBi (2108.12409): -slope (s + query_begin - r) is added to the score of query row s and key row r.
 *
 * Dropout keys: with s a position in the sequence, (sample, head, s, r) is element (head * K + s) * K + r of
 * the sample, with the *global* head.
 *
 * Caution: cuda implements K = S, query_begin 0 and E = D, and returns NOT_SUPPORTED for the rest. */
struct attention_forward {
    struct tensor q, k, v; // [B*S, A*D], [B*K, G*D], [B*K, G*E]: may be columns of one fused matrix
    int64_t batch, sequence, head_dim; // B, S, D
    int64_t query_begin;               // documents, dropout and a window need query_begin + S <= K
    int64_t window;                    // 0: none. One of at least K limits nothing, and is submitted as 0
    struct {
        int64_t heads, begin; // of the whole model; the first one here. heads 0: no ALiBi
    } alibi;
    float scale;
    float softcap;           // of the scaled scores; 0: none
    const int32_t *document; // [B*K] or NULL
    struct dropout dropout;  // sample [B*S]; columns = K; column_begin = first head; no sample_offset is read
    struct tensor out;       // [B*S, A*E]
    struct tensor lse;       // f32[A, B*S]: log-sum-exp, for the backward pass
};
/* K and E. */
static inline int64_t attention_keys(const struct attention_forward *op)
{
    return op->batch > 0 ? op->k.dim[0] / op->batch : 0;
}
static inline int64_t attention_value_dim(const struct attention_forward *op)
{
    return op->v.dim[1] / (op->k.dim[1] / op->head_dim);
}
/* The first key row that the query with key row `token` attends to. */
static inline int64_t attention_first_key(const struct attention_forward *op, int64_t token)
{
    return op->window > 0 && token >= op->window ? token - op->window + 1 : 0;
}
struct attention_backward {
    struct attention_forward forward; // including its results
    struct tensor dout;
    struct tensor dq, dk, dv; // overwritten
};

/* out[t] = table[id[t] - begin], or 0 for an id outside [begin, begin + rows), which belongs to another rank.
 * accumulate: add to out (positions on top of tokens). */
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

/* out = residual + dropout(x + bias). residual and bias may be {0}; out may alias x or residual. */
struct residual_forward {
    struct tensor x, bias, residual, out; // [T, H], [H], [T, H], [T, H]
    struct dropout dropout;
};
/* dx = dout with the same dropout mask. dx may alias dout. */
struct residual_backward {
    struct tensor dout, dx;
    struct dropout dropout;
};

/* Fused residual and norm, bit-identical to the two ops in sequence; each row is read once. Forward: the sum
 * of a branch, then its norm (norm.x is residual.out). Backward: the norm, then the dropout mask of the
 * preceding branch (residual.dout is norm.dx, and may alias residual.dx without dropout). */
struct residual_norm_forward {
    struct residual_forward residual;
    struct norm_forward norm;
};
struct residual_norm_backward {
    struct norm_backward norm;
    struct residual_backward residual;
};

/* x = cap tanh(x / cap), in place: soft-capping of logits (2408.00118). cap > 0. */
struct softcap {
    struct tensor x; // [T, V]
    float cap;
};

/* Cross entropy over a vocabulary sharded across ranks (1909.08053, section 3): between the three steps
 * the caller reduces `max` (maximum), then `sum` and `target` (sum) over the tensor-parallel group. The
 * first `columns` logits are valid; the rest is padding and is never read. `begin` is the global index of
 * column 0. */
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
    struct tensor target; // f32[T]: logit[label] - max if this rank owns the label, else 0
};
/* loss[t] = mask[t] * (log(sum) - target); sample_loss[b] = its fp64 sum over the S tokens of row b,
 * sample_tokens[b] = the sum of the mask. */
struct loss_finish {
    struct tensor sum, target;
    const float *mask;                        // [T]
    struct tensor sample_loss, sample_tokens; // f64[B]
};
/* Overwrites logits with their gradient: scale * mask[t] * (exp(logit - max)/sum - [column is the label]),
 * padding columns 0. Not divided by the number of tokens: the optimizer does that once. With a soft cap, the
 * gradient is that of the operand of softcap(). */
struct loss_backward {
    struct tensor logits, max, sum;
    const int32_t *label;
    const float *mask;
    int64_t begin, columns;
    const float *scale; // device scalar: the loss scale; NULL: 1
    float softcap;      // that the logits have; 0: none
};

/* out[b] = sum of squares of block b of x, in fp64. A block is a run of complete rows with SQUARES_BLOCK
 * elements in all, and at least one row; so the blocks of a tensor do not depend on its sharding. x is dense:
 * f32[N], with one element per row, or f32[R, C]. */
enum { SQUARES_BLOCK = 1024 };
struct squares {
    struct tensor x;
    struct tensor out; // f64[squares_blocks(x)]
};
int64_t squares_block_rows(int64_t columns); // of every block except the last
int64_t squares_blocks(struct tensor x);
/* out[0] = the sum of x, in an order that depends on N only; on the CPU, index order. */
struct sum {
    struct tensor x;   // f64[N]
    struct tensor out; // f64[1]
};

/* squares(), sum() and adamw() also take a list, whose members must not write memory that another member
 * accesses: a GPU runs the list in one launch, since a launch per tensor costs more than the work on small
 * tensors. The list itself is read before the call returns. */
struct squares_list {
    const struct squares *at;
    int64_t count;
};
struct sum_list {
    const struct sum *at;
    int64_t count;
};

/* Computes AdamW's gradient scale from the world's sums, on the device, without a host round trip. With L, N
 * and Q the sums of loss, tokens and squares, each in index order, in fp64:
 * result = { L / N, sqrt(Q) / N / S, N, S },  gradient_scale = min(1, limit / (result[1] + 1e-6)) / N / S
 * (Megatron's clip coefficient; limit 0: no clipping). Without tokens, N counts as 1 and nothing is scaled. S
 * is the loss scale of the gradients. With a loss scale, a non-finite norm means overflow: the step is
 * skipped, and gradient_scale is 0. */
struct adamw_hyper;
struct clip {
    struct tensor loss, tokens; // f64[G], one per sample of the global batch
    struct tensor squares;      // f64[n], one per tensor and tensor-parallel share
    double limit;               // on the norm
    const float *loss_scale;    // device scalar; NULL: S is 1, and no step is skipped
    struct adamw_hyper *hyper;  // writes gradient_scale and skip
    struct tensor result;       // f64[4]: loss and gradient norm per token, tokens, loss scale
};

/* AdamW (1711.05101) on a dense slice. g = gradient * hyper->gradient_scale, and with r = 1 - beta
 *
 *     m = (m - r1 m) + r1 g        v = (v - r2 v) + r2 g g
 *     w -= lr ((m / correction1) / (sqrt(v / correction2) + epsilon) + weight_decay w)
 *
 * The host computes r in double precision and rounds it once; no fp32 beta is used. 1 - beta from an fp32
 * beta is 1.3e-5 too small for beta = 0.999 and 1.7e-4 too large for 0.9999; and a correct r with an fp32
 * beta lets v drift by the same amount over 1 / r steps, because the weights of the mean no longer add up to
 * 1.
 *
 * `working`, if given, receives the new weight, rounded: the copy that the layers compute with. Updates do
 * not accumulate in it, since bf16 would lose one below 2^-9 of a weight (1710.03740). */
struct adamw_hyper { // in device memory; rewritten each step
    float lr, one_minus_beta1, one_minus_beta2, epsilon;
    float correction1, correction2; // 1 - beta^step
    float gradient_scale;           // clip / tokens / loss scale
    float weight_decay;
    float skip;    // not 0: this step changes nothing
    uint64_t step; // from 1
};

/* A bf16 weight without a master. The step is computed in fp32 and rounded stochastically (2010.06192):
 * unbiased, however small the update, where round-to-nearest would drop it. Element i has index n = begin +
 * (first + i) / width * columns + (first + i) % width in the whole tensor. It is rounded with one half of
 * word n / 2 of the step's stream, the lower half for an even n and the upper half for an odd n:
 * philox_word(generator, hyper->step, n / 2). Rounding therefore does not depend on the layout. */
struct stochastic {
    struct philox generator;
    int64_t begin, width, columns; // index of the slice's first element; row width of the slice, of the whole
                                   // tensor
    int64_t first;                 // elements of the slice before these N
};
struct adamw {
    struct tensor weight, gradient, m, v; // f32[N]; the weight f32 or bf16
    const struct adamw_hyper *hyper;
    bool decay;                   // false: weight_decay is not applied to this slice
    struct tensor working;        // {0}, or bf16 or f16 [N]
    struct stochastic stochastic; // read if `weight` is bf16
};
struct adamw_list {
    const struct adamw *at; // all of one type, with working weights of one type
    int64_t count;
};

/* Magnitudes, from which scales are derived. The sum is exact: |x| is rounded to the nearest 2^-24, and sums
 * below 2^29 therefore do not depend on their order. Inf and NaN propagate. */
enum magnitude_kind {
    MAGNITUDE_LARGEST,        // out f32[1]: the largest |x|
    MAGNITUDE_LARGEST_IN_ROW, // out f32[R]
    MAGNITUDE_SUM,            // out f64[1]: of all |x|
};
struct magnitude {
    enum magnitude_kind kind;
    struct tensor in, out; // in [R, C]
    bool accumulate;       // combine with the value in out: maximum or sum
};

/* Derivation of a scale from the magnitude a of the elements that share it: powers of two, with which scaling
 * is exact, or a published recipe, reproduced in fp32 operation by operation. */
enum scale_rule {
    SCALE_POWER_OF_TWO, // the least 2^e with a <= largest * 2^e; 1 where a is 0
    SCALE_E8M0_DOWN,    // 2^(floor(log2 a) - exponent of the largest), e8m0: Microscaling 1.0, section 6.3
    SCALE_E8M0_UP,      // the least 2^e with a <= largest * 2^e, e8m0: 2506.08027
    SCALE_E4M3, // two levels (NVFP4, 2509.25149, appendix C): with up = largest * 448 / the tensor's a,
                // each block has code = e4m3(a / largest * up), and the scale is code * (1 / up)
    SCALE_FULL, // max(a, 1e-5) / largest, in fp32 (BitNet b1.58)
};
enum { QUANTIZE_BLOCK_MAX = 128 };

/* out = in quantized and dequantized: round(in / scale) * scale. Blocks of block_rows x block_columns
 * elements share a scale; the last block in a direction may be smaller; along rows, blocks restart every
 * `period` rows. Without blocks, all elements share the scale of `magnitude`, or each row has its own.
 * Non-finite elements become NaN, and so do all elements that share a scale computed here with them: a GPU
 * would saturate, which would hide the fault. */
struct quantize {
    struct tensor in, out; // [R, C], f32[R, C]; out may alias in
    enum number_format format;
    enum scale_rule scale;
    int64_t block_rows, block_columns; // each 1 .. 128, columns a divisor of that; 0, 0: no blocks
    int64_t period;                    // 0: none
    struct tensor magnitude;           // without blocks, and for SCALE_E4M3: f32[1]; or f32[R]; or f64[1]
    double divisor;                    // the magnitude is divided by it: the element count of a sum; 0: 1
    /* Stochastic rounding if sample is given: element (row, column) rounds with philox_word(generator,
     * sample[row], sample_offset[row] * columns + column_begin + column). */
    struct philox generator;
    const int64_t *sample;         // [R]
    const int32_t *sample_offset;  // [R]
    int64_t columns, column_begin; // global width of a row; first column of this slice
};

/* A random Hadamard transform along rows: for each block of 16, out = H D in / 4, with H the Hadamard matrix
 * in Sylvester's order and D diagonal signs, negative where the lowest bit of philox_word(signs, 0, row in
 * the block) is set. H D / 4 is orthogonal, so a matmul that contracts over these rows is unchanged. */
enum { HADAMARD_ROWS = 16 };
struct hadamard {
    struct tensor in, out; // [R, C], f32[R, C], R a multiple of 16; out may alias in
    struct philox signs;
};

struct op {
    enum op_kind kind;
    union {
#define OP_ROW(kind, name, args, size) struct args name;
        OPS(OP_ROW)
#undef OP_ROW
        struct transfer transfer;
        struct poison poison;
    };
};

/* Returns a self-contained copy, with the caller's list appended to the op in one allocation of *bytes, for a
 * device that defers ops. Release it with free(). NULL: out of memory. */
struct op *op_copy(const struct op *op, size_t *bytes);

/* Returns the scratch memory that an op needs on a device with these options (name, simulated_device,
 * threads, attention, nondeterministic); reads only the dimensions and types of the op. One scratch
 * buffer, as large as the largest need, serves all ops of a device (the CPU) or of a stream (cuda). */
size_t op_scratch_bytes(const struct op *op, const struct device_options *options);

/* Entry points: each validates its arguments (BAD_ARGUMENT with the shapes) and submits. */
MUST_USE enum status gemm(struct stream *stream, struct gemm args);
/* Runs only the epilogue of gemm(), for a caller that computed the matmul by other means. */
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
MUST_USE enum status softcap(struct stream *stream, struct softcap args);
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
