// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu.h"

void cpu_run(struct device *device, const struct op *op)
{
    switch (op->kind) {
#define OP_ROW(kind, name, args, size) \
    case OP_##kind:                    \
        return cpu_##name(device, &op->name);
        OPS(OP_ROW)
#undef OP_ROW
    case OP_TO_DEVICE:
    case OP_TO_HOST:
        return cpu_transfer(device, &op->transfer);
    case OP_POISON:
        return;
    case OP_KIND_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "op kind", "unknown op kind %d", (int)op->kind);
}

size_t cpu_scratch_bytes(const struct op *op, int threads)
{
    switch (op->kind) {
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
    default: // the test `dry` compares these bytes with what a run allocates
        return 0;
    }
}
