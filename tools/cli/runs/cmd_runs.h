// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid runs DIR...: finished runs, compared. Returns the status. */
int cmd_runs(int argc, char **argv);
