// SPDX-License-Identifier: Apache-2.0
/* Validation of operations and graphs in the emulated cuDNN. */
#include "tests/emulator/cudnn/cudnn_parts.h"

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

struct operands operation_operands(const struct part *operation)
{
    int i = 0;
    while (operations[i].type != operation->type)
        i++;
    return (struct operands){part_of(operation, operations[i].x), part_of(operation, operations[i].b),
                             part_of(operation, operations[i].t), part_of(operation, operations[i].y)};
}

static cudnnStatus_t misfit(const char *what, const struct part *x, const struct part *y)
{
    const int64_t *a = tensor_dims(x), *b = tensor_dims(y);
    return cudnn_refuse(CUDNN_STATUS_BAD_PARAM, "%s: %lld %lld %lld %lld and %lld %lld %lld %lld", what,
                        (long long)a[0], (long long)a[1], (long long)a[2], (long long)a[3], (long long)b[0],
                        (long long)b[1], (long long)b[2], (long long)b[3]);
}

/* c[M, N] = a[M, K] b[K, N]; heads of a may share one of b. */
static cudnnStatus_t check_matmul(const struct operands *o)
{
    const int64_t *a = tensor_dims(o->x), *b = tensor_dims(o->b), *c = tensor_dims(o->y);
    if (a[0] != b[0] || a[1] % b[1] != 0 || a[3] != b[2])
        return misfit("a matmul's operands", o->x, o->b);
    if (c[0] != a[0] || c[1] != a[1] || c[2] != a[2] || c[3] != b[3])
        return misfit("a matmul and its first operand", o->y, o->x);
    return CUDNN_STATUS_SUCCESS;
}

static int takes(cudnnPointwiseMode_t mode)
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

static int type_of(const struct part *tensor)
{
    return part_choice(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

static cudnnStatus_t check_point(const struct part *operation, const struct operands *o)
{
    const struct part *how = part_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const int mode = part_choice(how, CUDNN_ATTR_POINTWISE_MODE);
    const struct part *const in[] = {o->x, o->b, o->t};
    for (int i = 0; i < 3; i++) {
        if ((in[i] != NULL) != (i < takes((cudnnPointwiseMode_t)mode)))
            return cudnn_refuse(CUDNN_STATUS_BAD_PARAM, "mode %d: operand %d", mode, i);
        for (int d = 0; in[i] != NULL && d < TENSOR_RANK; d++)
            if (tensor_dims(in[i])[d] != tensor_dims(o->y)[d] && tensor_dims(in[i])[d] != 1)
                return misfit("a pointwise operand and its result", in[i], o->y);
    }
    const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
    if (compares != (type_of(o->y) == CUDNN_DATA_BOOLEAN) ||
        compares != (part_choice(how, CUDNN_ATTR_POINTWISE_MATH_PREC) == CUDNN_DATA_BOOLEAN) ||
        (o->t != NULL && type_of(o->t) != CUDNN_DATA_BOOLEAN) ||
        (mode == CUDNN_POINTWISE_GEN_INDEX) != (part_value(how, CUDNN_ATTR_POINTWISE_AXIS) != NULL))
        return cudnn_refuse(CUDNN_STATUS_BAD_PARAM, "mode %d: types, or its axis", mode);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_check_operation(const struct part *operation)
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
                return misfit("a reduction and its operand", o.y, o.x);
        return CUDNN_STATUS_SUCCESS;
    default:
        if (x[0] != y[0] || x[1] != y[1] || x[2] != y[3] || x[3] != y[2])
            return misfit("a transpose and its operand", o.y, o.x);
        return CUDNN_STATUS_SUCCESS;
    }
}

/* The number of writers of `tensor` among the first `count` operations; another tensor with its id ends
 * it. */
static int writers(const struct part *const *operation, int64_t count, const struct part *tensor)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct part *y = operation_operands(operation[i]).y;
        bool same_id =
            part_integer(y, CUDNN_ATTR_TENSOR_UNIQUE_ID) == part_integer(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
        found += y == tensor ? 1 : same_id ? 100 : 0;
    }
    return found;
}

cudnnStatus_t cudnn_check_graph(const struct part *graph)
{
    const struct value *list = part_value(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const struct part *const *operation = list->data;
    for (int64_t i = 0; i < list->count; i++) {
        const struct operands o = operation_operands(operation[i]);
        const struct part *const in[] = {o.x, o.b, o.t};
        if (writers(operation, list->count, o.y) != 1)
            return cudnn_refuse(CUDNN_STATUS_BAD_PARAM, "operation %lld: its result has two writers",
                                (long long)i);
        for (int k = 0; k < 3; k++) {
            const int written = in[k] != NULL ? writers(operation, i, in[k]) : 1;
            if (written != 1 && (written != 0 || part_truth(in[k], CUDNN_ATTR_TENSOR_IS_VIRTUAL)))
                return cudnn_refuse(CUDNN_STATUS_BAD_PARAM, "operation %lld: tensor %lld has no writer",
                                    (long long)i,
                                    (long long)part_integer(in[k], CUDNN_ATTR_TENSOR_UNIQUE_ID));
        }
    }
    return CUDNN_STATUS_SUCCESS;
}
