// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu.h"

void cpu_run(struct device *device, const struct op *op)
{
    switch (op->kind) { // no default, so that the compiler reports a missing kind
    case OP_GEMM:
        return cpu_gemm(device, &op->gemm);
    case OP_FILL:
        return cpu_fill(device, &op->fill);
    case OP_COPY:
        return cpu_copy(device, &op->copy);
    case OP_CAST:
        return cpu_cast(device, &op->cast);
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        return cpu_transfer(device, &op->transfer);
    case OP_ADD:
        return cpu_add(device, &op->add);
    case OP_ADD_PARTS:
        return cpu_add_parts(device, &op->add_parts);
    case OP_POISON:
        return;
    case OP_INIT_NORMAL:
        return cpu_init_normal(device, &op->init_normal);
    case OP_COLUMN_SUM:
        return cpu_column_sum(device, &op->column_sum);
    case OP_NORM_FORWARD:
        return cpu_norm_forward(device, &op->norm_forward);
    case OP_NORM_BACKWARD:
        return cpu_norm_backward(device, &op->norm_backward);
    case OP_ACTIVATION_FORWARD:
        return cpu_activation_forward(device, &op->activation_forward);
    case OP_ACTIVATION_BACKWARD:
        return cpu_activation_backward(device, &op->activation_backward);
    case OP_ROPE:
        return cpu_rope(device, &op->rope);
    case OP_ATTENTION_FORWARD:
        return cpu_attention_forward(device, &op->attention_forward);
    case OP_ATTENTION_BACKWARD:
        return cpu_attention_backward(device, &op->attention_backward);
    case OP_EMBEDDING_FORWARD:
        return cpu_embedding_forward(device, &op->embedding_forward);
    case OP_EMBEDDING_BACKWARD:
        return cpu_embedding_backward(device, &op->embedding_backward);
    case OP_RESIDUAL_FORWARD:
        return cpu_residual_forward(device, &op->residual_forward);
    case OP_RESIDUAL_BACKWARD:
        return cpu_residual_backward(device, &op->residual_backward);
    case OP_RESIDUAL_NORM_FORWARD:
        return cpu_residual_norm_forward(device, &op->residual_norm_forward);
    case OP_RESIDUAL_NORM_BACKWARD:
        return cpu_residual_norm_backward(device, &op->residual_norm_backward);
    case OP_LOSS_MAX:
        return cpu_loss_max(device, &op->loss_max);
    case OP_LOSS_SUM:
        return cpu_loss_sum(device, &op->loss_sum);
    case OP_LOSS_FINISH:
        return cpu_loss_finish(device, &op->loss_finish);
    case OP_LOSS_BACKWARD:
        return cpu_loss_backward(device, &op->loss_backward);
    case OP_SQUARES:
        return cpu_squares(device, &op->squares);
    case OP_SUM:
        return cpu_sum(device, &op->sum);
    case OP_CLIP:
        return cpu_clip(device, &op->clip);
    case OP_ADAMW:
        return cpu_adamw(device, &op->adamw);
    case OP_MAGNITUDE:
        return cpu_magnitude(device, &op->magnitude);
    case OP_QUANTISE:
        return cpu_quantize(device, &op->quantize);
    case OP_HADAMARD:
        return cpu_hadamard(device, &op->hadamard);
    case OP_KIND_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "op kind", "%d is none", (int)op->kind);
}

size_t cpu_scratch_bytes(const struct op *op, int threads)
{
    switch (op->kind) { // no default, likewise
    case OP_GEMM:
        return cpu_gemm_scratch(&op->gemm);
    case OP_COLUMN_SUM:
        return cpu_column_sum_scratch(&op->column_sum);
    case OP_NORM_BACKWARD:
        return cpu_norm_backward_scratch(&op->norm_backward);
    case OP_RESIDUAL_NORM_BACKWARD:
        return cpu_norm_backward_scratch(&op->residual_norm_backward.norm);
    case OP_ATTENTION_FORWARD:
        return cpu_attention_forward_scratch(&op->attention_forward, threads);
    case OP_ATTENTION_BACKWARD:
        return cpu_attention_backward_scratch(&op->attention_backward, threads);
    case OP_FILL:
    case OP_COPY:
    case OP_CAST:
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_ADD:
    case OP_ADD_PARTS:
    case OP_POISON:
    case OP_INIT_NORMAL:
    case OP_NORM_FORWARD:
    case OP_ACTIVATION_FORWARD:
    case OP_ACTIVATION_BACKWARD:
    case OP_ROPE:
    case OP_EMBEDDING_FORWARD:
    case OP_EMBEDDING_BACKWARD:
    case OP_RESIDUAL_FORWARD:
    case OP_RESIDUAL_BACKWARD:
    case OP_RESIDUAL_NORM_FORWARD:
    case OP_LOSS_MAX:
    case OP_LOSS_SUM:
    case OP_LOSS_FINISH:
    case OP_LOSS_BACKWARD:
    case OP_SQUARES:
    case OP_SUM:
    case OP_CLIP:
    case OP_ADAMW:
    case OP_MAGNITUDE:
    case OP_QUANTISE:
    case OP_HADAMARD:
    case OP_KIND_COUNT:
        break;
    }
    return 0;
}
