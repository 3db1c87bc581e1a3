// SPDX-License-Identifier: Apache-2.0
/* Table argument of a command: the name of a shipped table, or the path of a .csv. */
#pragma once

#include "tools/cli/table/table_output.h"

/* Checks the arguments that all rows share: a --recipe that cannot be read, unknown keys. BAD_USAGE. */
MUST_USE enum status table_check_shared(const char *recipe, const char *const *overrides, size_t count);

/* Reads the table, and chooses the base recipe of its rows: `recipe` (a path, or the name of a shipped
 * table; may be NULL), else the table's own, or for a file that of the paper which all of its rows name.
 * Problems are printed; BAD_USAGE for an unknown name. */
MUST_USE enum status table_open(const char *name, const char *recipe, struct published *published,
                                struct table_base *base, struct table_title *title);
