// SPDX-License-Identifier: Apache-2.0
/* Schedules with their times as files: a picture (SVG), and a trace for Perfetto or chrome://tracing.
 * Times may be simulated or measured, and several drawings go into one file, so that prediction and
 * measurement can be compared. For the terminal: draw_text.h. */
#pragma once

#include "schedules/simulate.h"

struct drawing {
    const char *title; // "1f1b", "measured, step 5"
    const struct schedule *schedule;
    const struct simulation *simulation;
};

/* A row per rank, time from left to right on one scale for all drawings, one below the other. The hue
 * of a cell is the kind of action and its shade the chunk; a bar near the top marks I, one near the
 * bottom W, both B. The number in a cell is the microbatch. An overlapped pair shares its cell,
 * one above the other. Grey is the bubble. Legible on light and dark pages. */
struct svg_options {
    bool critical;    // outlines the critical path
    const char *unit; // of the time axis: "ms"; NULL: none
    const char *note; // a line below each title; NULL: none
};
void draw_svg(const struct drawing *drawings, int count, const struct svg_options *options, struct text *out);

/* Chrome's trace event format, as JSON: a process for each rank of each drawing, with the threads
 * "compute" and "messages" (and more of these where messages overlap), and an arrow from the action
 * that makes a value to the one on another rank that takes it. `microseconds`: how long a unit of the
 * drawings' time is. */
void draw_trace(const struct drawing *drawings, int count, double microseconds, struct text *out);
