// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/param.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int params_kv_replicas(const struct model_config *model, int tp)
{
    return tp > model->num_query_groups ? tp / (int)model->num_query_groups : 1;
}

enum status params_create(int layer_count, struct params *out)
{
    *out = (struct params){.layer_count = layer_count};
    out->begin = calloc((size_t)layer_count + 1, sizeof *out->begin);
    return out->begin != NULL ? OK
                              : fail(NO_MEMORY, "no memory for the parameters of %d layers", layer_count);
}

void params_free(struct params *params)
{
    free(params->rows);
    free(params->begin);
    *params = (struct params){0};
}

/* ---- promises ---- */

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
        for (int row = begin; row < end; row++)
            if (params->rows[row].layer != i + LAYER_EMBEDDING)
                return fail(BAD_ARGUMENT, "%s: is listed in layer %d, but belongs to layer %d",
                            params->rows[row].name, i + LAYER_EMBEDDING, params->rows[row].layer);
    }
    return OK;
}

static enum status check_shape(const struct param *row)
{
    if (row->name[0] == 0 || (int)row->role < 0 || row->role >= ROLE_COUNT)
        return fail(BAD_ARGUMENT, "a parameter of role %d has the name \"%s\"", (int)row->role, row->name);
    if (row->ndim < 1 || row->ndim > SHARD_MAX_DIMS)
        return fail(BAD_ARGUMENT, "%s: %d dimensions; the maximum is %d", row->name, row->ndim,
                    SHARD_MAX_DIMS);
    for (int i = 0; i < row->ndim; i++)
        if (row->dim[i] < 1)
            return fail(BAD_ARGUMENT, "%s: dimension %d is %lld", row->name, i, (long long)row->dim[i]);
    if (row->cut_count < 0 || row->cut_count > PARAM_MAX_CUTS)
        return fail(BAD_ARGUMENT, "%s: %d cuts; the maximum is %d", row->name, row->cut_count,
                    PARAM_MAX_CUTS);
    for (int c = 0; c < row->cut_count; c++) {
        TRY(sharding_check(&row->cuts[c], row->ndim));
        for (int other = 0; other < c; other++)
            if (row->cuts[other].axes == row->cuts[c].axes)
                return fail(BAD_ARGUMENT, "%s: two cuts along axis %d", row->name, row->cuts[c].axes);
    }
    if (row->init == INIT_NORMAL && !(row->std >= 0.0F && row->std < INFINITY))
        return fail(BAD_ARGUMENT, "%s: a standard deviation of %g", row->name, (double)row->std);
    return OK;
}

static enum status check_once_in_layer(const struct params *params, int index)
{
    const struct param *row = &params->rows[index];
    for (int i = params->begin[row->layer - LAYER_EMBEDDING]; i < index; i++) {
        const struct param *other = &params->rows[i];
        if (strcmp(other->name, row->name) == 0 ||
            (other->role == row->role && other->is_bias == row->is_bias))
            return fail(BAD_ARGUMENT, "%s: has the name or the role of %s", row->name, other->name);
    }
    return OK;
}

static enum status check_tie(const struct params *params, const struct param *row)
{
    if (row->tie < 0)
        return OK;
    if (row->tie >= params->count)
        return fail(BAD_ARGUMENT, "%s: shares the value of parameter %d of %d", row->name, row->tie,
                    params->count);
    const struct param *original = &params->rows[row->tie];
    bool same = original->ndim == row->ndim;
    for (int i = 0; same && i < row->ndim; i++)
        same = original->dim[i] == row->dim[i];
    if (!same || original == row || original->tie >= 0)
        return fail(BAD_ARGUMENT, "%s: cannot share the value of %s: another shape, or a tie", row->name,
                    original->name);
    return row->tied && original->tied ? OK
                                       : fail(BAD_ARGUMENT, "%s: shares a value, but is not marked as tied",
                                              row->tied ? original->name : row->name);
}

static enum status check_fuse(const struct params *params, int index)
{
    const struct param *row = &params->rows[index];
    bool valid = row->fuse >= 0 && row->fuse <= index && params->rows[row->fuse].layer == row->layer;
    for (int i = row->fuse; valid && i < index; i++)
        valid = params->rows[i].fuse == row->fuse;
    return valid ? OK
                 : fail(BAD_ARGUMENT, "%s: is fused with parameter %d, but not with all in between",
                        row->name, row->fuse);
}

enum status params_check(const struct params *params)
{
    TRY(check_layers(params));
    for (int i = 0; i < params->count; i++) {
        TRY(check_shape(&params->rows[i]));
        TRY(check_once_in_layer(params, i));
        TRY(check_tie(params, &params->rows[i]));
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
        if (params->rows[i].role == role && params->rows[i].is_bias == is_bias)
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
        if (strcmp(params->rows[i].name, name) == 0)
            return i;
    return -1;
}

int params_find(const struct params *params, const char *name)
{
    static const char prefix[] = "layers.";
    int head = params->layer_count - 2; // the last layer
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        long layer = strtol(name + sizeof prefix - 1, NULL, 10);
        return layer >= 0 && layer < head ? find_in_layer(params, (int)layer, name) : -1;
    }
    int row = find_in_layer(params, LAYER_EMBEDDING, name);
    return row >= 0 ? row : find_in_layer(params, head, name);
}
