// SPDX-License-Identifier: Apache-2.0
/* cuTensorMapEncodeTiled for the emulated GPU: rejects arguments that the documentation of the driver API
 * forbids. */
#include "base/status.h"
#include "tests/emulator/include/cuda.h"
#include "tests/emulator/include/cuda_runtime_api.h"

#include <string.h>

enum { MAX_BOX = 256, MAX_STEP = 8, SWIZZLE_BYTES = 128 };

static const char *wrong_dimension(const struct emulated_map *m, uint32_t i, const cuuint32_t *step)
{
    if (m->dim[i] == 0 || m->dim[i] > (uint64_t)1 << 32)
        return "a dimension is 0 or above 2^32";
    if (m->box[i] == 0 || m->box[i] > MAX_BOX)
        return "a side of the box is 0 or above 256";
    if (step[i] == 0 || step[i] > MAX_STEP)
        return "a step is 0 or above 8";
    if (step[i] != 1)
        return "the emulator supports only steps of 1";
    if (i == 0)
        return NULL;
    const uint64_t stride = m->stride[i - 1], before = i > 1 ? m->stride[i - 2] : m->number_bytes;
    if (stride % 16 != 0 || stride >= (uint64_t)1 << 40)
        return "a stride is not a multiple of 16 bytes below 2^40";
    if (stride % before != 0 || (i == 1 && stride < m->dim[0] * m->number_bytes))
        return "a stride is not a multiple of the one before it";
    return NULL;
}

static const char *wrong(const CUtensorMap *map, const struct emulated_map *m, const cuuint32_t *step)
{
    if ((uintptr_t)map % 64 != 0)
        return "the map is not aligned to 64 bytes";
    if (m->rank == 0 || m->rank > EMULATED_RANK)
        return "the rank is 0 or above 5";
    if ((uintptr_t)m->data % 16 != 0)
        return "the data are not aligned to 16 bytes";
    for (uint32_t i = 0; i < m->rank; i++)
        if (wrong_dimension(m, i, step) != NULL)
            return wrong_dimension(m, i, step);
    const uint32_t row_bytes = m->box[0] * m->number_bytes;
    return row_bytes % 16 != 0 || row_bytes > SWIZZLE_BYTES
               ? "a row of the box is not a multiple of 16 bytes, or longer than the swizzle"
               : NULL;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box,
                                const cuuint32_t *step, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill)
{
    struct emulated_map m = {.magic = EMULATED_MAP,
                             .rank = rank,
                             .number_bytes = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2,
                             .data = data};
    _Static_assert(sizeof m <= sizeof *map, "the emulated map must fit into a CUtensorMap");
    CHECK(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
          promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    for (uint32_t i = 0; i < rank && i < EMULATED_RANK; i++) {
        m.dim[i] = dim[i];
        m.box[i] = box[i];
        if (i > 0)
            m.stride[i - 1] = stride[i - 1];
    }
    if (wrong(map, &m, step) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *answer)
{
    CUresult (*const encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                             const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                             CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                             CUtensorMapFloatOOBfill) = cuTensorMapEncodeTiled;
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0 && version >= 12000 && flags == 0 &&
                       !emulator_fails("cudaGetDriverEntryPointByVersion");
    *out = NULL;
    if (known)
        memcpy(out, &encode, sizeof encode);
    *answer = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
