// SPDX-License-Identifier: Apache-2.0
/* Validation of operations and graphs in the emulated cuDNN. */
#include "tests/emulator/cudnn/cudnn_descriptors.h"

static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, b, t, y;
} operations[] = {
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
};

struct operands operation_operands(const struct descriptor *operation)
{
    int i = 0;
    while (operations[i].type != operation->type)
        i++;
    return (struct operands){
        attribute_descriptor(operation, operations[i].x), attribute_descriptor(operation, operations[i].b),
        attribute_descriptor(operation, operations[i].t), attribute_descriptor(operation, operations[i].y)};
}

static cudnnStatus_t mismatch(const char *what, const struct descriptor *x, const struct descriptor *y)
{
    const int64_t *a = tensor_dims(x), *b = tensor_dims(y);
    return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "%s: %lld %lld %lld %lld and %lld %lld %lld %lld", what,
                        (long long)a[0], (long long)a[1], (long long)a[2], (long long)a[3], (long long)b[0],
                        (long long)b[1], (long long)b[2], (long long)b[3]);
}

/* c[M, N] = a[M, K] b[K, N]; heads of a may share one of b. */
static cudnnStatus_t check_matmul(const struct operands *o)
{
    const int64_t *a = tensor_dims(o->x), *b = tensor_dims(o->b), *c = tensor_dims(o->y);
    if (a[0] != b[0] || a[1] % b[1] != 0 || a[3] != b[2])
        return mismatch("a matmul's operands", o->x, o->b);
    if (c[0] != a[0] || c[1] != a[1] || c[2] != a[2] || c[3] != b[3])
        return mismatch("a matmul and its first operand", o->y, o->x);
    return CUDNN_STATUS_SUCCESS;
}

static int operand_count(cudnnPointwiseMode_t mode)
{
    switch (mode) {
    case CUDNN_POINTWISE_BINARY_SELECT:
        return 3;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
        return 2;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX:
        break;
    }
    return 1;
}

static int type_of(const struct descriptor *tensor)
{
    return attribute_enum(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

static cudnnStatus_t check_point(const struct descriptor *operation, const struct operands *o)
{
    const struct descriptor *how =
        attribute_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const int mode = attribute_enum(how, CUDNN_ATTR_POINTWISE_MODE);
    const struct descriptor *const in[] = {o->x, o->b, o->t};
    for (int i = 0; i < 3; i++) {
        if ((in[i] != NULL) != (i < operand_count((cudnnPointwiseMode_t)mode)))
            return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "mode %d: operand %d", mode, i);
        for (int d = 0; in[i] != NULL && d < TENSOR_RANK; d++)
            if (tensor_dims(in[i])[d] != tensor_dims(o->y)[d] && tensor_dims(in[i])[d] != 1)
                return mismatch("a pointwise operand and its result", in[i], o->y);
    }
    const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
    if (compares != (type_of(o->y) == CUDNN_DATA_BOOLEAN) ||
        compares != (attribute_enum(how, CUDNN_ATTR_POINTWISE_MATH_PREC) == CUDNN_DATA_BOOLEAN) ||
        (o->t != NULL && type_of(o->t) != CUDNN_DATA_BOOLEAN) ||
        (mode == CUDNN_POINTWISE_GEN_INDEX) != (attribute_of(how, CUDNN_ATTR_POINTWISE_AXIS) != NULL))
        return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "mode %d: types, or its axis", mode);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_check_operation(const struct descriptor *operation)
{
    const struct operands o = operation_operands(operation);
    const int64_t *x = tensor_dims(o.x), *y = tensor_dims(o.y);
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return check_matmul(&o);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return check_point(operation, &o);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        for (int d = 0; d < TENSOR_RANK; d++)
            if (x[d] % y[d] != 0)
                return mismatch("a reduction and its operand", o.y, o.x);
        return CUDNN_STATUS_SUCCESS;
    default:
        if (x[0] != y[0] || x[1] != y[1] || x[2] != y[3] || x[3] != y[2])
            return mismatch("a transpose and its operand", o.y, o.x);
        return CUDNN_STATUS_SUCCESS;
    }
}

/* The number of writers of `tensor` among the first `count` operations; another tensor with its id ends
 * it. */
static int writers(const struct descriptor *const *operation, int64_t count, const struct descriptor *tensor)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct descriptor *y = operation_operands(operation[i]).y;
        bool same_id = attribute_int64(y, CUDNN_ATTR_TENSOR_UNIQUE_ID) ==
                       attribute_int64(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
        found += y == tensor ? 1 : same_id ? 100 : 0;
    }
    return found;
}

cudnnStatus_t cudnn_check_graph(const struct descriptor *graph)
{
    const struct attribute *list = attribute_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const struct descriptor *const *operation = list->data;
    for (int64_t i = 0; i < list->count; i++) {
        const struct operands o = operation_operands(operation[i]);
        const struct descriptor *const in[] = {o.x, o.b, o.t};
        if (writers(operation, list->count, o.y) != 1)
            return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "operation %lld: its result has two writers",
                                (long long)i);
        for (int k = 0; k < 3; k++) {
            const int written = in[k] != NULL ? writers(operation, i, in[k]) : 1;
            if (written != 1 && (written != 0 || attribute_bool(in[k], CUDNN_ATTR_TENSOR_IS_VIRTUAL)))
                return cudnn_reject(CUDNN_STATUS_BAD_PARAM, "operation %lld: tensor %lld has no writer",
                                    (long long)i,
                                    (long long)attribute_int64(in[k], CUDNN_ATTR_TENSOR_UNIQUE_ID));
        }
    }
    return CUDNN_STATUS_SUCCESS;
}
