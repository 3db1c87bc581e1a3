// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_core/tensor_map.h"

#include "kernels/cuda/runtime/message.h"

#include <string.h>

enum { SINCE_CUDA = 12000, RANK = 4, BOX_COLUMNS = 64, ELEMENT_BYTES = 2 };

typedef CUresult (*encoder)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                            const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box,
                            const cuuint32_t *step, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill);

/* The driver's function as CUDA 12.0 defined it. The runtime can name that version since CUDA 12.5; before,
 * it returns the function of its own version, which is the same: there is none newer. */
static cudaError_t find_function(const char *name, void **out, enum cudaDriverEntryPointQueryResult *answer)
{
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, out, SINCE_CUDA, cudaEnableDefault, answer);
#else
    return cudaGetDriverEntryPoint(name, out, cudaEnableDefault, answer);
#endif
}

enum status tensor_map_open(const struct cuda_gpu *gpu, cuda_tensor_encoder *out)
{
    static const char name[] = "cuTensorMapEncodeTiled";
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
    cuda_tensor_encoder encode = NULL;
    if (gpu->major == 9 && gpu->minor == 0) {
        TRY(cuda_check(NULL, find_function(name, &found, &answer), "cudaGetDriverEntryPoint"));
        if (answer != cudaDriverEntryPointSuccess || found == NULL)
            return fail(NOT_SUPPORTED, "cluster.device cuda: the driver lacks %s, which CUDA %d.%d added",
                        name, SINCE_CUDA / 1000, SINCE_CUDA % 1000 / 10);
        memcpy(&encode, &found, sizeof encode);
    }
    *out = encode;
    return OK;
}

bool tensor_map_suits(const struct tensor *t, int64_t head_dim)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % head_dim == 0 && head_dim % BOX_COLUMNS == 0;
}

enum status tensor_map_of(const struct cuda_queue *queue, const struct tensor *t, int64_t batch,
                          int64_t head_dim, int rows, CUtensorMap *out)
{
    const int64_t sequence = t->dim[0] / batch;
    const cuuint64_t dim[RANK] = {(cuuint64_t)head_dim, (cuuint64_t)(t->dim[1] / head_dim),
                                  (cuuint64_t)sequence, (cuuint64_t)batch};
    const cuuint64_t row_bytes = (cuuint64_t)t->stride[0] * ELEMENT_BYTES;
    const cuuint64_t stride[RANK - 1] = {(cuuint64_t)head_dim * ELEMENT_BYTES, row_bytes,
                                         (cuuint64_t)sequence * row_bytes};
    const cuuint32_t box[RANK] = {BOX_COLUMNS, 1, (cuuint32_t)rows, 1}, step[RANK] = {1, 1, 1, 1};
    const CUtensorMapDataType type =
        t->dtype == BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const CUresult result = ((encoder)queue->encode)(
        out, type, RANK, t->data, dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(NOT_SUPPORTED,
                    "cuTensorMapEncodeTiled gives error %d for [%lld, %lld, %lld, %lld], row %lld",
                    (int)result, (long long)batch, (long long)sequence, (long long)dim[1],
                    (long long)head_dim, (long long)t->stride[0]);
    return OK;
}
