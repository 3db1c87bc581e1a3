// SPDX-License-Identifier: Apache-2.0
/* Models that train on sixteen ranks in well under a second, with awkward sizes in every dimension that is
 * sharded: a vocabulary that no tp divides, five layers, head dimensions other than H / heads.
 *
 *   TINY_GPT    LayerNorm, GELU, biases, learned positions, tied; V 257, documents that end with 256
 *   TINY_LLAMA  RMSNorm, SwiGLU, RoPE, 2 key/value groups for 12 heads, untied; V 37, no documents
 *
 * A folder holds two recipes and two small datasets of random ids. Layouts are overrides in one string,
 * separated by spaces: "tp=2 pp=4 pipeline.layout=[2,0,3,0]". */
#pragma once

#include "tests/support/sanitized.h"
#include "trainer/recipe/recipe.h"

enum tiny_family { TINY_GPT, TINY_LLAMA };

enum { TINY_FOLDER_CHARS = 200, TINY_STEPS = UNDER_SANITIZER ? 4 : 6 };

struct tiny {
    char folder[TINY_FOLDER_CHARS];
};

/* Creates and fills a temporary folder. tiny_destroy removes it with its contents. */
MUST_USE enum status tiny_create(struct tiny *out);
void tiny_destroy(struct tiny *tiny);
/* Removes a folder with its contents. */
void remove_tree(const char *folder);

/* The family's recipe with overrides: `common`, then `layout`; either may be "". world: the launcher's number
 * of ranks, 0 alone. BAD_RECIPE with all problems in fail_text(). */
MUST_USE enum status tiny_recipe(const struct tiny *tiny, enum tiny_family family, const char *common,
                                 const char *layout, int world, struct recipe **out);

/* Overrides that select the dataset with documents for Llama's recipe. */
#define TINY_DOCUMENTS                                             \
    " data.reset_attention_mask=true data.reset_position_ids=true" \
    " data.eod_mask_loss=true "
/* The same documents as conversations: whole ones in a sample, cut to its length, with masked questions. */
#define TINY_CONVERSATIONS                                                       \
    " data.loss_mask=true data.pack_documents=true data.truncate_documents=true" \
    " data.reset_attention_mask=true data.reset_position_ids=true "
#define TINY_LLAMA_BYTES " tokenizer.tokenizer_type=byte model.vocab_size=257 data.train=bytes "
/* Biases of q, k and v, norms of heads, and scaled frequencies of neighbouring pairs in half of a head. */
#define TINY_QUERY_KEY_NORMS                                                                 \
    " model.qk_layernorm=true model.add_qkv_bias=true model.rotary_percent=0.5 "             \
    "model.rotary_interleaved=true model.use_rope_scaling=true model.rope_scaling_factor=4 " \
    "model.rope_original_max_position_embeddings=16 "
/* A norm of the embedding and parallel branches, with one norm or two. */
#define TINY_PARALLEL " model.block_type=parallel model.activation=geglu model.embed_layernorm=true "
#define TINY_TWO_NORMS                                                    \
    " model.block_type=parallel_two_norms model.activation=squared_relu " \
    "model.embed_layernorm=true "
#define TINY_ALIBI   " model.position_embedding_type=alibi "
#define TINY_SOFTCAP " model.attn_logit_softcapping=0.5 model.final_logit_softcapping=0.7 "
/* A window in every second layer. */
#define TINY_WINDOW  " model.window_size=5 model.window_attn_skip_freq=2 "
#define TINY_DROPOUT " model.hidden_dropout=0.2 model.attention_dropout=0.2 "
