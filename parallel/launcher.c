// SPDX-License-Identifier: Apache-2.0
#include "parallel/launcher.h"

#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the number in an environment variable; -1 if unset or not a number. */
static int64_t environment(const char *name)
{
    const char *text = getenv(name);
    int64_t value = -1;
    return text != NULL && integer_parse(text, &value) && value >= 0 ? value : -1;
}

static int64_t first_known(int64_t a, int64_t b)
{
    return a >= 0 ? a : b;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? text : "";
}

/* Fills the launcher if size and rank belong together. */
static bool found(const char *name, int64_t size, const char *rank_variable, int64_t local_rank,
                  struct launcher *out)
{
    const int64_t rank = environment(rank_variable);
    if (size < 1 || size > INT_MAX || rank < 0 || rank >= size)
        return false;
    *out = (struct launcher){.name = name,
                             .size = (int)size,
                             .rank = (int)rank,
                             .local_rank = local_rank >= 0 && local_rank < size ? (int)local_rank : 0};
    return true;
}

static bool find_mpirun(struct launcher *out)
{
    if (!found("mpirun", environment("OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_RANK",
               environment("OMPI_COMM_WORLD_LOCAL_RANK"), out))
        return false;
    out->has_mpi = true;
    return true;
}

/* In a step of srun, not in the shell of a batch job: Slurm numbers steps that only run a shell from the top
 * of 32 bits downwards. */
static bool is_in_step(void)
{
    const int64_t step = first_known(environment("SLURM_STEP_ID"), environment("SLURM_STEPID"));
    return step >= 0 && step < 0xfffffff0 && environment("SLURM_PROCID") >= 0;
}

static int64_t slurm_size(void)
{
    return first_known(environment("SLURM_STEP_NUM_TASKS"), environment("SLURM_NTASKS"));
}

static bool find_srun_with_pmix(struct launcher *out)
{
    if (!found("srun", slurm_size(), "PMIX_RANK", environment("SLURM_LOCALID"), out))
        return false;
    out->has_mpi = true;
    return true;
}

/* torchrun sets all of these; a PyTorchJob of Kubernetes has one process per pod, and sets no LOCAL_RANK. */
static bool find_torchrun(struct launcher *out)
{
    if (text_of("MASTER_ADDR")[0] == 0 ||
        !found("torchrun", environment("WORLD_SIZE"), "RANK", environment("LOCAL_RANK"), out))
        return false;
    snprintf(out->host, sizeof out->host, "%s", text_of("MASTER_ADDR"));
    return true;
}

static bool find_srun(struct launcher *out)
{
    return is_in_step() && slurm_size() > 1 &&
           found("srun", slurm_size(), "SLURM_PROCID", environment("SLURM_LOCALID"), out);
}

/* Names the job and the node. mpirun numbers its jobs with 16 bits: the address of its server is added, and
 * the random key that it gives to the transports of a job, so that another user cannot compute the name. */
static void name_job(struct launcher *launcher)
{
    const bool is_torchrun = strcmp(launcher->name, "torchrun") == 0;
    if (is_torchrun && getenv("LOCAL_WORLD_SIZE") == NULL) // it is unknown which processes share a node
        snprintf(launcher->job, sizeof launcher->job, "%.64s:%.16s rank %d", launcher->host,
                 text_of("MASTER_PORT"), launcher->rank);
    else if (is_torchrun)
        snprintf(launcher->job, sizeof launcher->job, "%.64s:%.16s %.64s %.16s", launcher->host,
                 text_of("MASTER_PORT"), text_of("TORCHELASTIC_RUN_ID"),
                 text_of("TORCHELASTIC_RESTART_COUNT"));
    else if (launcher->size > 0)
        snprintf(launcher->job, sizeof launcher->job, "%s %s %s.%s %s",
                 text_of("OMPI_MCA_orte_precondition_transports"), text_of("PMIX_NAMESPACE"),
                 text_of("SLURM_JOB_ID"), text_of("SLURM_STEP_ID"), text_of("OMPI_MCA_orte_hnp_uri"));
    // mpirun and torchrun may pass the name of the node on which they were started to all processes.
    const bool is_slurm = strcmp(launcher->name, "srun") == 0 && text_of("SLURMD_NODENAME")[0] != 0;
    launcher->names_node = text_of("CUBOID_NODE")[0] != 0;
    if (launcher->names_node || is_slurm)
        snprintf(launcher->node, sizeof launcher->node, "%s",
                 text_of(launcher->names_node ? "CUBOID_NODE" : "SLURMD_NODENAME"));
    else if (gethostname(launcher->node, sizeof launcher->node - 1) != 0)
        launcher->node[0] = 0;
}

enum status launcher_find(struct launcher *out)
{
    struct launcher torchrun, pmix;
    const bool is_torchrun = find_torchrun(&torchrun), is_pmix = find_srun_with_pmix(&pmix);
    const int64_t nodes = first_known(environment("SLURM_JOB_NUM_NODES"), environment("SLURM_NNODES"));
    *out = (struct launcher){.name = "none", .size = 0, .rank = -1};
    if (find_mpirun(out)) {
    } else if (is_pmix && (!is_torchrun || pmix.size == torchrun.size)) {
        *out = pmix; // torchrun is itself started by srun, once per node
    } else if (is_torchrun) {
        *out = torchrun;
    } else if (!find_srun(out) && !is_in_step() && nodes > 1)
        return fail(BAD_USAGE,
                    "this shell runs on one of the %lld nodes of a Slurm allocation; start cuboid with "
                    "srun --mpi=pmix or mpirun, or allocate one node",
                    (long long)nodes);
    name_job(out);
    return OK;
}

void launcher_forget(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_RANK",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "LOCAL_WORLD_SIZE",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

/* ---- its nodes ---- */

int64_t slurm_tasks_of_node(const char *text, int64_t node)
{
    int64_t first = 0; // node of this entry
    for (const char *at = text; *at != 0;) {
        char *end = NULL;
        long tasks = strtol(at, &end, 10), times = 1;
        if (end == at || tasks < 1)
            return -1;
        if (strncmp(end, "(x", 2) == 0) {
            const char *begin = end + 2;
            times = strtol(begin, &end, 10);
            if (end == begin || times < 1 || *end++ != ')')
                return -1;
        }
        if (*end != ',' && *end != 0)
            return -1;
        if (node >= first && node < first + times)
            return tasks;
        first += times;
        at = end + (*end == ',');
    }
    return -1;
}

static int64_t number_in(char *(*get)(const char *name), const char *name)
{
    const char *text = get(name);
    int64_t value = -1;
    return text != NULL && integer_parse(text, &value) && value >= 0 ? value : -1;
}

int launcher_local_size(char *(*get)(const char *name), int size)
{
    int64_t local = number_in(get, "OMPI_COMM_WORLD_LOCAL_SIZE"), node = number_in(get, "SLURM_NODEID");
    const char *tasks = get("SLURM_STEP_TASKS_PER_NODE");
    if (tasks == NULL)
        tasks = get("SLURM_TASKS_PER_NODE");
    if (local < 1 && tasks != NULL && node >= 0)
        local = slurm_tasks_of_node(tasks, node);
    if (local < 1 && get("MASTER_ADDR") != NULL && number_in(get, "WORLD_SIZE") == size) {
        local = number_in(get, "LOCAL_WORLD_SIZE");
        local = local >= 1 ? local : 1; // Kubernetes: a process per pod
    }
    return local >= 1 && local <= size ? (int)local : size;
}
