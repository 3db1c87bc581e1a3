// SPDX-License-Identifier: Apache-2.0
#include "schedules/draw/svg.h"

#include <math.h>
#include <string.h>

double svg_round(double pixels)
{
    return floor(pixels * 100.0 + 0.5) / 100.0;
}

double svg_tick_step(double scale)
{
    double step = pow(10.0, floor(log10(60.0 / scale)));
    for (int i = 0; step * scale < 60.0; i++)
        step *= i % 3 == 1 ? 2.5 : 2.0;
    return step;
}

void svg_add_escaped(struct text *out, const char *chars)
{
    struct text shown = {0};
    text_add_printable(&shown, chars, strlen(chars));
    for (const char *c = text_chars(&shown); *c != 0; c++) {
        const char *name = *c == '<' ? "&lt;" : *c == '>' ? "&gt;" : *c == '&' ? "&amp;" : NULL;
        text_add_bytes(out, name != NULL ? name : c, name != NULL ? strlen(name) : 1);
    }
    text_free(&shown);
}
