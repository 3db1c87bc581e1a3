// SPDX-License-Identifier: Apache-2.0
/* Predicted steps with their streams as files: a picture (SVG), and a trace for Perfetto or chrome://tracing.
 * A row is a lane (stream) of a rank. Times are in seconds from the start of the step.
 *
 *     rank 0  compute      0F0 ████ 0F1 ████          0B0 ████████
 *             activations           ▒▒       ▒▒ */
#pragma once

#include "base/text.h"

/* A part of a row. Slices of a row are in the order of time; they do not overlap, except for messages that
 * begin and end together. */
struct lane_slice {
    double begin_s, end_s;
    const char *action;  // "3F7", "optimizer"; slices of one action have the same pointer
    const char *message; // "all_reduce tp"; NULL: ops
    const char *group;   // of the message: "tp"
    int64_t bytes;       // of the message
    int from, to;        // ranks of a message between two; else -1
    int64_t number;      // of the messages of this group between these two; both ends have the same
    bool is_copy;        // between host and device
    bool critical;       // on the critical path
};

struct lane_row {
    int rank;         // rows of a rank follow each other
    const char *name; // of the stream
    struct lane_slice *slices;
    int count;
};

struct lane_drawing {
    const char *title;
    const char *note; // a second line
    double step_s;
    struct lane_row *rows;
    int count;
};

/* Draws a row per lane, time from left to right. The hue of a cell is the kind of action, as in draw_svg(),
 * or of message. Slices that are narrower than a pixel are merged. The critical path is outlined. */
void draw_lanes_svg(const struct lane_drawing *drawing, struct text *out);

/* Writes Chrome's trace event format (JSON): a process per rank, a thread per lane, a slice per action with
 * its messages inside, and an arrow from each send to its receive. */
void draw_lanes_trace(const struct lane_drawing *drawing, struct text *out);
