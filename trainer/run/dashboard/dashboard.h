// SPDX-License-Identifier: Apache-2.0
/* The numbers of metrics.jsonl, for programs that draw them:
 *
 *   logging.tensorboard_dir   a file of events for each start: `train/loss`, `memory_bytes/weights`
 *   logging.prometheus_file   the numbers of the last step, replaced after each: `cuboid_loss{run="NAME"}`
 *
 * Both have every number of a line under the names of its fields, so a new field needs nothing here. What
 * cannot be written causes one warning: training continues, and metrics.jsonl has every step. */
#pragma once

#include "trainer/recipe/recipe.h"

struct dashboard;

/* first_step: of this process; TensorBoard drops the later steps of earlier starts. *out is NULL if the
 * recipe names neither. IO_ERROR, NOT_SUPPORTED. */
MUST_USE enum status dashboard_open(const struct recipe *recipe, int64_t first_step, struct dashboard **out);
/* Adds a line of metrics.jsonl: a JSON object with a number "step". Accepts NULL. */
void dashboard_add(struct dashboard *dashboard, const struct text *line);
void dashboard_close(struct dashboard *dashboard); // accepts NULL
