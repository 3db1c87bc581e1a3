// SPDX-License-Identifier: Apache-2.0
/* Text generation from a trained model: encodes the prompts, then samples one token of each at a time.
 *
 *     prompt "Ocean, n."  ->  ids  ->  logits of the next id (decoder.h)  ->  sample one (sampler.h)
 *                              ^                                                  |
 *                              +---------------------- append --------------------+
 *
 * Every rank samples, from the same logits with the same random numbers; rank 0 prints. */
#pragma once

#include "trainer/generate/sampler.h"
#include "trainer/recipe/recipe.h"

/* Texts that end a generated text, and are not part of it. They may lie across tokens, so what could be the
 * beginning of one is held back:
 *
 *     stop "END"    "one E" + "ND two"      prints "one ", then stops */
struct stop_texts {
    const char *const *list; // none is empty
    int count;
};

struct generate_prompt {
    const char *bytes;
    int64_t length;
};

/* The continuation of one prompt. */
struct generated {
    int64_t prompt_tokens, tokens; // in the prompt, generated
    bool stopped;                  // at one of its ends
    struct text text;              // without the prompt; bytes, perhaps not UTF-8. Only without options.to
};

struct generate_options {
    const struct recipe *recipe; // with one data-parallel rank, and microbatches of one sequence
    int size;                    // ranks, as for world_run()
    const char *checkpoint;      // a path as for checkpoint_resolve
    const struct generate_prompt *prompts;
    int64_t count;  // of prompts, which are continued together
    int64_t tokens; // maximum number of new tokens of each
    struct sampling sampling;
    const char *chat_template;   // a prompt is a message of the user, in this template; NULL: it is a text
    const char *system;          // with chat_template: the system message; NULL: none
    const char *answer_template; // the end of its answers ends a text; NULL: none
    const int32_t *ends;         // ids that also end a text, besides the tokenizer's end of a document
    int end_count;
    bool no_stop; // continue past all these ends
    struct stop_texts stops;
    FILE *to; // one prompt: destination of prompt and text, while it is generated; or NULL
    bool raw; // write bytes unchanged; otherwise UTF-8 without control characters, for a terminal
};

struct generate_result {
    int64_t step;   // of the checkpoint
    double seconds; // in forward passes and sampling
};

/* each[count]: one result per prompt, whose texts the caller frees, also after a failure. Under a launcher
 * the process of rank 0 gets the results. Returns BAD_USAGE for a prompt that does not fit, BAD_RECIPE
 * without a tokenizer, BAD_CHECKPOINT, WRONG_CHECKPOINT, IO_ERROR. */
MUST_USE enum status generate(const struct generate_options *options, struct generated *each,
                              struct generate_result *out);
