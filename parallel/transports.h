// SPDX-License-Identifier: Apache-2.0
/* What the transports and their registry share. */
#pragma once

#include "parallel/comm.h"

enum { GRACE_MS = 500 }; // how long the others may take to end by themselves after a rank has failed

extern const struct transport_ops transport_local;
extern const struct transport_ops transport_dry;
extern const struct transport_ops transport_mpi; // only where MPI was found: the registry knows

/* Gives back what the world itself owns, at the end of a rank's body. */
void world_close(struct world *world);
