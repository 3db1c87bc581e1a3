// SPDX-License-Identifier: Apache-2.0
/* Describes the installed libraries of the transports, for doctor. */
#pragma once

#include "base/text.h"
#include "parallel/comm.h"

/* Appends ", NCCL 2.28.9", or why it cannot be used; nothing if this build has no such transport. */
void transport_describe_library(const char *name, struct text *out);
void nccl_describe_library(struct text *out); // only if nccl is built
