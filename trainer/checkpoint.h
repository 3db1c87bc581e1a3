// SPDX-License-Identifier: Apache-2.0
/* Checkpoints. */
#pragma once

#include "trainer/worker.h"

/* Collective: every rank returns the same status. Into recipe->checkpoint.save. */
MUST_USE enum status checkpoint_save(struct worker *worker);
/* The newest complete checkpoint in the folder; *out NULL when there is none. The caller frees it. */
MUST_USE enum status checkpoint_find(const char *save_folder, char **out);
MUST_USE enum status checkpoint_load(struct worker *worker, const char *path, bool with_optimizer);
