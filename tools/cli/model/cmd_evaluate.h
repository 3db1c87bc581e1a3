// SPDX-License-Identifier: Apache-2.0
#pragma once

/* argv[0] is "evaluate". Returns the exit status. */
int cmd_evaluate(int argc, char **argv);
