// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of bench_ops: the measured device and model, operands, and lines of the report. */
#pragma once

#include "base/clock.h"
#include "tools/benchmarks/bench_buffers.h"

#include <math.h>

enum { BENCH_RUNS = 7 };

struct model {
    const char *name;
    int64_t hidden, heads, groups, head_dim, ffn, layers, parameters;
    int64_t vocabulary, padded; // ids; rows of the embedding and columns of the logits
    int64_t gates;              // matmuls of that width into the second half of a block
};
struct bench {
    struct bench_memory memory;
    struct stream *stream; // of the measured device
    struct model model;
    enum dtype dtype; // of activations and weights
    double size;      // bytes of an element
    int64_t batch, sequence, tokens, rotate_mb;
    int calls; // calls per run
    bool own_attention;
    double total_ms;       // milliseconds per microbatch
    double peak_bandwidth; // bytes per second
    // Devices with cuDNN's attention, and with our own on mma.sync; NULL: not available.
    struct stream *cudnn, *mma;
    struct stream *tuned; // device with the fastest of cuBLASLt's first algorithms; NULL: not available
    struct stream *fused; // device with fused epilogues; NULL: not available
};

/* Measures one call with the struct `args`, which is rotated before each. */
#define BEST_S(b, args, call)                                               \
    ({                                                                      \
        double best_ = INFINITY;                                            \
        for (int run_ = 0; run_ < BENCH_RUNS; run_++) {                     \
            double begin_ = clock_s();                                      \
            for (int call_ = 0; call_ < (b)->calls; call_++) {              \
                bench_rotate(&(b)->memory, &(args), sizeof(args));          \
                MUST(call);                                                 \
            }                                                               \
            MUST(stream_sync((b)->stream));                                 \
            best_ = fmin(best_, (clock_s() - begin_) / (double)(b)->calls); \
        }                                                                   \
        best_;                                                              \
    })

/* Matrices and vectors of random normals. */
struct tensor bench_matrix_of(struct bench *b, enum dtype dtype, int64_t rows, int64_t columns);
struct tensor bench_matrix(struct bench *b, int64_t rows, int64_t columns);
struct tensor bench_vector(struct bench *b, int64_t count);
struct tensor bench_sums(struct bench *b, int64_t count); // fp32 in every type

/* For each token, the number of its sequence. */
int64_t *bench_samples(struct bench *b);

static inline double bench_elements(int64_t rows, int64_t columns)
{
    return (double)rows * (double)columns;
}

/* Prints a line: bytes moved or flops computed by the op, and its number of runs per microbatch. */
double bench_report(struct bench *b, const char *name, double s, double amount, const char *unit,
                    double times);

/* bench_ops_matmul.c: attention, with its dropout and number of runs per microbatch. */
void bench_attention(struct bench *b, float probability, double times);
/* The matrix multiplications of a linear layer [n, k]: returns the milliseconds per microbatch. */
double bench_gemm(struct bench *b, int64_t n, int64_t k, double times);
/* Matrix multiplications and their epilogues, as separate kernels and fused. */
void bench_epilogues(struct bench *b);
