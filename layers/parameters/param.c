// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/param.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int params_kv_replicas(const struct model_config *model, int tp)
{
    return tp > model->num_query_groups ? tp / (int)model->num_query_groups : 1;
}

/* State shared by the declarations of one model. */
struct declaration {
    const struct model_config *model;
    const struct degrees *degrees;
    bool sequence_parallel;
    struct params *out;
    int layer;
};

static struct cut cut_tp(const struct declaration *d, int dim)
{
    return (struct cut){.dim = dim, .axes = AXIS_TP, .parts = d->degrees->tp, .replicas = 1, .multiple = 1};
}

/* Appends a descriptor and returns it for further changes. `format` may contain one %d for the layer. */
static struct param *declare(struct declaration *d, const char *name, int64_t rows, int64_t columns)
{
    struct params *out = d->out;
    struct param *row = &out->rows[out->count];
    *row = (struct param){
        .ndim = columns > 0 ? 2 : 1,
        .dim = {rows, columns > 0 ? columns : 1},
        .mesh = MESH_DENSE,
        .layer = d->layer,
        .init = INIT_ZERO,
        .tie = -1,
        .fuse = out->count,
    };
    if (d->layer >= 0 && d->layer < d->model->num_layers)
        snprintf(row->name, sizeof row->name, "layers.%d.%.40s", d->layer, name);
    else
        snprintf(row->name, sizeof row->name, "%s", name);
    out->count++;
    return row;
}

/* A matrix [out, in] whose output features (dim 0) or input features (dim 1) are cut over tp. */
static struct param *declare_matrix(struct declaration *d, const char *name, int64_t rows, int64_t columns,
                                    int cut_dim, double std)
{
    struct param *row = declare(d, name, rows, columns);
    row->cuts[row->cut_count++] = cut_tp(d, cut_dim);
    row->init = INIT_NORMAL;
    row->std = (float)std;
    row->decay = true;
    return row;
}

/* A vector along the hidden dimension: replicated, but its gradient covers the local tokens only. */
static void declare_hidden_vector(struct declaration *d, const char *name, enum param_init init)
{
    struct param *row = declare(d, name, d->model->hidden_size, 0);
    row->init = init;
    row->partial = d->sequence_parallel ? PARTIAL_TP : PARTIAL_NONE;
}

static void declare_norm(struct declaration *d, const char *name)
{
    char full[PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "%s.weight", name);
    declare_hidden_vector(d, full, INIT_ONE);
    if (d->model->normalization == LAYER_NORM) {
        snprintf(full, sizeof full, "%s.bias", name);
        declare_hidden_vector(d, full, INIT_ZERO);
    }
}

/* The bias of output features cut like the matrix `cuts`. */
static struct param *declare_cut_bias(struct declaration *d, const char *name, int64_t rows)
{
    struct param *row = declare(d, name, rows, 0);
    row->cuts[row->cut_count++] = cut_tp(d, 0);
    return row;
}

/* With fewer key/value heads than tp, each head is held by several ranks; each rank's gradient covers its own
 * query heads only. */
static void replicate_kv(const struct declaration *d, struct param *row)
{
    int replicas = params_kv_replicas(d->model, d->degrees->tp);
    row->cuts[0].parts = d->degrees->tp / replicas;
    row->cuts[0].replicas = replicas;
    row->partial = replicas > 1 ? PARTIAL_KV : PARTIAL_NONE;
}

static void fuse(struct declaration *d, int first)
{
    for (int i = first; i < d->out->count; i++)
        d->out->rows[i].fuse = first;
}

static void declare_attention(struct declaration *d, double branch_std)
{
    const struct model_config *m = d->model;
    int64_t query = m->num_attention_heads * m->kv_channels, kv = m->num_query_groups * m->kv_channels;
    int first = d->out->count;
    declare_matrix(d, "attention.q.weight", query, m->hidden_size, 0, m->init_method_std);
    replicate_kv(d, declare_matrix(d, "attention.k.weight", kv, m->hidden_size, 0, m->init_method_std));
    replicate_kv(d, declare_matrix(d, "attention.v.weight", kv, m->hidden_size, 0, m->init_method_std));
    fuse(d, first);
    if (m->add_bias_linear) {
        first = d->out->count;
        declare_cut_bias(d, "attention.q.bias", query);
        replicate_kv(d, declare_cut_bias(d, "attention.k.bias", kv));
        replicate_kv(d, declare_cut_bias(d, "attention.v.bias", kv));
        fuse(d, first);
    }
    declare_matrix(d, "attention.proj.weight", m->hidden_size, query, 1, branch_std);
    if (m->add_bias_linear)
        declare_hidden_vector(d, "attention.proj.bias", INIT_ZERO);
}

static void declare_mlp(struct declaration *d, double branch_std)
{
    const struct model_config *m = d->model;
    static const char *const gated[] = {"mlp.gate", "mlp.up"}, *const plain[] = {"mlp.fc1"};
    const char *const *names = m->activation == SWIGLU ? gated : plain;
    int count = m->activation == SWIGLU ? 2 : 1;
    for (int bias = 0; bias <= (m->add_bias_linear ? 1 : 0); bias++) {
        int first = d->out->count;
        for (int i = 0; i < count; i++) {
            char name[PARAM_NAME_CHARS];
            snprintf(name, sizeof name, "%s.%s", names[i], bias ? "bias" : "weight");
            if (bias)
                declare_cut_bias(d, name, m->ffn_hidden_size);
            else
                declare_matrix(d, name, m->ffn_hidden_size, m->hidden_size, 0, m->init_method_std);
        }
        fuse(d, first);
    }
    declare_matrix(d, "mlp.fc2.weight", m->hidden_size, m->ffn_hidden_size, 1, branch_std);
    if (m->add_bias_linear)
        declare_hidden_vector(d, "mlp.fc2.bias", INIT_ZERO);
}

/* Vocabulary rows, padded in memory to a round number for efficient matmuls. */
static struct param *declare_vocabulary(struct declaration *d, const char *name)
{
    const struct model_config *m = d->model;
    struct param *row = declare_matrix(d, name, m->vocab_size, m->hidden_size, 0, m->init_method_std);
    row->cuts[0].multiple = m->make_vocab_size_divisible_by;
    return row;
}

enum status params_declare(const struct model_config *model, const struct degrees *degrees,
                           bool sequence_parallel, struct params *out)
{
    enum { ROWS_PER_LAYER = 18, ROWS_OUTSIDE = 6 };
    size_t most = (size_t)model->num_layers * ROWS_PER_LAYER + ROWS_OUTSIDE;
    *out = (struct params){.rows = calloc(most, sizeof *out->rows)};
    if (out->rows == NULL)
        return fail(NO_MEMORY, "no memory for the rows of %zu parameters", most);
    struct declaration d = {model, degrees, sequence_parallel, out, LAYER_EMBEDDING};

    declare_vocabulary(&d, "embedding.weight");
    if (model->position_embedding == LEARNED_ABSOLUTE) {
        struct param *row = declare(&d, "position.weight", model->seq_length, model->hidden_size);
        row->init = INIT_NORMAL;
        row->std = (float)model->init_method_std;
        row->decay = true;
        row->partial = sequence_parallel ? PARTIAL_TP : PARTIAL_NONE;
    }

    // The last matrix of each residual branch has a smaller std, so that the variance of the residual stream
    // does not grow with depth (GPT-2).
    double branch_std = model->init_method_std / sqrt(2.0 * (double)model->num_layers);
    out->before_layers = out->count;
    for (d.layer = 0; d.layer < model->num_layers; d.layer++) {
        declare_norm(&d, "norm1");
        declare_attention(&d, branch_std);
        declare_norm(&d, "norm2");
        declare_mlp(&d, branch_std);
    }
    out->in_layer = (out->count - out->before_layers) / (int)model->num_layers;
    declare_norm(&d, "norm");
    struct param *head = declare_vocabulary(&d, "head.weight");
    if (model->tie_word_embeddings)
        head->tie = 0;
    CHECK((size_t)out->count <= most);
    return OK;
}

void params_free(struct params *params)
{
    free(params->rows);
    *params = (struct params){0};
}

int params_of_layer(const struct params *params, int layer, int *first)
{
    int layers = params->rows[params->count - 1].layer; // the head follows the layers
    CHECK(layer >= LAYER_EMBEDDING && layer <= layers);
    *first = layer == LAYER_EMBEDDING ? 0 : params->before_layers + layer * params->in_layer;
    return layer == LAYER_EMBEDDING ? params->before_layers
           : layer == layers        ? params->count - *first
                                    : params->in_layer;
}

/* Returns the parameter of this layer with the full name, or -1. */
static int find_in_layer(const struct params *params, int layer, const char *name)
{
    int first, count = params_of_layer(params, layer, &first);
    for (int i = first; i < first + count; i++)
        if (strcmp(params->rows[i].name, name) == 0)
            return i;
    return -1;
}

int params_find(const struct params *params, const char *name)
{
    static const char prefix[] = "layers.";
    int layers = params->rows[params->count - 1].layer;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        long layer = strtol(name + sizeof prefix - 1, NULL, 10);
        return layer >= 0 && layer < layers ? find_in_layer(params, (int)layer, name) : -1;
    }
    int row = find_in_layer(params, LAYER_EMBEDDING, name);
    return row >= 0 ? row : find_in_layer(params, layers, name);
}
