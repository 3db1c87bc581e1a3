// SPDX-License-Identifier: Apache-2.0
/* Perturbed arithmetic: a device that changes the result of each op at random by about what rounding changes,
 * so that a run on it shows how far rounding errors can move what it computes. Monte Carlo arithmetic
 * (Parker, Pierce and Eggert 2000, doi:10.1109/5992.852391) with perturbations of the results only.
 *
 *     exact y   perturbed y
 *     1.5       1.5 (1 +- sqrt(n) u)             f32, n terms in its sum
 *     1.5       one unit in the last place up    bf16, f16
 *               or down
 *
 * Activations and their gradients are perturbed: every tensor that the next op reads. An element that is the
 * small difference of large terms is covered by those terms, which the previous op has perturbed. Weights and
 * their gradients are not perturbed, nor are zeros, which stay zeros in every layout (masks, padding).
 *
 * It works on every device that computes: the table of a device is replaced by one whose ops submit to the
 * device, wait, and change the result in host memory. */
#pragma once

#include "base/philox.h"
#include "kernels/device.h"

/* Must outlive the device that it is installed on. */
struct perturbation {
    struct device_ops ops; // first: the table that the device points to
    const struct device_ops *inner;
    struct philox generator;
    uint64_t count;  // tensors perturbed so far
    double terms;    // n of an op that does not state its own, and at least
    double roundoff; // of f32 tensors, in addition to sqrt(n) * 2^-24
    void *host;      // where a tensor is changed that the host cannot reach
    size_t host_bytes;
};

/* From now on, results of `device` are perturbed. No stream of it may hold unfinished work. */
void perturb_device(struct perturbation *perturbation, struct device *device);
/* Frees what it holds; takes {0}. */
void perturbation_free(struct perturbation *perturbation);
