// SPDX-License-Identifier: Apache-2.0
/* cuDNN's backend API for the emulated GPU.
 *
 * As in the real one: descriptors are set, finalized, and then immutable; using a descriptor that is not
 * finalized, an unknown attribute, or a wrong type or count is rejected; a heuristic returns engines, one of
 * which has nondeterministic sums and reports it; a plan runs on the handle's stream. Unlike it: every graph
 * of these operations is supported, and is computed operation by operation (cudnn_run.c), in double
 * precision, with S x S matrices, rounded to each tensor's type: so a graph is checked for its meaning, not
 * matched as a pattern. */
#include "tests/emulator/cudnn/cudnn_descriptors.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char said[256];

cudnnStatus_t cudnn_reject(cudnnStatus_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    return status;
}

#define DESCRIPTOR CUDNN_TYPE_BACKEND_DESCRIPTOR

/* Every attribute: its descriptor, type, number of values, and whether it is required. */
static const struct rule {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool required;
    cudnnBackendDescriptorType_t descriptor; // type of a DESCRIPTOR attribute
} rules[] = {
#define ROW(of, name, ...)                                              \
    {                                                                   \
        CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##name, __VA_ARGS__ \
    }
#define ONE(of, name, type)        ROW(of, name, CUDNN_TYPE_##type, 1, 1, true, 0)
#define OPTIONAL(of, name, type)   ROW(of, name, CUDNN_TYPE_##type, 1, 1, false, 0)
#define MANY(of, name, type, n, m) ROW(of, name, CUDNN_TYPE_##type, n, m, true, 0)
#define LINK(of, name, what)       ROW(of, name, DESCRIPTOR, 1, 1, true, CUDNN_BACKEND_##what##_DESCRIPTOR)
#define OPTIONAL_LINK(of, name, what) \
    ROW(of, name, DESCRIPTOR, 1, 1, false, CUDNN_BACKEND_##what##_DESCRIPTOR)
    ONE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE),
    MANY(TENSOR, TENSOR_DIMENSIONS, INT64, TENSOR_RANK, TENSOR_RANK),
    MANY(TENSOR, TENSOR_STRIDES, INT64, TENSOR_RANK, TENSOR_RANK),
    ONE(TENSOR, TENSOR_UNIQUE_ID, INT64),
    ONE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64),
    OPTIONAL(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN),
    OPTIONAL(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN),
    ONE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE),
    ONE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE),
    ONE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE),
    OPTIONAL(POINTWISE, POINTWISE_AXIS, INT64),
    ONE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE),
    ONE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE),
    LINK(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, TENSOR),
    LINK(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, TENSOR),
    LINK(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, TENSOR),
    LINK(OPERATION_MATMUL, OPERATION_MATMUL_DESC, MATMUL),
    LINK(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, POINTWISE),
    LINK(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, TENSOR),
    OPTIONAL_LINK(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, TENSOR),
    OPTIONAL_LINK(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, TENSOR),
    LINK(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, TENSOR),
    LINK(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, REDUCTION),
    LINK(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, TENSOR),
    LINK(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, TENSOR),
    LINK(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, TENSOR),
    LINK(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, TENSOR),
    MANY(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, 1, 64),
    ONE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE),
    LINK(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, OPERATIONGRAPH),
    ONE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE),
    LINK(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, ENGINECFG),
    MANY(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, 1, 64),
    MANY(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, 1, 64),
    ONE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR),
};
enum { RULES = sizeof rules / sizeof *rules };

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    if (type == CUDNN_TYPE_BOOLEAN)
        return sizeof(bool);
    const bool is_wide = type == CUDNN_TYPE_INT64 || type == DESCRIPTOR || type == CUDNN_TYPE_VOID_PTR ||
                         type == CUDNN_TYPE_HANDLE;
    return is_wide ? sizeof(int64_t) : sizeof(int);
}

/* Reading */

const struct attribute *attribute_of(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->attributes; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}

struct descriptor *attribute_descriptor(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = attribute_of(d, name);
    return a != NULL ? *(struct descriptor **)a->data : NULL;
}

int64_t attribute_int64(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    return *(const int64_t *)attribute_of(d, name)->data;
}

int attribute_enum(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    return *(const int *)attribute_of(d, name)->data;
}

bool attribute_bool(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = attribute_of(d, name);
    return a != NULL && *(const bool *)a->data;
}

const int64_t *tensor_dims(const struct descriptor *tensor)
{
    return attribute_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS)->data;
}

/* The library */

static cudnnStatus_t result_of(const char *call)
{
    said[0] = '\0';
    return emulator_fails(call) ? cudnn_reject(CUDNN_STATUS_INTERNAL_ERROR, "injected by EMULATOR_FAIL")
                                : CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void)
{
    const char *version = getenv("EMULATOR_CUDNN");
    return version != NULL ? strtoul(version, NULL, 10) : 91501;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED:
        return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
        return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    }
    return "?";
}

void cudnnGetLastErrorString(char *message, size_t bytes)
{
    snprintf(message, bytes, "%s", said);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = calloc(1, sizeof **handle);
    CHECK(*handle != NULL);
    cudnnStatus_t status = result_of("cudnnCreate");
    if (status != CUDNN_STATUS_SUCCESS) {
        free(*handle);
        *handle = NULL;
    }
    return status;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return result_of("cudnnSetStream");
}

/* Descriptors */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct descriptor *d = calloc(1, sizeof *d);
    CHECK(d != NULL);
    d->type = type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;
    for (int i = 0; i < d->attributes; i++)
        free(d->attribute[i].data);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static bool is_operation(cudnnBackendDescriptorType_t type)
{
    return type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
           type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
           type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
           type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

static cudnnStatus_t check_descriptors(const struct rule *rule, int64_t count, const void *values)
{
    for (int64_t i = 0; i < count; i++) {
        const struct descriptor *d = ((struct descriptor *const *)values)[i];
        const bool right =
            rule->name == CUDNN_ATTR_OPERATIONGRAPH_OPS ? is_operation(d->type) : d->type == rule->descriptor;
        if (!right)
            return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "attribute %d does not accept descriptor %d",
                                (int)rule->name, (int)d->type);
        if (!d->finalized)
            return cudnn_reject(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "descriptor %d in attribute %d",
                                (int)d->type, (int)rule->name);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct descriptor *d = descriptor;
    const struct rule *rule = NULL;
    cudnnStatus_t status = result_of("cudnnBackendSetAttribute");
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < RULES && rule == NULL; i++)
        rule = rules[i].of == d->type && rules[i].name == name ? &rules[i] : NULL;
    if (rule == NULL || d->finalized || attribute_of(d, name) != NULL)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "descriptor %d has no attribute %d, or it is fixed",
                            (int)d->type, (int)name);
    if (type != rule->type || count < rule->least || count > rule->most || values == NULL)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "attribute %d is not %lld of type %d", (int)name,
                            (long long)count, (int)type);
    if (type == DESCRIPTOR && (status = check_descriptors(rule, count, values)) != CUDNN_STATUS_SUCCESS)
        return status;
    CHECK(d->attributes < MAX_ATTRIBUTES);
    void *copy = malloc((size_t)count * bytes_of(type));
    CHECK(copy != NULL);
    memcpy(copy, values, (size_t)count * bytes_of(type));
    d->attribute[d->attributes++] = (struct attribute){name, count, copy};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_tensor(const struct descriptor *t)
{
    const int64_t *dim = tensor_dims(t), *stride = attribute_of(t, CUDNN_ATTR_TENSOR_STRIDES)->data;
    for (int i = 0; i < TENSOR_RANK; i++)
        if (dim[i] < 1 || stride[i] < 1)
            return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "dimension %d: %lld, stride %lld", i,
                                (long long)dim[i], (long long)stride[i]);
    if (attribute_bool(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && attribute_bool(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "virtual and by value");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_pack(const struct descriptor *pack)
{
    if (attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count !=
        attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "not an address for each id");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_descriptor(struct descriptor *d)
{
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        return check_tensor(d);
    if (is_operation(d->type))
        return cudnn_check_operation(d);
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        return cudnn_check_graph(d);
    if (d->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return check_pack(d);
    if (d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        d->graph = attribute_descriptor(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct descriptor *config = attribute_descriptor(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        d->graph = config->graph;
        d->engine = config->engine;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;
    cudnnStatus_t status = result_of("cudnnBackendFinalize");
    for (int i = 0; i < RULES && status == CUDNN_STATUS_SUCCESS; i++)
        if (rules[i].of == d->type && rules[i].required && attribute_of(d, rules[i].name) == NULL)
            status = cudnn_reject(CUDNN_STATUS_BAD_PARAM, "attribute %d is not set", (int)rules[i].name);
    if (status == CUDNN_STATUS_SUCCESS)
        status = check_descriptor(d);
    d->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* ---- Queries ---- */

/* Two engines, the faster first. */
static int64_t list_engines(const struct descriptor *heuristic, int64_t room, struct descriptor **configs)
{
    const int64_t count = emulator_fails("engines") ? 0 : 2;
    for (int64_t i = 0; i < count && i < room; i++) {
        configs[i]->graph = heuristic->graph;
        configs[i]->engine = (int)i;
        configs[i]->finalized = true;
    }
    return count;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count,
                                       void *values)
{
    struct descriptor *d = descriptor;
    (void)type;
    *count = 1;
    if (!d->finalized)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "descriptor %d", (int)d->type);
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        *count = list_engines(d, room, values);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE && d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
        struct descriptor *engine = *(struct descriptor **)values;
        *engine = (struct descriptor){
            .type = engine->type, .finalized = true, .graph = d->graph, .engine = d->engine};
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
        *count = d->engine == 0 ? 1 : 0;
        *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE &&
               d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        *(int64_t *)values = CUDNN_WORKSPACE;
    } else {
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "descriptor %d has no attribute %d", (int)d->type,
                            (int)name);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    struct descriptor *p = plan;
    const struct descriptor *v = pack;
    cudnnStatus_t status = result_of("cudnnBackendExecute");
    if (emulator_fails("cudnn memory"))
        status = cudnn_reject(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for code");
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (!p->finalized || p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !v->finalized ||
        v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || handle->stream == NULL)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "not a plan and its pack on a stream");
    return cudnn_execute(handle->stream, p, v);
}
