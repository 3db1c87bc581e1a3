// SPDX-License-Identifier: Apache-2.0
/* Perturbed arithmetic: a device that randomly changes the result of each op by about its rounding error, so
 * that a run on it measures the effect of rounding errors on the results. Monte Carlo arithmetic (Parker,
 * Pierce and Eggert 2000, doi:10.1109/5992.852391) with perturbations of the results only.
 *
 *     exact y   perturbed y
 *     1.5       1.5 (1 +- sqrt(n) u)             f32, n terms in its sum
 *     1.5       one unit in the last place up    bf16, f16
 *               or down
 *
 * Activations and their gradients are perturbed: every tensor that is an input of the next op. An element
 * that is the small difference of large terms is covered by these terms, which were perturbed as results of
 * the previous op. Weights and their gradients are not perturbed, nor are zeros, which are zero in every
 * layout (masks, padding).
 *
 * It works on every device that computes: the ops table of the device is replaced by one whose ops submit to
 * the device, wait, and change the result in host memory. */
#pragma once

#include "base/philox.h"
#include "kernels/device.h"

/* Must outlive the device in which it is installed. */
struct perturbation {
    struct device_ops ops; // first member: the ops table of the device
    const struct device_ops *inner;
    struct philox generator;
    uint64_t count;  // tensors perturbed so far
    double terms;    // n of an op that does not report its own; also the minimum
    double roundoff; // of f32 tensors, in addition to sqrt(n) * 2^-24
    void *host;      // staging buffer for tensors that the host cannot access
    size_t host_bytes;
};

/* Perturbs all further results of `device`. No stream of it may have pending work. */
void perturb_device(struct perturbation *perturbation, struct device *device);
/* Frees its buffers; accepts {0}. */
void perturbation_free(struct perturbation *perturbation);
