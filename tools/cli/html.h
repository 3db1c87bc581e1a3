// SPDX-License-Identifier: Apache-2.0
/* Self-contained HTML pages without scripts. All text from files must pass html_escaped(). */
#pragma once

#include "base/text.h"

/* Appends any text, escaped for elements and quoted attributes. */
void html_escaped(struct text *out, const char *chars);

/* Begins a page; the title is also its heading. */
void html_begin(struct text *out, const char *title);
void html_end(struct text *out);

/* <td class="text">, escaped. */
void html_text_cell(struct text *out, const char *chars);
