// SPDX-License-Identifier: Apache-2.0
/* Schedules with their times as files: a picture (SVG), and a trace for Perfetto or chrome://tracing.
 * Times may be simulated or measured. A file can contain several drawings, to compare prediction and
 * measurement. For the terminal: draw_text.h. */
#pragma once

#include "schedules/simulate.h"

/* What a row shows. A picture has a line for each of these but the step, and several rows may share it. */
enum trace_row_class { ROW_STEP, ROW_OPTIMIZER, ROW_COLLECTIVES, ROW_TRANSFERS, ROW_COPIES, ROW_CLASSES };

/* A row besides the actions of a rank. Slices do not overlap. */
struct trace_slice {
    const char *name, *kind;
    double start, end;
    int64_t bytes; // 0: not shown
};
struct trace_row {
    int rank;
    enum trace_row_class class;
    const char *name;
    const struct trace_slice *slices;
    int count;
};

struct drawing {
    const char *title; // "1f1b", "measured, step 5"
    const struct schedule *schedule;
    const struct simulation *simulation;
    const struct trace_row *rows;
    int row_count;
};

/* Draws a row per rank, time from left to right, and all drawings below each other on the same scale. The
 * hue of a cell is the kind of action and its shade the chunk; a bar near the top marks I, one near the
 * bottom W, both B. The number in a cell is the microbatch. An overlapped pair shares its cell, one action
 * above the other. The bubble is grey. Below the actions of a rank are narrow lines for the drawing's rows.
 * Legible on light and dark pages. */
struct svg_options {
    bool critical;    // outlines the critical path
    const char *unit; // of the time axis: "ms"; NULL: none
    const char *note; // a line below each title; NULL: none
};
void draw_svg(const struct drawing *drawings, int count, const struct svg_options *options, struct text *out);

/* Writes Chrome's trace event format (JSON): a process per rank of each drawing, with the threads "compute"
 * and "messages" (several if messages overlap), the rows of the drawing, and an arrow from the action that
 * produces a value to the one on another rank that consumes it. `microseconds`: length of a unit of the
 * drawings' time. */
void draw_trace(const struct drawing *drawings, int count, double microseconds, struct text *out);
