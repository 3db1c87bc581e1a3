// SPDX-License-Identifier: Apache-2.0
/* Work that is replayed, as a CUDA graph: captured from the stream when it comes for the second time, and
 * launched whole from then on, one call instead of hundreds.
 *
 *     first      body: kernels find their memory, algorithms are chosen, modules are loaded
 *     second     capture ─ body ─ instantiate ─ upload ─ launch
 *     then       launch
 *
 * A graph keeps what its kernels were given: every pointer and number of it. Whatever may change has to be
 * read from the device's memory (kernels/device.h says what a body may do), and what the device itself gives
 * to kernels is their temporary memory: where that has moved since, the work is captured again.
 *
 * The capture is this thread's alone (cudaStreamCaptureModeThreadLocal), for other threads are other ranks,
 * which allocate and wait meanwhile. The trap: a replay cannot see that a body would do something else today.
 * So on the emulator every replay captures the body again and compares, call by call, byte by byte. */
#include "kernels/cuda/runtime/graph.h"

#include "kernels/cuda/runtime/message.h"

#include <stdio.h>
#include <stdlib.h>

struct cuda_graph {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    const void *scratch; // of the stream when it was captured
};

static enum status refuse(enum status status)
{
    char why[800];
    snprintf(why, sizeof why, "%s", fail_text());
    return fail(status, "cluster.cuda_graphs true: %s; cluster.cuda_graphs false works", why);
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
    cudaError_t error = cudaStreamEndCapture(queue->stream, &graph); // also behind a body that failed
    queue->op = NULL;
    if (status == OK)
        status = cuda_check(queue, error, "cudaStreamEndCapture");
    if (status == OK)
        *out = graph;
    else if (graph != NULL)
        cudaGraphDestroy(graph);
    return status;
}

static void forget(struct cuda_graph *g)
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
/* That the body would put there today what was captured. */
static enum status compare(const struct cuda_graph *g, struct cuda_queue *queue,
                           enum status (*body)(void *context), void *context)
{
    char why[300];
    cudaGraph_t today = NULL;
    TRY(capture(queue, body, context, &today));
    bool differs = emulator_graphs_differ(g->graph, today, why, sizeof why);
    cudaGraphDestroy(today);
    return differs ? fail(BAD_ARGUMENT, "what is replayed is not what was captured: %s", why) : OK;
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
        *state = g = calloc(1, sizeof *g);
    if (g == NULL)
        return fail(NO_MEMORY, "no memory for a graph");
    TRY(cuda_message_begin(stream, &queue)); // works of the host's before it are done
    if (g->executable != NULL && g->scratch != queue->scratch.data)
        forget(g);
    enum status status =
        g->executable == NULL ? make(g, queue, body, context) : compare(g, queue, body, context);
    if (status == OK)
        status = cuda_check(queue, cudaGraphLaunch(g->executable, queue->stream), "cudaGraphLaunch");
    return status == OK ? OK : refuse(status);
}

void cuda_replay_end(void *state)
{
    struct cuda_graph *g = state;
    forget(g);
    free(g);
}
