// SPDX-License-Identifier: Apache-2.0
/* The tensors of one layer for one microbatch, with sizes and lifetimes, as a formula of the model's
 * dimensions: the declarations of layers/ written down independently, in one place, so that each can be
 * checked against the other. T tokens, of which a rank holds l between matmuls (T, or T/t with sequence
 * parallelism):
 *
 *     GPT, fp32    x 4lH  norm 4lH  q k v 12TH/t  out 4TH/t  middle 4lH  norm 4lH
 *                  before 16TH/t  after 16TH/t
 *
 * Programs differ in the tensors that they store. With `memory_of_papers` the same list has the tensors
 * stored by ZeRO (1910.02054) and Korthikanti et al. (2205.05198), and reproduces their tables;
 * docs/memory.md lists the differences from this program. */
#pragma once

#include "layers/model_config.h"
#include "layers/pass.h"

/* Bytes per element, and which tensors are stored. */
struct memory_assume {
    int activation, weight, gradient, master, moment; // master 0: no master weights, the weights themselves
                                                      // are updated
    int logits;                                       // 0: as activations
    bool whole_logits;                                // on each tensor-parallel rank
    int statistic;           // sums over rows and tokens: always fp32 in this program
    bool unfused_attention;  // stores the probabilities before and after dropout instead of log-sum-exps
    bool unfused_norm;       // stores its input in fp32, and its result before the weight
    bool unfused_activation; // with a gate: stores its function, as silu(gate)
    bool stored_masks;       // stores the mask of every dropout, one byte per element
    bool large_only;         // ignores means and deviations of the norms, and does not round up to 64 bytes
};
extern const struct memory_assume memory_of_program, memory_of_papers;
/* This program with activations and weights of dtype `working`, and updates in dtype `main`. */
struct memory_assume memory_of_working(enum dtype working, enum dtype main);

/* Model and layout of a layer. */
struct memory_shape {
    const struct model_config *model;
    int tp;
    bool sequence_parallel, tp_comm_overlap;
    int64_t batch, sequence; // B and S
    bool quantized;          // matmuls have quantized copies of their operands
                             // (layers/linear/low_precision.h)
    struct memory_assume assume;
};

struct memory_item {
    const char *what;
    enum lifetime lifetime;
    unsigned module; // modules whose recomputation includes it; 0: recomputed only with its whole layer
    int64_t bytes;
};

enum { MEMORY_MAX_ITEMS = 40 };
struct memory_items {
    struct memory_item list[MEMORY_MAX_ITEMS];
    int count;
};

/* All tensors of a block except scratch (memory_block_scratch()). The first item is its input, with
 * KEEP_UNTIL_BACKWARD_INPUT. */
struct memory_items memory_of_block(const struct memory_shape *shape);
struct memory_items memory_of_embedding(const struct memory_shape *shape); // includes scratch
/* Vocabulary rows, padded, on one tensor-parallel rank. */
int64_t memory_head_rows(const struct memory_shape *shape);
struct memory_items
memory_of_head(const struct memory_shape *shape); // includes scratch; the first item is its
                                                  // input
/* The larger scratch of the two branches, which share it; parallel branches do not. */
int64_t memory_block_scratch(const struct memory_shape *shape);
/* [l, H]: the message between stages. */
int64_t memory_stream_bytes(const struct memory_shape *shape);

/* The sum of the items of one lifetime. */
int64_t memory_of_lifetime(const struct memory_items *items, enum lifetime lifetime);
/* Bytes that F keeps of a block for its backward pass if `modules` are recomputed. */
int64_t memory_kept_of_block(const struct memory_shape *shape, unsigned modules);

/* Weights, gradients and optimizer state of `parameters` elements on one of `dp` data ranks, without padding
 * (1910.02054, section 5): each is divided by dp if zero_stage shards it. */
double memory_of_states(const struct memory_assume *assume, double parameters, int zero_stage, int dp);
