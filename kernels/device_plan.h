// SPDX-License-Identifier: Apache-2.0
/* Interface to the memory planning of the dry device (kernels/dry/), and the inputs from its transport. */
#pragma once

#include "kernels/device.h"
#include "kernels/ops.h"

/* The name of the planning device. */
const char *planning_device_name(void);

/* The pool size that would have sufficed so far, in bytes; 0 on a device that computes. */
size_t device_planned_bytes(const struct device *device);

/* Whether the transport between devices of the simulated kind reduces floats itself, in rank order, which
 * needs scratch memory; false on a device that computes. */
bool stream_needs_sum_scratch(const struct stream *stream);

/* Counts `bytes` of message scratch as communication memory if the device simulates a GPU; else does
 * nothing. */
MUST_USE enum status stream_plan_message(struct stream *stream, size_t bytes);

/* Arithmetic and memory traffic of an op, from its shapes. A cost model converts them to time; nothing here
 * depends on a machine. An observer (observe.h) of a dry device adds them up for a plan. */
struct op_cost {
    double flops; // a multiply-add is two; an exponential, a root or a division is one
    double bytes; // each operand once, read or written; an accumulated output twice
};
struct op_cost op_cost(const struct op *op);

/* The speedup of `threads` threads of the cpu device over one thread for an m x n fp32 matmul: the result is
 * divided into few panels, by its shape alone, each computed by one thread. From 1 to `threads`. */
double cpu_matmul_speedup(int64_t m, int64_t n, int threads);

/* An op without its operands, as recorded in a plan. Ops with equal records take equal time. */
struct op_record {
    enum op_kind kind;
    enum dtype dtype; // of the inputs
    /* gemm: m, n, k. Attention: heads times sequences, queries per sequence, head size. Copies between
     * host and device: 1, bytes, 0. Other ops: rows and columns of the tensor that determines the size;
     * lists: 1, the elements of all members. */
    int64_t shape[3];
    int launches;    // kernels; 0: the op does nothing
    bool transposed; // gemm: its first operand is, as for a weight gradient
    struct op_cost cost;
};

struct op_record op_record(const struct op *op);
bool op_record_equals(const struct op_record *a, const struct op_record *b);

/* "gemm bf16 4096 x 12288 x 3072", "gemm f32 256 x 64 x 512, a transposed". */
enum { OP_RECORD_CHARS = 120 };
const char *op_record_text(const struct op_record *record, char out[OP_RECORD_CHARS]);
