// SPDX-License-Identifier: Apache-2.0
/* cuboid data. argv[0] is "data", argv[1] "prepare" or "inspect". Returns the exit status: 0 success, 1
 * runtime failure, 2 invalid usage; errors are printed on standard error. */
#pragma once

int cmd_data(int argc, char **argv);
