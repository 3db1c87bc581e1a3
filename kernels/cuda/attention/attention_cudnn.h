// SPDX-License-Identifier: Apache-2.0
/* Attention as cuDNN 9 computes it: a graph of operations that its flash kernels recognise, described through
 * the backend interface, planned once for each shape, and run from a list of addresses.
 *
 *     cudnn_library_open          dlopen; nothing is linked              attention_cudnn_library.c
 *     cudnn_open                  a handle for one device                attention_cudnn.c
 *     cudnn_plan_create           graph, engine and workspace of a shape attention_cudnn_graph.c
 *     cudnn_attention_forward     on the queue's stream                  attention_cudnn.c
 *
 * Which of the two attentions a call takes says attention_choice.c; both leave out and lse in one layout, so
 * one may go forward and the other back. The trap: before 9.26 cuDNN takes lse to be packed, [batch, heads,
 * sequence], whatever strides it is given, and says nothing (cudnn-frontend's pull request 304). Ours is that
 * of one sequence alone; of several it is packed by a kernel of ours. Memory comes from
 * cuda_library_scratch(), of the size that the plan says. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

#include <cudnn_graph.h>

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

/* Older ones err in these graphs, which NVIDIA's cudnn-frontend refuses them or changes for them: 9.10.0 and
 * 9.10.1 in all of them, up to 9.15.0 in gradients of sequences that are no multiple of 128 long. */
enum { CUDNN_OLDEST = 91501 };
#define CUDNN_OLDEST_TEXT "9.15.1"

/* NOT_SUPPORTED: what was looked for, and what would help. */
MUST_USE enum status cudnn_library_open(struct cudnn_library *out);
void cudnn_library_close(struct cudnn_library *library);

/* The matrices of an op that lie in memory with rows of their own distance. */
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

/* All that a plan depends on. No padding: compared as bytes. */
struct cudnn_shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int64_t row[CUDNN_MATRICES]; // elements from one to the next; 0: not of this direction
    int32_t dtype, backward;
};

enum { CUDNN_PARTS = 160 };

struct cudnn_plan {
    struct cudnn_shape shape;
    cudnnBackendDescriptor_t part[CUDNN_PARTS]; // in the order in which they were made
    int parts;
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes; // cuDNN's own; what the graph keeps between its halves comes on top
};

struct cudnn {
    struct cudnn_library library;
    cudnnHandle_t handle;         // NULL: of a GPU that is not here
    cudnnBackendDescriptor_t gpu; // its description then
    bool deterministic;
    struct cudnn_plan **plan;
    int plans, capacity;
};

/* The device that is current becomes its own. deterministic: no engine whose sums depend on who comes first.
 * gpu: NULL, or the properties of a GPU as cuDNN writes them (JSON), for plans that nobody runs. */
MUST_USE enum status cudnn_open(bool deterministic, const char *gpu, struct cudnn **out);
void cudnn_close(struct cudnn *cudnn); // takes NULL

/* "cuda: CALL (WHAT): STATUS: what cuDNN says; stream and op of queue", which may be NULL. */
MUST_USE enum status cudnn_check(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                 cudnnStatus_t status, const char *call, const char *what);

struct cudnn_shape cudnn_forward_shape(const struct attention_forward *op);
struct cudnn_shape cudnn_backward_shape(const struct attention_backward *op);

/* Two-byte numbers in rows that begin on 16 bytes, heads of at most 128 columns by eights, more than one
 * token, neither documents nor dropout. */
bool attention_suits_cudnn(const struct attention_forward *op);
bool attention_backward_suits_cudnn(const struct attention_backward *op);

/* The plan of this shape; the first time it is made. NOT_SUPPORTED: cuDNN has no engine for it. */
MUST_USE enum status cudnn_plan_of(struct cudnn *cudnn, const struct cuda_queue *queue,
                                   const struct cudnn_shape *shape, const struct cudnn_plan **out);

/* Fills `plan`, whose shape is set; what it has made belongs to it, also when it fails. */
MUST_USE enum status cudnn_plan_create(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                       struct cudnn_plan *plan);

/* Where a run finds what is not a matrix of the op: sums that the two halves of backward share, and numbers
 * that are handed over by value. */
struct cudnn_addresses {
    void *matrix[CUDNN_MATRICES];
    float *lse;    // f32[batch, heads, sequence]
    float *delta;  // f32[batch, heads, sequence], for backward
    float *dq_sum; // f32[batch, heads, sequence, head_dim], for backward unless deterministic
    float scale;
};
MUST_USE enum status cudnn_plan_run(const struct cudnn *cudnn, const struct cuda_queue *queue,
                                    const struct cudnn_plan *plan, const struct cudnn_addresses *at,
                                    void *workspace);

MUST_USE enum status cudnn_attention_forward(struct cudnn *cudnn, struct cuda_queue *queue,
                                             const struct attention_forward *op);
MUST_USE enum status cudnn_attention_backward(struct cudnn *cudnn, struct cuda_queue *queue,
                                              const struct attention_backward *op);
