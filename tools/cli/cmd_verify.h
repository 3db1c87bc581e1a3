// SPDX-License-Identifier: Apache-2.0
/* cuboid verify RECIPE [key=value ...] [--steps N] [--all] */
#pragma once

int cmd_verify(int argc, char **argv);
