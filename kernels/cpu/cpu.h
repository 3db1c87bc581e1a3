// SPDX-License-Identifier: Apache-2.0
/* The cpu device's rooms: one function per op, behind the doors of kernels/ops.h, which have checked
 * types, shapes and strides and taken the exits for nothing to do. What each computes is said beside
 * its struct in ops.h.
 *
 * Laws of a kernel here:
 *   - it cuts its work into tasks by shape only (pool.h), and no element's value depends on alignment,
 *     vector tail or number of threads;
 *   - a sum over many terms is cut into blocks of a fixed size, and the blocks are added in order;
 *   - it may run on any thread, keeps nothing between calls, and takes temporary memory from
 *     cpu_scratch() or the stack. */
#pragma once

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

/* The cpu's part of device->state; strict's state begins with one too, so that its arithmetic is this. */
struct cpu_state {
    struct cpu_pool *pool;
    struct buffer scratch;
};
MUST_USE enum status cpu_state_open(struct device *device, struct cpu_state *state);
void cpu_state_close(struct device *device, struct cpu_state *state);

/* Memory for the op that is running, aligned to 64 bytes, unset, gone when the op returns. One
 * piece per op: ask for the sum, from the calling thread only. Counted in PART_WORKSPACE. `bytes` is what
 * cpu_scratch_bytes() says of the op, so that the dry device can count it without running the op. */
void *cpu_scratch(struct device *device, size_t bytes);
/* What an op takes on a device of that many threads; 0 for most. */
size_t cpu_scratch_bytes(const struct op *op, int threads);
size_t cpu_gemm_scratch(const struct gemm *op);
size_t cpu_column_sum_scratch(const struct column_sum *op);
size_t cpu_norm_backward_scratch(const struct norm_backward *op);
size_t cpu_attention_forward_scratch(const struct attention_forward *op, int threads);
size_t cpu_attention_backward_scratch(const struct attention_backward *op, int threads);

/* Runs the op to its end: the one switch (run.c). */
void cpu_run(struct device *device, const struct op *op);

/* One line of advice when the BLAS does not use what this processor has, or NULL. */
const char *cpu_blas_warning(void);
/* "oneDNN" or "OpenBLAS", for doctor. */
const char *cpu_blas_name(void);

void cpu_gemm(struct device *device, const struct gemm *op);
void cpu_fill(struct device *device, const struct fill *op);
void cpu_copy(struct device *device, const struct copy *op);
void cpu_cast(struct device *device, const struct cast *op);
void cpu_transfer(struct device *device, const struct transfer *op);
void cpu_add(struct device *device, const struct add *op);
void cpu_add_parts(struct device *device, const struct add_parts *op);
void cpu_init_normal(struct device *device, const struct init_normal *op);
void cpu_column_sum(struct device *device, const struct column_sum *op);
void cpu_norm_forward(struct device *device, const struct norm_forward *op);
void cpu_norm_backward(struct device *device, const struct norm_backward *op);
void cpu_activation_forward(struct device *device, const struct activation_forward *op);
void cpu_activation_backward(struct device *device, const struct activation_backward *op);
void cpu_rope(struct device *device, const struct rope *op);
void cpu_attention_forward(struct device *device, const struct attention_forward *op);
void cpu_attention_backward(struct device *device, const struct attention_backward *op);
void cpu_embedding_forward(struct device *device, const struct embedding_forward *op);
void cpu_embedding_backward(struct device *device, const struct embedding_backward *op);
void cpu_residual_forward(struct device *device, const struct residual_forward *op);
void cpu_residual_backward(struct device *device, const struct residual_backward *op);
void cpu_residual_norm_forward(struct device *device, const struct residual_norm_forward *op);
void cpu_residual_norm_backward(struct device *device, const struct residual_norm_backward *op);
void cpu_loss_max(struct device *device, const struct loss_max *op);
void cpu_loss_sum(struct device *device, const struct loss_sum *op);
void cpu_loss_finish(struct device *device, const struct loss_finish *op);
void cpu_loss_backward(struct device *device, const struct loss_backward *op);
void cpu_squares(struct device *device, const struct squares_list *op);
void cpu_sum(struct device *device, const struct sum_list *op);
void cpu_clip(struct device *device, const struct clip *op);
void cpu_adamw(struct device *device, const struct adamw_list *op);
void cpu_magnitude(struct device *device, const struct magnitude *op);
void cpu_quantize(struct device *device, const struct quantize *op);
void cpu_hadamard(struct device *device, const struct hadamard *op);
