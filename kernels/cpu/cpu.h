// SPDX-License-Identifier: Apache-2.0
/* The op implementations of the cpu device: one function per op, called by the entry points of kernels/ops.h
 * after validation and after their early exits for empty work. ops.h documents each op at its struct.
 *
 * Rules for kernels:
 *   - work is divided into tasks by shape only (pool.h), and no element's value depends on alignment, vector
 *     tails or the number of threads;
 *   - a long sum is divided into blocks of a fixed size, which are added in order;
 *   - a kernel may run on any thread, keeps no state between calls, and takes scratch memory from
 *     cpu_scratch() or the stack. */
#pragma once

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

/* The cpu's part of device->state; strict's state begins with it too, because it runs the cpu's kernels. */
struct cpu_state {
    struct cpu_pool *pool;
    struct buffer scratch;
};
MUST_USE enum status cpu_state_open(struct device *device, struct cpu_state *state);
void cpu_state_close(struct device *device, struct cpu_state *state);

/* Scratch memory for the running op, 64-byte aligned, uninitialized, valid until the op returns. One
 * allocation per op, for the total, from the calling thread only. Counted in PART_WORKSPACE. `bytes` equals
 * cpu_scratch_bytes() of the op, so that the dry device can count it without running the op. */
void *cpu_scratch(struct device *device, size_t bytes);
/* Scratch memory of an op on a device with this many threads; most ops need none. */
size_t cpu_scratch_bytes(const struct op *op, int threads);
size_t cpu_gemm_scratch(const struct gemm *op);
size_t cpu_column_sum_scratch(const struct column_sum *op);
size_t cpu_norm_backward_scratch(const struct norm_backward *op);
size_t cpu_attention_forward_scratch(const struct attention_forward *op, int threads);
size_t cpu_attention_backward_scratch(const struct attention_backward *op, int threads);

/* Runs the op to completion: a switch over op kinds (run.c). */
void cpu_run(struct device *device, const struct op *op);

/* One line of advice if the BLAS does not use this processor's full vector width, or NULL. */
const char *cpu_blas_warning(void);
/* "oneDNN" or "OpenBLAS", for doctor. */
const char *cpu_blas_name(void);

/* cpu_gemm(device, const struct gemm *op) and so on. */
#define OP_ROW(kind, name, args, size) void cpu_##name(struct device *device, const struct args *op);
OPS(OP_ROW)
#undef OP_ROW
void cpu_transfer(struct device *device, const struct transfer *op);
