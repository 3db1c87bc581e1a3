// SPDX-License-Identifier: Apache-2.0
/* cuboid doctor --check: whether this node can run a training, in seconds. One line for each check:
 *
 *     check n1: device ok (2 x NVIDIA H200)
 *     check n1: memory FAILED: 1.2 GiB free of 251 GiB, and 40 GiB are needed
 *     check n1: done, 1 of 5 failed
 *
 * The last line proves that the node has finished. Of several nodes each prints, besides failures, only that
 * line, with what it has found. */
#pragma once

#include "trainer/recipe/recipe.h"

struct doctor_check {
    const struct recipe *recipe; // NULL: any
    double seconds;              // how long each device multiplies matrices
    const char *node;
    bool brief;  // one of several nodes
    bool report; // to a program: prints {"node": "n1", "failed": ["memory FAILED: ..."]} instead
};

/* Prints the lines. Returns the number of checks that failed. */
int doctor_check(const struct doctor_check *check);

/* The checksum of a matmul of small integers, which every device computes exactly, with any number of
 * threads. Returns the status of the device. */
MUST_USE enum status doctor_check_matmul(const char *device, int index, int threads, double seconds);
