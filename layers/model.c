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

enum status model_parameter_count(const struct model_config *model, int64_t *out)
{
    const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .etp = 1, .dp = 1, .pp = 1};
    struct params params;
    TRY(params_declare(model, &one_each, false, &params));
    *out = 0;
    for (int i = 0; i < params.count; i++) {
        const struct param *param = &params.list[i];
        int64_t elements = 1;
        for (int d = 0; d < param->ndim; d++)
            elements *= param->dim[d];
        *out += param->tie < 0 ? elements : 0;
    }
    params_free(&params);
    return OK;
}
