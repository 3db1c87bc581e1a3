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

/* Declares all parameters of the model for these degrees, layer by layer. The recipe has
 * checked divisibility. */
MUST_USE enum status params_declare(const struct model_config *model, const struct degrees *degrees,
                                    bool sequence_parallel, struct params *out);
/* The number of elements of all parameters of the model, without padding; a tied weight counts once. */
MUST_USE enum status model_parameter_count(const struct model_config *model, int64_t *out);

/* FLOPs of the model, the basis of utilizations of the peak (Chowdhery et al. 2022; Korthikanti et al. 2022):
 *
 *   MFU         FLOPs of the model, a function of the model alone, whatever a program executes
 *   HFU         with the forward passes that are recomputed in the backward pass: at least the MFU
 *   mfu_causal  MFU with the causal half of attention
 *
 * MFU and HFU count all of attention, as in those papers. Kernels skip most of the masked half, so with long
 * sequences both can exceed 100 %; mfu_causal cannot. */

/* Floating-point operations of forward and backward per token: 6 per matmul weight, plus 12 * layers * S * A
 * * D for attention (Narayanan et al. 2021, without recomputation). Layers with a sliding window count only
 * the pairs inside it. */
double model_flops_per_token(const struct model_config *model);
double model_attention_flops_per_token(const struct model_config *model); // the second term
/* The fraction of these FLOPs that remains if only the causal half of attention is counted, as Megatron-LM
 * reports it today (num_floating_point_operations). Multiply an MFU by it to convert to that
 * convention. */
double model_causal_share(const struct model_config *model);
