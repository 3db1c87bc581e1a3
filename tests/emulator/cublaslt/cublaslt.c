// SPDX-License-Identifier: Apache-2.0
/* cuBLASLt for the emulated GPU: column-major, d = alpha op(a) op(b) + beta c, with a bias per row of d, and
 * the GELU and bias-gradient epilogues, applied to unrounded sums. Products of 16-bit types, and TF32, are
 * added as tensor_core.h does.
 *
 * It has four algorithms, which sum over k in different orders, so that different choices give
 * different bits, and which take different times on the GPU's clock. For a 16-bit result its heuristic
 * prefers a fifth (split-K), which rounds partial sums to that type before adding them, unless the
 * preference's reduction schemes exclude it. It enforces the real library's requirements, and ends the
 * program where the real one would read out of bounds or fault: a leading dimension below the rows,
 * mismatched shapes, unsupported type combinations, pointers less aligned than the algorithm was requested
 * for, a missing workspace, an aux matrix whose leading dimension is not a multiple of 8. Epilogues other
 * than a bias are supported only for dimensions that are multiples of 8; that of GELU's gradient is slow.
 *
 * EMULATOR_CUBLASLT_ALIGNMENT=BYTES: no algorithm supports rows that are not aligned to BYTES. */
#include "tests/emulator/include/cublasLt.h"

#include "kernels/numbers/narrow.h"
#include "tests/emulator/gpu/tensor_core.h"

#include <math.h>
#include <stdlib.h>

enum { ALGORITHMS = 4, ROUNDED_SPLIT_K = ALGORITHMS, MAGIC = 0x6c746d6d, VERSION = 130100 };

struct cublasLtContext {
    int unused;
};
struct cublasLtMatmulDesc {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    void *vector; // bias or bias gradient
    void *aux;
    int64_t aux_ld;
    cudaDataType_t vector_type;
};
struct cublasLtMatrixLayout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
};
struct cublasLtMatmulPreference {
    uint64_t workspace;
    uint32_t reductions;   // permitted cublasLtReductionScheme_t
    uint32_t alignment[4]; // of a, b, c, d
};

/* The words of an algorithm. Those of vector and aux are in the lower and the upper half. */
enum { WORD_MAGIC, WORD_ORDER, WORD_WORKSPACE, WORD_A, WORD_B, WORD_C, WORD_D, WORD_POINTERS };

size_t cublasLtGetVersion(void)
{
    const char *version = getenv("EMULATOR_CUBLASLT");
    return version != NULL ? strtoul(version, NULL, 10) : VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "?";
}

static cublasStatus_t creation_status(const void *object)
{
    return object != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = calloc(1, sizeof **out);
    return creation_status(*out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    if (scale_type != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    if (*out != NULL)
        **out = (struct cublasLtMatmulDesc){.compute = compute, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return creation_status(*out);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_field(void *to, size_t room, const void *value, size_t bytes)
{
    if (bytes != room)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set_field(&d->a, sizeof d->a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set_field(&d->b, sizeof d->b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set_field(&d->epilogue, sizeof d->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set_field(&d->vector, sizeof d->vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set_field(&d->vector_type, sizeof d->vector_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set_field(&d->aux, sizeof d->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set_field(&d->aux_ld, sizeof d->aux_ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    *out = calloc(1, sizeof **out);
    if (*out != NULL)
        **out = (struct cublasLtMatrixLayout){type, (int64_t)rows, (int64_t)columns, ld};
    return creation_status(*out);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof **out);
    if (*out != NULL)
        **out = (struct cublasLtMatmulPreference){.reductions = CUBLASLT_REDUCTION_SCHEME_MASK,
                                                  .alignment = {256, 256, 256, 256}};
    return creation_status(*out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set_field(&p->workspace, sizeof p->workspace, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set_field(&p->reductions, sizeof p->reductions, value, bytes);
    int which = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (which < 0 || which >= 4)
        return CUBLAS_STATUS_INVALID_VALUE;
    return set_field(&p->alignment[which], sizeof p->alignment[which], value, bytes);
}

/* ---- consistency checks ---- */

static bool is_biased(const struct cublasLtMatmulDesc *what)
{
    return what->epilogue == CUBLASLT_EPILOGUE_BIAS || what->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool computes_gelu(const struct cublasLtMatmulDesc *what)
{
    return what->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || what->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(const struct cublasLtMatmulDesc *what)
{
    return computes_gelu(what) || what->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool has_vector(const struct cublasLtMatmulDesc *what)
{
    return is_biased(what) || what->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

/* Checks the memory that a real kernel would access. */
static void check_epilogue(const struct cublasLtMatmulDesc *what, const struct cublasLtMatrixLayout *d)
{
    CHECK(!has_vector(what) || what->vector != NULL);
    CHECK(!has_aux(what) || (what->aux != NULL && what->aux_ld % 8 == 0 && what->aux_ld >= d->rows));
}

static bool is_row_aligned(const struct cublasLtMatrixLayout *l)
{
    const char *bytes = getenv("EMULATOR_CUBLASLT_ALIGNMENT");
    return bytes == NULL || l->ld * (l->type == CUDA_R_32F ? 4 : 2) % strtol(bytes, NULL, 10) == 0;
}

/* Whether there is a kernel for these layouts and the epilogue. */
static bool is_supported(const struct cublasLtMatmulDesc *what, const struct cublasLtMatrixLayout *a,
                         const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *d)
{
    if (!is_row_aligned(a) || !is_row_aligned(b) || !is_row_aligned(d))
        return false;
    if (has_aux(what))
        return d->rows % 8 == 0 && d->type == a->type;
    return what->epilogue != CUBLASLT_EPILOGUE_BGRADB || (d->rows % 8 == 0 && d->columns % 8 == 0);
}

/* fp32 accumulation: fp32 operands give fp32; 16-bit types give their own type or fp32. TF32 requires
 * fp32. */
static bool types_fit(const struct cublasLtMatmulDesc *what, const struct cublasLtMatrixLayout *a,
                      const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *c,
                      const struct cublasLtMatrixLayout *d)
{
    bool fit = a->type == b->type && c->type == d->type && (c->type == a->type || c->type == CUDA_R_32F);
    fit = fit && (what->compute == CUBLAS_COMPUTE_32F || a->type == CUDA_R_32F);
    return fit && (!has_vector(what) || what->vector_type == d->type);
}

static bool layout_fits(const struct cublasLtMatrixLayout *l, bool transposed, int64_t rows, int64_t columns)
{
    return l->ld >= l->rows && (transposed ? l->columns : l->rows) == rows &&
           (transposed ? l->rows : l->columns) == columns;
}

static bool shapes_fit(const struct cublasLtMatmulDesc *what, const struct cublasLtMatrixLayout *a,
                       const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *c,
                       const struct cublasLtMatrixLayout *d)
{
    int64_t k = what->a == CUBLAS_OP_T ? a->rows : a->columns;
    return k > 0 && layout_fits(a, what->a == CUBLAS_OP_T, d->rows, k) &&
           layout_fits(b, what->b == CUBLAS_OP_T, k, d->columns) &&
           layout_fits(c, false, d->rows, d->columns) && d->ld >= d->rows;
}

/* ---- algorithm choice ---- */

/* The largest power of two up to 256. */
static uint64_t alignment_of(const void *data)
{
    uintptr_t bits = (uintptr_t)data | 256;
    return bits & (~bits + 1);
}

static uint64_t magic_of(const struct cublasLtMatmulDesc *what)
{
    return MAGIC | (uint64_t)what->epilogue << 32;
}

static cublasLtMatmulHeuristicResult_t candidate(const struct cublasLtMatmulDesc *what,
                                                 const struct cublasLtMatmulPreference *p, uint64_t order,
                                                 size_t workspace)
{
    uint64_t pointers = has_vector(what) ? alignment_of(what->vector) : 1;
    pointers |= (has_aux(what) ? alignment_of(what->aux) : 1) << 32;
    return (cublasLtMatmulHeuristicResult_t){
        .algo = {{magic_of(what), order, workspace, p->alignment[0], p->alignment[1], p->alignment[2],
                  p->alignment[3], pointers}},
        .workspaceSize = workspace,
        .state = CUBLAS_STATUS_SUCCESS};
}

static bool may_round_partial_sums(const struct cublasLtMatmulPreference *p,
                                   const struct cublasLtMatrixLayout *d)
{
    const uint32_t rounding = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    return d->type != CUDA_R_32F && (p->reductions & rounding) != 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    *found = 0;
    if (handle == NULL || !types_fit(what, a, b, c, d) || !shapes_fit(what, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    check_epilogue(what, d);
    if (!is_supported(what, a, b, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (*found < wanted && may_round_partial_sums(p, d))
        results[(*found)++] = candidate(what, p, ROUNDED_SPLIT_K, 0);
    for (uint64_t order = 0; order < ALGORITHMS && *found < wanted; order++)
        if (order * 1024 <= p->workspace)
            results[(*found)++] = candidate(what, p, order, order * 1024);
    return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle;
    if (algo->data[WORD_MAGIC] != magic_of(what) || algo->data[WORD_ORDER] > ROUNDED_SPLIT_K ||
        !is_supported(what, a, b, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!types_fit(what, a, b, c, d) || !shapes_fit(what, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    *result = (cublasLtMatmulHeuristicResult_t){
        .algo = *algo, .workspaceSize = algo->data[WORD_WORKSPACE], .state = CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- execution ---- */

/* Copies: the descriptors may be destroyed before the stream runs. */
struct matmul_call {
    struct cublasLtMatmulDesc what;
    struct cublasLtMatrixLayout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    uint64_t order;
};

static float load(const void *data, cudaDataType_t type, int64_t at)
{
    if (type == CUDA_R_32F)
        return ((const float *)data)[at];
    uint16_t bits = ((const uint16_t *)data)[at];
    return type == CUDA_R_16BF ? float_of_bf16(bits) : float_of_f16(bits);
}

static void store(void *data, cudaDataType_t type, int64_t at, float x)
{
    if (type == CUDA_R_32F)
        ((float *)data)[at] = x;
    else
        ((uint16_t *)data)[at] = type == CUDA_R_16BF ? bf16_of(x) : f16_of(x);
}

/* One row of op(a), or one column of op(b), as fp32; for TF32 without the bits that a tensor core ignores. */
static void gather(const struct matmul_call *p, const void *data, const struct cublasLtMatrixLayout *l,
                   bool down_a_column, int64_t index, int64_t count, float *out)
{
    for (int64_t k = 0; k < count; k++) {
        out[k] = load(data, l->type, down_a_column ? index * l->ld + k : k * l->ld + index);
        if (p->what.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
            out[k] = float_of_bits(bits_of_float(out[k]) & ~0x1fffU);
    }
}

/* Sums over k with stride 1 + order, one pass after another. */
static float add_up(const float *a, const float *b, int64_t count, uint64_t order)
{
    int64_t stride = 1 + (int64_t)order;
    float sum = 0.0F;
    for (int64_t first = 0; first < stride; first++)
        for (int64_t k = first; k < count; k += stride)
            sum = fmaf(a[k], b[k], sum);
    return sum;
}

/* The same for some rows of a, `pitch` apart, by a tensor core. */
static void add_up_steps(const float *a, int64_t pitch, int64_t rows, const float *b, int64_t count,
                         uint64_t order, float out[TENSOR_CORE_LANES])
{
    tensor_core_floats sum = {0}, product[TENSOR_CORE_STEP];
    int64_t stride = 1 + (int64_t)order, terms = 0;
    memset(product, 0, sizeof product);
    for (int64_t first = 0; first < stride; first++) {
        for (int64_t k = first; k < count; k += stride) {
            for (int64_t row = 0; row < rows; row++)
                product[terms][row] = a[row * pitch + k] * b[k];
            if (++terms < TENSOR_CORE_STEP)
                continue;
            tensor_core_add(&sum, product);
            memset(product, 0, sizeof product);
            terms = 0;
        }
    }
    tensor_core_add(&sum, product);
    memcpy(out, &sum, sizeof sum);
}

/* Split-K in four parts, each rounded to the result's type. */
static void add_up_split_k(const float *a, int64_t pitch, int64_t rows, const float *b, int64_t count,
                           cudaDataType_t type, float out[TENSOR_CORE_LANES])
{
    memset(out, 0, TENSOR_CORE_LANES * sizeof *out);
    for (int64_t part = 0; part < 4; part++) {
        int64_t begin = count * part / 4, end = count * (part + 1) / 4;
        float sum[TENSOR_CORE_LANES];
        add_up_steps(a + begin, pitch, rows, b + begin, end - begin, 0, sum);
        for (int64_t row = 0; row < rows; row++) {
            uint32_t rounded = 0; // holds any type
            store(&rounded, type, 0, sum[row]);
            store(&rounded, type, 0, out[row] + load(&rounded, type, 0));
            out[row] = load(&rounded, type, 0);
        }
    }
}

/* The products of some rows with a column. */
static void add_up_rows(const struct matmul_call *p, const float *a, int64_t rows, const float *b,
                        int64_t count, float out[TENSOR_CORE_LANES])
{
    if (p->order == ROUNDED_SPLIT_K)
        add_up_split_k(a, count, rows, b, count, p->d_layout.type, out);
    else if (p->a_layout.type != CUDA_R_32F || p->what.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        add_up_steps(a, count, rows, b, count, p->order, out);
    else
        for (int64_t row = 0; row < rows; row++)
            out[row] = add_up(a + row * count, b, count, p->order);
}

/* GELU's tanh approximation, and its derivative. */
static double gelu(double x, double *slope)
{
    const double c = 0.79788456080286535588, cube = 0.044715; // sqrt(2/pi)
    double t = tanh(c * (x + cube * x * x * x));
    *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * cube * x * x);
    return 0.5 * x * (1.0 + t);
}

/* Applies the epilogue to element (i, j), which is x so far. */
static float finish(const struct matmul_call *p, int64_t i, int64_t j, float x)
{
    const struct cublasLtMatmulDesc *what = &p->what;
    double slope;
    if (is_biased(what))
        x += load(what->vector, what->vector_type, i);
    if (computes_gelu(what)) {
        store(what->aux, p->d_layout.type, j * what->aux_ld + i, x);
        return (float)gelu((double)x, &slope);
    }
    if (what->epilogue == CUBLASLT_EPILOGUE_DGELU) {
        gelu((double)load(what->aux, p->d_layout.type, j * what->aux_ld + i), &slope);
        return (float)((double)x * slope);
    }
    return x;
}

static void run(cudaStream_t stream, void *context)
{
    const struct matmul_call *p = context;
    int64_t m = p->d_layout.rows, n = p->d_layout.columns;
    int64_t k = p->what.a == CUBLAS_OP_T ? p->a_layout.rows : p->a_layout.columns;
    float *row = malloc((size_t)(m * k) * sizeof *row), *column = malloc((size_t)k * sizeof *column);
    float *ones = malloc((size_t)k * sizeof *ones);
    CHECK(row != NULL && column != NULL && ones != NULL);
    for (int64_t i = 0; i < k; i++)
        ones[i] = 1.0F;
    for (int64_t i = 0; i < m; i++)
        gather(p, p->a, &p->a_layout, p->what.a == CUBLAS_OP_T, i, k, row + i * k);
    for (int64_t j = 0; j < n; j++) {
        gather(p, p->b, &p->b_layout, p->what.b == CUBLAS_OP_N, j, k, column);
        if (p->what.epilogue == CUBLASLT_EPILOGUE_BGRADB) // in an order of its own
            store(p->what.vector, p->what.vector_type, j, add_up(ones, column, k, p->order + 1));
        float sum[TENSOR_CORE_LANES];
        for (int64_t i = 0; i < m; i++) {
            int64_t lane = i % TENSOR_CORE_LANES,
                    rows = m - i < TENSOR_CORE_LANES ? m - i : TENSOR_CORE_LANES;
            if (lane == 0)
                add_up_rows(p, row + i * k, rows, column, k, sum);
            float x = p->alpha * sum[lane];
            if (p->beta != 0.0F) // c may be NaN if beta is 0
                x += p->beta * load(p->c, p->c_layout.type, j * p->c_layout.ld + i);
            store(p->d, p->d_layout.type, j * p->d_layout.ld + i, finish(p, i, j, x));
        }
    }
    free(row);
    free(column);
    free(ones);
    static const int64_t slowness[ALGORITHMS + 1] = {4, 3, 1, 2, 1};
    emulator_advance_clock(stream, slowness[p->order] * m * n * k);
    if (p->what.epilogue == CUBLASLT_EPILOGUE_DGELU)
        emulator_advance_clock(stream, 100 * m * n);
}

static bool is_aligned(const void *data, uint64_t alignment)
{
    return alignment == 0 || (uintptr_t)data % alignment == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    const uint64_t *word = algo->data;
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, what, a_layout, b_layout, c_layout, d_layout, algo, &result);
    if (emulator_fails("cublasLtMatmul"))
        return CUBLAS_STATUS_ALLOC_FAILED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (word[WORD_WORKSPACE] > workspace_bytes || !is_aligned(workspace, 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    check_epilogue(what, d_layout);
    // A real kernel would fault here.
    CHECK(is_aligned(a, word[WORD_A]) && is_aligned(b, word[WORD_B]) && is_aligned(c, word[WORD_C]) &&
          is_aligned(d, word[WORD_D]) &&
          (!has_vector(what) || (is_aligned(what->vector, word[WORD_POINTERS] & UINT32_MAX) &&
                                 is_aligned(what->vector, 16))) && // whatever alignment was requested
          (!has_aux(what) || is_aligned(what->aux, word[WORD_POINTERS] >> 32)));
    struct matmul_call *p = malloc(sizeof *p);
    CHECK(p != NULL);
    *p = (struct matmul_call){*what, *a_layout, *b_layout, *c_layout, *d_layout,
                              a,     b,         c,         d,         .order = word[WORD_ORDER]};
    memcpy(&p->alpha, alpha, sizeof p->alpha);
    memcpy(&p->beta, beta, sizeof p->beta);
    emulator_enqueue(stream, "cublasLtMatmul", run, p, EMULATOR_COMPARABLE(p));
    return CUBLAS_STATUS_SUCCESS;
}
