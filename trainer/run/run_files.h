// SPDX-License-Identifier: Apache-2.0
/* The small files of the model that a run copies into its checkpoints
 * (trainer/checkpoint/huggingface/model_files.h), before it starts:
 *
 *     the run's own newest checkpoint, if there is one; else
 *     the tokenizer of the recipe, or of checkpoint.load, with the files next to it
 *     config.json and generation_config.json of checkpoint.load
 *     chat_template.jinja: the template that wrote the training data, if they have one
 */
#pragma once

#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/engine/rank.h"

/* Sets run->model_files. newest: step of the run's newest checkpoint, from which it resumes; -1: it does
 * not. Files that cannot be copied are warnings. */
MUST_USE enum status run_files_collect(struct run *run, int64_t newest);
void run_files_free(struct run *run);
