// SPDX-License-Identifier: Apache-2.0
/* A library that lacks nearly all required functions, as an old version would. */
#include <stddef.h>

size_t cublasLtGetVersion(void);

size_t cublasLtGetVersion(void)
{
    return 130000;
}
