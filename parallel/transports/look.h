// SPDX-License-Identifier: Apache-2.0
/* What a machine has of the libraries of transports, in words, for doctor. */
#pragma once

#include "base/text.h"
#include "parallel/comm.h"

/* Adds ", NCCL 2.28.9", or what keeps it from being used; nothing where this build has no such transport. */
void transport_look(const char *name, struct text *out);
void nccl_look(struct text *out); // where that is built
