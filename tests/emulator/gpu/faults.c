// SPDX-License-Identifier: Apache-2.0
/* Fault injection, by environment variable:
 *     EMULATOR_FAIL=CALL        this call, of any library, each time
 *     EMULATOR_FAIL_WHEN=FILE   only once this file exists: in the middle of a run
 *     EMULATOR_FAIL_GPU=NUMBER  only on this GPU of a machine, which is one rank's
 *     EMULATOR_LARGEST=BYTES    limit of a single cudaMalloc
 *     EMULATOR_STUCK="1 3 0F2"  in action 0F2 of step 3 of rank 1, a kernel never ends */
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/status.h"
#include "tests/emulator/gpu/emulator.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool emulator_fails(const char *call)
{
    const char *fails = getenv("EMULATOR_FAIL"), *when = getenv("EMULATOR_FAIL_WHEN"),
               *gpu = getenv("EMULATOR_FAIL_GPU");
    return fails != NULL && strcmp(fails, call) == 0 && (when == NULL || access(when, F_OK) == 0) &&
           (gpu == NULL || strtol(gpu, NULL, 10) == emulator_device());
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorIllegalState:
        return "the operation cannot be performed in the present state";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
        return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
        return "operation not permitted on an event last recorded in a capturing stream";
    }
    return "?";
}

/* A kernel that never ends. */
static bool never_moves(struct emulator_message *message, bool *moved)
{
    (void)message;
    *moved = false;
    return false;
}

static void describe(const struct emulator_message *message, FILE *to)
{
    (void)message;
    fprintf(to, "a kernel that never ends\n");
}

struct emulator_message *emulator_stuck(bool *is_stuck)
{
    const struct rank_context *me = rank_context();
    const char *where = getenv("EMULATOR_STUCK");
    char here[sizeof me->action + 30];
    snprintf(here, sizeof here, "%d %d %s", me->rank, me->step, me->action);
    if (*is_stuck || where == NULL || strcmp(where, here) != 0)
        return NULL;
    *is_stuck = true;
    struct emulator_message *message = calloc(1, sizeof *message);
    CHECK(message != NULL);
    *message = (struct emulator_message){.move = never_moves, .describe = describe};
    return message;
}
