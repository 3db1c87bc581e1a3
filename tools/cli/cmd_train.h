// SPDX-License-Identifier: Apache-2.0
/* cuboid train RECIPE [key=value ...] */
#pragma once

int cmd_train(int argc, char **argv);
