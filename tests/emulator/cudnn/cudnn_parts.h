// SPDX-License-Identifier: Apache-2.0
/* The emulated cuDNN's descriptors: the attributes set before finalization. */
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
    struct part *graph; // of a heuristic's result, and of objects created from it
    int engine;         // likewise: 0 is nondeterministic, 1 deterministic
    int runs;           // of a plan
};

struct cudnnContext {
    cudaStream_t stream;
};

/* Stores the message for cudnnGetLastErrorString, and returns `status`. */
cudnnStatus_t cudnn_refuse(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The value of an attribute; NULL: not set. */
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

/* Checks shapes and types of an operation and its tensors. */
cudnnStatus_t cudnn_check_operation(const struct part *operation);
/* Checks that every tensor is written once, before it is read. */
cudnnStatus_t cudnn_check_graph(const struct part *graph);
/* Workspace of a plan: no kernel here needs it, so it is overwritten with garbage. */
enum { CUDNN_WORKSPACE = 1000 };
cudnnStatus_t cudnn_execute(cudaStream_t stream, struct part *plan, const struct part *pack);
