// SPDX-License-Identifier: Apache-2.0
/* A library that has next to nothing of what is looked for in it, as an old one lacks something. */
#include <stddef.h>

size_t cublasLtGetVersion(void);

size_t cublasLtGetVersion(void)
{
    return 130000;
}
