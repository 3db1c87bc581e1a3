// SPDX-License-Identifier: Apache-2.0
/* cuboid profile validate: predictions of papers and clusters that a fit has not seen. */
#pragma once

/* argv[0] is "validate". Returns an exit status. */
int profile_validate(int argc, char **argv);
