// SPDX-License-Identifier: Apache-2.0
/* Commands of launchers: "srun -N {nodes} -n {ranks}". */
#pragma once

#include "base/text.h"

/* The default launcher of batch jobs: with MPI if this build has it. */
const char *launch_of_slurm(void);

/* Appends `launch` with {nodes} and {ranks} replaced. */
void launch_text(const char *launch, int nodes, int ranks, struct text *out);
