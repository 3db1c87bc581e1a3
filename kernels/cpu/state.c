// SPDX-License-Identifier: Apache-2.0
/* State shared by all ops of a device: its threads, and one scratch buffer that grows to the largest
 * request. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/blas.h"

enum status cpu_state_open(struct device *device, struct cpu_state *state)
{
    blas_open();
    return cpu_pool_create(device->threads, &state->pool);
}

void cpu_state_close(struct device *device, struct cpu_state *state)
{
    (void)device;
    buffer_free(&state->scratch);
    cpu_pool_destroy(state->pool);
}

void *cpu_scratch(struct device *device, size_t bytes)
{
    struct cpu_state *state = device->state;
    if (state->scratch.data == NULL || state->scratch.bytes < bytes) {
        buffer_free(&state->scratch);
        MUST(buffer_alloc(device, PART_WORKSPACE, bytes, &state->scratch));
    }
    return state->scratch.data;
}
