// SPDX-License-Identifier: Apache-2.0
#include "layers/model.h"

enum status params_declare(const struct model_config *model, const struct degrees *degrees,
                           bool sequence_parallel, struct params *out)
{
    struct declaration d = {
        .model = model, .degrees = degrees, .sequence_parallel = sequence_parallel, .out = out};
    params_create((int)model->num_layers + 2, out);
    for (int layer = LAYER_EMBEDDING; layer <= model->num_layers; layer++) {
        declare_layer(&d, layer);
        model_layer_kind(model, layer)->declare_params(&d);
    }
    const enum status status = params_check(out);
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

/* ---- FLOPs ---- */

/* Keys per token of a layer, of which a causal mask leaves about half: S, or 2 w - w^2 / S with a window of w
 * tokens, which is twice the mean number of keys in the windows. */
static double keys_of_layer(const struct model_config *m, int64_t layer)
{
    const double sequence = (double)m->seq_length, window = (double)model_window(m, layer);
    return window > 0.0 && window < sequence ? window * (2.0 - window / sequence) : sequence;
}

double model_attention_flops_per_token(const struct model_config *model)
{
    double keys = 0.0;
    for (int64_t layer = 0; layer < model->num_layers; layer++)
        keys += keys_of_layer(model, layer);
    return 12.0 * keys * (double)(model->num_attention_heads * model->kv_channels);
}

double model_flops_per_token(const struct model_config *model)
{
    double h = (double)model->hidden_size, query = (double)(model->num_attention_heads * model->kv_channels);
    double kv = (double)(model->num_query_groups * model->kv_channels),
           in = model_is_gated(model) ? 2.0 : 1.0;
    double matrices = h * (2.0 * query + 2.0 * kv) + (in + 1.0) * h * (double)model->ffn_hidden_size;
    double weights = (double)model->num_layers * matrices + (double)model->vocab_size * h;
    return 6.0 * weights + model_attention_flops_per_token(model);
}

double model_causal_share(const struct model_config *model)
{
    return 1.0 - 0.5 * model_attention_flops_per_token(model) / model_flops_per_token(model);
}
