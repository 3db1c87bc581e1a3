// SPDX-License-Identifier: Apache-2.0
#include "layers/model.h"

enum status params_declare(const struct model_config *model, const struct degrees *degrees,
                           bool sequence_parallel, struct params *out)
{
    struct declaration d = {
        .model = model, .degrees = degrees, .sequence_parallel = sequence_parallel, .out = out};
    enum status status = params_create((int)model->num_layers + 2, out);
    for (int layer = LAYER_EMBEDDING; status == OK && layer <= model->num_layers; layer++) {
        declare_layer(&d, layer);
        model_layer_kind(model, layer)->declare_params(&d);
        status = d.status;
    }
    if (status == OK)
        status = params_check(out);
    if (status != OK)
        params_free(out);
    return status;
}
