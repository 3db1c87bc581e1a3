// SPDX-License-Identifier: Apache-2.0
/* The tensors of a pretrained model, and which parameters of Cuboid they consist of. */
#pragma once

#include "layers/parameters/param.h"
#include "trainer/checkpoint/format/safetensors.h"
#include "trainer/checkpoint/huggingface/pretrained_table.h"

struct pretrained_tensor {
    char name[SAFETENSORS_NAME_CHARS];
    enum pretrained_layout layout;
    int ndim;
    int64_t dim[SHARD_MAX_DIMS]; // in the file; 1 past ndim
    int part_count;
    int part[PRETRAINED_MAX_PARTS]; // indices of parameters
};

struct pretrained_tensors {
    const struct params *params; // not owned
    int64_t head_rows;           // D: rows of a head in a part
    struct pretrained_tensor *list;
    int count;
};

/* Lists the tensors of the architecture for these parameters, layer by layer. `params` must outlive the list.
 * prefix: names begin with that of the architecture. BAD_RECIPE if a parameter is in no tensor. */
MUST_USE enum status pretrained_tensors_create(const struct pretrained_architecture *architecture,
                                               const struct params *params, int64_t head_rows, bool prefix,
                                               struct pretrained_tensors *out);
void pretrained_tensors_free(struct pretrained_tensors *tensors); // accepts {0}

int64_t pretrained_tensor_elements(const struct pretrained_tensor *tensor);

enum pretrained_direction { PRETRAINED_FROM_WHOLE, PRETRAINED_TO_WHOLE };

/* Copies rows [first, first + count) of part number `part` between the whole tensor in memory, and `band`,
 * which holds these rows of the parameter without padding. each: bytes of an element, 2 or 4. */
void pretrained_copy_rows(const struct pretrained_tensors *tensors, const struct pretrained_tensor *tensor,
                          int part, int64_t first, int64_t count, size_t each,
                          enum pretrained_direction direction, char *whole, char *band);
