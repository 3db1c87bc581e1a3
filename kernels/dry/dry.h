// SPDX-License-Identifier: Apache-2.0
/* What a dry device has counted: every op by its kind, with its arithmetic and its memory traffic.
 * A cost model turns these into time; nothing here knows a machine. */
#pragma once

#include "kernels/ops.h"

struct op_cost {
    double flops; // a multiply-add is two; an exponential, a root or a division is one
    double bytes; // every operand once, read or written; an accumulated output twice
};
struct op_cost op_cost(const struct op *op);

struct dry_count {
    int64_t calls;
    double flops, bytes;
};
struct dry_counts {
    struct dry_count op[OP_KIND_COUNT];
    int64_t works; // messages put on streams
};
/* Of this device since it opened; NULL when it is not a dry one. */
const struct dry_counts *dry_counts(const struct device *device);
