// SPDX-License-Identifier: Apache-2.0
/* Counters of a dry device: ops by kind, with arithmetic and memory traffic. A cost model converts them to
 * time; nothing here depends on a machine. */
#pragma once

#include "kernels/ops.h"

struct op_cost {
    double flops; // a multiply-add is two; an exponential, a root or a division is one
    double bytes; // each operand once, read or written; an accumulated output twice
};
struct op_cost op_cost(const struct op *op);

struct dry_count {
    int64_t calls;
    double flops, bytes;
};
struct dry_counts {
    struct dry_count op[OP_KIND_COUNT];
    int64_t works; // messages submitted to streams
};
/* Since the device opened; NULL unless it is a dry device. */
const struct dry_counts *dry_counts(const struct device *device);
