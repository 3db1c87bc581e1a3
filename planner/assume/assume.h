// SPDX-License-Identifier: Apache-2.0
/* Assumptions about the program whose results a plan is compared with: the keys of the section `assume`.
 *
 *   attention_forward 32 x 2048 x 128    with attention unfused:
 *     gemm 65536 x 2048 x 128            scores
 *     norm_forward 65536 x 2048          softmax: one pass over the scores
 *     gemm 65536 x 128 x 2048            values
 *
 * A tape holds the ops of this program; only their times are replaced, so the schedule, the messages and the
 * dependencies stay as they are. */
#pragma once

#include "kernels/device_plan.h"
#include "layers/model_config.h"
#include "parallel/comm.h"

/* Which tensors a plan counts: those of this program, or those of the papers. */
enum memory_assumption { ASSUME_PROGRAM, ASSUME_PAPERS };
enum assumed_attention {
    ASSUME_ATTENTION_OWN,               // the kernel that the profile's efficiencies are for
    ASSUME_ATTENTION_OWN_DETERMINISTIC, // so, with sums over blocks of keys in a fixed order
    ASSUME_ATTENTION_EAGER,   // as unfused, with PyTorch's separate kernels: scale, mask, softmax in fp32
    ASSUME_ATTENTION_UNFUSED, // scores, softmax and dropout are stored
    ASSUME_ATTENTION_FLASH,   // FlashAttention 1
    ASSUME_ATTENTION_FLASH2,  // its kernels have the instructions of an A100 on every GPU
    ASSUME_ATTENTION_FLASH2_DETERMINISTIC,
    ASSUME_ATTENTION_FLASH3, // Hopper only
};
enum assumed_fusion {
    ASSUME_FUSED,
    ASSUME_SEPARATE, // norms only: one kernel each for norm, dropout with residual, and their gradients
    ASSUME_UNFUSED   // one kernel for each operation of the formula
};
enum assumed_overlap { ASSUME_OVERLAP_OWN, ASSUME_OVERLAP_NONE, ASSUME_OVERLAP_GRAD, ASSUME_OVERLAP_BOTH };
/* Over tensor-parallel ranks, or gathered on each, with PyTorch's loss in fp32. */
enum assumed_logits { ASSUME_LOGITS_SPLIT, ASSUME_LOGITS_WHOLE };
/* What printed memory counts: allocations of tensors, or all that is in use on the device (nvidia-smi). */
enum assumed_memory { ASSUME_MEMORY_ALLOCATED, ASSUME_MEMORY_DEVICE };
/* Slots for each chunk of a rank, or memory that all chunks share, allocated and freed tensor by tensor. */
enum assumed_activations { ASSUME_ACTIVATIONS_SLOTS, ASSUME_ACTIVATIONS_SHARED };
/* Sharded optimizer state: gradients in a reduce-scatter, or an all-reduce of which a rank reads a part. */
enum assumed_reduction { ASSUME_REDUCTION_OWN, ASSUME_REDUCTION_ALL_REDUCE };
/* Of optimizer post-validation: from a copy, or by the inverse of the update. */
enum assumed_rollback { ASSUME_ROLLBACK_COPY, ASSUME_ROLLBACK_INVERSE };
/* Of dropout in the residual stream: recomputed in the backward pass, or stored, a byte per element. */
enum assumed_masks { ASSUME_MASKS_OWN, ASSUME_MASKS_STORED };
enum assumed_dtype { ASSUME_DTYPE_OWN, ASSUME_DTYPE_FP32, ASSUME_DTYPE_BF16 };

struct assumptions {
    enum memory_assumption programs;
    enum assumed_attention attention;
    enum assumed_fusion norm, activation, rope;
    enum assumed_fusion gate;         // gate and up projection: one linear layer, or two
    enum assumed_fusion accumulation; // weight gradients: in the epilogue of the matmul, or separate
    enum assumed_dtype gradient_dtype;
    int optimizer_bytes_per_parameter; // master weights and moments; 0: this program's
    int logits_bytes_per_element;      // logits and their gradient; 0: this program's
    enum assumed_overlap overlap;
    double tp_overlap;      // fraction of each tensor-parallel message that is hidden by compute
    int64_t reserved_bytes; // per device, for CUDA, libraries, buffers; -1: the profile's
    int64_t kept_bytes;     // by libraries, from one step to the next
    enum assumed_logits logits;
    enum assumed_memory printed_memory;
    enum assumed_activations activations;
    enum assumed_reduction gradient_reduction;
    enum assumed_rollback rollback;
    enum assumed_masks dropout_masks;
    double fragmentation; // fraction of the allocated memory; -1: the profile's
};

/* Properties of the model and the layout that an op record lacks. */
struct assumed_model {
    bool attention_dropout;
    int64_t hidden;
    int64_t gate_columns;    // of the projection to gate and up on a rank; 0: none
    int tensor_parallel;     // ranks
    bool recomputes_modules; // each module of a stage is checkpointed, the head, too
    int compute_capability;  // of the GPU: 90; 0: unknown, or a CPU
    int replica_ranks;       // tensor- and pipeline-parallel, which wait for each other
};

/* Replaces an op by those of the other program, with the costs (FLOPs, bytes) of its kernels. Returns their
 * number; without an assumption it is 1, a copy of the op. */
enum { ASSUME_MAX_OPS = 8 };
int assume_ops(const struct assumptions *assume, const struct assumed_model *model,
               const struct op_record *op, struct op_record out[ASSUME_MAX_OPS]);

/* A message over the tensor-parallel ranks that the other program sends with an op, and this one does not. */
struct assumed_message {
    enum call call;
    int64_t bytes; // 0: none
};
struct assumed_message assume_message(const struct assumptions *assume, const struct assumed_model *model,
                                      const struct op_record *op);

/* Host time of the other program with an op, which its kernels do not hide. */
double assume_host_s(const struct assumed_model *model, const struct op_record *op);

/* Whether attention scores are stored as tensors. */
bool assume_stores_scores(const struct assumptions *assume);

/* The time of the assumed attention kernel relative to the profile's: at least 1, so that no kernel exceeds
 * the peak. */
double assume_attention_factor(const struct assumptions *assume, int compute_capability, enum op_kind kind);
/* Why GPUs of a compute capability (0: unknown) do not run the assumed attention kernel, as the rest of a
 * sentence after its name: "is for ..."; NULL: they do. */
const char *assume_attention_fault(const struct assumptions *assume, int compute_capability);
