// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint.h"

enum status checkpoint_save(struct worker *worker)
{
    (void)worker;
    return OK;
}

enum status checkpoint_find(const char *save_folder, char **out)
{
    (void)save_folder;
    *out = NULL;
    return OK;
}

enum status checkpoint_load(struct worker *worker, const char *path, bool with_optimizer)
{
    (void)worker;
    (void)with_optimizer;
    return fail(NOT_SUPPORTED, "%s: loading checkpoints is not built yet", path);
}
