// SPDX-License-Identifier: Apache-2.0
/* All layers by one interface, for test_layers: x in, y out; dy in, dx out; gradients of weights. */
#pragma once

#include "layers/stage.h"
#include "tests/ranks/layers_expected.h"

enum { MAX_RANKS = 4 };

enum fault { NO_FAULT, PARTIAL_SUMS_LEFT, OTHER_SAMPLES, OTHER_POSITIONS };

/* One world's run of one subject; ranks write their own places only. */
struct trial {
    const struct expected *expected;
    const char *device;
    bool sequence_parallel;
    enum fault fault;
    double ratio[MAX_RANKS]; // largest error / bound
    char where[MAX_RANKS][PARAM_NAME_CHARS];
};

/* One of them is under test. */
struct layer {
    struct column_linear column;
    struct row_linear row;
    struct norm norm;
    struct attention attention;
    struct mlp mlp;
    struct block block;
    struct embedding embedding;
    struct head head;
    struct stage stage;
};

/* A rank with everything that a layer needs. */
struct bench {
    struct trial *trial;
    enum subject subject;
    struct world *world;
    struct groups *groups;
    struct device *device;
    struct stream *stream;
    struct params params;
    struct weights weights;
    struct env env;
    struct batch batch;
    struct layer layer;
    struct pass pass;
    struct buffer data, home[HOME_COUNT], x, y, dy, dx, sums;
};

MUST_USE enum status bench_declare(struct bench *bench, struct layout *layout);
/* y and dx are where to write, and become where it was written. */
MUST_USE enum status bench_forward(struct bench *bench, struct tensor x, struct tensor *y);
MUST_USE enum status bench_backward_input(struct bench *bench, struct tensor x, struct tensor dy,
                                          struct tensor *dx);
MUST_USE enum status bench_backward_weight(struct bench *bench, struct tensor x, struct tensor dy);
