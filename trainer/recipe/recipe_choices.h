// SPDX-License-Identifier: Apache-2.0
/* Named values of keys, for recipe_table.c only: the macros, and the lists of all sections but `model`, whose
 * rows contain theirs. */
#pragma once

#include "trainer/recipe/recipe_table.h"

#include <signal.h>

/* A name and its value; ALIAS: name used by another program. */
#define NAMED(name_, value_)               \
    {                                      \
        .name = (name_), .value = (value_) \
    }
#define ALIAS(name_, value_)                              \
    {                                                     \
        .name = (name_), .value = (value_), .alias = true \
    }
/* The values of one key, in its row. */
#define CHOICES(...) ((const struct choice[]){__VA_ARGS__, {0}})

static const struct choice epilogues[] = {
    NAMED("apart", EPILOGUES_APART), NAMED("fused", EPILOGUES_FUSED), NAMED("auto", EPILOGUES_AUTO), {0}};
static const struct choice backends[] = {NAMED("auto", ATTENTION_AUTO),   NAMED("own", ATTENTION_OWN),
                                         NAMED("cudnn", ATTENTION_CUDNN), ALIAS("flash", ATTENTION_OWN),
                                         ALIAS("fused", ATTENTION_CUDNN), {0}};
static const struct choice main_dtypes[] = {NAMED("fp32", RECIPE_FP32), NAMED("bf16", RECIPE_BF16), {0}};
static const struct choice working_dtypes[] = {
    NAMED("fp32", RECIPE_FP32), NAMED("bf16", RECIPE_BF16), NAMED("fp16", RECIPE_FP16), {0}};
static const struct choice decays[] = {
    NAMED("constant", LR_CONSTANT), NAMED("linear", LR_LINEAR),
    NAMED("cosine", LR_COSINE),     NAMED("inverse-square-root", LR_INVERSE_SQUARE_ROOT),
    NAMED("WSD", LR_WSD),           {0}};
static const struct choice wsd_decays[] = {NAMED("exponential", WSD_EXPONENTIAL),
                                           NAMED("linear", WSD_LINEAR),
                                           NAMED("cosine", WSD_COSINE),
                                           NAMED("minus_sqrt", WSD_MINUS_SQUARE_ROOT),
                                           {0}};
static const struct choice auto_times[] = {NAMED("given", TIMES_GIVEN), NAMED("plan", TIMES_PLAN), {0}};
static const struct choice granularities[] = {NAMED("none", RECOMPUTE_NONE),
                                              NAMED("selective", RECOMPUTE_SELECTIVE),
                                              NAMED("full", RECOMPUTE_FULL),
                                              {0}};
static const struct choice searches[] = {NAMED("none", SEARCH_NONE), NAMED("auto", SEARCH_AUTO), {0}};
static const struct choice methods[] = {
    NAMED("uniform", RECOMPUTE_UNIFORM), NAMED("block", RECOMPUTE_BLOCK), {0}};
static const struct choice modules[] = {NAMED("core_attn", RECOMPUTE_CORE_ATTENTION),
                                        NAMED("norm", RECOMPUTE_NORM),
                                        NAMED("activation", RECOMPUTE_ACTIVATION),
                                        ALIAS("layernorm", RECOMPUTE_NORM),
                                        {0}};
#define MATMUL_FORMATS                                                                              \
    NAMED("none", MATMUL_FORMAT_NONE), NAMED("e4m3", MATMUL_E4M3), NAMED("e5m2", MATMUL_E5M2),      \
        NAMED("hybrid", MATMUL_HYBRID), NAMED("mxfp8", MATMUL_MXFP8), NAMED("nvfp4", MATMUL_NVFP4), \
        NAMED("ternary", MATMUL_TERNARY)
static const struct choice matmul_formats[] = {MATMUL_FORMATS, {0}};
static const struct choice matmul_formats_or_same[] = {
    NAMED("same", MATMUL_FORMAT_SAME), MATMUL_FORMATS, {0}};
static const struct choice scalings[] = {NAMED("auto", SCALE_AUTO),
                                         NAMED("tensorwise", SCALE_TENSORWISE),
                                         NAMED("delayed", SCALE_DELAYED),
                                         NAMED("blockwise", SCALE_BLOCKWISE),
                                         {0}};
static const struct choice scale_roundings[] = {
    NAMED("up", SCALE_ROUNDS_UP), NAMED("down", SCALE_ROUNDS_DOWN), {0}};
static const struct choice amax_algorithms[] = {
    NAMED("max", AMAX_MAX), NAMED("most_recent", AMAX_MOST_RECENT), {0}};
static const struct choice tokenizers[] = {NAMED("byte", TOKENIZER_BYTE),
                                           NAMED("GPT2BPE", TOKENIZER_GPT2_BPE),
                                           NAMED("HuggingFaceTokenizer", TOKENIZER_HUGGING_FACE),
                                           NAMED("GPTSentencePieceTokenizer", TOKENIZER_SENTENCEPIECE),
                                           NAMED("Llama2Tokenizer", TOKENIZER_LLAMA2),
                                           NAMED("none", TOKENIZER_NONE),
                                           {0}};
static const struct choice signals[] = {NAMED("SIGTERM", SIGTERM),
                                        NAMED("SIGINT", SIGINT),
                                        NAMED("SIGUSR1", SIGUSR1),
                                        NAMED("SIGUSR2", SIGUSR2),
                                        {0}};
