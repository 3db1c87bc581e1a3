// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid table NAME | FILE.csv | --list: published runs, with predictions. Returns the status. */
int cmd_table(int argc, char **argv);
