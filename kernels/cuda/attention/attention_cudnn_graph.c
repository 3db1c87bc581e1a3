// SPDX-License-Identifier: Apache-2.0
/* The operation graph of causal attention in the form that cuDNN's flash-attention engines recognize, and its
 * plan.
 *
 *     forward     scores = q k^T scale, hidden past the diagonal; lse = max + log sum e^(scores - max);
 *                 out = e^(scores - max) / sum . v
 *     backward    delta = dout . out; p = e^(scores - lse); dv = p^T dout; ds = p (dout v^T - delta) scale;
 *                 dk = ds^T q; dq = ds k
 *
 * Both are tables of operations with their input and output tensors. No S x S tensor is materialized: such
 * tensors are virtual, and the engine keeps their tiles in registers.
 *
 * Caution: engines match a pattern, not its meaning. The order, the transposition (k and, in the backward
 * pass, v are passed as transposes; a reshape transposes) and the types of the intermediates are part of it
 * (the patterns are those of NVIDIA's cudnn-frontend, 1.x).
 *
 * dq is a sum over blocks of keys. Blocks accumulate into an fp32 buffer in nondeterministic order, and a
 * cast follows; a graph without that buffer requests an engine with a fixed order. */
#include "kernels/cuda/attention/attention_cudnn.h"

#include <math.h>
#include <stdio.h>

/* Name, dimensions, type, storage. B sequences, A heads, G groups, S tokens, D columns of a head. */
#define TENSORS(X)                                             \
    X(Q, "BASD", WORKING, CUDNN_Q)                             \
    X(K_TRANSPOSED, "BGDS", WORKING, CUDNN_K)                  \
    X(V, "BGSD", WORKING, CUDNN_V)                             \
    X(V_TRANSPOSED, "BGDS", WORKING, CUDNN_V)                  \
    X(OUT, "BASD", WORKING, CUDNN_OUT)                         \
    X(LSE, "BAS1", FLOATS, OWN_MEMORY)                         \
    X(DOUT, "BASD", WORKING, CUDNN_DOUT)                       \
    X(DQ, "BASD", WORKING, CUDNN_DQ)                           \
    X(DK, "BGSD", WORKING, CUDNN_DK)                           \
    X(DV, "BGSD", WORKING, CUDNN_DV)                           \
    X(DELTA, "BAS1", FLOATS, OWN_MEMORY)                       \
    X(DQ_SUM, "BASD", FLOATS, OWN_MEMORY)                      \
    X(SCALE, "1111", FLOATS, BY_VALUE)                         \
    X(MINUS_INFINITY, "1111", FLOATS, BY_VALUE)                \
    X(ONE, "1111", FLOATS, BY_VALUE)                           \
    X(SCORES, "BASS", FLOATS, VIRTUAL)                         \
    X(SCALED, "BASS", FLOATS, VIRTUAL)                         \
    X(ROW_INDEX, "BASS", INTEGERS, VIRTUAL)                    \
    X(COLUMN_INDEX, "BASS", INTEGERS, VIRTUAL)                 \
    X(ATTENDED, "BASS", BOOLEANS, VIRTUAL)                     \
    X(MASKED, "BASS", FLOATS, VIRTUAL)                         \
    X(MAX_SCORE, "BAS1", FLOATS, VIRTUAL)                      \
    X(DISTANCE, "BASS", FLOATS, VIRTUAL)                       \
    X(POWER, "BASS", FLOATS, VIRTUAL)                          \
    X(SUM, "BAS1", FLOATS, VIRTUAL)                            \
    X(LOG_SUM, "BAS1", FLOATS, VIRTUAL)                        \
    X(WEIGHT, "BASS", WORKING, VIRTUAL)                        \
    X(DOUT_OUT, "BASD", FLOATS, VIRTUAL)                       \
    X(DOTS, "BAS1", FLOATS, VIRTUAL)                           \
    X(POWER_TRANSPOSED, "BASS", WORKING, VIRTUAL_TRANSPOSED)   \
    X(DV_HEADS, "BASD", WORKING, VIRTUAL)                      \
    X(DWEIGHT, "BASS", FLOATS, VIRTUAL)                        \
    X(DWEIGHT_CENTRED, "BASS", FLOATS, VIRTUAL)                \
    X(DSCALED, "BASS", FLOATS, VIRTUAL)                        \
    X(DSCORES, "BASS", FLOATS, VIRTUAL)                        \
    X(DSCORES_TRANSPOSED, "BASS", WORKING, VIRTUAL_TRANSPOSED) \
    X(DK_HEADS, "BASD", WORKING, VIRTUAL)                      \
    X(K, "BGSD", WORKING, VIRTUAL_K)

enum tensor_name {
    NONE,
#define NAME(name, dims, type, storage) name,
    TENSORS(NAME)
#undef NAME
        TENSOR_COUNT
};

/* Storage of tensors other than the op's matrices. */
enum { OWN_MEMORY = CUDNN_MATRICES, BY_VALUE, VIRTUAL, VIRTUAL_TRANSPOSED, VIRTUAL_K };
enum element_type { WORKING, FLOATS, INTEGERS, BOOLEANS };
enum { RANK = 4, MAX_NODES = 32, MAX_CONFIGS = 16 };

static const struct tensor_spec {
    const char *name, *dims;
    enum element_type type;
    int storage;
} tensors[TENSOR_COUNT] = {
#define SPEC_OF(name_, dims_, type_, storage_) [name_] = {#name_, dims_, type_, storage_},
    TENSORS(SPEC_OF)
#undef SPEC_OF
};

enum kind { MATMUL, POINTWISE, REDUCE, RESHAPE };
/* Condition for a node: heads of a group share k and v, or not; dq is accumulated in a buffer, or not. */
enum condition { ALWAYS, GROUPED, UNGROUPED, NONDETERMINISTIC, DETERMINISTIC };

/* y = x (op) b; a select takes its condition in t. */
struct node {
    enum kind kind;
    int how;
    enum tensor_name x, b, y, t;
    enum condition when;
};

#define POINTWISE_(how, ...)                          \
    {                                                 \
        POINTWISE, CUDNN_POINTWISE_##how, __VA_ARGS__ \
    }
#define REDUCE_(how, ...)                              \
    {                                                  \
        REDUCE, CUDNN_REDUCE_TENSOR_##how, __VA_ARGS__ \
    }
/* The causal mask: sets scores past the diagonal to minus infinity. */
#define CAUSAL_MASK(from, to)                                                                              \
    POINTWISE_(GEN_INDEX, .x = from, .y = ROW_INDEX), POINTWISE_(GEN_INDEX, .x = from, .y = COLUMN_INDEX), \
        POINTWISE_(CMP_GE, .x = ROW_INDEX, .b = COLUMN_INDEX, .y = ATTENDED),                              \
        POINTWISE_(BINARY_SELECT, .x = from, .b = MINUS_INFINITY, .y = to, .t = ATTENDED)

static const struct node forward_nodes[] = {
    {MATMUL, .x = Q, .b = K_TRANSPOSED, .y = SCORES},
    POINTWISE_(MUL, .x = SCORES, .b = SCALE, .y = SCALED),
    CAUSAL_MASK(SCALED, MASKED),
    REDUCE_(MAX, .x = MASKED, .y = MAX_SCORE),
    POINTWISE_(SUB, .x = MASKED, .b = MAX_SCORE, .y = DISTANCE),
    POINTWISE_(EXP, .x = DISTANCE, .y = POWER),
    REDUCE_(ADD, .x = POWER, .y = SUM),
    POINTWISE_(LOG, .x = SUM, .y = LOG_SUM),
    POINTWISE_(ADD, .x = MAX_SCORE, .b = LOG_SUM, .y = LSE),
    POINTWISE_(DIV, .x = POWER, .b = SUM, .y = WEIGHT),
    {MATMUL, .x = WEIGHT, .b = V, .y = OUT},
};

static const struct node backward_nodes[] = {
    POINTWISE_(MUL, .x = DOUT, .b = OUT, .y = DOUT_OUT),
    REDUCE_(ADD, .x = DOUT_OUT, .y = DOTS),
    POINTWISE_(MUL, .x = DOTS, .b = ONE, .y = DELTA),
    {MATMUL, .x = Q, .b = K_TRANSPOSED, .y = SCORES},
    POINTWISE_(MUL, .x = SCORES, .b = SCALE, .y = SCALED),
    POINTWISE_(SUB, .x = SCALED, .b = LSE, .y = DISTANCE),
    CAUSAL_MASK(DISTANCE, MASKED),
    POINTWISE_(EXP, .x = MASKED, .y = POWER),
    {RESHAPE, .x = POWER, .y = POWER_TRANSPOSED},
    {MATMUL, .x = POWER_TRANSPOSED, .b = DOUT, .y = DV, .when = UNGROUPED},
    {MATMUL, .x = POWER_TRANSPOSED, .b = DOUT, .y = DV_HEADS, .when = GROUPED},
    REDUCE_(ADD, .x = DV_HEADS, .y = DV, .when = GROUPED),
    {MATMUL, .x = DOUT, .b = V_TRANSPOSED, .y = DWEIGHT},
    POINTWISE_(SUB, .x = DWEIGHT, .b = DELTA, .y = DWEIGHT_CENTRED),
    POINTWISE_(MUL, .x = DWEIGHT_CENTRED, .b = POWER, .y = DSCALED),
    POINTWISE_(MUL, .x = DSCALED, .b = SCALE, .y = DSCORES),
    {RESHAPE, .x = DSCORES, .y = DSCORES_TRANSPOSED},
    {MATMUL, .x = DSCORES_TRANSPOSED, .b = Q, .y = DK, .when = UNGROUPED},
    {MATMUL, .x = DSCORES_TRANSPOSED, .b = Q, .y = DK_HEADS, .when = GROUPED},
    REDUCE_(ADD, .x = DK_HEADS, .y = DK, .when = GROUPED),
    {RESHAPE, .x = K_TRANSPOSED, .y = K},
    {MATMUL, .x = DSCORES, .b = K, .y = DQ_SUM, .when = NONDETERMINISTIC},
    POINTWISE_(IDENTITY, .x = DQ_SUM, .y = DQ, .when = NONDETERMINISTIC),
    {MATMUL, .x = DSCORES, .b = K, .y = DQ, .when = DETERMINISTIC},
};

struct graph {
    const struct cudnn *cudnn;
    const struct cuda_queue *queue;
    struct cudnn_plan *plan;
    cudnnBackendDescriptor_t tensor[TENSOR_COUNT], node[MAX_NODES];
    int nodes;
};

/* Descriptors */

static enum status make(struct graph *g, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t made = NULL;
    CHECK(g->plan->parts < CUDNN_PARTS);
    TRY(cudnn_check(g->cudnn, g->queue, g->cudnn->library.cudnnBackendCreateDescriptor(type, &made),
                    "cudnnBackendCreateDescriptor", ""));
    *out = g->plan->part[g->plan->parts++] = made;
    return OK;
}

static enum status set(const struct graph *g, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *value)
{
    char what[32];
    snprintf(what, sizeof what, "attribute %d", (int)name);
    return cudnn_check(g->cudnn, g->queue,
                       g->cudnn->library.cudnnBackendSetAttribute(of, name, type, count, value),
                       "cudnnBackendSetAttribute", what);
}

static enum status set_part(const struct graph *g, cudnnBackendDescriptor_t of,
                            cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t part)
{
    return set(g, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static enum status finish(const struct graph *g, cudnnBackendDescriptor_t made, const char *what)
{
    return cudnn_check(g->cudnn, g->queue, g->cudnn->library.cudnnBackendFinalize(made),
                       "cudnnBackendFinalize", what);
}

/* Tensors */

static int64_t size_of(const struct cudnn_shape *s, char letter)
{
    switch (letter) {
    case 'B':
        return s->batch;
    case 'A':
        return s->heads;
    case 'G':
        return s->groups;
    case 'S':
        return s->sequence;
    case 'D':
        return s->head_dim;
    default:
        return 1;
    }
}

/* Stride of a matrix of the op: [T, heads D] with its own row stride. */
static int64_t stride_of(const struct cudnn_shape *s, int matrix, char letter)
{
    switch (letter) {
    case 'B':
        return s->sequence * s->row[matrix];
    case 'S':
        return s->row[matrix];
    case 'A':
    case 'G':
        return s->head_dim;
    default:
        return 1;
    }
}

static void set_layout(const struct cudnn_shape *s, const struct tensor_spec *row, int64_t dim[RANK],
                       int64_t stride[RANK])
{
    const int storage = row->storage == VIRTUAL_K ? CUDNN_K : row->storage;
    int64_t packed = 1;
    for (int i = RANK - 1; i >= 0; i--) {
        dim[i] = size_of(s, row->dims[i]);
        stride[i] = storage < CUDNN_MATRICES ? stride_of(s, storage, row->dims[i]) : packed;
        packed *= dim[i];
    }
    if (storage == VIRTUAL_TRANSPOSED) {
        int64_t last = stride[RANK - 1];
        stride[RANK - 1] = stride[RANK - 2];
        stride[RANK - 2] = last;
    }
}

static cudnnDataType_t data_type(const struct cudnn_shape *s, enum element_type type)
{
    switch (type) {
    case WORKING:
        return s->dtype == BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    case FLOATS:
        return CUDNN_DATA_FLOAT;
    case INTEGERS:
        return CUDNN_DATA_INT32;
    case BOOLEANS:
        break;
    }
    return CUDNN_DATA_BOOLEAN;
}

/* Created at its first use by a node. */
static enum status add_tensor(struct graph *g, enum tensor_name name)
{
    const struct tensor_spec *row = &tensors[name];
    const cudnnDataType_t type = data_type(&g->plan->shape, row->type);
    const int64_t uid = name, alignment = 16;
    const bool is_virtual = row->storage >= VIRTUAL, by_value = row->storage == BY_VALUE;
    int64_t dim[RANK], stride[RANK];
    if (name == NONE || g->tensor[name] != NULL)
        return OK;
    set_layout(&g->plan->shape, row, dim, stride);
    cudnnBackendDescriptor_t t;
    TRY(make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, RANK, dim));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, RANK, stride));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual));
    TRY(set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value));
    TRY(finish(g, t, row->name));
    g->tensor[name] = t;
    return OK;
}

/* Operations */

static enum status add_matmul(struct graph *g, const struct node *n, cudnnBackendDescriptor_t *out)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t what, node;
    TRY(make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &what));
    TRY(set(g, what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TRY(finish(g, what, "matmul"));
    TRY(make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &node));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_MATMUL_ADESC, g->tensor[n->x]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_MATMUL_BDESC, g->tensor[n->b]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_MATMUL_CDESC, g->tensor[n->y]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_MATMUL_DESC, what));
    *out = node;
    return OK;
}

static enum status add_pointwise(struct graph *g, const struct node *n, cudnnBackendDescriptor_t *out)
{
    const cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)n->how;
    const cudnnDataType_t compute = mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const int64_t axis = n->y == ROW_INDEX ? RANK - 2 : RANK - 1;
    cudnnBackendDescriptor_t what, node;
    TRY(make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &what));
    TRY(set(g, what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TRY(set(g, what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        TRY(set(g, what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis));
    TRY(finish(g, what, "pointwise"));
    TRY(make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &node));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, g->tensor[n->x]));
    if (n->b != NONE)
        TRY(set_part(g, node, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, g->tensor[n->b]));
    if (n->t != NONE)
        TRY(set_part(g, node, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, g->tensor[n->t]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, g->tensor[n->y]));
    *out = node;
    return OK;
}

static enum status add_reduction(struct graph *g, const struct node *n, cudnnBackendDescriptor_t *out)
{
    const cudnnReduceTensorOp_t how = (cudnnReduceTensorOp_t)n->how;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t what, node;
    TRY(make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &what));
    TRY(set(g, what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TRY(set(g, what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how));
    TRY(finish(g, what, "reduction"));
    TRY(make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &node));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_REDUCTION_DESC, what));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, g->tensor[n->x]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, g->tensor[n->y]));
    *out = node;
    return OK;
}

static enum status add_reshape(struct graph *g, const struct node *n, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t node;
    TRY(make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &node));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, g->tensor[n->x]));
    TRY(set_part(g, node, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, g->tensor[n->y]));
    *out = node;
    return OK;
}

static enum status add_node(struct graph *g, const struct node *n)
{
    cudnnBackendDescriptor_t node = NULL;
    const enum tensor_name names[] = {n->x, n->b, n->t, n->y};
    for (int i = 0; i < 4; i++)
        TRY(add_tensor(g, names[i]));
    switch (n->kind) {
    case MATMUL:
        TRY(add_matmul(g, n, &node));
        break;
    case POINTWISE:
        TRY(add_pointwise(g, n, &node));
        break;
    case REDUCE:
        TRY(add_reduction(g, n, &node));
        break;
    case RESHAPE:
        TRY(add_reshape(g, n, &node));
        break;
    }
    TRY(finish(g, node, tensors[n->y].name));
    g->node[g->nodes++] = node;
    return OK;
}

static bool applies(const struct graph *g, enum condition when)
{
    const bool grouped = g->plan->shape.groups != g->plan->shape.heads;
    switch (when) {
    case ALWAYS:
        return true;
    case GROUPED:
        return grouped;
    case UNGROUPED:
        return !grouped;
    case NONDETERMINISTIC:
        return !g->cudnn->deterministic;
    case DETERMINISTIC:
        break;
    }
    return g->cudnn->deterministic;
}

/* Plans */

static enum status is_deterministic(struct graph *g, cudnnBackendDescriptor_t config, bool *out)
{
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t count = 0;
    TRY(make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    TRY(cudnn_check(g->cudnn, g->queue,
                    g->cudnn->library.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                                               &engine),
                    "cudnnBackendGetAttribute", "engine"));
    TRY(cudnn_check(g->cudnn, g->queue,
                    g->cudnn->library.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                               CUDNN_TYPE_NUMERICAL_NOTE,
                                                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note),
                    "cudnnBackendGetAttribute", "numerical notes"));
    *out = true;
    for (int64_t i = 0; i < count; i++)
        *out &= note[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return OK;
}

/* The first of the heuristic's engines for which cuDNN finalizes a plan; plan->plan stays NULL if there is
 * none. */
static enum status choose(struct graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode)
{
    const struct cudnn_library *cudnn = &g->cudnn->library;
    cudnnBackendDescriptor_t heuristic, plan, config[MAX_CONFIGS];
    int64_t count = 0;
    bool ordered = true;
    TRY(make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic));
    TRY(set_part(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    TRY(set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    if (g->cudnn->handle == NULL)
        TRY(set_part(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->cudnn->gpu));
    if (cudnn->cudnnBackendFinalize(heuristic) != CUDNN_STATUS_SUCCESS)
        return OK; // no engine: reported if no heuristic has one
    for (int i = 0; i < MAX_CONFIGS; i++)
        TRY(make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    TRY(cudnn_check(g->cudnn, g->queue,
                    cudnn->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count,
                                                    config),
                    "cudnnBackendGetAttribute", "engines"));
    for (int64_t i = 0; i < count && i < MAX_CONFIGS && g->plan->plan == NULL; i++) {
        if (g->cudnn->deterministic)
            TRY(is_deterministic(g, config[i], &ordered));
        if (!ordered)
            continue;
        TRY(make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
        TRY(set_part(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config[i]));
        if (g->cudnn->handle == NULL)
            TRY(set_part(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, g->cudnn->gpu));
        if (cudnn->cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS)
            g->plan->plan = plan;
    }
    return OK;
}

static enum status make_plan(struct graph *g)
{
    cudnnBackendDescriptor_t graph;
    int64_t count;
    TRY(make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph));
    TRY(set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->nodes, g->node));
    if (g->cudnn->handle != NULL)
        TRY(set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->cudnn->handle));
    TRY(finish(g, graph, "graph"));
    TRY(choose(g, graph, CUDNN_HEUR_MODE_A));
    if (g->plan->plan == NULL)
        TRY(choose(g, graph, CUDNN_HEUR_MODE_FALLBACK));
    if (g->plan->plan == NULL)
        return cudnn_check(g->cudnn, g->queue, CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize",
                           g->cudnn->deterministic
                               ? "no deterministic engine; use model.attention_backend own"
                               : "no engine; use model.attention_backend own");
    return cudnn_check(
        g->cudnn, g->queue,
        g->cudnn->library.cudnnBackendGetAttribute(g->plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                   CUDNN_TYPE_INT64, 1, &count, &g->plan->workspace_bytes),
        "cudnnBackendGetAttribute", "workspace");
}

enum status cudnn_plan_create(const struct cudnn *cudnn, const struct cuda_queue *queue,
                              struct cudnn_plan *plan)
{
    struct graph g = {.cudnn = cudnn, .queue = queue, .plan = plan};
    const struct node *nodes = plan->shape.backward ? backward_nodes : forward_nodes;
    const size_t count =
        plan->shape.backward ? sizeof backward_nodes / sizeof *nodes : sizeof forward_nodes / sizeof *nodes;
    for (size_t i = 0; i < count; i++)
        if (applies(&g, nodes[i].when))
            TRY(add_node(&g, &nodes[i]));
    return make_plan(&g);
}

/* Runs */

enum status cudnn_plan_run(const struct cudnn *cudnn, const struct cuda_queue *queue,
                           const struct cudnn_plan *plan, const struct cudnn_addresses *at, void *workspace)
{
    const struct cudnn_library *library = &cudnn->library;
    const bool back = plan->shape.backward, sums = back && !cudnn->deterministic;
    float scale = at->scale, hidden = -INFINITY, one = 1.0F;
    const struct {
        enum tensor_name name;
        void *address;
        bool there;
    } all[] = {
        {Q, at->matrix[CUDNN_Q], true},
        {K_TRANSPOSED, at->matrix[CUDNN_K], true},
        {V, at->matrix[CUDNN_V], !back},
        {V_TRANSPOSED, at->matrix[CUDNN_V], back},
        {OUT, at->matrix[CUDNN_OUT], true},
        {LSE, at->lse, true},
        {DOUT, at->matrix[CUDNN_DOUT], back},
        {DQ, at->matrix[CUDNN_DQ], back},
        {DK, at->matrix[CUDNN_DK], back},
        {DV, at->matrix[CUDNN_DV], back},
        {DELTA, at->delta, back},
        {DQ_SUM, at->dq_sum, sums},
        {SCALE, &scale, true},
        {MINUS_INFINITY, &hidden, true},
        {ONE, &one, back},
    };
    int64_t uid[sizeof all / sizeof *all], count = 0;
    void *address[sizeof all / sizeof *all];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].there)
            continue;
        uid[count] = all[i].name;
        address[count++] = all[i].address;
    }
    struct cudnn_plan pack = {0};
    struct graph g = {.cudnn = cudnn, .queue = queue, .plan = &pack};
    cudnnBackendDescriptor_t d;
    TRY(make(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d));
    enum status status = set(&g, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uid);
    if (status == OK)
        status = set(&g, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, address);
    if (status == OK)
        status = set(&g, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == OK)
        status = finish(&g, d, "variant pack");
    if (status == OK)
        status = cudnn_check(cudnn, queue, library->cudnnSetStream(cudnn->handle, queue->stream),
                             "cudnnSetStream", "");
    if (status == OK)
        status = cudnn_check(cudnn, queue, library->cudnnBackendExecute(cudnn->handle, plan->plan, d),
                             "cudnnBackendExecute", "");
    (void)library->cudnnBackendDestroyDescriptor(d);
    return status;
}
