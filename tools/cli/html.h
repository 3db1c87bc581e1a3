// SPDX-License-Identifier: Apache-2.0
/* Pages without scripts or other files: they open without a network. All text from files passes
 * html_escaped(). */
#pragma once

#include "base/text.h"

/* Any text, safe in elements and in quoted attributes. */
void html_escaped(struct text *out, const char *chars);

/* Up to the heading, which is the title. */
void html_begin(struct text *out, const char *title);
void html_end(struct text *out);

/* <td class="text">, escaped. */
void html_text_cell(struct text *out, const char *chars);
