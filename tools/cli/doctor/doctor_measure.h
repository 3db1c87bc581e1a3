// SPDX-License-Identifier: Apache-2.0
/* Peak rates of a machine, measured through the interfaces of the trainer. */
#pragma once

#include "base/status.h"
#include "kernels/tensor.h"

/* Types of matrix multiplications: in profiles under the names of recipe values. */
enum rate { RATE_FP32, RATE_TF32, RATE_BF16, RATE_FP16, RATE_COUNT };
const char *rate_name(enum rate rate);
enum dtype rate_dtype(enum rate rate); // of its operands

struct ceilings {
    double
        flops[RATE_COUNT]; // operations per second of matrix multiplication; 0: not supported by the device
    char why[RATE_COUNT][160];      // theoretical peak, as reported by the device
    double copy_bytes_per_s;        // bytes per second, read and written
    double vendor_copy_bytes_per_s; // the same of stream_vendor_copy(); 0: the device has none
    int link_ranks;                 // 0: no link was measured; link_why has the reason
    double latency_s, bytes_per_s;  // of a message to the next rank, one way
    double all_reduce_bytes_per_s;  // bytes of the tensor per second
    char link_why[300];
};

/* Measures one device with all cores, and messages between `ranks` ranks of `transport`. Takes a second or
 * two. */
MUST_USE enum status doctor_measure(const char *device, const char *transport, int ranks,
                                    struct ceilings *out);
