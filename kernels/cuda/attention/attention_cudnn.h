// SPDX-License-Identifier: Apache-2.0
/* Attention with cuDNN 9: an operation graph that its flash-attention engines recognize, described through
 * the backend API, planned once per shape, and executed with a variant pack of addresses.
 *
 *     cudnn_library_open          dlopen; nothing is linked              attention_cudnn_library.c
 *     cudnn_open                  a handle for one device                attention_cudnn.c
 *     cudnn_plan_create           graph, engine and workspace of a shape attention_cudnn_graph.c
 *     cudnn_attention_forward     on the queue's stream                  attention_cudnn.c
 *
 * attention_choice.c selects the implementation of each call; both write out and lse in the same layout, so
 * forward and backward may use different ones.
 *
 * Caution: before 9.26 cuDNN silently assumes a packed lse, [batch, heads, sequence], for any strides
 * (cudnn-frontend's pull request 304). Ours has that layout for a single sequence; for several, our own
 * kernel packs it. Workspace comes from cuda_library_scratch(), in the size that the plan reports. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

#include <cudnn_graph.h>

/* Headers before cuDNN 9.8 lack plans without a GPU; the library is newer in any case (CUDNN_OLDEST). */
#if CUDNN_VERSION < 90800
#define CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR       ((cudnnBackendDescriptorType_t)38)
#define CUDNN_ATTR_ENGINEHEUR_DEVICEPROP          ((cudnnBackendAttributeName_t)204)
#define CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP      ((cudnnBackendAttributeName_t)407)
#define CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION ((cudnnBackendAttributeName_t)2702)
#endif

#define CUDNN_FUNCTIONS(X)           \
    X(cudnnGetVersion)               \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnCreate)                   \
    X(cudnnDestroy)                  \
    X(cudnnSetStream)                \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendExecute)

struct cudnn_library {
    void *module;
#define DECLARE(name) __typeof__(&name) name;
    CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE
};

/* Older versions have bugs in these graphs, which NVIDIA's cudnn-frontend rejects or works around: 9.10.0 and
 * 9.10.1 in all of them, up to 9.15.0 in gradients with sequence lengths that are not multiples of 128. */
enum { CUDNN_OLDEST = 91501 };
#define CUDNN_OLDEST_TEXT "9.15.1"

/* NOT_SUPPORTED names the libraries searched and the fix. */
MUST_USE enum status cudnn_library_open(struct cudnn_library *out);
void cudnn_library_close(struct cudnn_library *library);

/* The matrices of an op that have their own row stride. */
enum cudnn_matrix {
    CUDNN_Q,
    CUDNN_K,
    CUDNN_V,
    CUDNN_OUT,
    CUDNN_DOUT,
    CUDNN_DQ,
    CUDNN_DK,
    CUDNN_DV,
    CUDNN_MATRICES
};

/* All inputs of a plan. No padding: compared as bytes. */
struct cudnn_shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int64_t row[CUDNN_MATRICES]; // row stride in elements; 0: not used in this direction
    int32_t dtype, backward;
};

enum { CUDNN_PARTS = 160 };

struct cudnn_plan {
    struct cudnn_shape shape;
    cudnnBackendDescriptor_t part[CUDNN_PARTS]; // in order of creation
    int parts;
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes; // cuDNN's own; intermediates between the two halves of the graph are extra
};

struct cudnn {
    struct cudnn_library library;
    cudnnHandle_t handle;         // NULL: the GPU is not present
    cudnnBackendDescriptor_t gpu; // its description in that case
    bool deterministic;
    struct cudnn_plan **plan;
    int plans, capacity;
};

/* Uses the current device. deterministic: exclude engines with nondeterministic sums. gpu: NULL, or the
 * properties of a GPU in cuDNN's JSON format, for plans that are never executed. */
MUST_USE enum status cudnn_open(bool deterministic, const char *gpu, struct cudnn **out);
void cudnn_close(struct cudnn *cudnn); // accepts NULL

/* "cuda: CALL (SUBJECT): STATUS: cuDNN's message; stream and op of queue", which may be NULL. */
MUST_USE enum status cudnn_check(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                 cudnnStatus_t status, const char *call, const char *what);

struct cudnn_shape cudnn_forward_shape(const struct attention_forward *op);
struct cudnn_shape cudnn_backward_shape(const struct attention_backward *op);

/* 16-bit types in 16-byte aligned rows, head dimension at most 128 and a multiple of 8, more than one token,
 * no documents, dropout, window, ALiBi or soft cap. */
bool attention_suits_cudnn(const struct attention_forward *op);
bool attention_backward_suits_cudnn(const struct attention_backward *op);

/* Gets the plan of this shape, and creates it on first use. NOT_SUPPORTED: cuDNN has no engine for it. */
MUST_USE enum status cudnn_plan_of(struct cudnn *cudnn, const struct cuda_queue *queue,
                                   const struct cudnn_shape *shape, const struct cudnn_plan **out);

/* Fills `plan`, whose shape is set; the plan owns everything created, also on failure. */
MUST_USE enum status cudnn_plan_create(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                       struct cudnn_plan *plan);

/* Addresses other than the op's matrices: intermediates that the two halves of the backward pass share, and
 * scalars passed by value. */
struct cudnn_addresses {
    void *matrix[CUDNN_MATRICES];
    float *lse;    // f32[batch, heads, sequence]
    float *delta;  // f32[batch, heads, sequence], for the backward pass
    float *dq_sum; // f32[batch, heads, sequence, head_dim], for the backward pass unless deterministic
    float scale;
};
MUST_USE enum status cudnn_plan_run(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                    const struct cudnn_plan *plan, const struct cudnn_addresses *at,
                                    void *workspace);

MUST_USE enum status cudnn_attention_forward(struct cudnn *cudnn, struct cuda_queue *queue,
                                             const struct attention_forward *op);
MUST_USE enum status cudnn_attention_backward(struct cudnn *cudnn, struct cuda_queue *queue,
                                              const struct attention_backward *op);
