// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/declare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void declare_layer(struct declaration *d, int layer)
{
    d->layer = layer;
    d->out->begin[layer - LAYER_EMBEDDING] = d->out->begin[layer - LAYER_EMBEDDING + 1] = d->out->count;
}

/* Returns a new descriptor at the end of the list. */
static struct param *append(struct declaration *d)
{
    enum { CAPACITY_AT_FIRST = 32 };
    struct params *out = d->out;
    if (d->status == OK && out->count == out->capacity) {
        int capacity = out->capacity > 0 ? 2 * out->capacity : CAPACITY_AT_FIRST;
        struct param *rows = realloc(out->rows, (size_t)capacity * sizeof *rows);
        if (rows != NULL) {
            out->rows = rows;
            out->capacity = capacity;
        } else {
            d->status = fail(NO_MEMORY, "no memory for the rows of %d parameters", capacity);
        }
    }
    if (d->status != OK)
        return &d->spare;
    out->begin[d->layer - LAYER_EMBEDDING + 1]++;
    return &out->rows[out->count++];
}

struct param *declare_param(struct declaration *d, enum param_role role, const char *name, int64_t rows,
                            int64_t columns)
{
    int index = d->out->count;
    struct param *row = append(d);
    *row = (struct param){
        .role = role,
        .ndim = columns > 0 ? 2 : 1,
        .dim = {rows, columns > 0 ? columns : 1},
        .mesh = MESH_DENSE,
        .layer = d->layer,
        .init = INIT_ZERO,
        .tie = -1,
        .fuse = index,
    };
    if (d->layer >= 0 && d->layer < d->model->num_layers)
        snprintf(row->name, sizeof row->name, "layers.%d.%.40s", d->layer, name);
    else
        snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

static void cut_over_tp(const struct declaration *d, struct param *row, int dim)
{
    row->cuts[row->cut_count++] =
        (struct sharding){.dim = dim, .axes = AXIS_TP, .parts = d->degrees->tp, .replicas = 1, .multiple = 1};
}

struct param *declare_matrix(struct declaration *d, enum param_role role, const char *name, int64_t outputs,
                             int64_t inputs, int cut_dim, double std)
{
    struct param *row = declare_param(d, role, name, outputs, inputs);
    cut_over_tp(d, row, cut_dim);
    row->init = INIT_NORMAL;
    row->std = (float)std;
    row->decay = true;
    return row;
}

struct param *declare_cut_bias(struct declaration *d, enum param_role role, const char *name, int64_t outputs)
{
    struct param *row = declare_param(d, role, name, outputs, 0);
    cut_over_tp(d, row, 0);
    row->is_bias = true;
    return row;
}

struct param *declare_hidden_weight(struct declaration *d, enum param_role role, const char *name)
{
    struct param *row = declare_param(d, role, name, d->model->hidden_size, 0);
    row->init = INIT_ONE;
    row->partial = d->sequence_parallel ? PARTIAL_TP : PARTIAL_NONE;
    return row;
}

struct param *declare_hidden_bias(struct declaration *d, enum param_role role, const char *name)
{
    struct param *row = declare_hidden_weight(d, role, name);
    row->init = INIT_ZERO;
    row->is_bias = true;
    return row;
}

struct param *declare_vocabulary(struct declaration *d, enum param_role role, const char *name)
{
    const struct model_config *m = d->model;
    struct param *row = declare_matrix(d, role, name, m->vocab_size, m->hidden_size, 0, m->init_method_std);
    row->cuts[0].multiple = m->make_vocab_size_divisible_by;
    return row;
}

void declare_kv_replicas(const struct declaration *d, struct param *row)
{
    int replicas = params_kv_replicas(d->model, d->degrees->tp);
    row->cuts[0].parts = d->degrees->tp / replicas;
    row->cuts[0].replicas = replicas;
    row->partial = replicas > 1 ? PARTIAL_KV : PARTIAL_NONE;
}

void declare_tie(const struct declaration *d, struct param *row, enum param_role role)
{
    row->tie = params_weight(d->out, LAYER_EMBEDDING, role);
    if (d->status != OK)
        return;
    CHECK(row->tie >= 0);
    row->tied = d->out->rows[row->tie].tied = true;
}

void declare_fused(struct declaration *d, int first)
{
    for (int i = first; i < d->out->count; i++)
        d->out->rows[i].fuse = first;
}

double declare_branch_std(const struct declaration *d)
{
    return d->model->init_method_std / sqrt(2.0 * (double)d->model->num_layers);
}
