// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/param.h"

#include "base/memory.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int params_kv_replicas(const struct model_config *model, int tp)
{
    return tp > model->num_query_groups ? tp / (int)model->num_query_groups : 1;
}

void params_create(int layer_count, struct params *out)
{
    *out = (struct params){.layer_count = layer_count};
    out->begin = memory_zeroed((size_t)layer_count + 1, sizeof *out->begin, "the parameters of layers");
}

void params_free(struct params *params)
{
    free(params->list);
    free(params->begin);
    *params = (struct params){0};
}

/* ---- invariants ---- */

static enum status check_layers(const struct params *params)
{
    if (params->layer_count < 0 || params->begin[0] != 0 ||
        params->begin[params->layer_count] != params->count)
        return fail(BAD_ARGUMENT, "parameters: the layers do not contain all %d of them", params->count);
    for (int i = 0; i < params->layer_count; i++) {
        const int begin = params->begin[i], end = params->begin[i + 1];
        if (begin > end || end > params->count)
            return fail(BAD_ARGUMENT, "parameters: layer %d has parameters [%d, %d) of %d",
                        i + LAYER_EMBEDDING, begin, end, params->count);
        for (int param = begin; param < end; param++)
            if (params->list[param].layer != i + LAYER_EMBEDDING)
                return fail(BAD_ARGUMENT, "%s: is listed in layer %d, but belongs to layer %d",
                            params->list[param].name, i + LAYER_EMBEDDING, params->list[param].layer);
    }
    return OK;
}

static enum status check_shape(const struct param *param)
{
    if (param->name[0] == 0 || (int)param->role < 0 || param->role >= ROLE_COUNT)
        return fail(BAD_ARGUMENT, "a parameter of role %d has the name \"%s\"", (int)param->role,
                    param->name);
    if (param->ndim < 1 || param->ndim > SHARD_MAX_DIMS)
        return fail(BAD_ARGUMENT, "%s: %d dimensions; the maximum is %d", param->name, param->ndim,
                    SHARD_MAX_DIMS);
    for (int i = 0; i < param->ndim; i++)
        if (param->dim[i] < 1)
            return fail(BAD_ARGUMENT, "%s: dimension %d is %lld", param->name, i, (long long)param->dim[i]);
    if (param->sharding_count < 0 || param->sharding_count > PARAM_MAX_SHARDINGS)
        return fail(BAD_ARGUMENT, "%s: %d sharded dimensions; the maximum is %d", param->name,
                    param->sharding_count, PARAM_MAX_SHARDINGS);
    for (int c = 0; c < param->sharding_count; c++) {
        TRY(sharding_check(&param->shardings[c], param->ndim));
        for (int other = 0; other < c; other++)
            if (param->shardings[other].axes == param->shardings[c].axes)
                return fail(BAD_ARGUMENT, "%s: two dimensions sharded along axis %d", param->name,
                            param->shardings[c].axes);
    }
    if (param->init == INIT_NORMAL && !(param->std >= 0.0F && param->std < INFINITY))
        return fail(BAD_ARGUMENT, "%s: a standard deviation of %g", param->name, (double)param->std);
    return OK;
}

static enum status check_once_in_layer(const struct params *params, int index)
{
    const struct param *param = &params->list[index];
    for (int i = params->begin[param->layer - LAYER_EMBEDDING]; i < index; i++) {
        const struct param *other = &params->list[i];
        if (strcmp(other->name, param->name) == 0 ||
            (other->role == param->role && other->is_bias == param->is_bias))
            return fail(BAD_ARGUMENT, "%s: has the name or the role of %s", param->name, other->name);
    }
    return OK;
}

static enum status check_tie(const struct params *params, const struct param *param)
{
    if (param->tie < 0)
        return OK;
    if (param->tie >= params->count)
        return fail(BAD_ARGUMENT, "%s: shares the value of parameter %d of %d", param->name, param->tie,
                    params->count);
    const struct param *original = &params->list[param->tie];
    bool same = original->ndim == param->ndim;
    for (int i = 0; same && i < param->ndim; i++)
        same = original->dim[i] == param->dim[i];
    if (!same || original == param || original->tie >= 0)
        return fail(BAD_ARGUMENT, "%s: cannot share the value of %s: another shape, or a tie", param->name,
                    original->name);
    return param->tied && original->tied ? OK
                                         : fail(BAD_ARGUMENT, "%s: shares a value, but is not marked as tied",
                                                param->tied ? original->name : param->name);
}

static enum status check_fuse(const struct params *params, int index)
{
    const struct param *param = &params->list[index];
    bool valid = param->fuse >= 0 && param->fuse <= index && params->list[param->fuse].layer == param->layer;
    for (int i = param->fuse; valid && i < index; i++)
        valid = params->list[i].fuse == param->fuse;
    return valid ? OK
                 : fail(BAD_ARGUMENT, "%s: is fused with parameter %d, but not with all in between",
                        param->name, param->fuse);
}

enum status params_check(const struct params *params)
{
    TRY(check_layers(params));
    for (int i = 0; i < params->count; i++) {
        TRY(check_shape(&params->list[i]));
        TRY(check_once_in_layer(params, i));
        TRY(check_tie(params, &params->list[i]));
        TRY(check_fuse(params, i));
    }
    return OK;
}

/* ---- access ---- */

int params_of_layer(const struct params *params, int layer, int *first)
{
    int i = layer - LAYER_EMBEDDING;
    CHECK(i >= 0 && i < params->layer_count);
    *first = params->begin[i];
    return params->begin[i + 1] - params->begin[i];
}

static int find_role(const struct params *params, int layer, enum param_role role, bool is_bias)
{
    int first, count = params_of_layer(params, layer, &first);
    for (int i = first; i < first + count; i++)
        if (params->list[i].role == role && params->list[i].is_bias == is_bias)
            return i;
    return -1;
}

int params_weight(const struct params *params, int layer, enum param_role role)
{
    return find_role(params, layer, role, false);
}

int params_bias(const struct params *params, int layer, enum param_role role)
{
    return find_role(params, layer, role, true);
}

/* Returns the parameter of this layer with the full name, or -1. */
static int find_in_layer(const struct params *params, int layer, const char *name)
{
    int first, count = params_of_layer(params, layer, &first);
    for (int i = first; i < first + count; i++)
        if (strcmp(params->list[i].name, name) == 0)
            return i;
    return -1;
}

void param_initial_values(const struct param *param, uint64_t seed, const struct slice *slice, float *out)
{
    for (int64_t i = 0; i < slice->count[0]; i++) {
        float *row = out + i * slice->padded[1];
        if (param->init == INIT_NORMAL)
            philox_normal(philox_named(seed, param->name), 0,
                          (slice->begin[0] + i) * param->dim[1] + slice->begin[1], slice->count[1], row);
        for (int64_t column = 0; column < slice->count[1]; column++)
            row[column] = param->init == INIT_NORMAL ? row[column] * param->std
                                                     : (param->init == INIT_ONE ? 1.0F : 0.0F);
    }
}

int params_find(const struct params *params, const char *name)
{
    static const char prefix[] = "layers.";
    int head = params->layer_count - 2; // the last layer
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        long layer = strtol(name + sizeof prefix - 1, NULL, 10);
        return layer >= 0 && layer < head ? find_in_layer(params, (int)layer, name) : -1;
    }
    int param = find_in_layer(params, LAYER_EMBEDDING, name);
    return param >= 0 ? param : find_in_layer(params, head, name);
}
