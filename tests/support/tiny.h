// SPDX-License-Identifier: Apache-2.0
/* Models small enough to be trained on sixteen ranks in the blink of an eye, with every dimension that can be
 * cut awkwardly cut awkwardly: a vocabulary that no tp divides, five layers, heads that are not H wide.
 *
 *   TINY_GPT    LayerNorm, GELU, biases, learned positions, tied; V 257, documents that end with 256
 *   TINY_LLAMA  RMSNorm, SwiGLU, RoPE, 2 key/value groups for 12 heads, untied; V 37, no documents
 *
 * A folder holds two recipes and two small datasets made of random ids. Layouts are overrides in one string,
 * separated by spaces: "tp=2 pp=4 pipeline.layout=[2,0,3,0]". */
#pragma once

#include "tests/support/sanitized.h"
#include "trainer/recipe/recipe.h"

enum tiny_family { TINY_GPT, TINY_LLAMA };

enum { TINY_FOLDER_CHARS = 200, TINY_STEPS = UNDER_SANITIZER ? 4 : 12 };

struct tiny {
    char folder[TINY_FOLDER_CHARS];
};

/* Makes a new temporary folder and fills it. tiny_destroy removes it with all that lies in it. */
MUST_USE enum status tiny_create(struct tiny *out);
void tiny_destroy(struct tiny *tiny);
/* A folder with all that lies in it. */
void remove_tree(const char *folder);

/* The family's recipe with overrides: `common`, then `layout`; either may be "". world: the launcher's number
 * of ranks, 0 alone. BAD_RECIPE with all problems in fail_text(). */
MUST_USE enum status tiny_recipe(const struct tiny *tiny, enum tiny_family family, const char *common,
                                 const char *layout, int world, struct recipe **out);

/* Overrides that make Llama's recipe read the dataset with documents. */
#define TINY_DOCUMENTS                                             \
    " data.reset_attention_mask=true data.reset_position_ids=true" \
    " data.eod_mask_loss=true "
#define TINY_LLAMA_BYTES " tokenizer.tokenizer_type=byte model.vocab_size=257 data.train=bytes "
#define TINY_DROPOUT     " model.hidden_dropout=0.2 model.attention_dropout=0.2 "
