// SPDX-License-Identifier: Apache-2.0
/* Appends parameter descriptors (param.h): the calls with which a layer kind declares its parameters, in the
 * order of the global list.
 *
 *     norm_declare_params(d, ROLE_MLP_NORM, "norm2");
 *     declare_matrix(d, ROLE_MLP_UP, "mlp.fc1.weight", F, H, 0, std);    [F, H], rows sharded over tp
 *
 * Names are relative to the layer: "layers.3." is prepended in layer 3. The returned descriptor may be
 * changed further until the next call. */
#pragma once

#include "layers/parameters/param.h"

struct declaration {
    const struct model_config *model;
    const struct degrees *degrees;
    bool sequence_parallel;
    int layer;          // the current one
    struct params *out; // created by params_create()
};

/* Starts the parameters of a layer. Layers follow each other from LAYER_EMBEDDING. */
void declare_layer(struct declaration *d, int layer);

/* A replicated parameter [rows, columns], or a vector [rows] for columns 0; initialized to zero. */
struct param *declare_param(struct declaration *d, enum param_role role, const char *name, int64_t rows,
                            int64_t columns);
/* A matrix [outputs, inputs] with normal initialization and weight decay, sharded over tp along shard_dim. */
struct param *declare_matrix(struct declaration *d, enum param_role role, const char *name, int64_t outputs,
                             int64_t inputs, int shard_dim, double std);
/* The bias of output features, sharded like the rows of a matrix. */
struct param *declare_sharded_bias(struct declaration *d, enum param_role role, const char *name,
                                   int64_t outputs);
/* A vector along the hidden dimension: replicated, but its gradient covers the local tokens only. Weights are
 * initialized to one, biases to zero. */
struct param *declare_hidden_weight(struct declaration *d, enum param_role role, const char *name);
struct param *declare_hidden_bias(struct declaration *d, enum param_role role, const char *name);
/* A vector along the channels of a head, shared by all heads: replicated, but its gradient covers the heads
 * of this rank only. */
struct param *declare_head_weight(struct declaration *d, enum param_role role, const char *name);
struct param *declare_head_bias(struct declaration *d, enum param_role role, const char *name);
/* The embedding of the vocabulary, or the head: [V, H], sharded by rows, which are padded in memory to a
 * multiple for efficient matmuls. */
struct param *declare_vocabulary(struct declaration *d, enum param_role role, const char *name);

/* Shards a key/value parameter over the tp ranks. With fewer key/value heads than ranks, each head is held by
 * several ranks, and each rank's gradient covers its own query heads only. */
void declare_kv_replicas(const struct declaration *d, struct param *param);
/* Lets a parameter share the value of the embedding's weight with this role, which has the same shape. */
void declare_tie(const struct declaration *d, struct param *param, enum param_role role);
/* Fuses the parameters from index `first` to the last one: they are adjacent in memory. */
void declare_fused(struct declaration *d, int first);

/* Std of the last matrix of a residual branch: smaller, so that the variance of the residual stream does not
 * grow with depth (GPT-2). */
double declare_branch_std(const struct declaration *d);
