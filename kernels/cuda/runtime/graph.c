// SPDX-License-Identifier: Apache-2.0
/* Replayed work as a CUDA graph: captured from the stream the second time, and from then on launched with one
 * call instead of hundreds.
 *
 *     first      body: scratch is allocated, algorithms are chosen, modules are loaded
 *     second     capture ─ body ─ instantiate ─ upload ─ launch
 *     then       launch
 *
 * A graph freezes its kernels' arguments, every pointer and scalar. Changing values must be read from device
 * memory (kernels/device.h states the rules for a body). The device itself provides only scratch memory: if
 * that has moved, the work is captured again.
 *
 * Capture is thread-local (cudaStreamCaptureModeThreadLocal), because other threads are other ranks, which
 * allocate and wait meanwhile.
 *
 * Caution: a replay cannot detect that the body would now submit something else. On the emulator every
 * replay therefore captures the body again and compares the two graphs, call by call, byte by byte. */
#include "kernels/cuda/runtime/graph.h"

#include "base/memory.h"
#include "kernels/cuda/runtime/message.h"

#include <stdio.h>
#include <stdlib.h>

struct cuda_graph {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    const void *scratch; // the stream's scratch at the time of capture
};

static enum status fail_with_key(enum status status)
{
    return fail(status, "cluster.cuda_graphs true: %s; use cluster.cuda_graphs false", fail_text());
}

static enum status capture(struct cuda_queue *queue, enum status (*body)(void *context), void *context,
                           cudaGraph_t *out)
{
    TRY(cuda_check(queue, cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture"));
    queue->is_captured = true;
    enum status status = body(context);
    queue->is_captured = false;
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(queue->stream, &graph); // also after a failed body
    queue->op = NULL;
    if (status == OK)
        status = cuda_check(queue, error, "cudaStreamEndCapture");
    if (status == OK)
        *out = graph;
    else if (graph != NULL)
        cudaGraphDestroy(graph);
    return status;
}

static void drop_graph(struct cuda_graph *g)
{
    if (g->executable != NULL)
        cudaGraphExecDestroy(g->executable);
    if (g->graph != NULL)
        cudaGraphDestroy(g->graph);
    *g = (struct cuda_graph){0};
}

static enum status make(struct cuda_graph *g, struct cuda_queue *queue, enum status (*body)(void *context),
                        void *context)
{
    TRY(capture(queue, body, context, &g->graph));
    g->scratch = queue->scratch.data;
    TRY(cuda_check(queue, cudaGraphInstantiate(&g->executable, g->graph, 0), "cudaGraphInstantiate"));
    return cuda_check(queue, cudaGraphUpload(g->executable, queue->stream), "cudaGraphUpload");
}

#if CUDA_IS_EMULATED
/* Checks that the body would now submit exactly the captured work. */
static enum status compare(const struct cuda_graph *g, struct cuda_queue *queue,
                           enum status (*body)(void *context), void *context)
{
    char why[300];
    cudaGraph_t today = NULL;
    TRY(capture(queue, body, context, &today));
    bool differs = emulator_graphs_differ(g->graph, today, why, sizeof why);
    cudaGraphDestroy(today);
    return differs ? fail(BAD_ARGUMENT, "a replay differs from the captured graph: %s", why) : OK;
}
#else
static enum status compare(const struct cuda_graph *g, struct cuda_queue *queue,
                           enum status (*body)(void *context), void *context)
{
    (void)g;
    (void)queue;
    (void)body;
    (void)context;
    return OK;
}
#endif

enum status cuda_replay(struct stream *stream, void **state, enum status (*body)(void *context),
                        void *context)
{
    struct cuda_queue *queue = NULL;
    struct cuda_graph *g = *state;
    if (g == NULL)
        *state = g = memory_zeroed(1, sizeof *g, "a graph");
    TRY(cuda_message_begin(stream, &queue)); // completes earlier works of the host
    if (g->executable != NULL && g->scratch != queue->scratch.data)
        drop_graph(g);
    enum status status =
        g->executable == NULL ? make(g, queue, body, context) : compare(g, queue, body, context);
    if (status == OK)
        status = cuda_check(queue, cudaGraphLaunch(g->executable, queue->stream), "cudaGraphLaunch");
    return status == OK ? OK : fail_with_key(status);
}

void cuda_replay_end(void *state)
{
    struct cuda_graph *g = state;
    drop_graph(g);
    free(g);
}
