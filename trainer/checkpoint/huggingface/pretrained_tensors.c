// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_tensors.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list ---- */

/* Replaces the * in a name of the table by the number of the layer. */
static void name_of_layer(const char *pattern, int layer, char *out, size_t size)
{
    const char *star = strchr(pattern, '*');
    if (star == NULL)
        snprintf(out, size, "%s", pattern);
    else
        snprintf(out, size, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
}

/* Adds the tensor of a row, if the model has it. `used` marks the parameters. */
static void add_tensor(struct pretrained_tensors *out, const struct pretrained_architecture *architecture,
                       const struct pretrained_row *row, int layer, bool prefix, uint8_t *used)
{
    struct pretrained_tensor tensor = {.layout = row->layout};
    const size_t skipped = strlen(architecture->prefix);
    const bool has_prefix = strncmp(row->name, architecture->prefix, skipped) == 0;
    name_of_layer(row->name + (has_prefix && !prefix ? skipped : 0), layer, tensor.name, sizeof tensor.name);
    for (; tensor.part_count < PRETRAINED_MAX_PARTS && row->parts[tensor.part_count] != NULL;
         tensor.part_count++) {
        char name[PARAM_NAME_CHARS];
        name_of_layer(row->parts[tensor.part_count], layer, name, sizeof name);
        const int index = params_find(out->params, name);
        if (index < 0 || out->params->list[index].tie >= 0)
            return;
        const struct param *param = &out->params->list[index];
        tensor.part[tensor.part_count] = index;
        tensor.ndim = param->ndim;
        tensor.dim[0] += param->dim[0];
        tensor.dim[1] = param->ndim > 1 ? param->dim[1] : 1;
        used[index] = 1;
    }
    if (tensor.layout == PRETRAINED_TRANSPOSED && tensor.ndim > 1) {
        const int64_t rows = tensor.dim[0];
        tensor.dim[0] = tensor.dim[1];
        tensor.dim[1] = rows;
    }
    out->list[out->count++] = tensor;
}

/* Rows without a * belong to the embedding, if they precede the rows of the layers, or to the head. */
static void add_all(struct pretrained_tensors *out, const struct pretrained_architecture *architecture,
                    bool prefix, uint8_t *used)
{
    const struct pretrained_row *row = architecture->rows, *layers;
    for (; row->name != NULL && strchr(row->name, '*') == NULL; row++)
        add_tensor(out, architecture, row, 0, prefix, used);
    layers = row;
    for (int layer = 0; layer < out->params->layer_count - 2; layer++)
        for (row = layers; row->name != NULL && strchr(row->name, '*') != NULL; row++)
            add_tensor(out, architecture, row, layer, prefix, used);
    for (; row->name != NULL; row++)
        add_tensor(out, architecture, row, 0, prefix, used);
}

enum status pretrained_tensors_create(const struct pretrained_architecture *architecture,
                                      const struct params *params, int64_t head_rows, bool prefix,
                                      struct pretrained_tensors *out)
{
    // Each tensor has a parameter of its own.
    *out = (struct pretrained_tensors){.params = params, .head_rows = head_rows};
    out->list = memory_zeroed((size_t)params->count + 1, sizeof *out->list, "the tensors of a model");
    AUTO_FREE uint8_t *used = memory_zeroed((size_t)params->count + 1, sizeof *used, "a list of parameters");
    add_all(out, architecture, prefix, used);
    for (int i = 0; i < params->count; i++)
        if (!used[i] && params->list[i].tie < 0)
            return fail(BAD_RECIPE, "%s has no tensor for %s", architecture->name, params->list[i].name);
    return OK;
}

void pretrained_tensors_free(struct pretrained_tensors *tensors)
{
    free(tensors->list);
    *tensors = (struct pretrained_tensors){0};
}

int64_t pretrained_tensor_elements(const struct pretrained_tensor *tensor)
{
    return tensor->dim[0] * tensor->dim[1];
}

/* ---- copies ---- */

static void copy(enum pretrained_direction direction, char *whole, char *band, size_t bytes)
{
    if (direction == PRETRAINED_FROM_WHOLE)
        memcpy(band, whole, bytes);
    else
        memcpy(whole, band, bytes);
}

/* The row of the concatenated parts that is row `row` of a part. */
static int64_t row_in_whole(const struct pretrained_tensors *tensors, const struct pretrained_tensor *tensor,
                            int part, int64_t row)
{
    if (tensor->layout == PRETRAINED_HEADS) {
        const int64_t d = tensors->head_rows;
        return (row / d * tensor->part_count + part) * d + row % d;
    }
    for (int before = 0; before < part; before++)
        row += tensors->params->list[tensor->part[before]].dim[0];
    return row;
}

void pretrained_copy_rows(const struct pretrained_tensors *tensors, const struct pretrained_tensor *tensor,
                          int part, int64_t first, int64_t count, size_t each,
                          enum pretrained_direction direction, char *whole, char *band)
{
    const bool transposed = tensor->layout == PRETRAINED_TRANSPOSED && tensor->ndim > 1;
    const int64_t columns = transposed ? tensor->dim[0] : tensor->dim[1];
    const size_t row_bytes = (size_t)columns * each;
    const size_t stride = transposed ? (size_t)tensor->dim[1] * each : 0;
    for (int64_t i = 0; i < count; i++) {
        const size_t row = (size_t)row_in_whole(tensors, tensor, part, first + i);
        char *at = band + (size_t)i * row_bytes;
        if (!transposed) {
            copy(direction, whole + row * row_bytes, at, row_bytes);
            continue;
        }
        for (int64_t column = 0; column < columns; column++)
            copy(direction, whole + (size_t)column * stride + row * each, at + (size_t)column * each, each);
    }
}
