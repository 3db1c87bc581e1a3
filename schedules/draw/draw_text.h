// SPDX-License-Identifier: Apache-2.0
/* A simulated schedule as a chart for the terminal: a row per rank, time from left to right.
 *
 *     1f1b   p 2, m 3, v 1   makespan 12, bubble 3 (25.0 %), peak 2 microbatches
 *     rank 0  |F0 F1 ......B0--- F2 B1--- ...B2--- |  25.0 % idle  peak 2
 *     rank 1  |   F0 B0--- F1 B1--- F2 B2---       |   0.0 % idle  peak 1
 *              0              5              10
 *
 * A cell shows kind and microbatch, and the stage too ("4F0") if a rank has several. With colours the hue
 * is the kind, the lightness the chunk, and adjacent cells of one kind alternate. On a narrow terminal
 * labels drop the stage, then the kind (with colours) or the microbatch (without), then everything. Cells
 * of equal length have labels of the same form. To the right of a row: the fraction of idle time between
 * the rank's first action and its last, and its peak activations, in microbatches of all its chunks. With
 * colours the critical path is underlined. */
#pragma once

#include "schedules/simulate.h"

struct draw_options {
    int columns; // of the terminal; 0: 120
    bool colour; // ANSI, 256 colours
};

void draw_text(const struct schedule *schedule, const struct simulation *simulation,
               const struct draw_options *options, struct text *out);

/* The critical path in short, without its messages: "rank 0: 0F0; rank 1: 1F0 .. 1B2 (6); rank 0: 0B2". */
void draw_path(const struct schedule *schedule, const struct simulation *simulation, struct text *out);
