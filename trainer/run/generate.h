// SPDX-License-Identifier: Apache-2.0
/* Text from a trained model: the prompt, and what the model says comes after it, one token at a time.
 *
 *     prompt "Ocean, n."  ->  ids, and S - 9 ids of padding behind them
 *     forward pass        ->  the logits of the last id    ->  one drawn (sampler.h)  ->  printed, appended
 *
 * Attention looks back only, so what stands behind an id changes nothing of its logits. When the window
 * is full it slides: the first id leaves. Every token costs a forward pass over the whole window; that is the
 * price of using the very code that training uses, and a small model does not mind. */
#pragma once

#include "trainer/recipe/recipe.h"
#include "trainer/run/sampler.h"

struct generate_options {
    const struct recipe *recipe; // of one rank, and one sequence in a microbatch
    const char *transport;       // that gives a world of one rank
    const char *checkpoint;      // a path as for checkpoint_resolve
    const char *prompt;
    int64_t prompt_bytes;
    int64_t tokens; // at most so many new ones
    struct sampling sampling;
    bool no_stop; // goes on past the end of a document
    FILE *to;     // prompt and text
    bool raw;     // bytes as they are; otherwise UTF-8 without control characters, for a terminal
};

struct generate_result {
    int64_t prompt_tokens, tokens; // read, made
    bool stopped;                  // the model ended the document
    int64_t step;                  // of the checkpoint
    double seconds;                // of the forward passes and draws
};

/* BAD_USAGE for a prompt that does not fit, BAD_RECIPE without a tokenizer, BAD_CHECKPOINT, IO_ERROR. */
MUST_USE enum status generate(const struct generate_options *options, struct generate_result *out);
