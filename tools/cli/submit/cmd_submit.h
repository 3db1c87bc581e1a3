// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid submit RECIPE [key=value ...] [--print] [--after JOB] [--requeues N] [--launch COMMAND]. argv[0] is
 * "submit". Returns the exit status. */
int cmd_submit(int argc, char **argv);
