// SPDX-License-Identifier: Apache-2.0
/* The words that keys take as values, for recipe_table.c only. */
#pragma once

#include "trainer/recipe/recipe_table.h"

#include <signal.h>

/* A name and its value; LATER: refused for now; ALSO: another program's word. */
#define IS(name_, value_)                  \
    {                                      \
        .name = (name_), .value = (value_) \
    }
#define LATER(name_, value_)                                \
    {                                                       \
        .name = (name_), .value = (value_), .unbuilt = true \
    }
#define ALSO(name_, value_)                               \
    {                                                     \
        .name = (name_), .value = (value_), .alias = true \
    }

static const struct choice positions[] = {IS("learned_absolute", LEARNED_ABSOLUTE), IS("rope", ROPE), {0}};
static const struct choice normalizations[] = {IS("LayerNorm", LAYER_NORM), IS("RMSNorm", RMS_NORM), {0}};
static const struct choice activations[] = {IS("gelu", GELU),
                                            IS("gelu_tanh", GELU_TANH),
                                            IS("swiglu", SWIGLU),
                                            ALSO("gelu_new", GELU_TANH),
                                            ALSO("gelu_pytorch_tanh", GELU_TANH),
                                            ALSO("silu", SWIGLU),
                                            {0}};
static const struct choice epilogues[] = {
    IS("apart", EPILOGUES_APART), IS("fused", EPILOGUES_FUSED), IS("auto", EPILOGUES_AUTO), {0}};
static const struct choice backends[] = {IS("auto", ATTENTION_AUTO),     IS("own", ATTENTION_OWN),
                                         IS("cudnn", ATTENTION_CUDNN),   ALSO("flash", ATTENTION_OWN),
                                         ALSO("fused", ATTENTION_CUDNN), {0}};
static const struct choice context_methods[] = {IS("ring", CONTEXT_RING),
                                                IS("all_gather", CONTEXT_ALL_GATHER),
                                                IS("all_to_all", CONTEXT_ALL_TO_ALL),
                                                {0}};
static const struct choice dtypes[] = {
    IS("fp32", RECIPE_FP32), LATER("bf16", RECIPE_BF16), LATER("fp16", RECIPE_FP16), {0}};
static const struct choice main_dtypes[] = {
    IS("fp32", RECIPE_FP32), IS("bf16", RECIPE_BF16), LATER("fp16", RECIPE_FP16), {0}};
static const struct choice working_dtypes[] = {
    IS("fp32", RECIPE_FP32), IS("bf16", RECIPE_BF16), IS("fp16", RECIPE_FP16), {0}};
static const struct choice optimizers[] = {IS("adamw", OPTIMIZER_ADAMW), {0}};
static const struct choice decays[] = {
    IS("constant", LR_CONSTANT), IS("linear", LR_LINEAR),
    IS("cosine", LR_COSINE),     IS("inverse-square-root", LR_INVERSE_SQUARE_ROOT),
    IS("WSD", LR_WSD),           {0}};
static const struct choice wsd_decays[] = {IS("exponential", WSD_EXPONENTIAL),
                                           IS("linear", WSD_LINEAR),
                                           IS("cosine", WSD_COSINE),
                                           IS("minus_sqrt", WSD_MINUS_SQUARE_ROOT),
                                           {0}};
static const struct choice auto_times[] = {IS("given", TIMES_GIVEN), IS("plan", TIMES_PLAN), {0}};
static const struct choice granularities[] = {
    IS("none", RECOMPUTE_NONE), IS("selective", RECOMPUTE_SELECTIVE), IS("full", RECOMPUTE_FULL), {0}};
static const struct choice searches[] = {IS("none", SEARCH_NONE), IS("auto", SEARCH_AUTO), {0}};
static const struct choice methods[] = {IS("uniform", RECOMPUTE_UNIFORM), IS("block", RECOMPUTE_BLOCK), {0}};
static const struct choice modules[] = {IS("core_attn", RECOMPUTE_CORE_ATTENTION),
                                        IS("norm", RECOMPUTE_NORM),
                                        IS("activation", RECOMPUTE_ACTIVATION),
                                        ALSO("layernorm", RECOMPUTE_NORM),
                                        {0}};
#define MATMUL_FORMATS                                                                     \
    IS("none", MATMUL_FORMAT_NONE), IS("e4m3", MATMUL_E4M3), IS("e5m2", MATMUL_E5M2),      \
        IS("hybrid", MATMUL_HYBRID), IS("mxfp8", MATMUL_MXFP8), IS("nvfp4", MATMUL_NVFP4), \
        IS("ternary", MATMUL_TERNARY)
static const struct choice matmul_formats[] = {MATMUL_FORMATS, {0}};
static const struct choice matmul_formats_or_same[] = {IS("same", MATMUL_FORMAT_SAME), MATMUL_FORMATS, {0}};
static const struct choice scalings[] = {IS("auto", SCALE_AUTO),
                                         IS("tensorwise", SCALE_TENSORWISE),
                                         IS("delayed", SCALE_DELAYED),
                                         IS("blockwise", SCALE_BLOCKWISE),
                                         {0}};
static const struct choice scale_roundings[] = {
    IS("up", SCALE_ROUNDS_UP), IS("down", SCALE_ROUNDS_DOWN), {0}};
static const struct choice amax_algorithms[] = {
    IS("max", AMAX_MAX), IS("most_recent", AMAX_MOST_RECENT), {0}};
static const struct choice tokenizers[] = {
    IS("byte", TOKENIZER_BYTE), IS("GPT2BPE", TOKENIZER_GPT2_BPE), IS("none", TOKENIZER_NONE), {0}};
static const struct choice signals[] = {
    IS("SIGTERM", SIGTERM), IS("SIGINT", SIGINT), IS("SIGUSR1", SIGUSR1), IS("SIGUSR2", SIGUSR2), {0}};
static const struct choice assumed_programs[] = {
    IS("program", ASSUME_PROGRAM), IS("papers", ASSUME_PAPERS), {0}};
static const struct choice assumed_attentions[] = {IS("own", ASSUME_ATTENTION_OWN),
                                                   IS("eager", ASSUME_ATTENTION_EAGER),
                                                   IS("unfused", ASSUME_ATTENTION_UNFUSED),
                                                   IS("flash", ASSUME_ATTENTION_FLASH),
                                                   IS("flash2", ASSUME_ATTENTION_FLASH2),
                                                   IS("flash3", ASSUME_ATTENTION_FLASH3),
                                                   {0}};
static const struct choice assumed_norms[] = {
    IS("fused", ASSUME_FUSED), IS("separate", ASSUME_SEPARATE), IS("unfused", ASSUME_UNFUSED), {0}};
static const struct choice assumed_fusions[] = {
    IS("fused", ASSUME_FUSED), IS("unfused", ASSUME_UNFUSED), {0}};
static const struct choice assumed_accumulations[] = {
    IS("fused", ASSUME_FUSED), IS("separate", ASSUME_SEPARATE), {0}};
static const struct choice assumed_recomputes[] = {
    IS("needed", RECOMPUTE_NEEDED), IS("whole", RECOMPUTE_WHOLE), {0}};
static const struct choice assumed_dtypes[] = {
    IS("own", ASSUME_DTYPE_OWN), IS("fp32", ASSUME_DTYPE_FP32), IS("bf16", ASSUME_DTYPE_BF16), {0}};
static const struct choice assumed_partitions[] = {
    IS("own", ASSUME_PARTITION_OWN),
    ALSO("even", ASSUME_PARTITION_OWN),
    IS("parameters", ASSUME_PARTITION_PARAMETERS),
    IS("embedding_as_layer", ASSUME_PARTITION_EMBEDDING_AS_LAYER),
    {0}};
static const struct choice assumed_overlaps[] = {IS("own", ASSUME_OVERLAP_OWN),
                                                 IS("none", ASSUME_OVERLAP_NONE),
                                                 IS("grad", ASSUME_OVERLAP_GRAD),
                                                 IS("grad_and_param", ASSUME_OVERLAP_BOTH),
                                                 {0}};
