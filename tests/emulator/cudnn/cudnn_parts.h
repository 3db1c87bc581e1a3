// SPDX-License-Identifier: Apache-2.0
/* The emulated cuDNN's descriptors: what has been set, until somebody finalises it. */
#pragma once

#include "tests/emulator/include/cudnn_graph.h"

enum { PART_VALUES = 8, TENSOR_RANK = 4 };

struct value {
    cudnnBackendAttributeName_t name;
    int64_t count;
    void *data; // copied
};

struct part {
    cudnnBackendDescriptorType_t type;
    bool finished;
    struct value value[PART_VALUES];
    int values;
    struct part *graph; // of a heuristic's result, and of what is made from it
    int engine;         // of those too: 0 adds in any order, 1 in one
    int runs;           // of a plan
};

struct cudnnContext {
    cudaStream_t stream;
};

/* Keeps the sentence for cudnnGetLastErrorString, and returns `status`. */
cudnnStatus_t cudnn_refuse(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What has been set; NULL: nothing. */
const struct value *part_value(const struct part *part, cudnnBackendAttributeName_t name);
struct part *part_of(const struct part *part, cudnnBackendAttributeName_t name); // NULL: none
int64_t part_integer(const struct part *part, cudnnBackendAttributeName_t name);
int part_choice(const struct part *part, cudnnBackendAttributeName_t name); // an enum
bool part_truth(const struct part *part, cudnnBackendAttributeName_t name);

/* A tensor's four dimensions. */
const int64_t *tensor_dims(const struct part *tensor);
/* x, b, t and y of an operation; NULL where it has none. */
struct operands {
    struct part *x, *b, *t, *y;
};
struct operands operation_operands(const struct part *operation);

/* Shapes and types of an operation and what it is made of. */
cudnnStatus_t cudnn_check_operation(const struct part *operation);
/* Who writes what, once, and before it is read. */
cudnnStatus_t cudnn_check_graph(const struct part *graph);
/* What a plan's workspace is: no kernel here needs it, so it is overwritten. */
enum { CUDNN_WORKSPACE = 1000 };
cudnnStatus_t cudnn_execute(cudaStream_t stream, struct part *plan, const struct part *pack);
