// SPDX-License-Identifier: Apache-2.0
/* Lets tests that compute in host memory run on a GPU. Each op is run at once: the arrays that it names are
 * copied to the device whole, guards too, the op with the device's addresses in their place is put on a
 * stream, and the arrays are copied back.
 *
 *     host:    [guard x guard]   [guard y guard]        op{x, y}
 *     device:  [guard x guard]   [guard y guard]        op{x', y'}
 *
 * An op is read as words: one that lies in an array which was lent is an address. */
#pragma once

#include "kernels/device.h"

/* Opens a mirror of the device `options->name`. The device itself is opened once in a process for the same
 * options, and stays open: mirrors that are open at a time share it, and its memory is given back when they
 * close. */
MUST_USE enum status mirror_open(const struct device_options *options, struct device **out);

/* Host memory that ops on this device may name, until it closes. Nothing where `device` is no mirror. */
void mirror_lend(struct device *device, void *data, size_t bytes);
