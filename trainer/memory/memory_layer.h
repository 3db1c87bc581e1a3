// SPDX-License-Identifier: Apache-2.0
/* The tensors that one layer needs for one microbatch, each with its size and its life, as a formula of the
 * model's dimensions: what layers/ declares, written down a second time, in one place, so that either can be
 * held against the other. T tokens, of which a rank holds l between matrix multiplications (T, or T/t under
 * sequence parallelism):
 *
 *     GPT, fp32    x 4lH  norm 4lH  q k v 12TH/t  out 4TH/t  middle 4lH  norm 4lH  before 16TH/t  after
 * 16TH/t
 *
 * Two programs differ in what they store. Under `memory_of_papers` the same list has what those of ZeRO
 * (1910.02054) and Korthikanti et al. (2205.05198) stored, and gives their tables; docs/memory.md names the
 * terms in which they and this program differ. */
#pragma once

#include "layers/model_config.h"
#include "layers/pass.h"

/* Bytes of an element, and what is stored. */
struct memory_assume {
    int activation, weight, gradient, master, moment; // master 0: the weights themselves are updated
    int statistic; // sums over rows and tokens, which this program has in fp32 whatever activations are
    bool unfused_attention; // the probabilities, before and after dropout, instead of log-sum-exps
    bool stored_masks;      // of every dropout, a byte an element
    bool large_only;        // without the norms' means and deviations, and nothing rounded up to 64 bytes
};
extern const struct memory_assume memory_of_program, memory_of_papers;
/* The program where activations and weights have this type, and what is updated `main`. */
struct memory_assume memory_of_working(enum dtype working, enum dtype main);

/* A layer's surroundings. */
struct memory_shape {
    const struct model_config *model;
    int tp;
    bool sequence_parallel, tp_comm_overlap;
    int64_t batch, sequence; // B and S
    bool quantized;          // multiplications have copies of their operands (layers/linear/low_precision.h)
    struct memory_assume assume;
};

struct memory_item {
    const char *what;
    enum lifetime lifetime;
    unsigned module; // with which of them it can be computed again; 0: with its whole layer only
    int64_t bytes;
};

enum { MEMORY_MOST_ITEMS = 40 };
struct memory_items {
    struct memory_item list[MEMORY_MOST_ITEMS];
    int count;
};

/* All of a block but its scratch, which is memory_block_scratch(). Its input is the first item, with
 * KEEP_UNTIL_BACKWARD_INPUT. */
struct memory_items memory_of_block(const struct memory_shape *shape);
struct memory_items memory_of_embedding(const struct memory_shape *shape); // scratch too
/* Of the vocabulary, padded, on one tensor-parallel rank. */
int64_t memory_head_rows(const struct memory_shape *shape);
struct memory_items memory_of_head(const struct memory_shape *shape); // scratch too; its input is the first
/* The larger of its branches, which share it. */
int64_t memory_block_scratch(const struct memory_shape *shape);
/* [l, H]: what stages send each other. */
int64_t memory_stream_bytes(const struct memory_shape *shape);

/* The sum of a list's items in one home. */
int64_t memory_of_lifetime(const struct memory_items *items, enum lifetime lifetime);
/* What F leaves of a block for its backward pass when `modules` are computed again. */
int64_t memory_kept_of_block(const struct memory_shape *shape, unsigned modules);

/* Weights, gradients and optimizer state of that many parameters on one of `dp` data ranks, without padding
 * (1910.02054, section 5): each is a dp-th where zero_stage says that it is cut. */
double memory_of_states(const struct memory_assume *assume, double parameters, int zero_stage, int dp);
