// SPDX-License-Identifier: Apache-2.0
/* Logits of the next token of several sequences, with a key/value cache.
 *
 *     decoder_start    a sequence's tokens so far, in chunks of one sequence     [1, 64] rows
 *     decoder_step     the next token of every sequence                          [B, 1] rows
 *
 * Both are the forward pass of training, through two executors over the same weights: a row is a token with a
 * position, and attention reads the earlier keys and values from the cache (layers/key_value_cache.h).
 *
 * The window slides when it is full: the first token is dropped, which changes the positions and the context
 * of all others, so every further token starts again with the last seq_length tokens. Without a cache (a
 * device whose attention does not support it, or quantized matrix multiplications, whose scales depend on
 * all rows) every token starts again, too: a chunk is then as long as the longest sequence.
 *
 * All calls are collective over the world; every rank gets the same logits, whatever tensor and pipeline
 * ranks computed them. */
#pragma once

#include "trainer/engine/rank.h"

/* Tokens of a chunk for run.row_tokens, if no sequence has more than `longest` tokens. */
int64_t decoder_row_tokens(const struct recipe *recipe, int64_t longest);

struct decoder;
/* The rank state was created with decoder_row_tokens(longest), and microbatches of one sequence. */
MUST_USE enum status decoder_create(struct rank_state *state, int64_t sequences, int64_t longest,
                                    struct decoder **out);
void decoder_destroy(struct decoder *decoder); // accepts NULL

/* Computes the logits that follow ids[0, count): the last seq_length of them, if there are more. */
MUST_USE enum status decoder_start(struct decoder *decoder, int64_t sequence, const int32_t *ids,
                                   int64_t count);

/* Appends a token to each sequence; ids[B], -1: the sequence stays as it is, and its logits are undefined. A
 * sequence is started first, and decoder_is_full() is false. */
MUST_USE enum status decoder_step(struct decoder *decoder, const int32_t *ids);

/* Whether the next token needs decoder_start(). */
bool decoder_is_full(const struct decoder *decoder, int64_t sequence);

/* f32[V] after the last call for this sequence. */
const float *decoder_logits(const struct decoder *decoder, int64_t sequence);
