// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid generate RECIPE|CHECKPOINT|RUN-DIR [key=value ...] --prompt TEXT */
int cmd_generate(int argc, char **argv);
