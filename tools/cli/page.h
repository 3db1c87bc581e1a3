// SPDX-License-Identifier: Apache-2.0
/* Self-contained HTML pages: tools/pages/page.html with its style, a script, and the JSON that the script
 * shows. Scripts add text as text only, and `<` is \u003c in the JSON, so no name can add an element. */
#pragma once

#include "base/text.h"

struct page {
    const char *script; // of tools/pages: "sweep.js"
    const char *title, *command;
    const struct text *data; // JSON
};
void page_add(const struct page *page, struct text *out);

/* The files of tools/pages; ends with {NULL}. */
struct page_file {
    const char *name, *text;
};
extern const struct page_file page_files[];
