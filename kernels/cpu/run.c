// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu.h"

static void run_numbers(struct device *device, const struct op *op)
{
    if (op->kind == OP_MAGNITUDE)
        cpu_magnitude(device, &op->magnitude);
    else if (op->kind == OP_QUANTISE)
        cpu_quantise(device, &op->quantise);
    else if (op->kind == OP_HADAMARD)
        cpu_hadamard(device, &op->hadamard);
    else
        die(__FILE__, __LINE__, "op kind", "%d is none", (int)op->kind);
}

void cpu_run(struct device *device, const struct op *op)
{
    switch (op->kind) { // no default, so that a new kind is a compile error here
    case OP_GEMM:
        cpu_gemm(device, &op->gemm);
        return;
    case OP_FILL:
        cpu_fill(device, &op->fill);
        return;
    case OP_COPY:
        cpu_copy(device, &op->copy);
        return;
    case OP_CAST:
        cpu_cast(device, &op->cast);
        return;
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        cpu_transfer(device, &op->transfer);
        return;
    case OP_ADD:
        cpu_add(device, &op->add);
        return;
    case OP_POISON:
        return;
    case OP_INIT_NORMAL:
        cpu_init_normal(device, &op->init_normal);
        return;
    case OP_COLUMN_SUM:
        cpu_column_sum(device, &op->column_sum);
        return;
    case OP_NORM_FORWARD:
        cpu_norm_forward(device, &op->norm_forward);
        return;
    case OP_NORM_BACKWARD:
        cpu_norm_backward(device, &op->norm_backward);
        return;
    case OP_ACTIVATION_FORWARD:
        cpu_activation_forward(device, &op->activation_forward);
        return;
    case OP_ACTIVATION_BACKWARD:
        cpu_activation_backward(device, &op->activation_backward);
        return;
    case OP_ROPE:
        cpu_rope(device, &op->rope);
        return;
    case OP_ATTENTION_FORWARD:
        cpu_attention_forward(device, &op->attention_forward);
        return;
    case OP_ATTENTION_BACKWARD:
        cpu_attention_backward(device, &op->attention_backward);
        return;
    case OP_EMBEDDING_FORWARD:
        cpu_embedding_forward(device, &op->embedding_forward);
        return;
    case OP_EMBEDDING_BACKWARD:
        cpu_embedding_backward(device, &op->embedding_backward);
        return;
    case OP_RESIDUAL_FORWARD:
        cpu_residual_forward(device, &op->residual_forward);
        return;
    case OP_RESIDUAL_BACKWARD:
        cpu_residual_backward(device, &op->residual_backward);
        return;
    case OP_LOSS_MAX:
        cpu_loss_max(device, &op->loss_max);
        return;
    case OP_LOSS_SUM:
        cpu_loss_sum(device, &op->loss_sum);
        return;
    case OP_LOSS_FINISH:
        cpu_loss_finish(device, &op->loss_finish);
        return;
    case OP_LOSS_BACKWARD:
        cpu_loss_backward(device, &op->loss_backward);
        return;
    case OP_SQUARES:
        cpu_squares(device, &op->squares);
        return;
    case OP_CLIP:
        cpu_clip(device, &op->clip);
        return;
    case OP_ADAMW:
        cpu_adamw(device, &op->adamw);
        return;
    case OP_MAGNITUDE:
    case OP_QUANTISE:
    case OP_HADAMARD:
    case OP_KIND_COUNT:
        break;
    }
    run_numbers(device, op);
}

size_t cpu_scratch_bytes(const struct op *op, int threads)
{
    switch (op->kind) { // no default here either: a new kind says what it takes
    case OP_COLUMN_SUM:
        return cpu_column_sum_scratch(&op->column_sum);
    case OP_NORM_BACKWARD:
        return cpu_norm_backward_scratch(&op->norm_backward);
    case OP_ATTENTION_FORWARD:
        return cpu_attention_forward_scratch(&op->attention_forward, threads);
    case OP_ATTENTION_BACKWARD:
        return cpu_attention_backward_scratch(&op->attention_backward, threads);
    case OP_SQUARES:
        return cpu_squares_scratch(&op->squares);
    case OP_MAGNITUDE:
        return cpu_magnitude_scratch(&op->magnitude);
    case OP_GEMM:
    case OP_FILL:
    case OP_COPY:
    case OP_CAST:
    case OP_TO_DEVICE:
    case OP_TO_HOST:
    case OP_ADD:
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
    case OP_LOSS_MAX:
    case OP_LOSS_SUM:
    case OP_LOSS_FINISH:
    case OP_LOSS_BACKWARD:
    case OP_CLIP:
    case OP_ADAMW:
    case OP_QUANTISE:
    case OP_HADAMARD:
    case OP_KIND_COUNT:
        break;
    }
    return 0;
}
