// SPDX-License-Identifier: Apache-2.0
/* CPUs and memory available to this process.
 *
 *   CPUs     the affinity mask (taskset, mpirun --bind-to, srun --cpu-bind), and the CPU quota of the cgroup
 *            (docker --cpus, a Slurm or Kubernetes limit)
 *   memory   of the machine, and the memory limit of the cgroup
 *
 * Parsing functions take the contents of kernel files and environment variables as text, so that tests can
 * simulate other machines. A limit that cannot be read counts as no limit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct machine {
    int cpus;        // in the affinity mask of this process
    int shared_cpus; // available to all processes of the job on this machine together; >= cpus
    double quota;    // CPU time limit of the cgroup, in CPUs; INFINITY: no limit
    int64_t memory_bytes;
};
void machine_query(struct machine *out);

/* Returns the CPU threads of each of `ranks` ranks of this machine, of which `here` are threads of this
 * process: an equal share of the CPUs of the job, at most those available to this process. At least 1. */
int machine_threads(const struct machine *machine, int ranks, int here);

/* ---- kernel files ---- */

/* Limits of the cgroup named in `proc_cgroup` (/proc/self/cgroup) and of its ancestors, in the hierarchies
 * under `root` (/sys/fs/cgroup): version 2, or cpu and memory of version 1. In a container, the name is often
 * that of the host's cgroup; the files of the root are used then. */
struct cgroup_limits {
    double cpus;          // INFINITY: no limit
    int64_t memory_bytes; // INT64_MAX: no limit
};
void cgroup_read(const char *proc_cgroup, const char *root, struct cgroup_limits *out);

/* Parses cpu.max of version 2, "150000 100000": 1.5; "max 100000": INFINITY. */
double cgroup_cpu_max(const char *text);
/* Parses memory.max ("max") and memory.limit_in_bytes (a huge number): INT64_MAX without a limit. */
int64_t cgroup_memory_max(const char *text);
