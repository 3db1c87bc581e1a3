// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/assume/assume.h"

#include <math.h>

/* Memory traffic and kernels of other implementations, relative to this program's. Counted from PyTorch's
 * modules with 2-byte tensors, 1-byte masks and fp32 statistics; bytes per element, with this program's in
 * brackets.
 *
 *   unfused RMSNorm      forward   float 6, square 8, mean 4, multiply 8, cast 6, weight 4 = 36 [4]
 *                        backward  as many passes over twice the tensors = 72 [6]
 *   separate norm        with the residual before it: dropout and sum 7, norm 4 = 11 [8]
 *                        backward  norm 6, its weights 4, sum of gradients 6 = 16 [8]
 *                        and the dropout before it, 5 = 21 [10]
 *   unfused activation   forward   silu 4, multiply 6 = 10 [6]; gelu: bias 4, gelu 4 = 8 [4]
 *                        backward  multiply 12, silu 6 = 18 [10]
 */
struct form {
    double bytes;
    int launches;
};
static const struct form unfused_norm[] = {{36.0 / 4.0, 6}, {72.0 / 6.0, 12}},
                         unfused_activation[] = {{10.0 / 6.0, 2}, {18.0 / 10.0, 3}};

static bool is_attention(enum op_kind kind)
{
    return kind == OP_ATTENTION_FORWARD || kind == OP_ATTENTION_BACKWARD;
}

/* ---- attention, unfused ---- */

/* A batched GEMM: `heads` GEMMs m x n x k as one op. */
static struct op_record batched_gemm(const struct op_record *op, int64_t m, int64_t n, int64_t k)
{
    const int64_t heads = op->shape[0], each = (int64_t)dtype_bytes(op->dtype);
    return (struct op_record){
        .kind = OP_GEMM,
        .dtype = op->dtype,
        .shape = {heads * m, n, k},
        .launches = 1,
        .cost = {.flops = 2.0 * (double)(heads * m) * (double)n * (double)k,
                 .bytes = (double)(heads * (m * k + k * n + m * n) * each)},
    };
}

/* A kernel that reads and writes `tensors` tensors of scores, and a byte per score for each mask. */
static struct op_record over_scores(const struct op_record *op, int tensors, int masks)
{
    const int64_t rows = op->shape[0] * op->shape[1], columns = op->shape[1];
    const double scores = (double)rows * (double)columns;
    return (struct op_record){
        .kind = OP_NORM_FORWARD,
        .dtype = op->dtype,
        .shape = {rows, columns, 0},
        .launches = 1,
        .cost = {.flops = scores, .bytes = scores * (double)(tensors * (int)dtype_bytes(op->dtype) + masks)},
    };
}

/* Passes over the scores between the two matmuls, as 2-byte tensors and masks.
 * Megatron-LM: scale, mask and softmax in one kernel. PyTorch alone: a mask (read, read mask, write), and a
 * softmax in fp32 with a cast before and after (2 + 4, 4 + 4, 4 + 2 bytes). */
static int softmax_forward(enum assumed_attention attention, const struct op_record *op,
                           struct op_record *out)
{
    out[0] = over_scores(op, 2, 0);
    if (attention == ASSUME_ATTENTION_UNFUSED)
        return 1;
    out[0] = over_scores(op, 2, 1);
    out[1] = over_scores(op, 10, 0);
    out[1].launches = 3;
    return 2;
}

static int softmax_backward(enum assumed_attention attention, const struct op_record *op,
                            struct op_record *out)
{
    out[0] = over_scores(op, 3, 0);
    if (attention == ASSUME_ATTENTION_UNFUSED)
        return 1;
    out[0] = over_scores(op, 2, 1);  // of the mask
    out[1] = over_scores(op, 12, 0); // of the softmax: 2 + 4, 4 + 4 + 4, 4 + 2 bytes
    out[1].launches = 3;
    return 2;
}

/* Scores, softmax, dropout, values. No kernel skips the masked half. */
static int unfused_forward(enum assumed_attention attention, const struct op_record *op, bool has_dropout,
                           struct op_record *out)
{
    const int64_t sequence = op->shape[1], head = op->shape[2];
    int count = 0;
    out[count++] = batched_gemm(op, sequence, sequence, head);
    count += softmax_forward(attention, op, out + count);
    if (has_dropout)
        out[count++] = over_scores(op, 2, 1);
    out[count++] = batched_gemm(op, sequence, head, sequence);
    return count;
}

static int unfused_backward(enum assumed_attention attention, const struct op_record *op, bool has_dropout,
                            struct op_record *out)
{
    const int64_t sequence = op->shape[1], head = op->shape[2];
    int count = 0;
    out[count++] = batched_gemm(op, sequence, head, sequence); // of values
    out[count++] = batched_gemm(op, sequence, sequence, head); // of probabilities
    if (has_dropout)
        out[count++] = over_scores(op, 2, 1);
    count += softmax_backward(attention, op, out + count);
    out[count++] = batched_gemm(op, sequence, head, sequence); // of queries
    out[count++] = batched_gemm(op, sequence, head, sequence); // of keys
    return count;
}

static int unfused(enum assumed_attention attention, const struct op_record *op, bool has_dropout,
                   struct op_record *out)
{
    return op->kind == OP_ATTENTION_FORWARD ? unfused_forward(attention, op, has_dropout, out)
                                            : unfused_backward(attention, op, has_dropout, out);
}

/* ---- ops ---- */

static bool is_norm(enum op_kind kind)
{
    return kind == OP_NORM_FORWARD || kind == OP_NORM_BACKWARD || kind == OP_RESIDUAL_NORM_FORWARD ||
           kind == OP_RESIDUAL_NORM_BACKWARD;
}

static bool is_activation(enum op_kind kind)
{
    return kind == OP_ACTIVATION_FORWARD || kind == OP_ACTIVATION_BACKWARD;
}

static bool is_backward(enum op_kind kind)
{
    return kind == OP_NORM_BACKWARD || kind == OP_RESIDUAL_NORM_BACKWARD || kind == OP_ACTIVATION_BACKWARD;
}

/* The kernels of a norm; returns false if they are this program's. */
static bool norm_form(enum assumed_fusion norm, enum op_kind kind, struct form *out)
{
    if (norm == ASSUME_UNFUSED)
        *out = unfused_norm[is_backward(kind)];
    else if (norm != ASSUME_SEPARATE)
        return false;
    else if (kind == OP_RESIDUAL_NORM_FORWARD)
        *out = (struct form){11.0 / 8.0, 2};
    else if (kind == OP_NORM_BACKWARD)
        *out = (struct form){16.0 / 8.0, 3};
    else if (kind == OP_RESIDUAL_NORM_BACKWARD)
        *out = (struct form){21.0 / 10.0, 4};
    else
        return false;
    return true;
}

/* A matmul with 2-byte inputs that adds to fp32: it reads and writes 4 bytes per element of its result. */
static bool accumulates(const struct op_record *op)
{
    const double m = (double)op->shape[0], n = (double)op->shape[1], k = (double)op->shape[2];
    return op->kind == OP_GEMM && dtype_bytes(op->dtype) == 2 &&
           op->cost.bytes >= 2.0 * (m * k + n * k) + 8.0 * m * n;
}

/* A matmul that writes 2 bytes per element, then an addition: reads 2 and 4 bytes, writes 4. */
static int separate_accumulation(const struct op_record *op, struct op_record *out)
{
    const double elements = (double)op->shape[0] * (double)op->shape[1];
    out[0] = *op;
    out[0].cost.bytes -= 6.0 * elements;
    out[1] = (struct op_record){.kind = OP_ADD,
                                .dtype = F32,
                                .shape = {op->shape[0], op->shape[1], 0},
                                .launches = 1,
                                .cost = {.flops = elements, .bytes = 10.0 * elements}};
    return 2;
}

static void apply(struct op_record *op, struct form form)
{
    op->cost.bytes *= form.bytes;
    op->launches = form.launches;
}

int assume_ops(const struct assumptions *assume, bool has_dropout, const struct op_record *op,
               struct op_record out[ASSUME_MAX_OPS])
{
    struct form form;
    if (is_attention(op->kind) && assume_stores_scores(assume))
        return unfused(assume->attention, op, has_dropout, out);
    if (assume->accumulation == ASSUME_SEPARATE && accumulates(op))
        return separate_accumulation(op, out);
    out[0] = *op;
    if (op->launches > 0 && is_norm(op->kind) && norm_form(assume->norm, op->kind, &form))
        apply(&out[0], form);
    else if (op->launches > 0 && assume->activation == ASSUME_UNFUSED && is_activation(op->kind))
        apply(&out[0], unfused_activation[is_backward(op->kind)]);
    return 1;
}

bool assume_stores_scores(const struct assumptions *assume)
{
    return assume->attention == ASSUME_ATTENTION_UNFUSED || assume->attention == ASSUME_ATTENTION_EAGER;
}

/* FlashAttention-2 is the baseline of the profiles. FlashAttention 1 takes about twice as long (Dao 2023,
 * section 4.1: 1.7 to 3.0 times); FlashAttention-3 is 1.5 to 2.0 times faster forward, 1.5 to 1.75 backward
 * (Shah et al. 2024). */
double assume_attention_factor(const struct assumptions *assume, enum op_kind kind)
{
    if (assume->attention == ASSUME_ATTENTION_FLASH)
        return 2.0;
    if (assume->attention == ASSUME_ATTENTION_FLASH3)
        return kind == OP_ATTENTION_FORWARD ? 1.0 / 1.75 : 1.0 / 1.6;
    return 1.0;
}

/* ---- layers of stages ---- */

/* Number of layers before the end of `stage` (-1: 0) if each stage ends where the parameters so far are
 * nearest to an even share. Norms and biases are not counted. */
static int64_t layers_until(const struct model_config *model, int64_t stages, int64_t stage)
{
    const double hidden = (double)model->hidden_size, layers = (double)model->num_layers;
    const double heads = (double)(2 * model->num_attention_heads + 2 * model->num_query_groups);
    const double matrices = model_is_gated(model) ? 3.0 : 2.0;
    const double layer =
        hidden * (heads * (double)model->kv_channels + matrices * (double)model->ffn_hidden_size);
    const double vocabulary = hidden * (double)model->vocab_size; // of the embedding, and again of the head
    if (stage < 0 || stage == stages - 1)
        return stage < 0 ? 0 : model->num_layers;
    const double share = (layers * layer + 2.0 * vocabulary) * (double)(stage + 1) / (double)stages;
    const double until = floor((share - vocabulary) / layer + 0.5);
    return (int64_t)fmax(0.0, fmin(until, layers));
}

int64_t assume_stage_layers(const struct model_config *model, enum assumed_partition partition,
                            int64_t stages, int64_t stage)
{
    if (partition == ASSUME_PARTITION_PARAMETERS)
        return layers_until(model, stages, stage) - layers_until(model, stages, stage - 1);
    // Embedding and head as layers: num_layers + 2 as evenly as possible, the larger stages in the middle.
    const int64_t all = model->num_layers + 2, larger = all % stages, begin = (stages - larger) / 2;
    const int64_t here = all / stages + (stage >= begin && stage < begin + larger ? 1 : 0);
    return here - (stage == 0) - (stage == stages - 1);
}
