// SPDX-License-Identifier: Apache-2.0
/* The cuda device's rooms: one function per op, behind the doors of kernels/ops.h, which have checked types,
 * shapes and strides and taken the exits for nothing to do. What each computes is said beside its struct in
 * ops.h; each puts its kernels on a stream and returns at once.
 *
 * Laws of a kernel here, as on the cpu:
 *   - which thread adds which terms in which order depends on the shape only: not on the alignment of a
 *     pointer, not on the number of multiprocessors, never on who comes first. No atomics on floats;
 *   - multiplications and additions are not contracted (--fmad=false); a kernel that wants fmaf() says so;
 *   - temporary memory comes from cuda_scratch(), one piece per op. */
#pragma once

#include "kernels/cuda/runtime/scratch.h"
#include "kernels/ops.h"

#include <cuda_runtime_api.h>

struct cuda_library;                       // cuBLASLt and its plans
struct cuda_attention;                     // which attention a shape takes
typedef void (*cuda_tensor_encoder)(void); // cuTensorMapEncodeTiled (tensor_map.h)

/* One stream's part of what an op needs. */
struct cuda_queue {
    struct device *device;
    const char *name; // the stream's, for messages
    cudaStream_t stream;
    struct buffer scratch;
    bool is_captured;    // what is put here now is launched later, again and again (graph.c)
    const struct op *op; // the one that is being launched, for messages
    struct cuda_library *library;
    struct cuda_attention *attention;
    bool tf32;                  // for products of fp32 matrices
    cuda_tensor_encoder encode; // NULL: a GPU without the instructions of wgmma.h
    int most_blocks;            // device_options.most_blocks
};

/* OK, or NOT_SUPPORTED with "cuda: CALL: what CUDA says (queue's op with its shapes)", or NO_DEVICE_MEMORY
 * with how much is free. queue may be NULL. */
MUST_USE enum status cuda_check(const struct cuda_queue *queue, cudaError_t error, const char *call);

/* "1.20 MiB of the GPU's 79.10 GiB are free", or that CUDA does not say. */
enum { CUDA_FREE_CHARS = 80 };
const char *cuda_free_text(char out[CUDA_FREE_CHARS]);

/* buffer_alloc() of workspace for the op that is being launched, which is named if there is none. */
MUST_USE enum status cuda_workspace(struct cuda_queue *queue, size_t bytes, struct buffer *out);

/* Blocks the host until the GPU has passed `event`; what has gone wrong with a message meanwhile. */
MUST_USE enum status cuda_block(const struct cuda_queue *queue, cudaEvent_t event);

/* Memory for the op that is being launched, aligned to 256 bytes, unset, gone with the op. One piece per op,
 * of what cuda_scratch_bytes() says of it at most. */
MUST_USE enum status cuda_scratch(struct cuda_queue *queue, size_t bytes, void **out);
/* The same for a library that says only at run time how much it wants. */
MUST_USE enum status cuda_library_scratch(struct cuda_queue *queue, size_t bytes, void **out);

/* "norm_forward(f32[4096, 768])". */
enum { CUDA_OP_CHARS = 256 };
const char *cuda_op_text(const struct op *op, char out[CUDA_OP_CHARS]);

/* Puts the op's kernels on the queue: the one switch (run.c). Transfers are the device's. */
MUST_USE enum status cuda_run(struct cuda_queue *queue, const struct op *op);

MUST_USE enum status cuda_fill(struct cuda_queue *queue, const struct fill *op);
MUST_USE enum status cuda_copy(struct cuda_queue *queue, const struct copy *op);
MUST_USE enum status cuda_cast(struct cuda_queue *queue, const struct cast *op);
MUST_USE enum status cuda_add(struct cuda_queue *queue, const struct add *op);
MUST_USE enum status cuda_add_parts(struct cuda_queue *queue, const struct add_parts *op);
MUST_USE enum status cuda_init_normal(struct cuda_queue *queue, const struct init_normal *op);
MUST_USE enum status cuda_column_sum(struct cuda_queue *queue, const struct column_sum *op);
MUST_USE enum status cuda_norm_forward(struct cuda_queue *queue, const struct norm_forward *op);
MUST_USE enum status cuda_norm_backward(struct cuda_queue *queue, const struct norm_backward *op);
MUST_USE enum status cuda_activation_forward(struct cuda_queue *queue, const struct activation_forward *op);
MUST_USE enum status cuda_activation_backward(struct cuda_queue *queue, const struct activation_backward *op);
MUST_USE enum status cuda_rope(struct cuda_queue *queue, const struct rope *op);
MUST_USE enum status cuda_attention_forward(struct cuda_queue *queue, const struct attention_forward *op);
MUST_USE enum status cuda_attention_backward(struct cuda_queue *queue, const struct attention_backward *op);
MUST_USE enum status cuda_embedding_forward(struct cuda_queue *queue, const struct embedding_forward *op);
MUST_USE enum status cuda_embedding_backward(struct cuda_queue *queue, const struct embedding_backward *op);
MUST_USE enum status cuda_residual_forward(struct cuda_queue *queue, const struct residual_forward *op);
MUST_USE enum status cuda_residual_backward(struct cuda_queue *queue, const struct residual_backward *op);
MUST_USE enum status cuda_residual_norm_forward(struct cuda_queue *queue,
                                                const struct residual_norm_forward *op);
MUST_USE enum status cuda_residual_norm_backward(struct cuda_queue *queue,
                                                 const struct residual_norm_backward *op);
MUST_USE enum status cuda_loss_max(struct cuda_queue *queue, const struct loss_max *op);
MUST_USE enum status cuda_loss_sum(struct cuda_queue *queue, const struct loss_sum *op);
MUST_USE enum status cuda_loss_finish(struct cuda_queue *queue, const struct loss_finish *op);
MUST_USE enum status cuda_loss_backward(struct cuda_queue *queue, const struct loss_backward *op);
MUST_USE enum status cuda_squares(struct cuda_queue *queue, const struct squares_list *op);
MUST_USE enum status cuda_sum(struct cuda_queue *queue, const struct sum_list *op);
MUST_USE enum status cuda_clip(struct cuda_queue *queue, const struct clip *op);
MUST_USE enum status cuda_adamw(struct cuda_queue *queue, const struct adamw_list *op);
MUST_USE enum status cuda_magnitude(struct cuda_queue *queue, const struct magnitude *op);
MUST_USE enum status cuda_quantize(struct cuda_queue *queue, const struct quantize *op);
MUST_USE enum status cuda_hadamard(struct cuda_queue *queue, const struct hadamard *op);

/* A range of NVTX, by which Nsight Systems names what lies on its time axis; NULL ends the last (range.c). */
void cuda_range(const char *name);

/* Matrix multiplication has two homes behind one name: cuBLASLt (gemm_cublaslt.c), and an own kernel for
 * where that library is not (the emulator) and for what it does not take (K = 0). */
MUST_USE enum status cuda_gemm(struct cuda_queue *queue, const struct gemm *op);
MUST_USE enum status cuda_gemm_tiled(struct cuda_queue *queue, const struct gemm *op);

/* Attention has two homes behind one name: our own kernels (attention.cu), and cuDNN (attention_cudnn.h).
 * Which of them says attention_choice.c, as the device's options ask. NOT_SUPPORTED: cuDNN was asked for and
 * is not here. */
MUST_USE enum status cuda_own_attention_forward(struct cuda_queue *queue, const struct attention_forward *op);
MUST_USE enum status cuda_own_attention_backward(struct cuda_queue *queue,
                                                 const struct attention_backward *op);
/* lse packed, [batch, heads, sequence], out of op's own, or back into that. */
MUST_USE enum status cuda_pack_lse(struct cuda_queue *queue, const struct attention_forward *op,
                                   float *packed);
MUST_USE enum status cuda_unpack_lse(struct cuda_queue *queue, const struct attention_forward *op,
                                     const float *packed);
MUST_USE enum status cuda_attention_open(const struct device_options *options, struct cuda_attention **out);
void cuda_attention_close(struct cuda_attention *attention);                           // takes NULL
void cuda_attention_choices(const struct cuda_attention *attention, struct text *out); // device_choices()

/* Opens cuBLASLt for one device; one line that names the library when it is not there. */
struct cuda_gpu;
MUST_USE enum status cuda_library_open(const struct cuda_gpu *gpu, const struct device_options *options,
                                       struct cuda_library **out);
/* Whether cuda_gemm() takes an epilogue. */
bool cuda_library_has_epilogues(const struct cuda_library *library);
void cuda_library_close(struct cuda_library *library);                           // takes NULL
void cuda_library_choices(const struct cuda_library *library, struct text *out); // device_choices()
/* device_named_check_algorithms() */
MUST_USE enum status cuda_library_check(const char *algorithms);
