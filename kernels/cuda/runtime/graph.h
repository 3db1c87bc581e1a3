// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/device.h"

/* stream_replay() on the cuda device. */
MUST_USE enum status cuda_replay(struct stream *stream, void **state, enum status (*body)(void *context),
                                 void *context);
void cuda_replay_end(void *state);
