// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "base/process.h"
#include "tools/cli/submit/submit.h"

#include <stdlib.h>
#include <string.h>

/* The CPUs of the smallest node of the job's partition, the default one if none is given; 0: unknown. */
static int node_cpus(const char *partition)
{
    char program[] = "sinfo", no_header[] = "--noheader", format[] = "--format=%P %c";
    AUTO(text) option = {0}, out = {0}, errors = {0};
    int exit = 0, least = 0;
    text_add(&option, "--partition=%s", partition != NULL ? partition : "");
    char *const words[] = {program, no_header, format, partition != NULL ? option.chars : NULL, NULL};
    if (process_capture(words, NULL, &out, &errors, &exit) != OK || exit != 0)
        return 0;
    // Lines such as "long* 96" or "long* 96+"; the star marks the default.
    for (const char *line = text_chars(&out); *line != 0; line += strspn(line, "\n")) {
        const size_t length = strcspn(line, "\n"), name = strcspn(line, " \n");
        const int cpus = name < length ? (int)strtol(line + name, NULL, 10) : 0;
        if (cpus > 0 && (partition != NULL || (name > 0 && line[name - 1] == '*')))
            least = least == 0 || cpus < least ? cpus : least;
        line += length;
    }
    return least;
}

/* Whether the job has the CPUs of its ranks from elsewhere than cluster.threads_per_rank. */
static bool has_cpus(const struct submission *s)
{
    const struct recipe_names *lines = &s->recipe->cluster.sbatch;
    bool has = strstr(s->launch, "cpu") != NULL;
    for (size_t i = 0; i < lines->count; i++)
        has = has || strstr(lines->list[i], "cpus-per-gpu") != NULL ||
              strstr(lines->list[i], "SRUN_CPUS_PER_TASK") != NULL;
    return has;
}

void submit_warn_cpus(const struct submission *submission)
{
    const struct recipe_cluster *cluster = &submission->recipe->cluster;
    if (recipe_gpu(submission->recipe) == NULL || cluster->threads_per_rank > 0 || has_cpus(submission))
        return;
    const int of_gpus = cluster->gpus_per_node * cluster->ranks_per_gpu;
    const int ranks = of_gpus > submission->ranks_per_node ? of_gpus : submission->ranks_per_node;
    const int cpus = node_cpus(cluster->partition);
    AUTO(text) use = {0};
    if (cpus >= ranks)
        text_add(&use, "use cluster.threads_per_rank=%d: %d CPUs of a node / %d ranks", cpus / ranks, cpus,
                 ranks);
    else
        text_add(&use, "set cluster.threads_per_rank to the CPUs of a node / %d ranks", ranks);
    print_line(
        stderr,
        "warning: cluster.threads_per_rank is not set, and Slurm may bind each rank to one CPU for its "
        "host loop, NCCL, data and checkpoints; %s",
        text_chars(&use));
}
