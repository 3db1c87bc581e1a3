// SPDX-License-Identifier: Apache-2.0
/* Options of the layers other than the model (model_config.h): how they compute it, and what they keep. The
 * recipe embeds this struct, and the layers read it through context->options. To add a recipe key that a
 * layer reads, add a field here, a row in trainer/recipe/recipe_table.c, and its use.
 *
 * The recipe validates and resolves the values; layers may rely on the constraints listed here. */
#pragma once

#include "layers/linear/linear_precision.h"
#include "layers/recompute.h"

struct layer_options {
    bool sequence_parallel; // outside the matmuls each tp rank holds T/tp tokens; only with tp > 1, and then
                            // tp divides B * S
    bool tp_comm_overlap;   // overlaps the tp collectives with matmuls; only with sequence_parallel
    struct recompute recompute;
    struct linear_precision precision;
};
