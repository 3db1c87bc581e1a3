// SPDX-License-Identifier: Apache-2.0
/* Adam's moments where they are not needed between steps: in the host's memory (memory.offload_optimizer;
 * ZeRO-Offload, 2101.06840, computes there too). A step takes them through a window on the device, a piece at
 * a time:
 *
 *     copies    in 0   in 1          out 0  in 2          out 1 ...      one stream
 *     compute          AdamW 0              AdamW 1                      two halves of the window, in turn
 *
 * AdamW looks at one element at a time, so pieces have the bits of the whole. The trap: whoever reads the
 * moments (a checkpoint) does so on the compute stream, which waits behind a step for the last piece to be
 * back. */
#pragma once

#include "layers/parameters/weights.h"

enum { MOMENT_PIECE = 1 << 16 }; // elements

struct moment_window {
    struct stream *compute, *copies;
    struct buffer room; // f32[2 halves][m, v][MOMENT_PIECE]
    struct event arrived[2];
};

MUST_USE enum status moment_window_create(struct stream *compute, struct moment_window *out);
void moment_window_destroy(struct moment_window *window);

/* Around the steps of all tensors. */
MUST_USE enum status moment_window_begin(struct moment_window *window);
MUST_USE enum status moment_window_end(struct moment_window *window, const struct weights *weights);
/* AdamW of dense vectors, of which m and v are in the host's memory. */
MUST_USE enum status moment_window_step(struct moment_window *window, struct adamw args);
