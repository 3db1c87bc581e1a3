// SPDX-License-Identifier: Apache-2.0
/* CUDA graphs: work on a stream in capture is recorded instead of run, and can be replayed. Strict: a call
 * that CUDA forbids during capture (cudaStreamCaptureModeThreadLocal), by the capturing thread,
 * invalidates the capture, and so does a wait for an event from outside it. */
#include "tests/emulator/gpu/graph.h"

#include "base/status.h"
#include "tests/emulator/gpu/emulator.h"

#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
    struct emulator_node *list;
    int count, capacity;
    int references; // of owner, instances and launches
};

static _Thread_local cudaStream_t capturing;
static _Thread_local bool invalidated;
static _Thread_local int executables;

int emulator_graphs(void)
{
    return executables;
}

cudaGraph_t emulator_graph_create(void)
{
    cudaGraph_t graph = calloc(1, sizeof *graph);
    CHECK(graph != NULL);
    graph->references = 1;
    return graph;
}

static void release_graph(cudaGraph_t graph)
{
    if (--graph->references > 0)
        return;
    for (int i = 0; i < graph->count; i++)
        free(graph->list[i].context);
    free(graph->list);
    free(graph);
}

void emulator_graph_add(cudaGraph_t graph, struct emulator_node node)
{
    if (graph->count == graph->capacity) {
        graph->capacity = 2 * graph->capacity + 16;
        graph->list = realloc(graph->list, (size_t)graph->capacity * sizeof *graph->list);
        CHECK(graph->list != NULL);
    }
    graph->list[graph->count++] = node;
}

cudaStream_t emulator_capturing(void)
{
    return capturing;
}

cudaError_t emulator_forbid(void)
{
    invalidated = invalidated || capturing != NULL;
    return emulator_returns(capturing != NULL ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    // The other modes would restrict threads of other ranks, or none at all.
    CHECK(mode == cudaStreamCaptureModeThreadLocal);
    if (capturing != NULL)
        return emulator_returns(cudaErrorIllegalState);
    capturing = stream;
    invalidated = false;
    *emulator_graph_of(stream) = emulator_graph_create();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = NULL;
    if (capturing != stream)
        return emulator_returns(cudaErrorIllegalState);
    cudaGraph_t graph = *emulator_graph_of(stream);
    *emulator_graph_of(stream) = NULL;
    capturing = NULL;
    if (invalidated || emulator_fails("cudaStreamEndCapture")) {
        release_graph(graph);
        return emulator_returns(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    CHECK(flags == 0);
    *out = NULL;
    if (emulator_fails("cudaGraphInstantiate"))
        return emulator_returns(cudaErrorMemoryAllocation);
    graph->references++;
    executables++;
    *out = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream)
{
    (void)executable;
    (void)stream;
    return cudaSuccess;
}

static void run_graph(cudaStream_t stream, void *context)
{
    cudaGraph_t graph = *(cudaGraph_t *)context;
    for (int i = 0; i < graph->count; i++)
        graph->list[i].run(stream, graph->list[i].context);
    release_graph(graph);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    cudaGraph_t *context = malloc(sizeof *context);
    CHECK(context != NULL);
    *context = (cudaGraph_t)executable;
    (*context)->references++;
    emulator_count_graph();
    emulator_enqueue(stream, "a graph", run_graph, context, sizeof *context);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    release_graph((cudaGraph_t)executable);
    executables--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    release_graph(graph);
    return cudaSuccess;
}

bool emulator_graphs_differ(cudaGraph_t a, cudaGraph_t b, char *why, size_t chars)
{
    for (int i = 0; i < a->count && i < b->count; i++) {
        const struct emulator_node *x = &a->list[i], *y = &b->list[i];
        size_t at = 0, bytes = x->bytes < y->bytes ? x->bytes : y->bytes;
        while (at < bytes && ((const char *)x->context)[at] == ((const char *)y->context)[at])
            at++;
        if (x->run == y->run && at == bytes)
            continue;
        snprintf(why, chars, "call %d of %d: %s, captured %s%s%zu", i + 1, a->count, y->name, x->name,
                 x->run != y->run ? "; byte " : " with another byte ", at);
        return true;
    }
    snprintf(why, chars, "%d calls, captured %d", b->count, a->count);
    return a->count != b->count;
}
