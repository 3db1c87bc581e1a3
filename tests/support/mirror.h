// SPDX-License-Identifier: Apache-2.0
/* Runs tests that compute in host memory on a GPU. Each op is synchronous: its arrays are copied to the
 * device, including their guards, the op is submitted with device addresses, and the arrays are copied back.
 *
 *     host:    [guard x guard]   [guard y guard]        op{x, y}
 *     device:  [guard x guard]   [guard y guard]        op{x', y'}
 *
 * An op is scanned word by word: a word that points into a registered array is treated as an address. */
#pragma once

#include "kernels/device.h"

/* Opens a mirror of the device `options->name`. The device itself is opened once per process and set of
 * options, and stays open: mirrors that are open at the same time share it, and free its memory when they
 * close. */
MUST_USE enum status mirror_open(const struct device_options *options, struct device **out);

/* Makes host memory usable by ops on this device, until it closes. No effect unless `device` is a mirror. */
void mirror_register(struct device *device, void *data, size_t bytes);
