// SPDX-License-Identifier: Apache-2.0
/* A file of scalars for TensorBoard, events.out.tfevents.SECONDS.HOST.PID.cuboid: records of a length, its
 * checksum, an event (event.proto), and the checksum of that. Each start of a run adds a file, which begins
 * with the version and the start of a session at its first step: TensorBoard then drops the later steps of
 * earlier files, which are repeated. */
#pragma once

#include "base/status.h"
#include "trainer/run/dashboard/dashboard_number.h"

#include <stdint.h>

struct tensorboard;

/* Creates the directory if needed. IO_ERROR; NOT_SUPPORTED in a build without protobuf-c. */
MUST_USE enum status tensorboard_open(const char *dir, int64_t first_step, struct tensorboard **out);
/* One event with all numbers; a name without a group gets the group `train`. A record is written whole or, on
 * IO_ERROR, not at all. */
MUST_USE enum status tensorboard_add(struct tensorboard *board, int64_t step,
                                     const struct dashboard_number *numbers, int count);
void tensorboard_close(struct tensorboard *board); // accepts NULL
