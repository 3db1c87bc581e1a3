// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid sweep SWEEP.yaml: the layouts of a recipe, planned and compared. Returns the status. */
int cmd_sweep(int argc, char **argv);
