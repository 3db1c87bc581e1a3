// SPDX-License-Identifier: Apache-2.0
/* cpu_gemm() compared with the BLAS library alone, for every matrix multiplication of GPT-2 124M:
 *
 *     bench_gemm [TOKENS [THREADS [REPETITIONS]]]
 *
 * Candidates alternate, and the best of all rounds counts, so that a busy machine affects them equally.
 * Caution: after "alone" OpenMP's threads spin for some 10 ms waiting for work, and take a core from the next
 * measurement. So each measurement is preceded by a pause, and by a call that only wakes its own threads.
 * "wall" is GFLOP/s by the clock; "cpu" is GFLOP/s per second of processor time, which is less sensitive to
 * other programs but does not include idle threads. */
#include "base/text.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/blas.h"

#include <stdlib.h>
#include <time.h>

enum { FORMS = 3, CANDIDATES = 3, PAUSE_NS = 50 * 1000 * 1000 };

static const struct {
    const char *name;
    int64_t out, in; // of the weight [out, in]
} layers[] = {
    {"qkv", 2304, 768}, {"proj", 768, 768}, {"fc1", 3072, 768}, {"fc2", 768, 3072}, {"head", 50257, 768},
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(int64_t count)
{
    float *x = aligned_alloc(64, (size_t)(count + 15) / 16 * 64);
    CHECK(x != NULL);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(i % 13 - 6) * 0.1F;
    return x;
}

/* y[T, out] = x w^T;  dx[T, in] = dy w;  dw[out, in] += dy^T x. */
static struct gemm gemm_of(int form, int64_t tokens, int64_t out, int64_t in)
{
    int64_t m = form == 2 ? out : tokens, n = form == 0 ? out : in;
    int64_t k = form == 0 ? in : form == 1 ? out : tokens;
    struct gemm g = {.transpose_a = form == 2, .transpose_b = form == 0, .accumulate = form == 2};
    g.a = form == 2 ? tensor_2d(numbers(m * k), F32, k, m) : tensor_2d(numbers(m * k), F32, m, k);
    g.b = form == 0 ? tensor_2d(numbers(n * k), F32, n, k) : tensor_2d(numbers(n * k), F32, k, n);
    g.c = tensor_2d(numbers(m * n), F32, m, n);
    return g;
}

static void blas_alone(const struct gemm *g, int threads)
{
    const struct blas_panel whole = {.transpose_a = g->transpose_a,
                                     .transpose_b = g->transpose_b,
                                     .accumulate = g->accumulate,
                                     .m = g->c.dim[0],
                                     .n = g->c.dim[1],
                                     .k = g->a.dim[g->transpose_a ? 0 : 1],
                                     .a = g->a.data,
                                     .b = g->b.data,
                                     .c = g->c.data,
                                     .lda = g->a.stride[0],
                                     .ldb = g->b.stride[0],
                                     .ldc = g->c.stride[0]};
    blas_sgemm(&whole, threads);
}

static void run_candidate(int candidate, struct device *device, const struct gemm *g)
{
    if (candidate == 0)
        blas_alone(g, 1);
    else if (candidate == 1)
        blas_alone(g, device->threads);
    else
        cpu_gemm(device, g);
}

static void bench(struct device *device, const char *name, int form, struct gemm g, int repetitions)
{
    static const char *const forms[FORMS] = {"forward", "dx", "dw"};
    double wall[CANDIDATES], cpu[CANDIDATES];
    for (int c = 0; c < CANDIDATES; c++)
        wall[c] = cpu[c] = 1e30;
    for (int r = 0; r < repetitions * CANDIDATES; r++) {
        int c = r % CANDIDATES;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        run_candidate(c, device, &g);
        double wall_begin = seconds(CLOCK_MONOTONIC), cpu_begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
        run_candidate(c, device, &g);
        double cpu_s = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin;
        double wall_s = seconds(CLOCK_MONOTONIC) - wall_begin;
        wall[c] = wall_s < wall[c] ? wall_s : wall[c];
        cpu[c] = cpu_s < cpu[c] ? cpu_s : cpu[c];
    }
    int64_t k = g.a.dim[g.transpose_a ? 0 : 1];
    double gflop = 2e-9 * (double)g.c.dim[0] * (double)g.c.dim[1] * (double)k;
    printf("%-5s %-8s %6lldx%5lldx%5lld | %8.0f %8.0f %8.0f %5.1f %% | %8.0f %8.0f %8.0f\n", name,
           forms[form], (long long)g.c.dim[0], (long long)g.c.dim[1], (long long)k, gflop / wall[0],
           gflop / wall[1], gflop / wall[2], 100.0 * wall[1] / wall[2], gflop / cpu[0], gflop / cpu[1],
           gflop / cpu[2]);
    fflush(stdout);
    free(g.a.data);
    free(g.b.data);
    free(g.c.data);
}

static bool take_argument(int count, char **arguments, int index, int64_t *out)
{
    if (index >= count)
        return true;
    if (integer_parse(arguments[index], out) && *out >= 1 && *out <= 1 << 20)
        return true;
    fprintf(stderr, "bench_gemm: \"%s\" is not a count\n", arguments[index]);
    return false;
}

int main(int count, char **arguments)
{
    int64_t tokens = 1024, threads = 2, repetitions = 20;
    if (!take_argument(count, arguments, 1, &tokens) || !take_argument(count, arguments, 2, &threads) ||
        !take_argument(count, arguments, 3, &repetitions))
        return 2;
    struct device *device;
    MUST(device_open(&(struct device_options){.name = "cpu", .threads = (int)threads}, &device));
    const char *warning = cpu_blas_warning();
    if (warning != NULL)
        printf("%s\n", warning);
    printf("%s, %d threads, GFLOP/s           |  wall: 1    alone    Cuboid          | cpu: 1    alone   "
           "Cuboid\n",
           cpu_blas_name(), (int)threads);
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        int rounds = (int)(layers[l].out > 10000 ? (repetitions + 4) / 5 : repetitions);
        for (int form = 0; form < FORMS; form++)
            bench(device, layers[l].name, form, gemm_of(form, tokens, layers[l].out, layers[l].in), rounds);
    }
    device_close(device);
    return 0;
}
