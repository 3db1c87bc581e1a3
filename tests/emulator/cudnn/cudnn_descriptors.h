// SPDX-License-Identifier: Apache-2.0
/* The emulated cuDNN's descriptors, with the attributes set before finalization. */
#pragma once

#include "tests/emulator/include/cudnn_graph.h"

enum { MAX_ATTRIBUTES = 8, TENSOR_RANK = 4 };

struct attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    void *data; // copied
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    struct attribute attribute[MAX_ATTRIBUTES];
    int attributes;
    struct descriptor *graph; // of a heuristic's result, and of objects created from it
    int engine;               // likewise: 0 is nondeterministic, 1 deterministic
    int runs;                 // of a plan
};

struct cudnnContext {
    cudaStream_t stream;
};

/* Stores the message for cudnnGetLastErrorString, and returns `status`. */
cudnnStatus_t cudnn_reject(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An attribute, or its only value. NULL: not set. */
const struct attribute *attribute_of(const struct descriptor *d, cudnnBackendAttributeName_t name);
struct descriptor *attribute_descriptor(const struct descriptor *d, cudnnBackendAttributeName_t name);
int64_t attribute_int64(const struct descriptor *d, cudnnBackendAttributeName_t name);
int attribute_enum(const struct descriptor *d, cudnnBackendAttributeName_t name);
bool attribute_bool(const struct descriptor *d, cudnnBackendAttributeName_t name);

/* A tensor's four dimensions. */
const int64_t *tensor_dims(const struct descriptor *tensor);
/* x, b, t and y of an operation; NULL where it has none. */
struct operands {
    struct descriptor *x, *b, *t, *y;
};
struct operands operation_operands(const struct descriptor *operation);

/* Checks shapes and types of an operation and its tensors. */
cudnnStatus_t cudnn_check_operation(const struct descriptor *operation);
/* Checks that every tensor is written once, before it is read. */
cudnnStatus_t cudnn_check_graph(const struct descriptor *graph);
/* Workspace of a plan: no kernel here needs it, so it is overwritten with garbage. */
enum { CUDNN_WORKSPACE = 1000 };
cudnnStatus_t cudnn_execute(cudaStream_t stream, struct descriptor *plan, const struct descriptor *pack);
