// SPDX-License-Identifier: Apache-2.0
/* A predicted table as text and as JSON; its page (tools/pages/table.js) shows the JSON. */
#pragma once

#include "planner/table/table.h"

struct table_title {
    const char *name;        // "narayanan2021", or a file's path
    const char *description; // one line
    bool measured;           // its values were measured on this machine, not published
};

void table_print(const struct table *table, const struct table_title *title, FILE *to);
/* One JSON object. */
void table_json(const struct table *table, const struct table_title *title, struct text *out);
