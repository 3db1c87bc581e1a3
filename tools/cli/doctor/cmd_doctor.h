// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid doctor [--profile FILE]: reports what this machine has, and how fast it is. argv[0] is "doctor".
 * Returns the exit status; it is 0 even if something is missing, which is reported. */
int cmd_doctor(int argc, char **argv);
