// SPDX-License-Identifier: Apache-2.0
/* What launchers say about the processes of a node. */
#include "parallel/launcher.h"

#include <criterion/criterion.h>
#include <string.h>

Test(launcher, slurms_tasks_of_a_node)
{
    cr_expect_eq(slurm_tasks_of_node("4(x2),3", 0), 4);
    cr_expect_eq(slurm_tasks_of_node("4(x2),3", 1), 4);
    cr_expect_eq(slurm_tasks_of_node("4(x2),3", 2), 3);
    cr_expect_eq(slurm_tasks_of_node("4(x2),3", 3), -1);
    cr_expect_eq(slurm_tasks_of_node("16", 0), 16);
    static const char *const nonsense[] = {"", "x", "4(x", "4(x0)", "4(x2", "0", "-3", "4;3"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
        cr_expect_eq(slurm_tasks_of_node(nonsense[i], 0), -1, "%s", nonsense[i]);
}

static char *of_open_mpi(const char *name)
{
    return strcmp(name, "OMPI_COMM_WORLD_LOCAL_SIZE") == 0 ? (char *)(uintptr_t) "8" : NULL;
}

static char *of_slurm(const char *name)
{
    const char *value = strcmp(name, "SLURM_NODEID") == 0                ? "1"
                        : strcmp(name, "SLURM_STEP_TASKS_PER_NODE") == 0 ? "8,4"
                                                                         : NULL;
    return (char *)(uintptr_t)value;
}

static char *without_launcher(const char *name)
{
    (void)name;
    return NULL;
}

Test(launcher, the_size_of_a_job_on_this_machine)
{
    cr_expect_eq(launcher_local_size(of_open_mpi, 16), 8);
    cr_expect_eq(launcher_local_size(of_open_mpi, 4), 4, "a value above the world size is ignored");
    cr_expect_eq(launcher_local_size(of_slurm, 12), 4);
    cr_expect_eq(launcher_local_size(without_launcher, 12), 12);
}
