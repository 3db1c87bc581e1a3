// SPDX-License-Identifier: Apache-2.0
/* Waits that count_calls.c must detect: the environment variable INJECT names what the host does once in
 * each step, in the range "update". */
#include "kernels/cuda/runtime/cuda.h"

#include <stdlib.h>
#include <string.h>

enum status real_run(struct cuda_queue *queue, const struct op *op) __asm__("__real_cuda_run");
enum status injected_run(struct cuda_queue *queue, const struct op *op) __asm__("__wrap_cuda_run");
/* Called as a library would: not counted as a call of ours. */
cudaError_t uncounted_synchronize(cudaStream_t stream) __asm__("__real_cudaStreamSynchronize");

static bool query(cudaStream_t stream)
{
    cudaEvent_t event;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    CHECK(error == cudaSuccess && cudaEventRecord(event, stream) == cudaSuccess);
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady)
        ;
    return error == cudaSuccess && cudaEventDestroy(event) == cudaSuccess;
}

static bool inject(const char *what, cudaStream_t stream)
{
    void *data = NULL;
    char to[8], from[8] = {0};
    if (strcmp(what, "wait") == 0)
        return cudaStreamSynchronize(stream) == cudaSuccess;
    if (strcmp(what, "uncounted") == 0)
        return uncounted_synchronize(stream) == cudaSuccess;
    if (strcmp(what, "poll") == 0)
        return query(stream);
    if (strcmp(what, "memory") == 0)
        return cudaMalloc(&data, sizeof to) == cudaSuccess && cudaFree(data) == cudaSuccess;
    if (strcmp(what, "pinned") == 0)
        return cudaMallocHost(&data, sizeof to) == cudaSuccess && cudaFreeHost(data) == cudaSuccess;
    if (strcmp(what, "copy") == 0) // synchronous, although no call waits: it returns after the copy
        return cudaMemcpyAsync(to, from, sizeof to, cudaMemcpyDefault, stream) == cudaSuccess &&
               uncounted_synchronize(stream) == cudaSuccess;
    return strcmp(what, "none") == 0;
}

enum status injected_run(struct cuda_queue *queue, const struct op *op)
{
    const char *what = getenv("INJECT");
    if (op->kind == OP_CLIP)
        CHECK(inject(what != NULL ? what : "none", queue->stream));
    return real_run(queue, op);
}
