// SPDX-License-Identifier: Apache-2.0
/* Adam moments in host memory between steps (memory.offload_optimizer; ZeRO-Offload, 2101.06840, which also
 * computes there). AdamW processes them chunk by chunk through a window on the device:
 *
 *     copies    in 0   in 1          out 0  in 2          out 1 ...      one stream
 *     compute          AdamW 0              AdamW 1                      two halves of the window, in turn
 *
 * AdamW is elementwise, so the result is bit-identical. Caution: moments must be read on the compute stream
 * (as a checkpoint does), which waits after a step for the last copy to the host. */
#pragma once

#include "layers/parameters/weights.h"

enum { MOMENT_CHUNK = 1 << 16 }; // elements

struct moment_window {
    struct stream *compute, *copies;
    struct buffer buffer; // f32[2 halves][m, v][MOMENT_CHUNK]
    struct event arrived[2];
};

MUST_USE enum status moment_window_create(struct stream *compute, struct moment_window *out);
void moment_window_destroy(struct moment_window *window);

/* Call these before and after the updates of all tensors. */
MUST_USE enum status moment_window_begin(struct moment_window *window);
MUST_USE enum status moment_window_end(struct moment_window *window, const struct weights *weights);
/* AdamW on dense vectors with m and v in host memory. */
MUST_USE enum status moment_window_step(struct moment_window *window, struct adamw args);
