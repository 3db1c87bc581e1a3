// SPDX-License-Identifier: Apache-2.0
/* A world of processes that have no MPI, for the bootstrap of nccl. It broadcasts and gathers a few bytes
 * through a store, and agrees on the end; it neither adds nor sends. Its tensors are in host memory, on a
 * synchronous stream, and a call is complete when it returns. */
#pragma once

#include "parallel/comm.h"

extern const struct transport_ops transport_store;
