// SPDX-License-Identifier: Apache-2.0
/* Interface between the emulated runtime and its graphs: runtime.c adds captured work to a graph, and a graph
 * launch runs it. */
#pragma once

#include "tests/emulator/include/cuda_runtime_api.h"

/* A replayable call. `bytes` of `context` identify it, with padding zeroed; 0: cannot be compared. */
struct emulator_node {
    const char *name;
    void (*run)(cudaStream_t stream, void *context);
    void *context; // from malloc
    size_t bytes;
};

cudaGraph_t emulator_graph_create(void);
void emulator_graph_add(cudaGraph_t graph, struct emulator_node node); // takes ownership of the context

/* The stream that this thread captures, or NULL. */
cudaStream_t emulator_capturing(void);
/* For a call that is not allowed during capture: invalidates the capture and returns the call's error; else
 * cudaSuccess. */
cudaError_t emulator_forbid(void);

/* GPU memory per instantiated graph of this thread. */
enum { EMULATOR_GRAPH_BYTES = 1 << 20 };
int emulator_graphs(void);

/* Counts a graph launch. */
void emulator_count_graph(void);

/* The graph field of a stream, in runtime.c. */
cudaGraph_t *emulator_graph_of(cudaStream_t stream);
