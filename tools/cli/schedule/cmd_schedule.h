// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid schedule NAME -p P -m M [-v V] [--text|--times|--json] [--svg FILE] [--trace FILE] [--cost
 * f=1,i=1,w=1,comm=0] */
int cmd_schedule(int argc, char **argv);
