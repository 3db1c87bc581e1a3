// SPDX-License-Identifier: Apache-2.0
/* Resource limits of a process, with the kernel files and the environment of other machines. */
#include "base/machine.h"

#include "base/text.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct machine machine_of(int cpus, int shared_cpus, double quota)
{
    return (struct machine){.cpus = cpus, .shared_cpus = shared_cpus, .quota = quota};
}

Test(machine, threads_are_shared_by_the_ranks_of_the_machine)
{
    static const struct {
        const char *what;
        int cpus, shared;
        double quota;
        int ranks, here, threads;
    } cases[] = {
        {"16 ranks on two nodes of 64 cores", 64, 64, INFINITY, 8, 1, 8},
        {"8 threads of one process", 64, 64, INFINITY, 8, 8, 8},
        {"each process bound to 8 cores of its own", 8, 64, INFINITY, 8, 1, 8},
        {"each process bound to 4 cores, half of its share", 4, 64, INFINITY, 8, 1, 4},
        {"two sockets, and four processes bound to each", 32, 64, INFINITY, 8, 1, 8},
        {"taskset around mpirun", 8, 8, INFINITY, 4, 1, 2},
        {"more ranks than cores", 2, 2, INFINITY, 8, 8, 1},
        {"a quota of 4 CPUs on 64", 64, 64, 4.0, 1, 1, 4},
        {"the same for 4 ranks", 64, 64, 4.0, 4, 4, 1},
        {"a CPU and a half", 64, 64, 1.5, 1, 1, 2},
        {"a tenth of a CPU", 64, 64, 0.1, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct machine machine = machine_of(cases[i].cpus, cases[i].shared, cases[i].quota);
        cr_expect_eq(machine_threads(&machine, cases[i].ranks, cases[i].here), cases[i].threads, "%s: %d",
                     cases[i].what, machine_threads(&machine, cases[i].ranks, cases[i].here));
    }
}

Test(machine, parses_the_kernels_limit_strings)
{
    cr_expect_eq(cgroup_cpu_max("150000 100000\n"), 1.5);
    cr_expect_eq(cgroup_cpu_max("400000 50000"), 8.0);
    cr_expect_eq(cgroup_cpu_max("max 100000\n"), INFINITY);
    cr_expect_eq(cgroup_cpu_max("-1\n 100000\n"), INFINITY);
    cr_expect_eq(cgroup_cpu_max(""), INFINITY);
    cr_expect_eq(cgroup_memory_max("max\n"), INT64_MAX);
    cr_expect_eq(cgroup_memory_max("9223372036854771712\n"), INT64_MAX);
    cr_expect_eq(cgroup_memory_max("2147483648\n"), INT64_C(2147483648));
    cr_expect_eq(cgroup_memory_max("0\n"), INT64_MAX);
}

/* A cgroup hierarchy in a temporary folder. */
static void write_file(const char *root, const char *path, const char *text)
{
    char whole[300];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    *strrchr(whole, '/') = 0;
    cr_assert_eq(folder_make(whole), OK);
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    cr_assert_eq(file_write_atomic(whole, text, strlen(text)), OK, "%s", fail_text());
}

static void limits_are(const char *root, const char *groups, double cpus, int64_t bytes)
{
    struct cgroup_limits limits;
    cgroup_read(groups, root, &limits);
    cr_expect(limits.cpus == cpus && limits.memory_bytes == bytes, "%s: %g CPUs, %lld bytes", groups,
              limits.cpus, (long long)limits.memory_bytes);
}

Test(machine, applies_limits_of_all_parent_cgroups)
{
    char two[] = "/tmp/cuboid-cgroup-XXXXXX", one[] = "/tmp/cuboid-cgroup-XXXXXX";
    cr_assert(mkdtemp(two) != NULL && mkdtemp(one) != NULL);
    write_file(two, "slurm/job_7/cpu.max", "1600000 100000\n");
    write_file(two, "slurm/job_7/memory.max", "68719476736\n");
    write_file(two, "slurm/job_7/step_0/cpu.max", "max 100000\n");
    write_file(two, "slurm/job_7/step_0/memory.max", "max\n");
    limits_are(two, "0::/slurm/job_7/step_0\n", 16.0, INT64_C(68719476736));
    limits_are(two, "0::/slurm\n", INFINITY, INT64_MAX);
    limits_are(two, "0::/\n", INFINITY, INT64_MAX);
    limits_are(two, "", INFINITY, INT64_MAX);
    limits_are(two, "nonsense\n::::\n:\n", INFINITY, INT64_MAX);
    // In a container the root is that of the container, and the name may be that of the host.
    write_file(two, "cpu.max", "200000 100000\n");
    limits_are(two, "0::/\n", 2.0, INT64_MAX);
    limits_are(two, "0::/docker/0123\n", 2.0, INT64_MAX);
    limits_are(two, "0::/../other\n", 2.0, INT64_MAX);

    write_file(one, "cpu/docker/a/cpu.cfs_quota_us", "300000\n");
    write_file(one, "cpu/docker/a/cpu.cfs_period_us", "100000\n");
    write_file(one, "memory/docker/a/memory.limit_in_bytes", "1073741824\n");
    write_file(one, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    limits_are(one, "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n1:name=systemd:/x\n", 3.0,
               INT64_C(1073741824));
    limits_are(one, "5:cpuset:/docker/a\n", INFINITY, INT64_MAX);
}

Test(machine, this_one)
{
    struct machine machine;
    machine_query(&machine);
    cr_expect(machine.cpus >= 1 && machine.shared_cpus >= machine.cpus && machine.quota > 0.0 &&
              machine.memory_bytes > 1 << 20);
}
