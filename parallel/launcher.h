// SPDX-License-Identifier: Apache-2.0
/* What started this process: mpirun, srun, or torchrun and Kubernetes with RANK, WORLD_SIZE and MASTER_ADDR.
 * Everything is read from the environment; nothing is opened. */
#pragma once

#include "base/status.h"

/* Without a launcher (also in a shell inside an sbatch or salloc allocation) size is 0 and rank -1. Before a
 * world is open, rank 0 or -1 prints. */
struct launcher {
    const char *name; // "mpirun", "srun", "torchrun", "none"
    int size, rank;
    int local_rank; // on this node; 0 if the launcher does not tell
    bool has_mpi;   // MPI can connect the processes: mpirun, srun --mpi=pmix
    char job[200];  // a name of the job, the same on all of its processes of a machine; "" without a launcher
    char node[64];  // Slurm's name of the node, else the host name; CUBOID_NODE: several on one machine
    bool names_node; // CUBOID_NODE is set: other processes on this machine may be on another node
    char host[64];   // of rank 0, if the launcher tells (MASTER_ADDR); ""
};

/* BAD_USAGE in the shell of an allocation of several nodes, which is a single process. */
MUST_USE enum status launcher_find(struct launcher *out);

/* Removes the launcher from the environment: this process is alone from now on. */
void launcher_forget(void);

/* Returns the ranks on this node from Slurm's "4(x2),3", the tasks of each node in node order; -1 if `text`
 * has no entry for `node`. */
int64_t slurm_tasks_of_node(const char *text, int64_t node);
/* Returns the processes of this job on this machine according to the environment (get: getenv): Open MPI's
 * OMPI_COMM_WORLD_LOCAL_SIZE, entry SLURM_NODEID of SLURM_STEP_TASKS_PER_NODE, or torchrun's
 * LOCAL_WORLD_SIZE (1 without it); `size`, the whole job, if none is set. */
int launcher_local_size(char *(*get)(const char *name), int size);
