// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include "base/text.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- cgroups ---- */

enum { MAX_FILE_BYTES = 1 << 20 };

/* Returns the contents of FOLDER/NAME, owned by the caller. NULL if it cannot be read: not an error. */
static char *read_file_in(const char *folder, const char *name)
{
    char chunk[4096];
    size_t got;
    struct text path = {0}, out = {0};
    text_add(&path, "%s/%s", folder, name);
    FILE *file = fopen(path.chars, "re");
    text_free(&path);
    while (file != NULL && (got = fread(chunk, 1, sizeof chunk, file)) > 0 && out.length < MAX_FILE_BYTES)
        text_add_bytes(&out, chunk, got);
    if (file != NULL)
        fclose(file);
    return out.chars;
}

double cgroup_cpu_max(const char *text)
{
    char *end = NULL;
    double quota = strtod(text, &end), period = 100000.0;
    if (end == text)
        return INFINITY; // "max"
    const char *rest = end;
    double given = strtod(rest, &end);
    if (end != rest)
        period = given;
    return quota > 0.0 && period > 0.0 ? quota / period : INFINITY;
}

int64_t cgroup_memory_max(const char *text)
{
    char *end = NULL;
    double bytes = strtod(text, &end);
    // Version 1 reports the largest number of whole pages for "no limit".
    return end == text || !(bytes > 0.0) || bytes >= 0x1p62 ? INT64_MAX : (int64_t)bytes;
}

/* Applies the limits of one cgroup. */
static void add_group(const char *folder, struct cgroup_limits *out)
{
    static const char *const memory_files[] = {"memory.max", "memory.limit_in_bytes"};
    char *text = read_file_in(folder, "cpu.max");
    if (text != NULL)
        out->cpus = fmin(out->cpus, cgroup_cpu_max(text));
    free(text);
    char *quota = read_file_in(folder, "cpu.cfs_quota_us"),
         *period = read_file_in(folder, "cpu.cfs_period_us");
    if (quota != NULL && period != NULL) {
        struct text both = {0};
        text_add(&both, "%s %s", quota, period); // -1: no limit
        out->cpus = fmin(out->cpus, cgroup_cpu_max(both.chars));
        text_free(&both);
    }
    free(quota);
    free(period);
    for (size_t i = 0; i < sizeof memory_files / sizeof *memory_files; i++) {
        text = read_file_in(folder, memory_files[i]);
        int64_t bytes = text != NULL ? cgroup_memory_max(text) : INT64_MAX;
        out->memory_bytes = bytes < out->memory_bytes ? bytes : out->memory_bytes;
        free(text);
    }
}

/* The cgroup at `path` under `top`, and its ancestors up to the top. */
static void add_chain(const char *top, const char *path, struct cgroup_limits *out)
{
    struct text folder = {0};
    text_add(&folder, "%s%s", top, path);
    while (folder.length > strlen(top)) {
        if (strstr(folder.chars, "/..") == NULL) // above the namespace: not visible
            add_group(folder.chars, out);
        folder.length = (size_t)(strrchr(folder.chars, '/') - folder.chars);
        folder.chars[folder.length] = 0;
    }
    add_group(top, out);
    text_free(&folder);
}

/* A line of /proc/self/cgroup: "0::/user.slice" of version 2, "4:cpu,cpuacct:/docker/1234" of version 1,
 * which has a hierarchy for each set of controllers. */
static void add_line(const char *root, const char *names, const char *path, struct cgroup_limits *out)
{
    if (*names == 0)
        add_chain(root, path, out);
    while (*names != 0) {
        size_t length = strcspn(names, ",");
        struct text top = {0};
        text_add(&top, "%s/%.*s", root, (int)length, names);
        add_chain(top.chars, path, out);
        text_free(&top);
        names += length + (names[length] == ',');
    }
}

void cgroup_read(const char *proc_cgroup, const char *root, struct cgroup_limits *out)
{
    *out = (struct cgroup_limits){.cpus = INFINITY, .memory_bytes = INT64_MAX};
    for (const char *line = proc_cgroup; *line != 0;) {
        size_t length = strcspn(line, "\n");
        struct text copy = {0};
        text_add_bytes(&copy, line, length);
        char *names = strchr(text_chars(&copy), ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
        if (path != NULL) {
            *path = 0;
            add_line(root, names + 1, path + 1, out);
        }
        text_free(&copy);
        line += length + (line[length] == '\n');
    }
}

/* ---- this machine ---- */

/* Returns the number of CPUs in the affinity mask of a process (0: this one); -1 if unknown. The default
 * cpu_set_t has room for 1024 CPUs, so larger sets are tried. */
static int affinity_of(pid_t process)
{
    int count = -1;
    for (int capacity = 1024; count < 0 && capacity <= 1 << 16; capacity *= 4) {
        cpu_set_t *set = CPU_ALLOC(capacity);
        if (set != NULL && sched_getaffinity(process, CPU_ALLOC_SIZE(capacity), set) == 0)
            count = CPU_COUNT_S(CPU_ALLOC_SIZE(capacity), set);
        CPU_FREE(set);
    }
    return count;
}

/* Returns the CPUs that the processes of this job share. A launcher that binds its processes gives each a
 * part of its own mask; without binding, each inherits the whole mask. Open MPI reports whether it binds,
 * which also works with a shell between mpirun and this process. */
static int shared_cpus(int cpus, int online)
{
    const char *bound = getenv("OMPI_MCA_orte_bound_at_launch");
    if (bound != NULL && strcmp(bound, "1") == 0)
        return online > cpus ? online : cpus;
    int parent = affinity_of(getppid());
    return parent > cpus ? parent : cpus;
}

void machine_query(struct machine *out)
{
    struct cgroup_limits limits = {.cpus = INFINITY, .memory_bytes = INT64_MAX};
    char *groups = read_file_in("/proc/self", "cgroup");
    if (groups != NULL)
        cgroup_read(groups, "/sys/fs/cgroup", &limits);
    free(groups);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int cpus = affinity_of(0);
    cpus = cpus > 0 ? cpus : online > 0 ? (int)online : 1;
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    *out = (struct machine){
        .cpus = cpus,
        .shared_cpus = shared_cpus(cpus, (int)online),
        .quota = limits.cpus,
        .memory_bytes = (double)limits.memory_bytes < bytes ? limits.memory_bytes : (int64_t)bytes,
    };
}

int machine_threads(const struct machine *machine, int ranks, int here)
{
    ranks = ranks > here ? ranks : here;
    int mine = machine->cpus / here, equal = machine->shared_cpus / ranks;
    int share = mine < equal ? mine : equal;
    double quota = floor(machine->quota / (double)ranks + 0.5); // two threads for 1.5 CPUs
    share = quota < (double)share ? (int)quota : share;
    return share > 1 ? share : 1;
}
