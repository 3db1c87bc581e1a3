// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/layers/layers_expected.h"
#include "layers/model.h"

#include <stdlib.h>
#include <string.h>

#define SIZES                                                                                            \
    .num_layers = LAYERS, .hidden_size = 8, .num_attention_heads = 4, .kv_channels = 4, .seq_length = S, \
    .vocab_size = 11, .make_vocab_size_divisible_by = 1, .norm_epsilon = 1e-5, .init_method_std = 0.3
const struct family families[FAMILIES] = {
    {"gpt2",
     {SIZES, .num_query_groups = 4, .ffn_hidden_size = 16, .add_bias_linear = true,
      .tie_word_embeddings = true},
     false},
    {"gpt2 with dropout",
     {SIZES, .num_query_groups = 4, .ffn_hidden_size = 12, .activation = ACTIVATION_GELU_TANH,
      .add_bias_linear = true, .tie_word_embeddings = true, .hidden_dropout = 0.25, .attention_dropout = 0.2},
     false},
    {"llama with documents",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .position_embedding = ROPE, .rotary_base = 100.0,
      .normalization = RMS_NORM, .activation = ACTIVATION_SWIGLU},
     true},
    {"norms of q and k, half of a head rotated in neighbouring pairs",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .position_embedding = ROPE, .rotary_base = 100.0,
      .rotary_percent = 0.5, .rotary_interleaved = true, .normalization = RMS_NORM,
      .activation = ACTIVATION_GEGLU, .add_qkv_bias = true, .qk_layernorm = true,
      .tie_word_embeddings = true},
     true},
    {"norms of q and k with biases, frequencies scaled",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .position_embedding = ROPE, .rotary_base = 100.0,
      .rotary_percent = 1.0, .use_rope_scaling = true, .rope_scaling_type = ROPE_YARN,
      .rope_scaling_factor = 3.0, .rope_beta_fast = 0.9, .rope_beta_slow = 0.1,
      .rope_original_max_position_embeddings = 16, .activation = ACTIVATION_GEGLU_TANH,
      .add_bias_linear = true, .qk_layernorm = true},
     false},
    {"norm of the embedding, parallel block, squared ReLU, dropout",
     {SIZES, .num_query_groups = 4, .ffn_hidden_size = 12, .block_type = BLOCK_PARALLEL,
      .activation = ACTIVATION_SQUARED_RELU, .add_bias_linear = true, .embed_layernorm = true,
      .tie_word_embeddings = true, .hidden_dropout = 0.25},
     false},
    {"parallel block with two norms, documents",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .position_embedding = ROPE, .rotary_base = 100.0,
      .rotary_percent = 1.0, .block_type = BLOCK_PARALLEL_TWO_NORMS, .normalization = RMS_NORM,
      .activation = ACTIVATION_GELU, .embed_layernorm = true},
     true},
    {"ALiBi with documents",
     {SIZES, .num_query_groups = 4, .ffn_hidden_size = 12, .position_embedding = ALIBI,
      .add_bias_linear = true, .tie_word_embeddings = true},
     true},
    {"soft-capping of scores and logits, dropout",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .position_embedding = ROPE, .rotary_base = 100.0,
      .rotary_percent = 1.0, .attn_logit_softcapping = 0.8, .final_logit_softcapping = 1.2,
      .normalization = RMS_NORM, .activation = ACTIVATION_GEGLU_TANH, .attention_dropout = 0.2},
     true},
    {"a window in every second layer",
     {SIZES, .num_query_groups = 2, .ffn_hidden_size = 12, .attention_dropout = 0.2, .window_size = 3,
      .window_attn_skip_freq = {(int64_t[]){2}, 1, true}},
     true},
};

struct batch_arrays batch_arrays_of(const struct family *family)
{
    struct batch_arrays n;
    for (int t = 0; t < T; t++) {
        int s = t % S;
        bool second = family->documents && s >= 4;
        n.token[t] = (t * t + 3 * t) % 11;
        n.label[t] = (5 * t + 2) % 11;
        n.position[t] = second ? s - 4 : s;
        n.document[t] = second ? 1 : 0;
        n.place[t] = s;
        n.mask[t] = t % 5 == 3 ? 0.0F : 1.0F;
        n.sample[t] = 40 + 3 * (t / S);
    }
    return n;
}

static struct batch batch_of(const struct family *family, const struct batch_arrays *n)
{
    return (struct batch){.token = n->token,
                          .label = n->label,
                          .position = n->position,
                          .document = family->documents ? n->document : NULL,
                          .loss_mask = n->mask,
                          .sample = n->sample,
                          .sample_offset = n->place};
}

/* Normally distributed fp32 values, stored in double precision. */
static double *normals(const char *name, int64_t count, double mean, double spread)
{
    float *f = calloc((size_t)count + 1, sizeof *f);
    double *d = calloc((size_t)count + 1, sizeof *d);
    CHECK(f != NULL && d != NULL);
    philox_normal(philox_named(5, name), 0, 0, count, f);
    for (int64_t i = 0; i < count; i++)
        d[i] = (double)(float)(mean + spread * (double)f[i]);
    free(f);
    return d;
}

/* ---- subjects ---- */

const struct subject_facts facts[SUBJECTS] = {
    [COLUMN] = {"column linear",
                HIDDEN,
                FUSED,
                {"layers.0.attention.q.", "layers.0.attention.k.", "layers.0.attention.v."}},
    [ROW] = {"row linear", FEATURES, HIDDEN, {"layers.0.mlp.fc2."}},
    [NORM] = {"norm", HIDDEN, HIDDEN, {"layers.0.norm1."}},
    [ATTENTION] = {"attention", HIDDEN, HIDDEN, {"layers.0.attention."}},
    [MLP] = {"mlp",
             HIDDEN,
             HIDDEN,
             {"layers.0.mlp.gate.", "layers.0.mlp.up.", "layers.0.mlp.fc1.", "layers.0.mlp.fc2."}},
    [BLOCK] = {"block", HIDDEN, HIDDEN, {"layers.0."}},
    [EMBEDDING] = {"embedding", NONE, HIDDEN, {"embedding.", "embedding_norm.", "position."}},
    [HEAD] = {"head", HIDDEN, LOSS, {"norm.", "head."}},
    [WHOLE] = {"whole stage", NONE, LOSS, {"embedding.", "position.", "layers.", "norm."}},
};

static bool owns(enum subject subject, const struct param *row)
{
    if (subject == WHOLE && row->tie < 0)
        return true;
    for (int i = 0; i < 4 && facts[subject].rows[i] != NULL; i++)
        if (strncmp(row->name, facts[subject].rows[i], strlen(facts[subject].rows[i])) == 0)
            return true;
    return false;
}

int64_t columns_of(const struct model_config *m, enum shape shape)
{
    switch (shape) {
    case HIDDEN:
        return m->hidden_size;
    case FUSED:
        return (m->num_attention_heads + 2 * m->num_query_groups) * m->kv_channels;
    case FEATURES:
        return m->ffn_hidden_size;
    case NONE:
    case LOSS:
        break;
    }
    return 0;
}

double terms_of(const struct model_config *m, enum subject subject)
{
    double h = (double)m->hidden_size, f = (double)m->ffn_hidden_size, norm = 4.0 * h;
    double query = (double)(m->num_attention_heads * m->kv_channels);
    double attention = 2.0 * (h + query) + 2.0 * (double)(S + m->kv_channels), mlp = 4.0 * (h + f);
    attention += m->qk_layernorm ? 8.0 * (double)m->kv_channels : 0.0;
    // The gradient of a weight is a sum over tokens, and of one that all heads share over heads, too.
    const double tokens = T * (m->qk_layernorm ? (double)m->num_attention_heads : 1.0);
    double head = norm + 2.0 * (h + (double)m->vocab_size), embedding = m->embed_layernorm ? norm : 0.0;
    switch (subject) {
    case COLUMN:
        return h + query + T;
    case ROW:
        return f + h + T;
    case NORM:
        return norm + T;
    case ATTENTION:
        return attention + tokens;
    case MLP:
        return mlp + T;
    case BLOCK:
        return 2.0 * norm + attention + mlp + tokens;
    case EMBEDDING:
        return embedding + T + 4.0;
    case HEAD:
        return head + T;
    case WHOLE:
        return embedding + head + LAYERS * (2.0 * norm + attention + mlp) + tokens;
    case SUBJECTS:
        break;
    }
    return 0.0;
}

/* ---- the reference ---- */

/* q, k and v side by side. */
static void evaluate_fused(struct expected *e)
{
    static const char *const names[] = {"layers.0.attention.q", "layers.0.attention.k",
                                        "layers.0.attention.v"};
    const struct model_config *m = &e->family->model;
    int64_t width = columns_of(m, FUSED), begin = 0;
    double one[T * 64];
    for (int part = 0; part < 3; part++) {
        int64_t n = (part == 0 ? m->num_attention_heads : m->num_query_groups) * m->kv_channels;
        CHECK(n <= 64);
        reference_linear(&e->reference, names[part], true, e->x, one);
        for (int64_t t = 0; t < T; t++)
            memcpy(e->y + t * width + begin, one + t * n, (size_t)n * sizeof *one);
        begin += n;
    }
}

/* The contribution to L of the bias after a row-parallel layer: the residual add includes the bias, so y
 * does not contain it, but its gradient belongs to the row-parallel layer. */
static double of_last_bias(const struct expected *e)
{
    const char *name = e->subject == ATTENTION                  ? "layers.0.attention.proj.bias"
                       : e->subject == ROW || e->subject == MLP ? "layers.0.mlp.fc2.bias"
                                                                : "";
    int row = params_find(&e->params, name);
    int64_t h = e->family->model.hidden_size;
    double sum = 0.0;
    for (int64_t i = 0; row >= 0 && i < T * h; i++)
        sum += e->reference.weight[row][i % h] * e->random[i];
    return sum;
}

/* L, and y as an intermediate result. */
static double evaluate(void *context)
{
    struct expected *e = context;
    const struct reference_model *r = &e->reference;
    switch (e->subject) {
    case COLUMN:
        evaluate_fused(e);
        break;
    case ROW:
        reference_linear(r, "layers.0.mlp.fc2", false, e->x, e->y);
        break;
    case NORM:
        reference_layer_norm(r, "layers.0.norm1", e->x, e->y);
        break;
    case ATTENTION:
        reference_attention_layer(r, 0, e->x, e->y);
        break;
    case MLP:
        reference_mlp(r, 0, e->x, e->y);
        break;
    case BLOCK:
        reference_block(r, 0, e->x, e->y);
        break;
    case EMBEDDING:
        reference_embedding(r, e->y);
        break;
    case HEAD:
        return reference_head(r, e->x);
    case WHOLE:
        return reference_whole(r);
    case SUBJECTS:
        break;
    }
    double sum = of_last_bias(e);
    for (int64_t i = 0; i < T * columns_of(r->model, facts[e->subject].out); i++)
        sum += e->y[i] * e->random[i];
    return sum;
}

static double **make_weights(const struct params *params)
{
    double **weight = calloc((size_t)params->count, sizeof *weight);
    CHECK(weight != NULL);
    for (int i = 0; i < params->count; i++) {
        const struct param *row = &params->list[i];
        // Norm weights near 1, and biases that are not zero, so that each has an effect.
        double mean = row->init == INIT_ONE ? 1.0 : 0.0;
        weight[i] =
            row->tie >= 0 ? weight[row->tie] : normals(row->name, row->dim[0] * row->dim[1], mean, 0.3);
    }
    return weight;
}

void expected_create(const struct family *family, enum subject subject, struct expected *e)
{
    const struct model_config *m = &family->model;
    struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    *e = (struct expected){.subject = subject, .family = family, .numbers = batch_arrays_of(family)};
    e->batch = batch_of(family, &e->numbers);
    MUST(params_declare(m, &one_each, false, &e->params));
    e->reference = (struct reference_model){m, &e->params, make_weights(&e->params), &e->batch, B, S, SEED};
    int64_t in = T * columns_of(m, facts[subject].in), out = T * columns_of(m, facts[subject].out);
    e->x = normals("x", in, 0.0, 1.0);
    e->random = normals("random", out, 0.0, 1.0);
    e->y = normals("", out, 0.0, 0.0);
    e->dx = normals("", in, 0.0, 0.0);
    e->gradient = calloc((size_t)e->params.count, sizeof *e->gradient);
    CHECK(e->gradient != NULL);
}

void expected_solve(struct expected *e)
{
    int64_t in = T * columns_of(&e->family->model, facts[e->subject].in);
    reference_gradient(evaluate, e, e->x, in, e->dx);
    for (int i = 0; i < e->params.count; i++) {
        int64_t count = e->params.list[i].dim[0] * e->params.list[i].dim[1];
        if (!owns(e->subject, &e->params.list[i]))
            continue;
        e->gradient[i] = normals("", count, 0.0, 0.0);
        reference_gradient(evaluate, e, e->reference.weight[i], count, e->gradient[i]);
    }
    e->l = evaluate(e);
}

void expected_destroy(struct expected *e)
{
    for (int i = 0; i < e->params.count; i++) {
        free(e->gradient[i]);
        if (e->params.list[i].tie < 0)
            free(e->reference.weight[i]);
    }
    free(e->gradient);
    free(e->reference.weight);
    free(e->x);
    free(e->random);
    free(e->y);
    free(e->dx);
    params_free(&e->params);
}
