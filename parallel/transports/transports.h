// SPDX-License-Identifier: Apache-2.0
/* What the transports and their registry share. */
#pragma once

#include "parallel/comm.h"

enum { GRACE_MS = 500 }; // how long the others may take to end by themselves after a rank has failed

extern const struct transport_ops transport_local;
extern const struct transport_ops transport_dry;
extern const struct transport_ops transport_mpi;  // only where MPI was found: the registry knows
extern const struct transport_ops transport_nccl; // only where CUDA and NCCL were

/* Of ranks that are processes of a launcher, or threads; NULL: not in this build. */
const struct transport_ops *transport_of_host(bool launched);

/* How long a rank that waits looks for news before it sleeps, where `ranks` share this machine. A sleep and
 * its wake-up take some 30 us; with a core for each rank looking that long costs nobody anything and catches
 * a partner who is nearly there. With fewer cores, the partner may need this one. */
int64_t spin_ns(int ranks);

/* Gives back what the world itself owns, at the end of a rank's body. */
void world_close(struct world *world);
