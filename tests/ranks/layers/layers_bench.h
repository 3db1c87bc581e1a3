// SPDX-License-Identifier: Apache-2.0
/* One rank with one layer under test, and a common interface to all layers: x in, y out; dy in, dx out;
 * gradients of weights. */
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/norm.h"
#include "layers/stage.h"
#include "tests/ranks/layers/layers_expected.h"

enum { MAX_RANKS = 4 };

enum fault {
    NO_FAULT,
    PARTIAL_SUMS_LEFT,
    OTHER_SAMPLES,
    OTHER_POSITIONS,
    SWAPPED_GATE,      // with `up`, on rank 1
    BRANCH_LEFT_OUT,   // of the gradient of a norm that two branches share
    BRANCH_ADDED_TWICE // to it
};

/* One world's run of one subject; each rank writes its own elements only. */
struct trial {
    const struct expected *expected;
    const char *device;
    bool sequence_parallel;
    bool comm_stream; // tensor-parallel communication overlapped with matmuls
    bool fused;       // I and W always run together as B
    enum fault fault;
    double ratio[MAX_RANKS]; // largest error / bound
    char where[MAX_RANKS][PARAM_NAME_CHARS];
};

/* The layers; one of them is under test. */
struct layer {
    struct column_linear column;
    struct row_linear row;
    struct norm norm;
    struct attention attention;
    struct mlp mlp;
    const struct layer_kind *kind; // with its declarations, and input if it has one
    void *self;
    struct region x;
    struct stage stage;
};

/* A rank with everything a layer needs. */
struct bench {
    struct trial *trial;
    enum subject subject;
    struct world *world;
    struct groups *groups;
    struct device *device;
    struct faulty_ops {
        struct device_ops ops; // first: the ops table that the device points to
        const struct device_ops *inner;
        int times; // that an op is executed
    } faulty;
    struct stream *stream, *comm_stream;
    struct params params;
    struct weights weights;
    struct layer_options options;
    struct layer_context context;
    struct batch batch;
    struct layer layer;
    struct pass pass;
    struct buffer data, lifetime[LIFETIME_COUNT], x, y, dy, dx, sums;
};

MUST_USE enum status bench_open(struct trial *trial, struct world *world, struct bench *b);
void bench_close(struct bench *b); // also accepts what a failed bench_open left

/* y and dx are suggested buffers on input, and on output the buffers that were written. */
MUST_USE enum status bench_forward(struct bench *b, struct tensor x, struct tensor *y);
MUST_USE enum status bench_backward_input(struct bench *b, struct tensor x, struct tensor dy,
                                          struct tensor *dx);
MUST_USE enum status bench_backward_weight(struct bench *b, struct tensor x, struct tensor dy);

/* Rows [begin, begin + rows), and adjacent ranges of columns. */
struct window {
    int64_t row_begin, rows, width; // width: global columns
    int runs;
    int64_t begin[3], count[3];
};

struct window window_of(const struct bench *b, enum shape shape);
struct window window_of_slice(const struct held_param *held);
int64_t window_columns(const struct window *w);
/* Calls `visit` with the local and the global index of each element. */
void window_walk(const struct window *w, void *context,
                 void (*visit)(void *context, int64_t local, int64_t global));
/* A window of `whole` into device memory; dense there. */
MUST_USE enum status bench_write(struct bench *b, const struct window *w, const double *whole, void *device);
