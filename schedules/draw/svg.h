// SPDX-License-Identifier: Apache-2.0
/* Shared by the pictures. Private to this folder. */
#pragma once

#include "base/text.h"
#include "schedules/action.h"

struct colour {
    int red, green, blue;
};

/* Colour of a cell of a rank's first chunk (draw_svg.c). */
struct colour svg_action_colour(enum action_kind kind);

/* Classes of cells, beyond the kinds of actions that compute. */
enum cell_class { CELL_OTHER = ACTION_KIND_COUNT, CELL_P2P, CELL_COLLECTIVE, CELL_COPY, CELL_CLASSES };
/* Colour of these (draw_lanes_svg.c). */
struct colour svg_cell_colour(enum cell_class class);

/* Rounds to a hundredth of a pixel, so that the file is the same on every machine. */
double svg_round(double pixels);

/* Returns the distance of ticks: 1, 2 or 5 times a power of ten, at least 60 pixels. */
double svg_tick_step(double scale);

/* Escapes the characters that XML reserves and the control characters that it does not allow. */
void svg_add_escaped(struct text *out, const char *chars);
