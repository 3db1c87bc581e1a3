// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/declare.h"

#include "base/memory.h"

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
    if (out->count == out->capacity) {
        int capacity = out->capacity > 0 ? 2 * out->capacity : CAPACITY_AT_FIRST;
        out->list = memory_resized(out->list, (size_t)capacity, sizeof *out->list, "parameter descriptors");
        out->capacity = capacity;
    }
    out->begin[d->layer - LAYER_EMBEDDING + 1]++;
    return &out->list[out->count++];
}

struct param *declare_param(struct declaration *d, enum param_role role, const char *name, int64_t rows,
                            int64_t columns)
{
    int index = d->out->count;
    struct param *param = append(d);
    *param = (struct param){
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
        snprintf(param->name, sizeof param->name, "layers.%d.%.40s", d->layer, name);
    else
        snprintf(param->name, sizeof param->name, "%s", name);
    return param;
}

static void shard_over_tp(const struct declaration *d, struct param *param, int dim)
{
    param->shardings[param->sharding_count++] =
        (struct sharding){.dim = dim, .axes = AXIS_TP, .parts = d->degrees->tp, .replicas = 1, .multiple = 1};
}

struct param *declare_matrix(struct declaration *d, enum param_role role, const char *name, int64_t outputs,
                             int64_t inputs, int shard_dim, double std)
{
    struct param *param = declare_param(d, role, name, outputs, inputs);
    shard_over_tp(d, param, shard_dim);
    param->init = INIT_NORMAL;
    param->std = (float)std;
    param->decay = true;
    return param;
}

struct param *declare_sharded_bias(struct declaration *d, enum param_role role, const char *name,
                                   int64_t outputs)
{
    struct param *param = declare_param(d, role, name, outputs, 0);
    shard_over_tp(d, param, 0);
    param->is_bias = true;
    return param;
}

struct param *declare_hidden_weight(struct declaration *d, enum param_role role, const char *name)
{
    struct param *param = declare_param(d, role, name, d->model->hidden_size, 0);
    param->init = INIT_ONE;
    param->partial = d->sequence_parallel ? PARTIAL_TP : PARTIAL_NONE;
    return param;
}

struct param *declare_hidden_bias(struct declaration *d, enum param_role role, const char *name)
{
    struct param *param = declare_hidden_weight(d, role, name);
    param->init = INIT_ZERO;
    param->is_bias = true;
    return param;
}

struct param *declare_head_weight(struct declaration *d, enum param_role role, const char *name)
{
    struct param *param = declare_param(d, role, name, d->model->kv_channels, 0);
    param->init = INIT_ONE;
    param->partial = PARTIAL_TP;
    return param;
}

struct param *declare_head_bias(struct declaration *d, enum param_role role, const char *name)
{
    struct param *param = declare_head_weight(d, role, name);
    param->init = INIT_ZERO;
    param->is_bias = true;
    return param;
}

struct param *declare_vocabulary(struct declaration *d, enum param_role role, const char *name)
{
    const struct model_config *m = d->model;
    struct param *param = declare_matrix(d, role, name, m->vocab_size, m->hidden_size, 0, m->init_method_std);
    param->shardings[0].multiple = m->make_vocab_size_divisible_by;
    return param;
}

void declare_kv_replicas(const struct declaration *d, struct param *param)
{
    int replicas = params_kv_replicas(d->model, d->degrees->tp);
    param->shardings[0].parts = d->degrees->tp / replicas;
    param->shardings[0].replicas = replicas;
    param->partial = replicas > 1 ? PARTIAL_KV : PARTIAL_NONE;
}

void declare_tie(const struct declaration *d, struct param *param, enum param_role role)
{
    param->tie = params_weight(d->out, LAYER_EMBEDDING, role);
    CHECK(param->tie >= 0);
    param->tied = d->out->list[param->tie].tied = true;
}

void declare_fused(struct declaration *d, int first)
{
    for (int i = first; i < d->out->count; i++)
        d->out->list[i].fuse = first;
}

double declare_branch_std(const struct declaration *d)
{
    return d->model->init_method_std / sqrt(2.0 * (double)d->model->num_layers);
}
