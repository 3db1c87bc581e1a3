// SPDX-License-Identifier: Apache-2.0
/* What the homes of attention share: the plain one (attention.cu), which takes everything; the one on tensor
 * cores (attention_mma.cu), which takes two-byte numbers and heads of 64 and 128; and of these, on GPUs of
 * compute capability 9.0, those with products of warpgroups (attention_wgmma.cu and its _back). */
#pragma once

#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/reduce.h"
#include "kernels/cuda/tensor_core/mma.h"

/* Where a block of threads is. */
struct place {
    int64_t row;    // of the sequence's first token
    int64_t number; // of the sequence
    int head, group;
};

/* Dropout of attention's weights: element (head * S + query) * S + key of the sample. */
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

/* Where the pairs (query, 0), (query, 1) ... begin. */
static __device__ inline uint64_t first_pair(const struct pair_dropout &d, const struct place &at,
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

/* Whether tensor cores can do it; the rest is for the plain kernels. */
bool attention_suits_mma(const struct attention_forward *op);
bool attention_suits_mma(const struct attention_backward *op);
MUST_USE enum status attention_mma_forward(struct cuda_queue *queue, const struct attention_forward *op);
/* The same with products of warpgroups, on this queue's GPU. */
bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_forward *op);
bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_backward *op);
MUST_USE enum status attention_wgmma_forward(struct cuda_queue *queue, const struct attention_forward *op);
/* delta[A, T]: dout . out, over each head. */
MUST_USE enum status attention_mma_backward(struct cuda_queue *queue, const struct attention_backward *op,
                                            const float *delta);
MUST_USE enum status attention_wgmma_backward(struct cuda_queue *queue, const struct attention_backward *op);
