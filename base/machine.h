// SPDX-License-Identifier: Apache-2.0
/* What this process may use of the machine: CPUs and memory.
 *
 *   CPUs     the affinity mask (taskset, mpirun --bind-to, srun --cpu-bind), and the CPU quota of the cgroup
 *            (docker --cpus, a Slurm or Kubernetes limit)
 *   memory   the machine's, and the memory limit of the cgroup
 *
 * Parsing functions take the contents of the kernel's files and of the environment as text, so tests can
 * cover other machines. A limit that cannot be read counts as no limit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct machine {
    int cpus;        // that this process may run on: its affinity mask
    int shared_cpus; // that the processes of the job on this machine may run on, all together; >= cpus
    double quota;    // CPUs' worth of time that the cgroup gets; INFINITY: no limit
    int64_t memory_bytes;
};
void machine_look(struct machine *out);

/* CPU threads of each of `ranks` ranks of this machine, of which `here` are threads of this process: an equal
 * share of the CPUs of the job, at most those this process may run on. At least 1. */
int machine_threads(const struct machine *machine, int ranks, int here);

/* ---- the kernel's texts ---- */

/* The limits of the cgroup that `proc_cgroup` (/proc/self/cgroup) names and of those around it, in the
 * hierarchies under `root` (/sys/fs/cgroup): version 2, or cpu and memory of version 1. In a container the
 * name is often that outside of it: then the root's own files count. */
struct cgroup_limits {
    double cpus;          // INFINITY: no limit
    int64_t memory_bytes; // INT64_MAX: no limit
};
void cgroup_read(const char *proc_cgroup, const char *root, struct cgroup_limits *out);

/* cpu.max of version 2, "150000 100000": 1.5; "max 100000": INFINITY. */
double cgroup_cpu_max(const char *text);
/* memory.max ("max") and memory.limit_in_bytes (a huge number): INT64_MAX without a limit. */
int64_t cgroup_memory_max(const char *text);

/* ---- the launcher's ---- */

/* The ranks that run on this node by Slurm's "4(x2),3", the tasks of each node in the order of nodes;
 * -1 if `text` has no entry for `node`. */
int64_t slurm_tasks_of_node(const char *text, int64_t node);
/* The processes of this job on this machine, as the environment has it (get: getenv): Open MPI's
 * OMPI_COMM_WORLD_LOCAL_SIZE, or of SLURM_STEP_TASKS_PER_NODE the entry SLURM_NODEID; `size`, the whole job,
 * where neither is known. */
int launcher_local_size(char *(*get)(const char *name), int size);
