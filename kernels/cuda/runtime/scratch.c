// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/scratch.h"

#include "kernels/ops.h"

/* A line of `columns` per block of `rows` rows and per sum. */
static size_t of_sums(struct tensor t, int64_t sums, int64_t rows)
{
    int64_t blocks = (t.dim[0] + rows - 1) / rows;
    return (size_t)(blocks * sums * t.dim[1]) * sizeof(float);
}

static size_t of_gemm(const struct gemm *op)
{
    // Cases that cuBLASLt does not support run on our own kernel (gemm_cublaslt.c).
    bool none = op->a.dim[op->transpose_a ? 0 : 1] == 0;
    bool own = none || (op->bias.data != NULL && op->bias.dtype != op->c.dtype);
    size_t product = own ? 0 : GEMM_WORKSPACE_BYTES;
    size_t sums = op->epilogue.bias_gradient.data != NULL ? of_sums(op->a, 1, SUM_ROW_BLOCK) : 0;
    return product > sums ? product : sums;
}

static size_t of_magnitude(const struct magnitude *op)
{
    size_t blocks = (size_t)(op->in.dim[0] < MAGNITUDE_BLOCKS ? op->in.dim[0] : MAGNITUDE_BLOCKS);
    if (op->kind == MAGNITUDE_LARGEST_IN_ROW)
        return 0;
    return blocks * (op->kind == MAGNITUDE_SUM ? sizeof(double) : sizeof(uint32_t));
}

static int64_t heads_of(const struct attention_forward *op)
{
    return op->q.dim[1] / op->head_dim;
}

/* dout . out per head and token; for 16-bit types on tensor cores also lse, and documents, all padded to full
 * tiles (attention_bwd_sm90.cu). */
static size_t of_attention_backward(const struct attention_forward *op)
{
    const int64_t tiles = (op->sequence + ATTENTION_TILE - 1) / ATTENTION_TILE,
                  tokens = op->batch * tiles * ATTENTION_TILE;
    const bool tiled = op->q.dtype != F32 && (op->head_dim == 64 || op->head_dim == 128);
    const int64_t floats = tiled ? (2 * heads_of(op) + 1) * tokens : heads_of(op) * op->q.dim[0];
    return (size_t)floats * sizeof(float);
}

size_t cuda_scratch_bytes(const struct op *op)
{
    switch ((int)op->kind) {
    case OP_GEMM:
        return of_gemm(&op->gemm);
    case OP_COLUMN_SUM:
        return of_sums(op->column_sum.in, 1, SUM_ROW_BLOCK);
    case OP_NORM_BACKWARD:
        return of_sums(op->norm_backward.x, 2, NORM_ROW_BLOCK);
    case OP_RESIDUAL_NORM_BACKWARD:
        return of_sums(op->residual_norm_backward.norm.x, 2, NORM_ROW_BLOCK);
    case OP_EMBEDDING_BACKWARD: // its sorted tokens
        return (size_t)op->embedding_backward.dout.dim[0] * SORTED_TOKEN_BYTES;
    case OP_ATTENTION_BACKWARD:
        return of_attention_backward(&op->attention_backward.forward);
    case OP_MAGNITUDE:
        return of_magnitude(&op->magnitude);
    default:
        return 0;
    }
}

/* Backward: dout . out and sums of dq, or, for deterministic sums, an S x S matrix per head in 16 bits
 * (attention_cudnn.h); and the remaining workspace. */
static size_t of_cudnn(const struct attention_forward *op, bool backward, bool nondeterministic)
{
    enum { ELSE = 1 << 20 };
    const size_t rows = (size_t)(op->batch * heads_of(op) * op->sequence);
    const size_t row = (size_t)op->head_dim * sizeof(float);
    const bool shares = op->k.dim[1] < op->q.dim[1];             // dk and dv per head, before their reduction
    const size_t lse = op->batch > 1 ? rows * sizeof(float) : 0; // packed
    if (!backward)
        return lse + ELSE;
    const size_t sums = nondeterministic ? rows * row : rows * (size_t)op->sequence * sizeof(uint16_t);
    return lse + rows * sizeof(float) + sums + (shares ? 2 * rows * row : 0) + ELSE;
}

size_t cuda_planned_scratch_bytes(const struct op *op, enum attention_backend attention,
                                  bool nondeterministic)
{
    size_t own = cuda_scratch_bytes(op), cudnn = 0;
    bool requested = attention == ATTENTION_CUDNN || (attention == ATTENTION_AUTO && nondeterministic);
    if (requested && op->kind == OP_ATTENTION_FORWARD && op->attention_forward.q.dtype != F32)
        cudnn = of_cudnn(&op->attention_forward, false, nondeterministic);
    if (requested && op->kind == OP_ATTENTION_BACKWARD && op->attention_backward.forward.q.dtype != F32)
        cudnn = of_cudnn(&op->attention_backward.forward, true, nondeterministic);
    return own > cudnn ? own : cudnn;
}
