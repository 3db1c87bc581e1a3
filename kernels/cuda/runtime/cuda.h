// SPDX-License-Identifier: Apache-2.0
/* The op implementations of the cuda device: one function per op, called by the entry points of kernels/ops.h
 * after validation and after their early exits for empty work. ops.h documents each op at its struct; each
 * function launches its kernels on a stream and returns.
 *
 * Rules for kernels, as on the cpu:
 *   - the assignment and order of additions depend on the shape only: not on pointer alignment, the number of
 *     multiprocessors or timing. No floating-point atomics;
 *   - multiplications and additions are not contracted (--fmad=false); use fmaf() explicitly;
 *   - scratch memory comes from cuda_scratch(), one allocation per op. */
#pragma once

#include "kernels/cuda/runtime/scratch.h"
#include "kernels/ops.h"

#include <cuda_runtime_api.h>

struct cuda_library;                       // cuBLASLt and its plans
struct cuda_attention;                     // choice of attention kernel per shape
typedef void (*cuda_tensor_encoder)(void); // cuTensorMapEncodeTiled (tensor_map.h)

/* Our own attention kernels: the generic ones, those with mma.sync, and those with wgmma (sm_90a). */
enum attention_kernels { ATTENTION_GENERIC, ATTENTION_MMA, ATTENTION_WGMMA, ATTENTION_KERNELS };

/* Which of them a device has launched, for device_choices(). */
struct attention_launches {
    bool forward[ATTENTION_KERNELS], backward[ATTENTION_KERNELS];
};
void cuda_report_attention_launches(const struct attention_launches *launches, struct text *out);

/* An op's view of its stream. */
struct cuda_queue {
    struct device *device;
    const char *name; // the stream's, for messages
    cudaStream_t stream;
    struct buffer scratch;
    bool is_captured;    // in stream capture: launches are recorded and replayed later (graph.c)
    const struct op *op; // the op being launched, for messages
    struct cuda_library *library;
    struct cuda_attention *attention;
    struct attention_launches *launches; // the device's
    bool tf32;                           // for fp32 matmuls
    cuda_tensor_encoder encode;          // NULL: the GPU lacks the instructions of wgmma.h
    int max_blocks;                      // device_options.max_blocks
};

/* OK, or NOT_SUPPORTED with "cuda: CALL: CUDA's message (queue's op with its shapes)", or NO_DEVICE_MEMORY
 * with the free memory. queue may be NULL. */
MUST_USE enum status cuda_check(const struct cuda_queue *queue, cudaError_t error, const char *call);

/* "1.20 MiB of the GPU's 79.10 GiB are free", or that it is unknown. */
enum { CUDA_FREE_CHARS = 80 };
const char *cuda_free_text(char out[CUDA_FREE_CHARS]);

/* buffer_alloc() of workspace for the op being launched, which the error names. */
MUST_USE enum status cuda_workspace(struct cuda_queue *queue, size_t bytes, struct buffer *out);

/* Blocks the host until `event` is complete; returns the error of a failed message. */
MUST_USE enum status cuda_block(const struct cuda_queue *queue, cudaEvent_t event);

/* Scratch memory for the op being launched, 256-byte aligned, uninitialized, valid within the op. One
 * allocation per op, at most cuda_scratch_bytes(). */
MUST_USE enum status cuda_scratch(struct cuda_queue *queue, size_t bytes, void **out);
/* The same for a library that determines its workspace size at run time. */
MUST_USE enum status cuda_library_scratch(struct cuda_queue *queue, size_t bytes, void **out);

/* "norm_forward(f32[4096, 768])". */
enum { CUDA_OP_CHARS = 256 };
const char *cuda_op_text(const struct op *op, char out[CUDA_OP_CHARS]);

/* Launches the op's kernels on the queue: a switch over op kinds (run.c). Copies are in device_cuda.c. */
MUST_USE enum status cuda_run(struct cuda_queue *queue, const struct op *op);

/* cuda_gemm(queue, const struct gemm *op) and so on. */
#define OP_ROW(kind, name, args, size) \
    MUST_USE enum status cuda_##name(struct cuda_queue *queue, const struct args *op);
OPS(OP_ROW)
#undef OP_ROW

/* Begins an NVTX range, for the timeline of Nsight Systems; NULL ends the last (range.c). */
void cuda_range(const char *name);

/* cuda_gemm() has two implementations: cuBLASLt (gemm_cublaslt.c), and our own kernel, used without
 * the library (in the emulator) and for cases that it does not support (K = 0). */
MUST_USE enum status cuda_gemm_tiled(struct cuda_queue *queue, const struct gemm *op);

/* Attention has two implementations: our own kernels (attention_f32.cu), and cuDNN (attention_cudnn.h).
 * attention_choice.c selects one according to the device's options. NOT_SUPPORTED: cuDNN was requested but is
 * not available. */
MUST_USE enum status cuda_own_attention_forward(struct cuda_queue *queue, const struct attention_forward *op);
MUST_USE enum status cuda_own_attention_backward(struct cuda_queue *queue,
                                                 const struct attention_backward *op);
/* Converts lse between the op's layout and the packed one, [batch, heads, sequence]. */
MUST_USE enum status cuda_pack_lse(struct cuda_queue *queue, const struct attention_forward *op,
                                   float *packed);
MUST_USE enum status cuda_unpack_lse(struct cuda_queue *queue, const struct attention_forward *op,
                                     const float *packed);
MUST_USE enum status cuda_attention_open(const struct device_options *options, struct cuda_attention **out);
void cuda_attention_close(struct cuda_attention *attention);                           // accepts NULL
void cuda_attention_choices(const struct cuda_attention *attention, struct text *out); // device_choices()

/* Opens cuBLASLt for one device; the error names the missing library in one line. */
struct cuda_gpu;
MUST_USE enum status cuda_library_open(const struct cuda_gpu *gpu, const struct device_options *options,
                                       struct cuda_library **out);
/* Whether cuda_gemm() supports epilogues. */
bool cuda_library_has_epilogues(const struct cuda_library *library);
void cuda_library_close(struct cuda_library *library);                           // accepts NULL
void cuda_library_choices(const struct cuda_library *library, struct text *out); // device_choices()
/* device_check_algorithms() */
MUST_USE enum status cuda_library_check(const char *algorithms);
