// SPDX-License-Identifier: Apache-2.0
/* Declarations shared by the transports and their registry. */
#pragma once

#include "parallel/comm.h"

enum { GRACE_MS = 500 }; // time for the other ranks to finish after one has failed

extern const struct transport_ops transport_local;
extern const struct transport_ops transport_dry;
extern const struct transport_ops transport_mpi;  // only if MPI was found; for the registry
extern const struct transport_ops transport_nccl; // only if CUDA and NCCL were found

/* The CPU transport: ranks are processes of a launcher, or threads; NULL: not in this build. */
const struct transport_ops *transport_for_cpu(bool launched);

/* Returns how long a waiting rank spins before it sleeps, with `ranks` on this machine. Sleep and wake-up
 * take some 30 us; with a core per rank, spinning that long costs nothing and catches a partner that is
 * almost there. With fewer cores, the partner may need this one. */
int64_t spin_ns(int ranks);

/* Ends this process with the error of a rank for which the others wait. Before the first step only the number
 * of the rank is reported. */
_Noreturn void exit_of_rank(enum status status, int rank, const char *why);

/* Frees the resources of the world itself, at the end of a rank's body. */
void world_close(struct world *world);
