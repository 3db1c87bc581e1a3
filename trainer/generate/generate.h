// SPDX-License-Identifier: Apache-2.0
/* Text generation from a trained model: encodes the prompt, then samples one token at a time.
 *
 *     prompt "Ocean, n."  ->  ids, followed by S - 9 padding ids
 *     forward pass        ->  logits of the last id    ->  sample one (sampler.h)  ->  print, append
 *
 * Attention is causal, so the padding does not affect the logits. When the window is full, it slides: the
 * first id is dropped. Every token costs a forward pass over the whole window (no KV cache): generation uses
 * exactly the code of training, and is meant for small models. */
#pragma once

#include "trainer/generate/sampler.h"
#include "trainer/recipe/recipe.h"

struct generate_options {
    const struct recipe *recipe; // for one rank and microbatches of one sequence
    const char *transport;       // provides a world of one rank
    const char *checkpoint;      // a path as for checkpoint_resolve
    const char *prompt;
    int64_t prompt_bytes;
    int64_t tokens; // maximum number of new tokens
    struct sampling sampling;
    bool no_stop; // continue past the end of a document
    FILE *to;     // destination of prompt and text
    bool raw;     // write bytes unchanged; otherwise UTF-8 without control characters, for a terminal
};

struct generate_result {
    int64_t prompt_tokens, tokens; // in the prompt, generated
    bool stopped;                  // at the end of a document
    int64_t step;                  // of the checkpoint
    double seconds;                // in forward passes and sampling
};

/* Returns BAD_USAGE for a prompt that does not fit, BAD_RECIPE without a tokenizer, BAD_CHECKPOINT,
 * IO_ERROR. */
MUST_USE enum status generate(const struct generate_options *options, struct generate_result *out);
