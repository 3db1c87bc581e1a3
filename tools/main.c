// SPDX-License-Identifier: Apache-2.0
/* cuboid: one executable, one command per file. */
#include <stdio.h>

int main(void)
{
    fputs("cuboid: no command is built yet\n", stderr);
    return 2;
}
