// SPDX-License-Identifier: Apache-2.0
/* What the emulated runtime and its graphs share: runtime.c puts what is captured into a graph, and a launch
 * of a graph runs what is in it. */
#pragma once

#include "tests/emulator/include/cuda_runtime_api.h"

/* A call that can be made again and again. bytes of `context` say what it does, but for padding; 0: they
 * cannot be compared. */
struct emulator_node {
    const char *name;
    void (*run)(cudaStream_t stream, void *context);
    void *context; // malloc's
    size_t bytes;
};

cudaGraph_t emulator_graph_create(void);
void emulator_graph_add(cudaGraph_t graph, struct emulator_node node); // takes its context

/* What this thread captures: the stream, or NULL. */
cudaStream_t emulator_capturing(void);
/* A call that a capture does not allow: the capture is spoilt, and the call's error; else cudaSuccess. */
cudaError_t emulator_forbid(void);

/* How many graphs of this thread's could be launched, each of which takes so much of the GPU's memory. */
enum { EMULATOR_GRAPH_BYTES = 1 << 20 };
int emulator_graphs(void);

/* A launch was one of a graph. */
void emulator_count_graph(void);

/* The stream's part of it, in runtime.c. */
cudaGraph_t *emulator_graph_of(cudaStream_t stream);
