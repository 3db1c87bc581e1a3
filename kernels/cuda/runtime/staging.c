// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/staging.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 32, SLOT_BYTES = CUDA_IS_EMULATED ? 1 << 12 : 1 << 20 };

struct slot {
    cudaEvent_t event; // complete when the GPU has released the slot
    void *to;          // destination in host memory, or NULL
    size_t bytes;
};

/* PART_HOST buffers; a handful. */
struct pinned {
    struct pinned *next;
    char *data;
    size_t bytes;
};

struct cuda_staging {
    struct pinned *pinned;
    char *memory; // pinned: SLOTS of SLOT_BYTES
    struct slot slot[SLOTS];
    uint64_t begin, end; // slots in use, in order, modulo SLOTS
};

/* Memory that Linux can still provide, including page cache; 0: unknown. */
static int64_t host_left(void)
{
    long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return 1024 * kib;
}

/* Pinned memory, and its purpose for the error. NO_MEMORY: host memory is exhausted. */
static enum status pin(size_t bytes, const char *what, void **out)
{
    cudaError_t error = cudaMallocHost(out, bytes);
    if (error == cudaSuccess)
        return OK;
    char size[NUMBER_CHARS], left[NUMBER_CHARS];
    (void)cudaGetLastError(); // clear it: the check after the next launch would report it
    return fail(NO_MEMORY, "cuda: cudaMallocHost of %s for %s: %s; %s of the host's memory are free",
                bytes_text((int64_t)bytes, size), what, cudaGetErrorString(error),
                bytes_text(host_left(), left));
}

enum status cuda_staging_create(struct cuda_staging **out)
{
    struct cuda_staging *s = memory_zeroed(1, sizeof *s, "copies between host and device");
    void *memory = NULL;
    enum status status = pin((size_t)SLOTS * SLOT_BYTES, "copies to and from the GPU", &memory);
    s->memory = memory;
    for (int i = 0; status == OK && i < SLOTS; i++)
        status = cuda_check(NULL, cudaEventCreateWithFlags(&s->slot[i].event, cudaEventDisableTiming),
                            "cudaEventCreateWithFlags");
    if (status == OK)
        *out = s;
    else
        cuda_staging_destroy(s);
    return status;
}

void cuda_staging_destroy(struct cuda_staging *staging)
{
    if (staging == NULL)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (staging->slot[i].event != NULL)
            cudaEventDestroy(staging->slot[i].event);
    if (staging->memory != NULL)
        cudaFreeHost(staging->memory);
    free(staging);
}

/* ---- pinned memory ---- */

enum status cuda_staging_pin(struct cuda_staging *staging, size_t bytes, void **out)
{
    void *data = NULL;
    TRY(pin(bytes, "offloaded memory", &data));
    struct pinned *pinned = memory_zeroed(1, sizeof *pinned, "a list of pinned memory");
    memset(data, 0, bytes);
    *pinned = (struct pinned){.next = staging->pinned, .data = data, .bytes = bytes};
    staging->pinned = pinned;
    *out = data;
    return OK;
}

void cuda_staging_unpin(struct cuda_staging *staging, void *data)
{
    struct pinned **link = &staging->pinned;
    while (*link != NULL && (*link)->data != (char *)data)
        link = &(*link)->next;
    struct pinned *pinned = *link;
    CHECK(pinned != NULL);
    *link = pinned->next;
    cudaFreeHost(data);
    free(pinned);
}

static bool is_pinned(const struct cuda_staging *s, const void *data)
{
    for (const struct pinned *p = s->pinned; p != NULL; p = p->next)
        if ((uintptr_t)data - (uintptr_t)p->data < p->bytes)
            return true;
    return false;
}

/* ---- slots ---- */

static char *slot_memory(struct cuda_staging *s, uint64_t number)
{
    return s->memory + number % SLOTS * SLOT_BYTES;
}

static void finish(struct cuda_staging *s, uint64_t number)
{
    struct slot *slot = &s->slot[number % SLOTS];
    if (slot->to != NULL)
        memcpy(slot->to, slot_memory(s, number), slot->bytes);
    slot->to = NULL;
}

/* Slots of several streams complete in any order: all are polled, and the ring frees from its front. */
enum status cuda_staging_deliver(struct cuda_staging *staging)
{
    for (uint64_t n = staging->begin; n < staging->end; n++) {
        cudaError_t error = cudaEventQuery(staging->slot[n % SLOTS].event);
        if (error == cudaErrorNotReady)
            continue;
        TRY(cuda_check(NULL, error, "cudaEventQuery"));
        finish(staging, n);
        if (n == staging->begin)
            staging->begin++;
    }
    return OK;
}

static enum status acquire_slot(struct cuda_staging *s, const struct cuda_queue *queue, uint64_t *number)
{
    if (s->end - s->begin == SLOTS) {
        TRY(cuda_block(queue, s->slot[s->begin % SLOTS].event));
        finish(s, s->begin++);
    }
    *number = s->end;
    return OK;
}

static enum status copy_slot(struct cuda_staging *s, struct cuda_queue *queue, enum op_kind kind, char *to,
                             const char *from, size_t bytes)
{
    uint64_t number;
    TRY(acquire_slot(s, queue, &number));
    struct slot *slot = &s->slot[number % SLOTS];
    char *memory = slot_memory(s, number);
    bool to_device = kind == OP_TO_DEVICE;
    if (to_device)
        memcpy(memory, from, bytes);
    // CUDA infers the direction from the addresses: the device end may be pinned host memory.
    cudaError_t error = cudaMemcpyAsync(to_device ? to : memory, to_device ? memory : from, bytes,
                                        cudaMemcpyDefault, queue->stream);
    TRY(cuda_check(queue, error, "cudaMemcpyAsync"));
    TRY(cuda_check(queue, cudaEventRecord(slot->event, queue->stream), "cudaEventRecord"));
    slot->to = to_device ? NULL : to;
    slot->bytes = bytes;
    s->end++;
    return OK;
}

enum status cuda_staging_copy(struct cuda_staging *staging, struct cuda_queue *queue, enum op_kind kind,
                              const struct transfer *transfer)
{
    if (is_pinned(staging, kind == OP_TO_DEVICE ? transfer->from : transfer->to))
        return cuda_check(
            queue,
            cudaMemcpyAsync(transfer->to, transfer->from, transfer->bytes, cudaMemcpyDefault, queue->stream),
            "cudaMemcpyAsync");
    for (size_t done = 0; done < transfer->bytes; done += SLOT_BYTES) {
        size_t left = transfer->bytes - done, bytes = left < SLOT_BYTES ? left : SLOT_BYTES;
        TRY(copy_slot(staging, queue, kind, (char *)transfer->to + done, (const char *)transfer->from + done,
                      bytes));
    }
    return OK;
}
