// SPDX-License-Identifier: Apache-2.0
/* Parameter descriptors: one per *logical* parameter of the whole model, in one global order that does not
 * depend on the layout. All else is derived from the descriptor: the slice on a rank, its initialization, the
 * groups that reduce its gradient, the rank that counts it in the global norm, weight decay, and its name in
 * checkpoints.
 *
 *     layers.0.attention.q.weight   [A*D, H]  rows sharded over tp, weight decay
 *     layers.0.norm1.weight         [H]       replicated; under sequence parallelism each tp rank processes
 *                                             other tokens, so its gradient is partial over tp
 *     head.weight                   = embedding.weight if tied: a second use, with a gradient of
 *                                             its own that is reduced separately and then added
 *
 * q, k and v (and gate and up) have their own descriptors and are adjacent in memory (`fuse`), so that one
 * matmul computes all of them.
 *
 * Caution: a rank's gradient is partial for two different reasons. Over the data axes it always is; over tp
 * only if the descriptor declares it. A missing or doubled reduction over tp gives wrong gradients without an
 * error. */
#pragma once

#include "layers/model_config.h"
#include "parallel/shard.h"

enum { LAYER_EMBEDDING = -1, PARAM_NAME_CHARS = 64, PARAM_MAX_SHARDINGS = 2 };

/* What a parameter is to its layer; the bias of a matrix has the role of the matrix. Code that treats some
 * parameters differently reads the role, never the name. A layer has at most one weight and one bias of each
 * role. */
enum param_role {
    ROLE_TOKEN_EMBEDDING,
    ROLE_EMBEDDING_NORM, // after the word embedding
    ROLE_POSITION_EMBEDDING,
    ROLE_ATTENTION_NORM, // before the attention branch
    ROLE_QUERY,
    ROLE_KEY,
    ROLE_VALUE,
    ROLE_QUERY_NORM, // of each head of q; likewise of k
    ROLE_KEY_NORM,
    ROLE_ATTENTION_OUT,
    ROLE_MLP_NORM, // before the MLP branch
    ROLE_MLP_GATE,
    ROLE_MLP_UP, // also the first matrix of an MLP without gate
    ROLE_MLP_DOWN,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLE_COUNT
};

enum param_init { INIT_NORMAL, INIT_ONE, INIT_ZERO };

/* The tp ranks whose partial gradients must be summed. */
enum partial { PARTIAL_NONE, PARTIAL_TP, PARTIAL_KV };

struct param {
    char name[PARAM_NAME_CHARS];
    enum param_role role;
    bool is_bias; // of a matrix or a norm
    int ndim;
    int64_t dim[SHARD_MAX_DIMS];
    enum mesh_kind mesh;
    struct sharding shardings[PARAM_MAX_SHARDINGS];
    int sharding_count;
    enum partial partial;
    int layer; // LAYER_EMBEDDING, 0 .. num_layers-1, or num_layers for the final norm and head
    enum param_init init;
    float std; // with INIT_NORMAL
    bool decay;
    int tie;   // index of the parameter whose value this one shares; -1: none
    bool tied; // shares its value with another parameter: it has a tie, or is the original of one
    int fuse;  // index of the first parameter of the fused matrix; its own index: not fused, or the first
};

/* The parameters of a model, layer by layer; layers may differ. */
struct params {
    struct param *list;
    int count, capacity;
    int layer_count; // including embedding and head
    int *begin;      // [layer_count + 1]: first parameter of layer i - 1; begin[layer_count] is `count`
};

/* An empty list for layers LAYER_EMBEDDING .. layer_count - 2, to be filled through declare.h. */
void params_create(int layer_count, struct params *out);
void params_free(struct params *params);
/* Invariants; BAD_ARGUMENT names the parameter and the violated one: layers are consecutive; within a
 * layer each role and name occurs once; shapes and shardings are valid; a tie has the shape of its
 * original, which has no tie; a fused matrix consists of consecutive parameters of one layer. */
MUST_USE enum status params_check(const struct params *params);

/* Returns the number of parameters of a layer (numbered as in struct param); *first: the first of them. They
 * are consecutive. */
int params_of_layer(const struct params *params, int layer, int *first);

/* Return the index of the layer's weight or bias with this role; -1 if there is none. */
int params_weight(const struct params *params, int layer, enum param_role role);
int params_bias(const struct params *params, int layer, enum param_role role);

/* Computes the initial values of a part of a parameter without a tie, in fp32, as weights_initialize() does.
 * out: the padded local shape of the slice. */
void param_initial_values(const struct param *param, uint64_t seed, const struct slice *slice, float *out);

/* Returns the index of a parameter by name; -1 if there is none. */
int params_find(const struct params *params, const char *name);

/* Returns the number of neighbouring tp ranks that share key/value heads: 1 while tp <= groups. */
int params_kv_replicas(const struct model_config *model, int tp);
