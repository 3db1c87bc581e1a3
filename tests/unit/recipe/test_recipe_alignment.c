// SPDX-License-Identifier: Apache-2.0
/* Matrices whose leading dimension is not a multiple of 8 on a GPU: each is named once, with a valid fix. */
#include "tests/unit/recipe/recipe_case.h"

#define ON_CUDA "cluster.device=dry", "cluster.dry_device=cuda"
#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)
#define ROWS(matrix, row, key, fix)                                                                     \
    matrix ": rows of " row " elements on each rank, not a multiple of 8, keep matrix multiplications " \
           "on cuda off the tensor cores' fast path; use " key "=" fix "\n"
#define LINE(key, value, matrix, row, fix) \
    "warning: command line: " key " " value ": " ROWS(matrix, row, key, fix)
#define VOCABULARY           "model.make_vocab_size_divisible_by"
#define DERIVED(matrix, row) "warning: R: " KV " 17: " ROWS(matrix, row, KV, "18")
#define FFN                  "model.ffn_hidden_size"
#define KV                   "model.kv_channels"

/* 257 ids are padded to 384 by default. */
Test(recipe_alignment, the_default_pads_the_vocabulary)
{
    WITH("", ON_CUDA);
    WITH("", ON_CUDA, "tp=4");
    WITH("", VOCABULARY "=1"); // on a CPU
    WITH("", VOCABULARY "=1", "cluster.device=dry");
    WITH(LINE(VOCABULARY, "1", "the logits", "257", "8"), ON_CUDA, VOCABULARY "=1");
    WITH(LINE(VOCABULARY, "20", "the logits", "260", "22"), ON_CUDA, VOCABULARY "=20");
    WITH("", ON_CUDA, VOCABULARY "=8");
    WITH(LINE(VOCABULARY, "1", "the logits", "129", "8"), ON_CUDA, VOCABULARY "=1", "tp=2");
}

Test(recipe_alignment, every_matrix_is_named)
{
    WITH(LINE(FFN, "100", "the output of mlp.fc1", "100", "104")
             LINE(FFN, "100", "mlp.fc2.weight and its input", "100", "104"),
         ON_CUDA, FFN "=100");
    WITH("", ON_CUDA, FFN "=104");
    // Gate and up are adjacent: 2 x 52.
    WITH(LINE(FFN, "104", "mlp.fc2.weight and its input", "52", "112"), ON_CUDA, FFN "=104", "tp=2",
         "model.activation=swiglu");
    WITH("", ON_CUDA, FFN "=112", "tp=2", "model.activation=swiglu");
    WITH(LINE(KV, "10", "the output of attention.qkv", "60", "12")
             LINE(KV, "10", "attention.proj.weight and its input", "20", "12"),
         ON_CUDA, KV "=10", "tp=2");
    WITH("", ON_CUDA, KV "=12", "tp=2");
    WITH(LINE("model.hidden_size", "68", "the hidden states and the weights that they are multiplied by",
              "68", "72") DERIVED("the output of attention.qkv", "204")
             DERIVED("attention.proj.weight and its input", "68"),
         ON_CUDA, "model.hidden_size=68");
}
