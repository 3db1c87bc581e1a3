// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/submit/launch.h"

#include "parallel/comm.h"

#include <string.h>

const char *launch_of_slurm(void)
{
    return transport_is_built("mpi") ? "srun --mpi=pmix --kill-on-bad-exit=1 -N {nodes} -n {ranks}"
                                     : "srun --kill-on-bad-exit=1 -N {nodes} -n {ranks}";
}

void launch_text(const char *launch, int nodes, int ranks, struct text *out)
{
    static const char *const names[] = {"{nodes}", "{ranks}"};
    const int values[] = {nodes, ranks};
    while (*launch != 0) {
        int found = -1;
        for (int i = 0; i < 2; i++)
            if (strncmp(launch, names[i], strlen(names[i])) == 0)
                found = i;
        if (found < 0) {
            text_add_bytes(out, launch++, 1);
            continue;
        }
        text_add(out, "%d", values[found]);
        launch += strlen(names[found]);
    }
}
