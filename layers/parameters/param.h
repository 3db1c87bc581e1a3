// SPDX-License-Identifier: Apache-2.0
/* A tensor is declared once: one row per *logical* parameter of the whole model, in one global order that
 * no layout changes. Everything else is derived from the row: the slice a rank holds and how it is
 * initialised, which ranks add their gradients, who speaks for it in the global norm, whether weights
 * decay, its name in a checkpoint.
 *
 *     layers.0.attention.q.weight   [A*D, H]  rows cut over tp    decays
 *     layers.0.norm1.weight         [H]       whole on every rank; under sequence parallelism each tp
 *                                             rank saw other tokens, so its gradient is partial over tp
 *     head.weight                   = embedding.weight where tied: a second use, with a gradient of
 *                                             its own that is reduced alone and then added
 *
 * q, k and v (and gate and up) are rows of their own, laid side by side in memory by `fuse`, so that one
 * matrix multiplication does for all.
 *
 * The trap: a rank's share of a gradient is partial for two different reasons. Over the data axes it
 * always is. Over tp only where the row says so; adding it there twice, or never, trains something
 * else without a word. */
#pragma once

#include "layers/model_config.h"
#include "parallel/shard.h"

enum { LAYER_EMBEDDING = -1, PARAM_NAME_CHARS = 64, PARAM_MAX_CUTS = 2 };

enum param_init { INIT_NORMAL, INIT_ONE, INIT_ZERO };

/* Which tp ranks hold partial sums of its gradient, that must be added. */
enum partial { PARTIAL_NONE, PARTIAL_TP, PARTIAL_KV };

struct param {
    char name[PARAM_NAME_CHARS];
    int ndim;
    int64_t dim[SHARD_MAX_DIMS];
    enum mesh_kind mesh;
    struct cut cuts[PARAM_MAX_CUTS];
    int cut_count;
    enum partial partial;
    int layer; // LAYER_EMBEDDING, 0 .. num_layers-1, or num_layers for the final norm and head
    enum param_init init;
    float std; // of INIT_NORMAL
    bool decay;
    int tie;  // index of the row whose values this is a second use of; -1: its own
    int fuse; // index of the first row of the matrix this one is laid into; its own index: none
};

struct params {
    struct param *rows;
    int count;
    int before_layers, in_layer; // rows in front of layer 0; rows of each layer
};

/* All rows of the model under these degrees. The recipe has checked divisibility. */
MUST_USE enum status params_declare(const struct model_config *model, const struct degrees *degrees,
                                    bool sequence_parallel, struct params *out);
void params_free(struct params *params);

/* How many rows a layer has (struct param says how layers count), and the first: they stand together. */
int params_of_layer(const struct params *params, int layer, int *first);

/* The index of a row by name; -1 when there is none. */
int params_find(const struct params *params, const char *name);

/* How many neighbouring tp ranks share key/value heads: 1 while tp <= groups. */
int params_kv_replicas(const struct model_config *model, int tp);
