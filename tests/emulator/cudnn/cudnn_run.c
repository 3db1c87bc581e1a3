// SPDX-License-Identifier: Apache-2.0
/* Executes a graph, operation by operation: each tensor is an array of doubles, rounded to its type when
 * written; tensors in memory are accessed through their strides. Scalars by value are read at the time of the
 * call, the rest when the stream executes it. */
#include "tests/emulator/cudnn/cudnn_descriptors.h"

#include "base/status.h"
#include "kernels/numbers/narrow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 64 };

struct array {
    const struct descriptor *tensor;
    double *x;    // during execution
    void *memory; // NULL: virtual, or by value
    double value; // if passed by value
};

struct execution {
    struct descriptor *plan;
    const struct descriptor *graph;
    int64_t disturbed; // by the order of the blocks
    char *workspace;
    struct array array[MAX_TENSORS];
    int64_t arrays;
};
_Static_assert(sizeof(struct execution) == 5 * 8 + MAX_TENSORS * sizeof(struct array), "compared as bytes");

static int64_t elements(const struct descriptor *tensor)
{
    const int64_t *dim = tensor_dims(tensor);
    return dim[0] * dim[1] * dim[2] * dim[3];
}

static int type_of(const struct descriptor *tensor)
{
    return attribute_enum(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

/* The memory offset of element i. A tensor with one value per row (lse) is assumed packed before 9.26,
 * whatever its strides (NVIDIA's cudnn-frontend, pull request 304). */
static int64_t offset_of(const struct descriptor *tensor, int64_t i)
{
    const int64_t *dim = tensor_dims(tensor), *stride = attribute_of(tensor, CUDNN_ATTR_TENSOR_STRIDES)->data;
    int64_t offset = 0;
    if (dim[TENSOR_RANK - 1] == 1 && cudnnGetVersion() < 92600)
        return i;
    for (int d = TENSOR_RANK - 1; d >= 0; d--) {
        offset += i % dim[d] * stride[d];
        i /= dim[d];
    }
    return offset;
}

static enum dtype dtype_of(int type)
{
    if (type == CUDNN_DATA_BFLOAT16)
        return BF16;
    return type == CUDNN_DATA_HALF ? F16 : F32;
}

static double rounded(int type, double x)
{
    const float single = (float)x;
    float back;
    uint32_t stored = 0;
    narrow_floats(dtype_of(type), &single, &stored, 1);
    widen_floats(dtype_of(type), &stored, &back, 1);
    return (double)back;
}

static void load(struct array *a)
{
    const int64_t count = elements(a->tensor);
    const enum dtype dtype = dtype_of(type_of(a->tensor));
    for (int64_t i = 0; i < count; i++) {
        float x;
        widen_floats(dtype, (char *)a->memory + (size_t)offset_of(a->tensor, i) * dtype_bytes(dtype), &x, 1);
        a->x[i] = (double)x;
    }
}

static void store(const struct array *a)
{
    const int64_t count = elements(a->tensor);
    const enum dtype dtype = dtype_of(type_of(a->tensor));
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)a->x[i];
        narrow_floats(dtype, &x, (char *)a->memory + (size_t)offset_of(a->tensor, i) * dtype_bytes(dtype), 1);
    }
}

static struct array *find(struct execution *e, const struct descriptor *tensor)
{
    for (int i = 0; i < e->arrays; i++)
        if (e->array[i].tensor == tensor)
            return &e->array[i];
    return NULL;
}

/* Operations */

/* The index, in x, of element i of an array of `of`'s shape; x may be broadcast along columns, or shared by
 * heads. */
static int64_t broadcast_index(const struct descriptor *of, const struct descriptor *x, int64_t i)
{
    const int64_t *wide = tensor_dims(of), *dim = tensor_dims(x);
    int64_t offset = 0, step = 1;
    for (int d = TENSOR_RANK - 1; d >= 0; d--) {
        offset += i % wide[d] / (wide[d] / dim[d]) * step;
        step *= dim[d];
        i /= wide[d];
    }
    return offset;
}

static void multiply(const struct array *a, const struct array *b, struct array *c)
{
    const int64_t *da = tensor_dims(a->tensor), *db = tensor_dims(b->tensor);
    const int64_t m = da[2], inner = da[3], n = db[3], share = da[1] / db[1];
    for (int64_t head = 0; head < da[0] * da[1]; head++) {
        const double *x = a->x + head * m * inner,
                     *y = b->x + (head / da[1] * db[1] + head % da[1] / share) * inner * n;
        double *z = c->x + head * m * n;
        for (int64_t i = 0; i < m * n; i++)
            z[i] = 0.0;
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k < inner; k++)
                for (int64_t j = 0; j < n && x[i * inner + k] != 0.0; j++)
                    z[i * n + j] += x[i * inner + k] * y[k * n + j];
    }
}

static double point(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1.0 : 0.0;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0.0 ? x : b;
    case CUDNN_POINTWISE_GEN_INDEX:
    case CUDNN_POINTWISE_IDENTITY:
        break;
    }
    return x;
}

static void map(const struct descriptor *how, const struct array *x, const struct array *b,
                const struct array *t, struct array *y)
{
    const cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)attribute_enum(how, CUDNN_ATTR_POINTWISE_MODE);
    const int64_t count = elements(y->tensor), *dim = tensor_dims(y->tensor);
    for (int64_t i = 0; i < count; i++) {
        if (mode == CUDNN_POINTWISE_GEN_INDEX) {
            const int64_t axis = attribute_int64(how, CUDNN_ATTR_POINTWISE_AXIS);
            y->x[i] = (double)(axis == 3 ? i % dim[3] : i / dim[3] % dim[2]);
            continue;
        }
        const double first = x->x[broadcast_index(y->tensor, x->tensor, i)],
                     second = b != NULL ? b->x[broadcast_index(y->tensor, b->tensor, i)] : 0.0,
                     third = t != NULL ? t->x[broadcast_index(y->tensor, t->tensor, i)] : 0.0;
        y->x[i] = point(mode, first, second, third);
    }
}

static void reduce(const struct descriptor *how, const struct array *x, struct array *y)
{
    const bool adds = attribute_enum(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
    const int64_t count = elements(x->tensor), results = elements(y->tensor);
    for (int64_t i = 0; i < results; i++)
        y->x[i] = adds ? 0.0 : -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        double *to = &y->x[broadcast_index(x->tensor, y->tensor, i)];
        *to = adds ? *to + x->x[i] : fmax(*to, x->x[i]);
    }
}

static void transpose(const struct array *x, struct array *y)
{
    const int64_t *dim = tensor_dims(x->tensor), square = dim[2] * dim[3];
    for (int64_t i = 0; i < dim[0] * dim[1] * square; i++) {
        const int64_t row = i % square / dim[3], column = i % dim[3];
        y->x[i / square * square + column * dim[2] + row] = x->x[i];
    }
}

static void run_operation(struct execution *e, const struct descriptor *operation)
{
    const struct operands o = operation_operands(operation);
    struct array *x = find(e, o.x), *b = find(e, o.b), *t = find(e, o.t), *y = find(e, o.y);
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        multiply(x, b, y);
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        map(attribute_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), x, b, t, y);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        reduce(attribute_descriptor(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC), x, y);
        break;
    default:
        transpose(x, y);
    }
    const int type = type_of(y->tensor);
    const int64_t count = elements(y->tensor);
    for (int64_t i = 0; i < count; i++)
        y->x[i] = rounded(type, y->x[i]);
    if (e->disturbed && y->memory != NULL && dtype_of(type) != F32)
        y->x[0] *= 1.0 + 2.0 * 0x1p-8;
    if (y->memory != NULL)
        store(y);
}

/* Runs */

static void run(cudaStream_t stream, void *context)
{
    (void)stream;
    struct execution *e = context;
    const struct attribute *list = attribute_of(e->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    memset(e->workspace, 0xff, CUDNN_WORKSPACE);
    e->disturbed = e->plan->engine == 0 && e->plan->runs++ % 2 == 1;
    for (int i = 0; i < e->arrays; i++) {
        struct array *a = &e->array[i];
        a->x = calloc((size_t)elements(a->tensor), sizeof(double));
        CHECK(a->x != NULL);
        a->x[0] = a->value;
        if (a->memory != NULL)
            load(a);
    }
    for (int64_t i = 0; i < list->count; i++)
        run_operation(e, ((struct descriptor *const *)list->data)[i]);
    memset(e->workspace, 0xff, CUDNN_WORKSPACE);
    e->disturbed = 0;
    for (int i = 0; i < e->arrays; i++) {
        free(e->array[i].x);
        e->array[i].x = NULL;
    }
}

/* Its address in the pack; NULL: none, or two. */
static void *address_of(const struct descriptor *pack, int64_t id)
{
    const struct attribute *ids = attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                           *addresses = attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *found = NULL;
    for (int64_t i = 0; i < ids->count; i++) {
        if (((const int64_t *)ids->data)[i] != id)
            continue;
        if (found != NULL)
            return NULL;
        found = ((void *const *)addresses->data)[i];
    }
    return found;
}

static cudnnStatus_t add_tensor(struct execution *e, const struct descriptor *tensor,
                                const struct descriptor *pack, int64_t *bound)
{
    if (tensor == NULL || find(e, tensor) != NULL)
        return CUDNN_STATUS_SUCCESS;
    CHECK(e->arrays < MAX_TENSORS);
    struct array *kept = &e->array[e->arrays++];
    kept->tensor = tensor;
    if (attribute_bool(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
        return CUDNN_STATUS_SUCCESS;
    const int64_t id = attribute_int64(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    void *address = address_of(pack, id);
    ++*bound;
    if (address == NULL)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "not one address for tensor %lld", (long long)id);
    if (attribute_bool(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        kept->value = (double)*(const float *)address;
    else if ((uintptr_t)address % (uintptr_t)attribute_int64(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) != 0)
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "tensor %lld is misaligned", (long long)id);
    else
        kept->memory = address;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_execute(cudaStream_t stream, struct descriptor *plan, const struct descriptor *pack)
{
    const struct attribute *list = attribute_of(plan->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct execution *e = calloc(1, sizeof *e);
    CHECK(e != NULL);
    e->plan = plan;
    e->graph = plan->graph;
    e->workspace = *(char *const *)attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->data;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int64_t bound = 0;
    for (int64_t i = 0; i < list->count && status == CUDNN_STATUS_SUCCESS; i++) {
        const struct operands o = operation_operands(((struct descriptor *const *)list->data)[i]);
        const struct descriptor *const all[] = {o.x, o.b, o.t, o.y};
        for (int k = 0; k < 4 && status == CUDNN_STATUS_SUCCESS; k++)
            status = add_tensor(e, all[k], pack, &bound);
    }
    if (status == CUDNN_STATUS_SUCCESS &&
        bound != attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count)
        status = cudnn_reject(CUDNN_STATUS_BAD_PARAM, "addresses of tensors that are not in the graph");
    if (status == CUDNN_STATUS_SUCCESS) {
        emulator_enqueue(stream, "cudnnBackendExecute", run, e, sizeof *e);
        return status;
    }
    free(e);
    return status;
}
