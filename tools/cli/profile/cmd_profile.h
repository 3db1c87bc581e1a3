// SPDX-License-Identifier: Apache-2.0
#pragma once

/* cuboid profile check FILE|NAME, --list, --reference: cluster profiles. argv[0] is "profile". Returns the
 * exit status. */
int cmd_profile(int argc, char **argv);
