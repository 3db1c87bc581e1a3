// SPDX-License-Identifier: Apache-2.0
/* The ceilings of a machine, measured through the interfaces of the trainer, which cannot exceed them. */
#pragma once

#include "base/status.h"
#include "kernels/tensor.h"

/* What a matrix multiplication is of: in profiles by the names that recipes have for the types. */
enum rate { RATE_FP32, RATE_TF32, RATE_BF16, RATE_FP16, RATE_COUNT };
const char *rate_name(enum rate rate);

struct ceilings {
    double flops[RATE_COUNT];      // per second, of a matrix multiplication; 0: this device has none of it
    char why[RATE_COUNT][160];     // of those, what the device says
    double copy_bytes_per_s;       // read and written
    int link_ranks;                // 0: no link was measured, link_why says why
    double latency_s, bytes_per_s; // of a message from one rank to the next, one way
    double all_reduce_bytes_per_s; // bytes of the tensor
    char link_why[300];
};

/* Of one device with all cores, and between `ranks` ranks of `transport`. A second or two of work. */
MUST_USE enum status doctor_measure(const char *device, const char *transport, int ranks,
                                    struct ceilings *out);
