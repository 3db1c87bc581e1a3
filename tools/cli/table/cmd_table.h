// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid table NAME | FILE.csv | --list: published runs, predicted next to printed. Returns the status. */
int cmd_table(int argc, char **argv);
