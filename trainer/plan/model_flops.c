// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/model_flops.h"

static double attention_flops(const struct model_config *m)
{
    return 12.0 * (double)m->num_layers * (double)m->seq_length *
           (double)(m->num_attention_heads * m->kv_channels);
}

double model_flops_per_token(const struct model_config *m)
{
    double h = (double)m->hidden_size, query = (double)(m->num_attention_heads * m->kv_channels);
    double kv = (double)(m->num_query_groups * m->kv_channels), in = model_is_gated(m) ? 2.0 : 1.0;
    double matrices = h * (2.0 * query + 2.0 * kv) + (in + 1.0) * h * (double)m->ffn_hidden_size;
    double weights = (double)m->num_layers * matrices + (double)m->vocab_size * h;
    return 6.0 * weights + attention_flops(m);
}

double model_causal_share(const struct model_config *m)
{
    return 1.0 - 0.5 * attention_flops(m) / model_flops_per_token(m);
}
