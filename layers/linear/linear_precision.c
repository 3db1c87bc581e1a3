// SPDX-License-Identifier: Apache-2.0
#include "layers/linear/linear_precision.h"

#include <stdlib.h>
#include <string.h>

const char *const linear_names[LINEARS_OF_LAYER] = {[LINEAR_QKV] = "attention.qkv",
                                                    [LINEAR_PROJ] = "attention.proj",
                                                    [LINEAR_FC1] = "mlp.fc1",
                                                    [LINEAR_FC2] = "mlp.fc2"};

bool linear_precision_quantizes(const struct linear_precision *precision)
{
    for (int p = 0; p < MATMUL_COUNT; p++)
        if (precision->format[p] != MATMUL_FORMAT_NONE)
            return true;
    return false;
}

/* Returns true if `name` equals `whole` or its first dotted components. */
static bool starts_with(const char *whole, const char *name)
{
    size_t length = strlen(name);
    return strncmp(whole, name, length) == 0 && (whole[length] == 0 || whole[length] == '.');
}

bool linear_is_named(const char *name, int64_t num_layers, int64_t layer, const char *linear)
{
    static const char prefix[] = "layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return starts_with(linear, name) || strcmp(strchr(linear, '.') + 1, name) == 0;
    const char *number = name + sizeof prefix - 1;
    char *rest;
    long long index = strtoll(number, &rest, 10);
    if (rest == number || (*rest != 0 && *rest != '.'))
        return false;
    return (index < 0 ? index + num_layers : index) == layer && (*rest == 0 || starts_with(linear, rest + 1));
}

bool linear_is_high(const struct linear_precision *precision, int64_t layer, const char *linear)
{
    bool high = layer < precision->high_first || layer >= precision->num_layers - precision->high_last;
    for (size_t i = 0; i < precision->high_count && !high; i++)
        high = linear_is_named(precision->high[i], precision->num_layers, layer, linear);
    return high;
}

int64_t matmul_block(enum matmul_format format, enum scaling scaling)
{
    switch (format) {
    case MATMUL_E4M3:
    case MATMUL_E5M2:
    case MATMUL_HYBRID:
        return scaling == SCALING_BLOCKWISE ? 128 : 1;
    case MATMUL_MXFP8:
        return 32;
    case MATMUL_NVFP4:
        return 16;
    case MATMUL_FORMAT_NONE:
    case MATMUL_TERNARY:
    case MATMUL_FORMAT_COUNT:
        break;
    }
    return 1;
}
