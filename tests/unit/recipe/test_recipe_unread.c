// SPDX-License-Identifier: Apache-2.0
/* Keys without effect: each is reported once, with the reason; keys that are read never are. Keys for
 * features that do not exist are errors. */
#include "tests/unit/recipe/recipe_case.h"

#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)
#define LINE(text) "warning: command line: " text "\n"

#define TIMES                                                                                \
    "pipeline.auto_f=2", "pipeline.auto_i=3", "pipeline.auto_w=4", "pipeline.auto_comm=0.5", \
        "pipeline.auto_memory_limit=9"
#define SEARCHED(key) \
    LINE("pipeline.auto_" key " has no effect: pipeline.schedule is 1f1b, and only auto uses it")

Test(recipe_unread, a_schedule_that_is_not_searched_for)
{
    WITH(SEARCHED("f") SEARCHED("i") SEARCHED("w") SEARCHED("comm") SEARCHED("memory_limit"), TIMES);
    WITH("", TIMES, "pipeline.schedule=auto", "pp=2");
    WITH("", "pipeline.auto_f=1", "pipeline.auto_comm=0"); // values equal to the default are never reported
}

#define NO_FORMAT      "precision.matmul_format is none, and no matrix multiplication is quantized"
#define QUANTIZED(key) LINE("precision." key " has no effect: " NO_FORMAT)
#define HIGH                                                                                 \
    "precision.high_precision_layers=[layers.0]", "precision.high_precision_first_layers=1", \
        "precision.high_precision_last_layers=1"

Test(recipe_unread, formats_not_in_use)
{
    WITH(QUANTIZED("scaling") QUANTIZED("high_precision_layers") QUANTIZED("high_precision_first_layers")
             QUANTIZED("high_precision_last_layers"),
         "precision.scaling=blockwise", HIGH);
    WITH("", "precision.matmul_format=e4m3", "precision.scaling=blockwise", HIGH);
    WITH(LINE("precision.amax_history_len has no effect: precision.scaling is auto, and only delayed uses "
              "it"),
         "precision.matmul_format=e4m3", "precision.amax_history_len=4");
    WITH("", "precision.matmul_format=e4m3", "precision.amax_history_len=4", "precision.scaling=delayed");
    // One of three matmuls may have a format although matmul_format is none.
    WITH("", "precision.forward_format=ternary", HIGH);
}

#define NO_WSD       " has no effect: optimizer.lr_decay_style is cosine, and only WSD uses it"
#define NOT_WSD(key) LINE("optimizer.lr_wsd_decay_" key NO_WSD)
#define NO_DECAY(key)     \
    LINE("optimizer." key \
         " has no effect: optimizer.lr_decay_style is constant, and the learning rate never decays")

Test(recipe_unread, the_learning_rate)
{
    WITH(NOT_WSD("style") NOT_WSD("iters"), "optimizer.lr_wsd_decay_iters=2",
         "optimizer.lr_wsd_decay_style=linear");
    WITH("", "optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=2",
         "optimizer.lr_wsd_decay_style=linear");
    WITH(NO_DECAY("min_lr") NO_DECAY("lr_decay_iters"), "optimizer.min_lr=1e-5", "optimizer.lr_decay_iters=7",
         "optimizer.lr_decay_style=constant");
    WITH("", "optimizer.min_lr=1e-5");
}

#define NO_TIMELINE    " has no effect: profile.timeline is false, and no timeline is written"
#define NOT_TIMED(end) LINE("profile.profile_step_" end NO_TIMELINE)

Test(recipe_unread, one_key_of_a_kind)
{
    WITH(LINE("model.rotary_base has no effect: model.position_embedding_type is learned_absolute, and "
              "only rope uses it"),
         "model.rotary_base=500000");
    WITH("", "model.rotary_base=500000", "model.position_embedding_type=rope");
    WITH(LINE("precision.mxfp8_scale_rounding has no effect: precision.matmul_format is nvfp4, and only "
              "mxfp8 uses it"),
         "precision.mxfp8_scale_rounding=down", "precision.matmul_format=nvfp4");
    WITH("", "precision.mxfp8_scale_rounding=down", "precision.grad_input_format=mxfp8");
    WITH(NOT_TIMED("start") NOT_TIMED("end"), "profile.profile_step_start=3", "profile.profile_step_end=4");
    WITH("", "profile.profile_step_start=3", "profile.profile_step_end=4", "profile.timeline=true");
    WITH(LINE("parallel.bucket_size_mb has no effect: parallel.zero_stage is 2, "
              "and with 2 and 3 each layer is a bucket"),
         "parallel.bucket_size_mb=1", "parallel.zero_stage=2", "dp=2");
    WITH("", "parallel.bucket_size_mb=1", "parallel.zero_stage=1", "dp=2");
    WITH(LINE("checkpoint.keep_last has no effect: checkpoint.save is none, and there is nothing to remove"),
         "checkpoint.keep_last=3", "checkpoint.save=none");
    WITH("", "checkpoint.keep_last=3");
}

Test(recipe_unread, timing_without_candidates)
{
    WITH(LINE("cluster.matmul_epilogues has no effect: deterministic is true, and auto then equals apart; "
              "set it to false, or set cluster.matmul_algorithms, to time both"),
         "cluster.device=dry", "cluster.matmul_epilogues=auto");
    WITH("", "cluster.device=dry", "cluster.matmul_epilogues=auto", "deterministic=false");
    WITH("", "cluster.device=dry", "cluster.matmul_epilogues=auto", "cluster.matmul_algorithms=/tmp/none");
    WITH("", "cluster.device=dry", "cluster.matmul_epilogues=fused");
}

Test(recipe_unread, a_module_that_is_named_twice)
{
    WITH(LINE("memory.recompute_modules names norm twice; remove one"),
         "memory.recompute_granularity=selective",
         "memory.recompute_modules=[norm, core_attn, layernorm, norm]");
    WITH("", "memory.recompute_granularity=selective", "memory.recompute_modules=[norm, core_attn]");
}

/* Megatron-core's 40 Mi gradients, or 1 Mi for each data-parallel rank, in fp32. */
Test(recipe_unread, buckets_grow_with_the_data_parallel_degree)
{
    static const struct {
        const char *overrides[3];
        double mb;
    } cases[] = {{{"dp=2"}, 160.0},
                 {{"dp=40", "train.global_batch_size=40"}, 160.0},
                 {{"dp=64", "train.global_batch_size=64"}, 256.0},
                 {{"dp=2", "parallel.bucket_size_mb=25"}, 25.0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loaded l = load(SMALL, cases[i].overrides, 0);
        cr_assert_str_eq(text_chars(&l.messages), "");
        cr_assert_eq(l.recipe->data_parallel.bucket_size_mb, cases[i].mb);
        loaded_free(&l);
    }
}

Test(recipe_unread, features_not_built_are_rejected_by_name)
{
    FOR_OVERRIDE("cp=2",
                 "command line: unknown key cp: context parallelism is not implemented; for long sequences "
                 "use parallel.tensor_parallel_size with parallel.sequence_parallel=true\n");
    FOR_OVERRIDE(
        "parallel.expert_parallel_size=4",
        "command line: unknown key parallel.expert_parallel_size: mixture of experts is not implemented\n");
    FOR_OVERRIDE("optimizer.name=adam",
                 "command line: unknown key optimizer.name: AdamW is the only optimizer\n");
    FOR_OVERRIDE(
        "parallel.gradient_reduce_dtype=bf16",
        "command line: unknown key parallel.gradient_reduce_dtype: gradients are summed in fp32 only\n");
    FOR_OVERRIDE(
        "precision.main_params_dtype=fp16",
        "command line: precision.main_params_dtype \"fp16\" is not fp32 or bf16; did you mean fp32?\n");
    FOR_OVERRIDE("precision.params_dtype=bf16", "");
    FOR_OVERRIDE("precision.params_dtype=fp16", "");
    FOR_OVERRIDE("checkpoint.async_save=true", "");
    FOR_OVERRIDE("logging.tensorboard_dir=tb", "");
    // A value that asks for nothing is accepted: resolved recipes of older versions have it.
    FOR_OVERRIDE("ep=1", "");
    EXPECT_MESSAGES(SMALL "parallel: {context_parallel_size: 1, context_parallel_method: ring, "
                          "gradient_reduce_dtype: fp32}\nlogging: {tensorboard_dir: none}\n",
                    "");
}
