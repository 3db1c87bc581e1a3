// SPDX-License-Identifier: Apache-2.0
/* Attention graphs on the real cuDNN, for GPUs that are not present: it selects an engine, compiles its
 * kernel and reports the workspace. (The results of a graph are tested on the emulated cuDNN; order and
 * speed, on a GPU.) Skipped without cuDNN. */
#include "kernels/cuda/attention/attention_cudnn.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* GPU properties in cuDNN's format. */
#define GPU(name, version, processors, memory, shared)                                                \
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"cudaDeviceId\":0,"   \
    "\"deviceVer\":" version ",\"regsPerBlock\":65536,\"multiProcessorCount\":" processors            \
    ",\"warpSize\":32,"                                                                               \
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":" shared ","                  \
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"          \
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"       \
    "\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":" \
    "41943040,"                                                                                       \
    "\"deviceName\":\"" name "\",\"totalGlobalMem\":" memory ",\"driverVer\":13000}"
#define H200 GPU("NVIDIA H200", "900", "132", "150000000000", "232448")
#define A100 GPU("NVIDIA A100", "800", "108", "80000000000", "166912")

struct sizes {
    int64_t batch, sequence, heads, groups, head_dim;
    enum dtype dtype;
    bool backward;
};

/* q, k and v, and their gradients, are columns of one matrix, as in the model. */
static struct cudnn_shape shape_of(struct sizes c)
{
    const int64_t out = c.heads * c.head_dim, qkv = out + 2 * c.groups * c.head_dim;
    struct cudnn_shape s = {.batch = c.batch,
                            .sequence = c.sequence,
                            .heads = c.heads,
                            .groups = c.groups,
                            .head_dim = c.head_dim,
                            .row = {[CUDNN_Q] = qkv, [CUDNN_K] = qkv, [CUDNN_V] = qkv, [CUDNN_OUT] = out},
                            .dtype = (int32_t)c.dtype,
                            .backward = c.backward};
    if (c.backward) {
        s.row[CUDNN_DOUT] = out;
        s.row[CUDNN_DQ] = s.row[CUDNN_DK] = s.row[CUDNN_DV] = qkv;
    }
    return s;
}

static void plan(const char *gpu, bool deterministic, const struct sizes *cases, int count, int64_t most)
{
    struct cudnn *cudnn;
    struct cudnn_library library;
    if (cudnn_library_open(&library) != OK) {
        fprintf(stderr, "not tested: %s\n", fail_text());
        return;
    }
    cr_assert_eq(cudnn_open(deterministic, gpu, &cudnn), OK, "%s", fail_text());
    for (int i = 0; i < count; i++) {
        const struct cudnn_shape shape = shape_of(cases[i]);
        const struct cudnn_plan *made, *again;
        cr_assert_eq(cudnn_plan_of(cudnn, NULL, &shape, &made), OK, "case %d: %s", i, fail_text());
        cr_expect_leq(made->workspace_bytes, most, "case %d: %lld bytes", i,
                      (long long)made->workspace_bytes);
        cr_expect_eq(cudnn_plan_of(cudnn, NULL, &shape, &again), OK);
        cr_expect_eq(made, again);
    }
    cudnn_close(cudnn);
    cudnn_library_close(&library);
}

/* No S x S tensor: for Llama's 2 x 32 heads it would be 2 GiB. */
Test(attention_cudnn, h200_has_engines)
{
    const struct sizes cases[] = {{2, 4096, 32, 8, 128, BF16, false}, {2, 4096, 32, 8, 128, BF16, true}};
    plan(H200, false, cases, 2, 1 << 28);
}

/* Deterministic sums of dq need an S x S matrix. */
Test(attention_cudnn, h200_has_a_deterministic_engine)
{
    const struct sizes cases[] = {{4, 1024, 12, 12, 64, BF16, true}};
    plan(H200, true, cases, 1, (4 * 12 * 1024 * 1024 + 1024) * 2);
}

Test(attention_cudnn, a100_has_engines_for_unaligned_lengths)
{
    const struct sizes cases[] = {{3, 77, 4, 2, 64, F16, false}, {3, 77, 4, 2, 64, F16, true}};
    plan(A100, false, cases, 2, 1 << 22);
}

/* A missing engine is reported with cuDNN's message. */
Test(attention_cudnn, rejection_gives_the_reason)
{
    struct cudnn *cudnn;
    const struct cudnn_plan *made;
    struct cudnn_shape shape = shape_of((struct sizes){1, 64, 2, 2, 64, BF16, false});
    if (cudnn_open(false, H200, &cudnn) != OK)
        return;
    shape.head_dim = 60; // not a multiple of 8
    cr_expect_eq(cudnn_plan_of(cudnn, NULL, &shape, &made), NOT_SUPPORTED);
    cr_expect_neq(strstr(fail_text(), "cuda: cudnnBackendFinalize (no engine; use model.attention_backend "
                                      "own): CUDNN_STATUS_NOT_SUPPORTED: "),
                  NULL, "%s", fail_text());
    cudnn_close(cudnn);
}
