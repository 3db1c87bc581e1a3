// SPDX-License-Identifier: Apache-2.0
/* cuboid data. argv[0] is "data", argv[1] "prepare" or "inspect". Returns the process's exit status: 0 done,
 * 1 failed while running, 2 bad usage; what went wrong is printed on standard error. */
#pragma once

int cmd_data(int argc, char **argv);
