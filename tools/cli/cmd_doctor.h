// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid doctor [--profile FILE]   what this machine has, and how fast it is
 * argv[0] is "doctor". Returns the exit status: 0 also where something is missing, which it says. */
int cmd_doctor(int argc, char **argv);
