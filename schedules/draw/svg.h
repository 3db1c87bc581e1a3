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

/* Rounds to a hundredth of a pixel, so that the file is the same on every machine. */
double svg_round(double pixels);

/* Returns the distance of ticks: 1, 2 or 5 times a power of ten, at least 60 pixels. */
double svg_tick_step(double scale);

/* Escapes the characters that XML reserves and the control characters that it does not allow. */
void svg_add_escaped(struct text *out, const char *chars);
