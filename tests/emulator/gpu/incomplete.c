// SPDX-License-Identifier: Apache-2.0
/* A library without most of the required functions, as in an old version. */
#include <stddef.h>

size_t cublasLtGetVersion(void);

size_t cublasLtGetVersion(void)
{
    return 130000;
}
