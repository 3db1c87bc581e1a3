// SPDX-License-Identifier: Apache-2.0
/* A model as a list of layers: LAYER_EMBEDDING, 0 .. num_layers - 1, and num_layers for the head. The only
 * file that names layer kinds. */
#pragma once

#include "layers/layer_kind.h"

extern const struct layer_kind layer_kind_embedding, layer_kind_block, layer_kind_parallel_block,
    layer_kind_head;

static inline const struct layer_kind *model_layer_kind(const struct model_config *model, int layer)
{
    if (layer == LAYER_EMBEDDING)
        return &layer_kind_embedding;
    if (layer == model->num_layers)
        return &layer_kind_head;
    return model->block_type == BLOCK_SEQUENTIAL ? &layer_kind_block : &layer_kind_parallel_block;
}
