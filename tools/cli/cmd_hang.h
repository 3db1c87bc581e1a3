// SPDX-License-Identifier: Apache-2.0
/* cuboid hang: explains a flight-recorder dump. */
#pragma once

/* Returns the exit status. argv[0] is "hang". */
int cmd_hang(int argc, char **argv);
