// SPDX-License-Identifier: Apache-2.0
#include "planner/assume/assume.h"

#include <math.h>

/* Memory traffic and kernels of other implementations, relative to this program's. Counted from PyTorch's
 * modules with 2-byte tensors, 1-byte masks and fp32 statistics; bytes per element, with this program's in
 * brackets.
 *
 *   unfused RMSNorm      forward   float 6, square 8, mean 4, multiply 8, cast 6, weight 4 = 36 [4]
 *                        backward  as many passes over twice the tensors = 72 [6]
 *                        with the residual before it, a sum of 6 in each direction = 42 [8], 78 [8]
 *   separate norm        with the residual before it: dropout and sum 7, norm 4 = 11 [8]
 *                        backward  norm 6, its weights 4, sum of gradients 6 = 16 [8]
 *                        and the dropout before it, 5 = 21 [10]
 *   unfused activation   forward   silu 4, multiply 6 = 10 [6]; gelu: bias 4, gelu 4 = 8 [4]
 *                        backward  multiply 12, silu 6 = 18 [10]
 *   unfused RoPE         forward   multiply 4, negate 2, join 4, multiply 4, add 6 = 20 [4]
 *                        backward  multiply 4, negate 2, split 8, multiply 4, two sums 12 = 30 [4]
 *   loss on whole logits forward   float 6, log_softmax 8, argmax 4 = 18
 *                        backward  zeros 4, log_softmax 12, float 6 = 22
 *                        and 8 for each gather: from the buffers of the ranks, and into one tensor
 */
struct form {
    double bytes;
    int launches;
};
static const struct form unfused_norm[] = {{36.0 / 4.0, 6}, {72.0 / 6.0, 12}},
                         unfused_residual_norm[] = {{42.0 / 8.0, 7}, {78.0 / 8.0, 13}},
                         unfused_activation[] = {{10.0 / 6.0, 2}, {18.0 / 10.0, 3}},
                         unfused_rope = {25.0 / 4.0, 16}; // mean of both passes
static const double loss_forward_bytes = 18.0, loss_backward_bytes = 22.0, gather_bytes = 8.0; // per logit
enum { LOSS_FORWARD_LAUNCHES = 5, LOSS_BACKWARD_LAUNCHES = 5, GATHER_LAUNCHES = 2 };

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

static bool has_residual(const struct op_record *op)
{
    return op->kind == OP_RESIDUAL_NORM_FORWARD || op->kind == OP_RESIDUAL_NORM_BACKWARD ||
           (op->kind == OP_NORM_BACKWARD && // adds to the gradient of the residual
            op->cost.bytes >= 8.0 * (double)op->shape[0] * (double)op->shape[1]);
}

static bool is_backward(enum op_kind kind)
{
    return kind == OP_NORM_BACKWARD || kind == OP_RESIDUAL_NORM_BACKWARD || kind == OP_ACTIVATION_BACKWARD;
}

/* The kernels of a norm; returns false if they are this program's. */
static bool norm_form(enum assumed_fusion norm, const struct op_record *op, struct form *out)
{
    const enum op_kind kind = op->kind;
    if (norm == ASSUME_UNFUSED)
        *out = (has_residual(op) ? unfused_residual_norm : unfused_norm)[is_backward(kind)];
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

/* A matmul that writes 2 bytes per element, then an addition, which reads 2 bytes, and reads and writes 4,
 * or 2 if gradients are stored in two bytes. */
static int separate_accumulation(const struct assumptions *assume, const struct op_record *op,
                                 struct op_record *out)
{
    const bool is_short = assume->gradient_dtype == ASSUME_DTYPE_BF16;
    const double elements = (double)op->shape[0] * (double)op->shape[1];
    out[0] = *op;
    out[0].cost.bytes -= 6.0 * elements;
    out[1] = (struct op_record){.kind = OP_ADD,
                                .dtype = is_short ? op->dtype : F32,
                                .shape = {op->shape[0], op->shape[1], 0},
                                .launches = 1,
                                .cost = {.flops = elements, .bytes = (is_short ? 6.0 : 10.0) * elements}};
    return 2;
}

/* ---- gate and up projection as two linear layers ---- */

/* The dimension that the two divide: n forward, k for the gradient of the input, m for that of the weight;
 * -1: not a matmul of this projection. */
static int gate_dimension(const struct assumptions *assume, const struct assumed_model *model,
                          const struct op_record *op)
{
    if (assume->gate != ASSUME_SEPARATE || op->kind != OP_GEMM || model->gate_columns <= 0)
        return -1;
    if (op->transposed)
        return op->shape[0] == model->gate_columns && op->shape[1] == model->hidden ? 0 : -1;
    if (op->shape[1] == model->gate_columns && op->shape[2] == model->hidden)
        return 1;
    return op->shape[2] == model->gate_columns && op->shape[1] == model->hidden ? 2 : -1;
}

/* Two matmuls; gradients of the input are added. */
static int separate_gate(const struct op_record *op, int dimension, struct op_record *out)
{
    const int a = (dimension + 1) % 3, b = (dimension + 2) % 3; // both read the operand of these, or write it
    const double each = (double)dtype_bytes(op->dtype), shared = (double)op->shape[a] * (double)op->shape[b];
    int count = 2;
    out[0] = *op;
    out[0].shape[dimension] /= 2;
    out[0].cost.flops /= 2.0;
    out[0].cost.bytes = (op->cost.bytes + each * shared) / 2.0;
    out[1] = out[0];
    if (dimension == 2)
        out[count++] = (struct op_record){.kind = OP_ADD,
                                          .dtype = op->dtype,
                                          .shape = {op->shape[0], op->shape[1], 0},
                                          .launches = 1,
                                          .cost = {.flops = shared, .bytes = 3.0 * each * shared}};
    return count;
}

static int matmul_ops(const struct assumptions *assume, const struct assumed_model *model,
                      const struct op_record *op, struct op_record *out)
{
    struct op_record parts[3];
    const int dimension = gate_dimension(assume, model, op);
    const int count = dimension < 0 ? 1 : separate_gate(op, dimension, parts);
    int made = 0;
    if (dimension < 0)
        parts[0] = *op;
    for (int i = 0; i < count; i++) {
        if (assume->accumulation == ASSUME_SEPARATE && accumulates(&parts[i]))
            made += separate_accumulation(assume, &parts[i], out + made);
        else
            out[made++] = parts[i];
    }
    return made;
}

/* ---- loss on whole logits ---- */

static bool is_loss_on_whole(const struct assumptions *assume, const struct op_record *op)
{
    return assume->logits == ASSUME_LOGITS_WHOLE &&
           (op->kind == OP_LOSS_MAX || op->kind == OP_LOSS_SUM || op->kind == OP_LOSS_BACKWARD);
}

/* Logits are gathered before the loss, and again if the head is recomputed. */
static bool is_gather(const struct assumed_model *model, const struct op_record *op)
{
    return op->kind == OP_LOSS_MAX || (op->kind == OP_LOSS_BACKWARD && model->recomputes_modules);
}

static double whole_logits(const struct assumed_model *model, const struct op_record *op)
{
    return (double)op->shape[0] * (double)op->shape[1] * model->tensor_parallel;
}

/* The maximum stands for the forward pass. */
static int loss_ops(const struct assumed_model *model, const struct op_record *op, struct op_record *out)
{
    const double logits = whole_logits(model, op), each = (double)dtype_bytes(op->dtype);
    const bool copies = is_gather(model, op) && model->tensor_parallel > 1;
    out[0] = *op;
    out[0].launches = copies ? GATHER_LAUNCHES : 0;
    out[0].cost.bytes = copies ? gather_bytes * logits : 0.0;
    if (op->kind == OP_LOSS_SUM)
        return 1;
    out[0].launches += op->kind == OP_LOSS_MAX ? LOSS_FORWARD_LAUNCHES : LOSS_BACKWARD_LAUNCHES;
    out[0].cost.bytes += logits * (op->kind == OP_LOSS_MAX ? loss_forward_bytes : loss_backward_bytes);
    if (op->kind == OP_LOSS_MAX || !model->recomputes_modules)
        return 1;
    const double m = (double)op->shape[0], n = (double)op->shape[1], k = (double)model->hidden;
    out[1] = (struct op_record){.kind = OP_GEMM, // the head again
                                .dtype = op->dtype,
                                .shape = {op->shape[0], op->shape[1], model->hidden},
                                .launches = 1,
                                .cost = {2.0 * m * n * k, each * (m * n + m * k + n * k)}};
    return 2;
}

struct assumed_message assume_message(const struct assumptions *assume, const struct assumed_model *model,
                                      const struct op_record *op)
{
    const double each = (double)dtype_bytes(op->dtype);
    if (is_loss_on_whole(assume, op) && is_gather(model, op))
        return (struct assumed_message){CALL_ALL_GATHER, (int64_t)(each * whole_logits(model, op))};
    if (gate_dimension(assume, model, op) == 2) // the input of each of the two layers has its all-reduce
        return (struct assumed_message){CALL_ALL_REDUCE, (int64_t)each * op->shape[0] * op->shape[1]};
    return (struct assumed_message){CALL_ALL_REDUCE, 0};
}

/* ---- checkpointed modules ---- */

/* checkpoint() without reentry calls Python for each tensor of a layer, about 50, when it is saved,
 * recomputed and read: 0.5 us each that kernels do not hide, an estimate. (PyTorch 2.15 on a core of Zen 5
 * takes 200 us in all for a layer with 34 such tensors.) Ranks of a replica pause at different times, and
 * each pause stops all of them. A layer has one backward pass of attention. */
double assume_host_s(const struct assumed_model *model, const struct op_record *op)
{
    static const double checkpoint_s = 50.0 * 3.0 * 0.5e-6;
    return model->recomputes_modules && op->kind == OP_ATTENTION_BACKWARD
               ? model->replica_ranks * checkpoint_s
               : 0.0;
}

/* ---- all ---- */

static void apply(struct op_record *op, struct form form)
{
    op->cost.bytes *= form.bytes;
    op->launches = form.launches;
}

int assume_ops(const struct assumptions *assume, const struct assumed_model *model,
               const struct op_record *op, struct op_record out[ASSUME_MAX_OPS])
{
    struct form form;
    if (is_attention(op->kind) && assume_stores_scores(assume))
        return unfused(assume->attention, op, model->attention_dropout, out);
    if (op->kind == OP_GEMM)
        return matmul_ops(assume, model, op, out);
    if (is_loss_on_whole(assume, op))
        return loss_ops(model, op, out);
    out[0] = *op;
    if (op->launches > 0 && is_norm(op->kind) && norm_form(assume->norm, op, &form))
        apply(&out[0], form);
    else if (op->launches > 0 && assume->activation == ASSUME_UNFUSED && is_activation(op->kind))
        apply(&out[0], unfused_activation[is_backward(op->kind)]);
    else if (op->launches > 0 && assume->rope == ASSUME_UNFUSED && op->kind == OP_ROPE)
        apply(&out[0], unfused_rope);
    return 1;
}

bool assume_stores_scores(const struct assumptions *assume)
{
    return assume->attention == ASSUME_ATTENTION_UNFUSED || assume->attention == ASSUME_ATTENTION_EAGER;
}

/* The efficiencies of a profile are those of the fastest kernel of FlashAttention for its GPU: version 2 up
 * to Ampere, 3 on Hopper, 4 on Blackwell.
 *
 * FlashAttention 1 takes about twice as long as 2 (Dao 2023, section 4.1: 1.7 to 3.0 times); version 3 is 1.5
 * to 2.0 times faster than 2 forward, 1.5 to 1.75 backward (Shah et al. 2024). A deterministic backward pass
 * has up to 37.9 % less throughput (Qiang et al. 2026). Version 4 reaches 1418 and 1209 TFLOP/s on B200,
 * causal, 8192 tokens, heads of 128 (flash-attention, pull request 2280); version 2, whose kernels have the
 * instructions of sm_80, 361 forward (tritonbench, pull request 171) and 330 backward (flash-attention, issue
 * 1589). */
enum { TURING = 75, AMPERE = 80, HOPPER = 90, BLACKWELL = 100 };

static double flash2_factor(int compute_capability, bool forward)
{
    if (compute_capability >= BLACKWELL)
        return forward ? 1418.0 / 361.0 : 1209.0 / 330.0;
    if (compute_capability >= HOPPER)
        return forward ? 1.75 : 1.6;
    return 1.0;
}

double assume_attention_factor(const struct assumptions *assume, int compute_capability, enum op_kind kind)
{
    const bool forward = kind == OP_ATTENTION_FORWARD;
    const double flash2 = flash2_factor(compute_capability, forward);
    const double deterministic = forward ? 1.0 : 1.0 / (1.0 - 0.379);
    switch (assume->attention) {
    case ASSUME_ATTENTION_OWN_DETERMINISTIC:
        return deterministic;
    case ASSUME_ATTENTION_FLASH:
        return 2.0 * flash2;
    case ASSUME_ATTENTION_FLASH2:
        return flash2;
    case ASSUME_ATTENTION_FLASH2_DETERMINISTIC:
        return flash2 * deterministic;
    case ASSUME_ATTENTION_OWN:
    case ASSUME_ATTENTION_EAGER:
    case ASSUME_ATTENTION_UNFUSED:
    case ASSUME_ATTENTION_FLASH3:
        break;
    }
    return 1.0;
}

const char *assume_attention_fault(const struct assumptions *assume, int compute_capability)
{
    const int have = compute_capability;
    switch (assume->attention) {
    case ASSUME_ATTENTION_FLASH:
        return have > 0 && have < TURING ? "is for GPUs of compute capability 7.5 or later" : NULL;
    case ASSUME_ATTENTION_FLASH2:
    case ASSUME_ATTENTION_FLASH2_DETERMINISTIC:
        return have > 0 && have < AMPERE ? "is for GPUs of compute capability 8.0 or later" : NULL;
    case ASSUME_ATTENTION_FLASH3:
        return have != HOPPER ? "is for GPUs of compute capability 9.0 (H100, H200)" : NULL;
    case ASSUME_ATTENTION_OWN:
    case ASSUME_ATTENTION_OWN_DETERMINISTIC:
    case ASSUME_ATTENTION_EAGER:
    case ASSUME_ATTENTION_UNFUSED:
        break;
    }
    return NULL;
}
