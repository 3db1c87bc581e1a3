// SPDX-License-Identifier: Apache-2.0
#include "layers/parameters/param.h"

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
