// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/blas.h"

#include <dnnl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

/* oneDNN uses libgomp, whose thread count is per calling thread. Declared here because omp.h belongs to a
 * compiler's OpenMP package, which may not be installed. */
void omp_set_num_threads(int threads);

/* oneDNN generates machine code at run time, into mmap()ed buffers of 320 KiB (17 MiB in all for fp32: 2.6.3
 * with AVX-512). It does not check mmap() for failure, and writes to address 0. Under an address-space limit,
 * that fault is reported as out of memory. Checking for free space beforehand is not sufficient: other
 * threads allocate concurrently, 64 MiB at once for a malloc() arena. */
enum { CODE_BYTES = 1 << 20 };             // a fault below this address is a write to a failed mmap()
static _Thread_local volatile bool inside; // this thread is in oneDNN
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction before; // handler for all other faults

static void report_fault(int number, siginfo_t *info, void *context)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)context;
    if (inside && (uintptr_t)info->si_addr < CODE_BYTES && getrlimit(RLIMIT_AS, &limit) == 0)
        die_of(
            NO_MEMORY,
            "out of memory: the address space is limited to %llu KiB (ulimit -v), and oneDNN has no buffer "
            "to generate its code; raise the limit, or use a smaller model or fewer ranks per machine",
            (unsigned long long)(limit.rlim_cur >> 10));
    (void)sigaction(number, &before, NULL); // returning repeats the instruction, with the previous handler
}

static void open_once(void)
{
    struct rlimit limit;
    struct sigaction action = {.sa_sigaction = report_fault, .sa_flags = SA_SIGINFO};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        (void)sigaction(SIGSEGV, &action, &before);
}

void blas_open(void)
{
    pthread_once(&once, open_once);
}

/* Ends the process if a oneDNN call failed. */
static void check(dnnl_status_t status, const char *call)
{
    if (status == dnnl_out_of_memory)
        die_of(NO_MEMORY,
               "out of memory: %s of oneDNN cannot allocate; raise the limit (ulimit -v), or use a "
               "smaller model or fewer ranks per machine",
               call);
    if (status != dnnl_success)
        die(__FILE__, __LINE__, call, "oneDNN returned status %d", (int)status);
}

/* dnnl_sgemm() packs operands into a block from posix_memalign(), and frees it before it returns. glibc
 * (2.36) splits chunks of up to 176 bytes off a block to align it, and its per-thread cache keeps the first 7
 * of each size. Without them the freed block is too small for the next call, which takes new memory: a thread
 * keeps 8 blocks, of up to 3 MiB each. With a full cache it keeps one. */
static void fill_malloc_cache(void)
{
    enum { KEPT = 7, SMALLEST = 32, LARGEST = 176, STEP = 16, SIZES = (LARGEST - SMALLEST) / STEP + 1 };
    static _Thread_local bool filled;
    void *chunks[SIZES * KEPT];
    if (filled)
        return;
    filled = true;
    for (int i = 0; i < SIZES * KEPT; i++)
        chunks[i] = malloc((size_t)(SMALLEST + i / KEPT * STEP) - sizeof(size_t)); // NULL: nothing to keep
    for (int i = 0; i < SIZES * KEPT; i++)
        free(chunks[i]);
}

void blas_sgemm(const struct blas_panel *panel, int threads)
{
    fill_malloc_cache();
    omp_set_num_threads(threads);
    inside = true;
    dnnl_status_t status = dnnl_sgemm(panel->transpose_a ? 'T' : 'N', panel->transpose_b ? 'T' : 'N',
                                      panel->m, panel->n, panel->k, 1.0F, panel->a, panel->lda, panel->b,
                                      panel->ldb, panel->accumulate ? 1.0F : 0.0F, panel->c, panel->ldc);
    inside = false;
    check(status, "dnnl_sgemm");
}

bool blas_has_bf16(void)
{
    int isa = (int)dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

/* oneDNN 3 made its structs opaque: a memory descriptor is a pointer that must be freed. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t description;
#define DESCRIBED(operand)  ((operand).memory != NULL ? (operand).description : NULL)
#define SUM_AFTER(post_ops) dnnl_post_ops_append_sum(post_ops, 1.0F, 0, dnnl_data_type_undef)
#else
typedef const dnnl_memory_desc_t *description;
#define DESCRIBED(operand)  ((operand).memory != NULL ? &(operand).description : NULL)
#define SUM_AFTER(post_ops) dnnl_post_ops_append_sum(post_ops, 1.0F)
#endif

struct operand {
    dnnl_memory_desc_t description;
    dnnl_memory_t memory; // NULL: none
};

/* A matrix with row stride `down` and column stride `across`. */
static struct operand operand(dnnl_engine_t engine, const void *data, enum dtype dtype, int64_t rows,
                              int64_t columns, int64_t down, int64_t across)
{
    struct operand o = {.memory = NULL};
    const dnnl_dims_t dims = {rows, columns}, strides = {down, across};
    dnnl_data_type_t type = dtype == BF16 ? dnnl_bf16 : dnnl_f32;
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_memory_desc_create_with_strides(&o.description, 2, dims, type, strides), "memory_desc_create");
    check(dnnl_memory_create(&o.memory, o.description, engine, (void *)data), "memory_create");
#else
    check(dnnl_memory_desc_init_by_strides(&o.description, 2, dims, type, strides), "memory_desc_init");
    check(dnnl_memory_create(&o.memory, &o.description, engine, (void *)data), "memory_create");
#endif
    return o;
}

static void operand_destroy(struct operand *o)
{
    if (o->memory == NULL)
        return;
    dnnl_memory_destroy(o->memory);
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_destroy(o->description);
#endif
}

/* One matmul, from description to execution. Creating the primitive takes microseconds if it is in oneDNN's
 * cache, which holds the last thousand, else milliseconds. Everything runs on the calling thread, which owns
 * oneDNN's scratchpad. */
struct matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t post_ops;
    dnnl_primitive_desc_t described;
    dnnl_primitive_t primitive;
    struct operand a, b, c, bias;
};

static void describe(struct matmul *x)
{
    description a = DESCRIBED(x->a), b = DESCRIBED(x->b), c = DESCRIBED(x->c), bias = DESCRIBED(x->bias);
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_matmul_primitive_desc_create(&x->described, x->engine, a, b, bias, c, x->attributes),
          "matmul_primitive_desc_create");
#else
    dnnl_matmul_desc_t matmul;
    check(dnnl_matmul_desc_init(&matmul, a, b, bias, c), "matmul_desc_init");
    check(dnnl_primitive_desc_create(&x->described, &matmul, x->attributes, x->engine, NULL),
          "primitive_desc_create");
#endif
}

static void prepare(struct matmul *x, const struct blas_panel *p)
{
    check(dnnl_engine_create(&x->engine, dnnl_cpu, 0), "engine_create");
    check(dnnl_stream_create(&x->stream, x->engine, dnnl_stream_default_flags), "stream_create");
    int64_t a_down = p->transpose_a ? 1 : p->lda, a_across = p->transpose_a ? p->lda : 1;
    int64_t b_down = p->transpose_b ? 1 : p->ldb, b_across = p->transpose_b ? p->ldb : 1;
    x->a = operand(x->engine, p->a, BF16, p->m, p->k, a_down, a_across);
    x->b = operand(x->engine, p->b, BF16, p->k, p->n, b_down, b_across);
    x->c = operand(x->engine, p->c, p->c_type, p->m, p->n, p->ldc, 1);
    if (p->bias != NULL)
        x->bias = operand(x->engine, p->bias, BF16, 1, p->n, p->n, 1);
    check(dnnl_primitive_attr_create(&x->attributes), "primitive_attr_create");
    check(dnnl_post_ops_create(&x->post_ops), "post_ops_create");
    if (p->accumulate)
        check(SUM_AFTER(x->post_ops), "post_ops_append_sum");
    check(dnnl_primitive_attr_set_post_ops(x->attributes, x->post_ops), "primitive_attr_set_post_ops");
    describe(x);
    check(dnnl_primitive_create(&x->primitive, x->described), "primitive_create");
}

static void matmul_destroy(struct matmul *x)
{
    dnnl_primitive_destroy(x->primitive);
    dnnl_primitive_desc_destroy(x->described);
    dnnl_post_ops_destroy(x->post_ops);
    dnnl_primitive_attr_destroy(x->attributes);
    operand_destroy(&x->a);
    operand_destroy(&x->b);
    operand_destroy(&x->c);
    operand_destroy(&x->bias);
    dnnl_stream_destroy(x->stream);
    dnnl_engine_destroy(x->engine);
}

void blas_bf16(const struct blas_panel *panel, int threads)
{
    struct matmul x = {0};
    inside = true;
    omp_set_num_threads(threads);
    prepare(&x, panel);
    const dnnl_exec_arg_t operands[] = {{DNNL_ARG_SRC, x.a.memory},
                                        {DNNL_ARG_WEIGHTS, x.b.memory},
                                        {DNNL_ARG_DST, x.c.memory},
                                        {DNNL_ARG_BIAS, x.bias.memory}};
    check(dnnl_primitive_execute(x.primitive, x.stream, panel->bias != NULL ? 4 : 3, operands),
          "primitive_execute");
    check(dnnl_stream_wait(x.stream), "stream_wait");
    matmul_destroy(&x);
    inside = false;
}

const char *cpu_blas_name(void)
{
    return "oneDNN";
}

const char *cpu_blas_warning(void)
{
    return NULL;
}
