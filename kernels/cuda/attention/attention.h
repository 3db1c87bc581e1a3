// SPDX-License-Identifier: Apache-2.0
/* Shared declarations of the attention kernels: the generic one (attention_f32.cu), for every shape; the
 * tensor-core one (attention_sm80.cu), for 16-bit types and head dimensions 64 and 128; and for the same on
 * compute capability 9.0, the warpgroup (wgmma) ones (attention_fwd_sm90.cu and attention_bwd_sm90.cu). */
#pragma once

#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/reduce.h"
#include "kernels/cuda/tensor_core/mma.h"
#include "kernels/position_embedding.h"

/* The coordinates of a thread block's work. */
struct block_coord {
    int64_t row;    // row of the sequence's first token
    int64_t number; // index of the sequence
    int head, group;
};

/* Dropout of the attention weights: element (head * S + query) * S + key of the sample. */
struct pair_dropout {
    bool drops;
    struct dropout_rule rule;
    const int64_t *sample;
    int64_t first_head, sequence;
};

static inline struct pair_dropout pair_dropout_of(const struct attention_forward *op)
{
    struct pair_dropout d = {};
    d.drops = op->dropout.probability > 0.0F;
    d.sequence = op->sequence;
    if (d.drops) {
        d.rule = dropout_rule_of(&op->dropout);
        d.sample = op->dropout.sample;
        d.first_head = op->dropout.column_begin;
    }
    return d;
}

/* The index of pair (query, 0); (query, 1) ... follow. */
static __device__ inline uint64_t first_pair(const struct pair_dropout &d, const struct block_coord &at,
                                             int64_t query)
{
    return static_cast<uint64_t>(((d.first_head + at.head) * d.sequence + query) * d.sequence);
}

/* Bit i: whether element 4 `counter` + i is kept. */
static __device__ inline unsigned kept_quad(const struct pair_dropout &d, uint64_t sample, uint64_t counter)
{
    uint32_t word[4];
    unsigned kept = 0;
    philox_quad(d.rule.generator, sample, counter, word);
    for (unsigned i = 0; i < 4; i++)
        kept |= word[i] >> 8 >= d.rule.threshold ? 1U << i : 0U;
    return kept;
}

static __device__ inline bool keeps(const struct pair_dropout &d, uint64_t sample, uint64_t element)
{
    return (kept_quad(d, sample, element / 4) >> element % 4 & 1) != 0;
}

/* The slopes of ALiBi. heads 0: none. */
struct slopes {
    int64_t heads, begin;

    __device__ float of(int head) const
    {
        return heads > 0 ? static_cast<float>(alibi_slope(heads, begin + head)) : 0.0F;
    }
};

static inline struct slopes slopes_of(const struct attention_forward *op)
{
    return {op->alibi.heads, op->alibi.begin};
}

/* The tokens that a query attends to, at most: the window, or the sequence without one. */
static inline int64_t window_of(const struct attention_forward *op)
{
    return op->window > 0 ? op->window : op->sequence;
}

/* Whether the tensor-core kernels support the op; the generic kernels run the rest. */
bool attention_suits_mma(const struct attention_forward *op);
bool attention_suits_mma(const struct attention_backward *op);
MUST_USE enum status attention_mma_forward(struct cuda_queue *queue, const struct attention_forward *op);
/* The same for the wgmma kernels, on this queue's GPU. */
bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_forward *op);
bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_backward *op);
MUST_USE enum status attention_wgmma_forward(struct cuda_queue *queue, const struct attention_forward *op);
/* delta[A, T]: dout . out, over each head. */
MUST_USE enum status attention_mma_backward(struct cuda_queue *queue, const struct attention_backward *op,
                                            const float *delta);
MUST_USE enum status attention_bwd_sm90ward(struct cuda_queue *queue, const struct attention_backward *op);
