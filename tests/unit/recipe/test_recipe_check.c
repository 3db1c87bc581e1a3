// SPDX-License-Identifier: Apache-2.0
/* Rules across keys: each message in full, and every suggestion is tried. */
#include "tests/unit/recipe/recipe_case.h"

#include "base/philox.h"
#include "tests/support/sanitized.h"

/* The smallest recipe with overrides, alone. */
#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)
#define WITH_RANKS(world, expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, world, expected, __LINE__)

Test(recipe_check, heads)
{
    WITH("command line: model.hidden_size 100 is not divisible by model.num_attention_heads 12; use "
         "model.hidden_size=96 or 108\n",
         "model.hidden_size=100", "model.num_attention_heads=12");
    WITH("", "model.hidden_size=100", "model.num_attention_heads=12", "model.kv_channels=8");
    WITH("command line: model.kv_channels 15 must be even and positive: rope rotates pairs of channels; "
         "use model.kv_channels=14 or 16\n",
         "model.kv_channels=15", "model.position_embedding_type=rope");
    WITH("command line: model.kv_channels 15 (hidden_size / num_attention_heads) must be even and "
         "positive: rope rotates pairs of channels; use model.hidden_size=56 or 64\n",
         "model.hidden_size=60", "model.position_embedding_type=rope");
    WITH("command line: model.num_attention_heads 4 is not divisible by model.num_query_groups 3; use "
         "model.num_query_groups=2 or 4\n",
         "model.num_query_groups=3");
}

Test(recipe_check, post_validation)
{
    WITH("command line: pipeline.optimizer_post_validation overlaps the steps of several stages, but "
         "parallel.pipeline_parallel_size is 1; use parallel.pipeline_parallel_size=2\n",
         "pipeline.optimizer_post_validation=true");
    WITH("command line: pipeline.optimizer_post_validation gains nothing with pipeline.schedule dualpipe: "
         "every stage has replicas on two ranks, which reduce their gradients before either can step; use "
         "pipeline.optimizer_post_validation=false\n",
         "pp=2", "pipeline.optimizer_post_validation=true", "pipeline.schedule=dualpipe");
    WITH("", "pp=2", "pipeline.enable_optimizer_post_validation=true", "pipeline.schedule=zb-v");
}

Test(recipe_check, tensor_parallel_cuts)
{
    const char *const model[] = {"model.num_attention_heads=12", "model.hidden_size=768"};
    WITH("command line: model.num_attention_heads 12 is not divisible by parallel.tensor_parallel_size 5; "
         "use parallel.tensor_parallel_size=4 or 6\ncommand line: model.ffn_hidden_size 3072 is not "
         "divisible by parallel.tensor_parallel_size 5; use parallel.tensor_parallel_size=4 or 6\n",
         model[0], model[1], "tp=5");
    // 6 divides the heads and not the MLP, so 6 is neither suggested nor accepted.
    WITH("command line: model.ffn_hidden_size 1000 is not divisible by parallel.tensor_parallel_size 6; "
         "use parallel.tensor_parallel_size=4\n",
         model[0], model[1], "tp=6", "model.ffn_hidden_size=1000");
    WITH("command line: model.num_query_groups 2 and parallel.tensor_parallel_size 3: neither is "
         "divisible by the other; use parallel.tensor_parallel_size=2 or 4\n",
         model[0], model[1], "tp=3", "model.num_query_groups=2");
    // However far from the given value.
    WITH("command line: model.num_attention_heads 12 is not divisible by parallel.tensor_parallel_size "
         "65536; use parallel.tensor_parallel_size=12\ncommand line: model.ffn_hidden_size 3072 is not "
         "divisible by parallel.tensor_parallel_size 65536; use parallel.tensor_parallel_size=12\n",
         model[0], model[1], "tp=65536");
    // Fewer key/value heads than ranks are replicated.
    WITH("", model[0], model[1], "tp=4", "model.num_query_groups=2");
}

Test(recipe_check, sequence_parallel)
{
    WITH("command line: parallel.sequence_parallel shards train.micro_batch_size 1 x model.seq_length 33 "
         "tokens, which are not divisible by parallel.tensor_parallel_size 2; use "
         "parallel.tensor_parallel_size=1\n",
         "tp=2", "parallel.sequence_parallel=true", "model.seq_length=33");
    WITH("", "tp=2", "parallel.sequence_parallel=true", "model.seq_length=33", "train.micro_batch_size=2");
    struct loaded l = load(SMALL "parallel: {sequence_parallel: true}\n", NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages),
                     "warning: R:5: parallel.sequence_parallel is disabled: it needs "
                     "parallel.tensor_parallel_size 2 or more\n");
    cr_assert(l.errors == 0 && !l.recipe->layers.sequence_parallel);
    loaded_free(&l);
    WITH("", "tp=2", "parallel.sequence_parallel=true", "parallel.tp_comm_overlap=true");
    l = load(SMALL "parallel: {tensor_parallel_size: 2, tp_comm_overlap: true}\n", NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages),
                     "warning: R:5: parallel.tp_comm_overlap has no effect: parallel.sequence_parallel is "
                     "false, and it overlaps the communication of sequence parallelism\n");
    cr_assert_eq(l.errors, 0);
    loaded_free(&l);
    WITH("warning: command line: parallel.nccl_ub has no effect: cluster.device is cpu, and NCCL needs "
         "GPUs\n",
         "dp=2", "parallel.nccl_ub=true");
    l = load(SMALL "parallel: {zero_stage: 1}\n", NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages),
                     "warning: R:5: parallel.zero_stage is disabled: parallel.data_parallel_size is 1, so "
                     "there is nothing to shard\n");
    cr_assert(l.errors == 0 && l.recipe->data_parallel.zero_stage == 0);
    loaded_free(&l);
    WITH("", "dp=2", "parallel.zero_stage=3", "parallel.overlap_param_gather=true");
    WITH("", "dp=2", "parallel.zero_stage=1");
    l = load(SMALL "parallel: {data_parallel_size: 2, zero_stage: 2, overlap_param_gather: true}\n", NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages),
                     "warning: R:5: parallel.overlap_param_gather has no effect: parallel.zero_stage is "
                     "2, and only 3 gathers weights per layer\n");
    cr_assert_eq(l.errors, 0);
    loaded_free(&l);
}

Test(recipe_check, recomputation)
{
    WITH("", "memory.recompute_granularity=full", "memory.recompute_method=block",
         "memory.recompute_num_layers=4");
    WITH("", "memory.recompute_granularity=selective", "memory.recompute_modules=[layernorm, core_attn]");
    WITH("command line: memory.recompute_modules entry 2: \"softmax\" is not core_attn, norm or activation\n",
         "memory.recompute_granularity=selective", "memory.recompute_modules=[norm, softmax]");
    // Valid, but without effect.
    WITH("warning: command line: memory.recompute_num_layers has no effect: memory.recompute_granularity "
         "is none, and only full uses it\n",
         "memory.recompute_num_layers=2");
    WITH("warning: command line: memory.recompute_method has no effect: memory.recompute_granularity is "
         "selective, and only full uses it\n",
         "memory.recompute_granularity=selective", "memory.recompute_method=block");
    WITH("warning: command line: memory.recompute_modules has no effect: memory.recompute_granularity is "
         "full, and only selective uses it\n",
         "memory.recompute_granularity=full", "memory.recompute_modules=[norm]");
    WITH("warning: command line: memory.recompute_num_layers 5 is more than the 2 layers of any stage\n",
         "pp=2", "memory.recompute_granularity=full", "memory.recompute_num_layers=5");
    WITH("warning: command line: memory.recompute_modules is empty: nothing is recomputed; use "
         "[core_attn]\n",
         "memory.recompute_granularity=selective", "memory.recompute_modules=[]");
}

Test(recipe_check, offload)
{
    WITH("", "memory.offload_activations=true", "memory.offload_optimizer=true", "pp=2");
    WITH("command line: memory.offload_optimizer and pipeline.optimizer_post_validation are mutually "
         "exclusive: the latter keeps a copy of the moments on the device; set one of them to false\n",
         "memory.offload_optimizer=true", "pipeline.optimizer_post_validation=true", "pp=2");
}

Test(recipe_check, stages)
{
    WITH("", "pp=3");
    WITH("", "pp=3", "pipeline.layout=[0, 4, 0]");
    WITH("command line: model.num_layers 4 is less than the 6 stages of parallel.pipeline_parallel_size 6 "
         "x pipeline.virtual_stages 1 (a pipeline.layout may have zeros); use "
         "parallel.pipeline_parallel_size=4\n",
         "pp=6");
    WITH("command line: pipeline.layout has 3 entries; parallel.pipeline_parallel_size 2 x "
         "pipeline.virtual_stages 1 is 2 stages; use pipeline.layout=[2, 2]\n",
         "pp=2", "pipeline.layout=[2, 1, 1]");
    WITH("command line: pipeline.layout sums to 5, but model.num_layers is 4; use pipeline.layout=[2, 2]\n",
         "pp=2", "pipeline.layout=[3, 2]");
    WITH("command line: pipeline.layout has 1 entries; parallel.pipeline_parallel_size 3 x "
         "pipeline.virtual_stages 1 is 3 stages, its sum is 9, but model.num_layers is 4; use "
         "pipeline.layout=[2, 1, 1]\n",
         "pp=3", "pipeline.layout=[9]");
}

Test(recipe_check, schedules)
{
    struct loaded l = load(SMALL, (const char *const[]){"pp=2", "pipeline.schedule=interleaved", NULL}, 0);
    cr_assert(l.errors == 0 && l.recipe->pipeline.virtual_stages == 2, "%s", text_chars(&l.messages));
    loaded_free(&l);
    WITH("", "pp=1", "pipeline.schedule=zb-h1", "pipeline.virtual_stages=4");
    WITH("", "pp=2", "pipeline.schedule=zb-v", "pipeline.layout=[4, 0, 0, 0]");
    WITH("command line: pipeline.layout has 2 entries; parallel.pipeline_parallel_size 2 x "
         "pipeline.virtual_stages 2 is 4 stages; use pipeline.layout=[1, 1, 1, 1]\n",
         "pp=2", "pipeline.schedule=zb-v", "pipeline.layout=[2, 2]");
    WITH("command line: pipeline.schedule zb-v does not support parallel.pipeline_parallel_size 2, 8 "
         "microbatches and pipeline.virtual_stages 1: each rank holds two stages, the two ends of a V; it "
         "supports any p, any m, v = 2; schedules that support it: gpipe, looped-bfs, 1f1b, interleaved, "
         "zb-h1, zb-h2, dualpipe, auto; use pipeline.virtual_stages=2\n",
         "pp=2", "pipeline.schedule=zb-v", "pipeline.virtual_stages=1");
    WITH("command line: pipeline.schedule 1f1b does not support parallel.pipeline_parallel_size 1, 8 "
         "microbatches and pipeline.virtual_stages 1 with pipeline.microbatch_group_size 4: it does not "
         "support microbatch_group_size; it supports any p, any m, v = 1; schedules that support it: "
         "interleaved, "
         "zb-h1; use pipeline.microbatch_group_size=0\n",
         "pipeline.microbatch_group_size=4");
    WITH("command line: pipeline.schedule zb-h1 does not support parallel.pipeline_parallel_size 4, 8 "
         "microbatches and pipeline.virtual_stages 1 with pipeline.microbatch_group_size 3: a "
         "microbatch_group_size below p causes a deadlock; it supports any p, any m, "
         "any v; use pipeline.microbatch_group_size=0 or 4\n",
         "pp=4", "pipeline.schedule=zb-h1", "pipeline.microbatch_group_size=3");
}

#define ZB_V SOURCE_ROOT "/tests/fixtures/zb_v_p2_m4.csv"

/* As in Megatron. */
Test(recipe_check, layers_of_a_virtual_stage)
{
    const char *const twelve[] = {"model.num_layers=12", "pp=2", "pipeline.schedule=interleaved",
                                  "pipeline.num_layers_per_virtual_pipeline_stage=2"};
    struct loaded l = load(SMALL, (const char *const[]){twelve[0], twelve[1], twelve[2], twelve[3], NULL}, 0);
    cr_assert(l.errors == 0 && l.recipe->pipeline.virtual_stages == 3, "%s", text_chars(&l.messages));
    struct text resolved = {0};
    recipe_resolved_text(l.recipe, &resolved);
    struct loaded again = load(text_chars(&resolved), NULL, 0);
    cr_assert(again.errors == 0 && again.recipe->pipeline.virtual_stages == 3, "%s",
              text_chars(&again.messages));
    text_free(&resolved);
    loaded_free(&again);
    loaded_free(&l);
    WITH("", twelve[0], twelve[1], twelve[2], twelve[3], "pipeline.num_virtual_stages_per_pipeline_rank=3");
    WITH("command line: pipeline.num_layers_per_virtual_pipeline_stage 4 x "
         "parallel.pipeline_parallel_size 2 is 8 layers, which do not divide model.num_layers 12; use "
         "pipeline.num_layers_per_virtual_pipeline_stage=3 or 6\n",
         twelve[0], twelve[1], twelve[2], "pipeline.num_layers_per_virtual_pipeline_stage=4");
    WITH("command line: pipeline.num_layers_per_virtual_pipeline_stage 2 x "
         "parallel.pipeline_parallel_size 2 is 4 layers, which do not divide model.num_layers 7; use "
         "pipeline.num_layers_per_virtual_pipeline_stage=0\n",
         "model.num_layers=7", twelve[1], twelve[2], twelve[3]);
    WITH("command line: pipeline.num_layers_per_virtual_pipeline_stage 2 x "
         "parallel.pipeline_parallel_size 2 x pipeline.virtual_stages 2 is 8 layers, but model.num_layers "
         "is 12; use pipeline.num_layers_per_virtual_pipeline_stage=0 or 3\n",
         twelve[0], twelve[1], twelve[2], twelve[3], "pipeline.virtual_stages=2");
    WITH("command line: pipeline.num_layers_per_virtual_pipeline_stage 2 and pipeline.layout are mutually "
         "exclusive; use pipeline.layout=[]\n",
         twelve[0], twelve[1], twelve[2], twelve[3], "pipeline.layout=[1,3,2,2,2,2]");
    WITH("command line: pipeline.schedule 1f1b does not support parallel.pipeline_parallel_size 2, 8 "
         "microbatches and pipeline.virtual_stages 3: each rank holds one stage; it supports any p, any "
         "m, v = 1; schedules that support it: looped-bfs, interleaved, zb-h1, auto; use "
         "parallel.pipeline_parallel_size=6\n",
         twelve[0], twelve[1], twelve[3]); // 1F1B does not support virtual stages
}

Test(recipe_check, schedule_files)
{
    struct loaded l = load(
        SMALL,
        (const char *const[]){"pp=2", "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V, NULL}, 0);
    cr_assert_eq(l.errors, 0, "%s", text_chars(&l.messages));
    cr_assert_str_eq(l.recipe->pipeline.schedule, "file");
    cr_assert_eq(l.recipe->pipeline.virtual_stages, 2);
    struct text resolved = {0};
    recipe_resolved_text(l.recipe, &resolved);
    loaded_free(&l);
    l = load(resolved.chars, NULL, 0); // reads back as the same recipe
    cr_assert_eq(l.errors, 0, "%s", text_chars(&l.messages));
    cr_assert_str_eq(l.recipe->pipeline.schedule, "file");
    text_free(&resolved);
    loaded_free(&l);
    WITH("", "pp=2", "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V, "pipeline.schedule=file");
    WITH("command line: pipeline.schedule file needs a pipeline.schedule_file\n", "pipeline.schedule=file");
    WITH("command line: pipeline.schedule zb-v and pipeline.schedule_file " ZB_V
         " are mutually exclusive; use pipeline.schedule_file=none or pipeline.schedule=file\n",
         "pp=2", "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V, "pipeline.schedule=zb-v");
    WITH("command line: pipeline.schedule 1f1b and pipeline.schedule_file " ZB_V // whose sizes are unknown
         " are mutually exclusive; use pipeline.schedule_file=none or pipeline.schedule=file\n",
         "pipeline.schedule_file=" ZB_V, "pipeline.schedule=1f1b");
    WITH("command line: pipeline.schedule_file " ZB_V " is made for parallel.pipeline_parallel_size 2, 4 "
         "microbatches and pipeline.virtual_stages 2, not "
         "for 2, 8 and 2; use train.global_batch_size=4\n",
         "pp=2", "pipeline.schedule_file=" ZB_V);
    WITH("command line: pipeline.schedule_file " ZB_V " is made for parallel.pipeline_parallel_size 2, 4 "
         "microbatches and pipeline.virtual_stages 2, not "
         "for 1, 4 and 2; use "
         "parallel.pipeline_parallel_size=2\n",
         "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V);
    WITH("command line: pipeline.schedule_file " ZB_V " is made for parallel.pipeline_parallel_size 2, 4 "
         "microbatches and pipeline.virtual_stages 2, not "
         "for 2, 4 and 1; use pipeline.virtual_stages=2\n",
         "pp=2", "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V, "pipeline.virtual_stages=1");
    WITH("command line: pipeline.schedule_file " ZB_V " is made for parallel.pipeline_parallel_size 2, 4 "
         "microbatches and pipeline.virtual_stages 2, not "
         "for 2, 4 and 2; it does not support "
         "pipeline.microbatch_group_size 3\n",
         "pp=2", "train.global_batch_size=4", "pipeline.schedule_file=" ZB_V,
         "pipeline.microbatch_group_size=3");
    WITH("command line: pipeline.schedule_file: /nowhere.csv: No such file or directory\n",
         "pipeline.schedule_file=/nowhere.csv");
    WITH("command line: pipeline.schedule_file: /dev/null: is a device; use a regular file\n", "pp=2",
         "pipeline.schedule_file=/dev/null");
}

Test(recipe_check, the_search_for_a_schedule)
{
    WITH("", "pp=2", "pipeline.schedule=auto", "pipeline.auto_f=0.5", "pipeline.auto_memory_limit=1.5");
    WITH("command line: pipeline.auto_memory_limit 0.5: a rank must hold the activations of a whole "
         "microbatch (0: no limit); use 1\n",
         "pp=2", "pipeline.schedule=auto", "pipeline.auto_memory_limit=0.5");
    WITH("command line: pipeline.auto_f, pipeline.auto_i and pipeline.auto_w are all 0; set at least one "
         "of them, such as pipeline.auto_f=1\n",
         "pp=2", "pipeline.schedule=auto", "pipeline.auto_f=0", "pipeline.auto_i=0", "pipeline.auto_w=0");
    WITH("", "pp=2", "pipeline.schedule=auto", "pipeline.auto_i=0", "pipeline.auto_w=0");
    WITH("command line: pipeline.auto_f 1e308 is out of range; expected a number from 0 to 1000000000000; "
         "use 1000000000000\ncommand line: pipeline.auto_comm 1e13 is out of range; expected a number "
         "from 0 to 1000000000000; use 1000000000000\ncommand line: pipeline.auto_memory_limit 1e10 is "
         "out of range; expected a number from 0 to 1000000000; use 1000000000\n",
         "pp=2", "pipeline.schedule=auto", "pipeline.auto_f=1e308", "pipeline.auto_comm=1e13",
         "pipeline.auto_memory_limit=1e10");
}

Test(recipe_check, ranks)
{
    WITH_RANKS(8, "", "tp=2", "pp=2");
    WITH_RANKS(8, "", "tp=2", "pp=2", "dp=2");
    WITH_RANKS(
        8,
        "command line: parallel.tensor_parallel_size 2 x parallel.pipeline_parallel_size 2 x "
        "parallel.data_parallel_size 4 is 16 ranks, but there are 8; use parallel.data_parallel_size=2\n",
        "tp=2", "pp=2", "dp=4");
    WITH_RANKS(8,
               "command line: parallel.tensor_parallel_size 1 x parallel.pipeline_parallel_size 3 does not "
               "divide the 8 ranks (it divides 6 and 9); use parallel.pipeline_parallel_size=2 or 4\n",
               "pp=3");
    WITH("", "tp=4", "pp=4", "dp=65536", "train.global_batch_size=65536");
    WITH("command line: parallel.tensor_parallel_size 4 x parallel.pipeline_parallel_size 5 x "
         "parallel.data_parallel_size 65536 is 1310720 ranks; at most 1048576 are possible; use "
         "parallel.tensor_parallel_size=2\n",
         "tp=4", "pp=5", "dp=65536", "train.global_batch_size=65536", "model.num_layers=5");
}

Test(recipe_check, batch)
{
    WITH("command line: train.global_batch_size 30 is not divisible by train.micro_batch_size 4 x "
         "parallel.data_parallel_size 2; use train.global_batch_size=24 or 32\n",
         "dp=2", "train.micro_batch_size=4", "train.global_batch_size=30");
    WITH("command line: train.global_batch_size 100000000 gives 50000000 microbatches of "
         "train.micro_batch_size 1 per data-parallel rank; with parallel.pipeline_parallel_size 2 and "
         "pipeline.virtual_stages 1 at most 33554432 fit in memory; use train.global_batch_size=67108864\n",
         "dp=2", "pp=2", "train.global_batch_size=100000000");
    struct loaded l = load(SMALL, (const char *const[]){"dp=2", "train.micro_batch_size=2", NULL}, 0);
    cr_assert_eq(recipe_microbatches(l.recipe), 2);
    loaded_free(&l);
}

Test(recipe_check, learning_rate)
{
    WITH("command line: optimizer.lr_warmup_iters 20 is more than optimizer.lr_decay_iters 10, by default "
         "train.train_iters; use optimizer.lr_warmup_iters=10\n",
         "optimizer.lr_warmup_iters=20");
    WITH("", "optimizer.lr_warmup_iters=20", "optimizer.lr_decay_iters=21"); // train.train_iters is 10
    WITH("command line: optimizer.lr_warmup_iters 8 is more than optimizer.lr_decay_iters 5; use "
         "optimizer.lr_warmup_iters=5\n",
         "optimizer.lr_warmup_iters=8", "optimizer.lr_decay_iters=5");
    WITH("command line: optimizer.lr_wsd_decay_iters 9: WSD needs at least 1 and at most "
         "optimizer.lr_decay_iters 10 - optimizer.lr_warmup_iters 4; use optimizer.lr_wsd_decay_iters=6\n",
         "optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=9", "optimizer.lr_warmup_iters=4");
    WITH("command line: optimizer.min_lr 0.5 is more than optimizer.lr 0.001; use optimizer.min_lr=0.001\n",
         "optimizer.min_lr=0.5");
}

Test(recipe_check, tokenizer_and_data)
{
    WITH("command line: model.vocab_size 256 is smaller than the tokenizer's 257; use "
         "model.vocab_size=257\n",
         "model.vocab_size=256");
    WITH("command line: model.vocab_size is required with tokenizer.tokenizer_type none; use "
         "model.vocab_size=50257\n",
         "tokenizer.tokenizer_type=none");
    WITH("command line: tokenizer.vocab_file is given without tokenizer.merge_file; GPT2BPE needs both\n",
         "tokenizer.tokenizer_type=GPT2BPE", "tokenizer.vocab_file=v.json");
    WITH("command line: tokenizer.vocab_file is given, but tokenizer.tokenizer_type byte does not read it; "
         "use tokenizer.vocab_file=none\n",
         "tokenizer.vocab_file=v.json");
    WITH("command line: model.vocab_size is required with tokenizer.tokenizer_type HuggingFaceTokenizer if "
         "its file cannot be read: tokenizer.tokenizer_model t.json; use vocab_size of the model's "
         "config.json, or another number that is not less than the tokenizer's\n",
         "tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=t.json");
    WITH("command line: tokenizer.tokenizer_model is given, but tokenizer.tokenizer_type byte does "
         "not read it; use tokenizer.tokenizer_model=none\n",
         "tokenizer.tokenizer_model=t.json");
    WITH("command line: data.eod_mask_loss needs the end-of-document id, which tokenizer.tokenizer_type "
         "none does not define; use data.eod_mask_loss=false\n",
         "tokenizer.tokenizer_type=none", "model.vocab_size=99", "data.eod_mask_loss=true");
    WITH("command line: train.eval_interval 5 needs validation data, but data.split has no validation "
         "part and data.valid is not set; use data.split=969,30,1\n",
         "train.eval_interval=5", "data.split=1,0,0");
    WITH("command line: data.split has a validation part, but data.valid is set; use data.split=1,0,0\n",
         "data.valid=v", "data.split=9,1");
    WITH("", "data.valid=v", "train.eval_interval=5");
    WITH("command line: checkpoint.save_interval 5 needs a folder, but checkpoint.save is none; use "
         "checkpoint.save_interval=0\n",
         "checkpoint.save_interval=5", "checkpoint.save=none");
}

Test(recipe_check, names_and_orders)
{
    WITH("command line: name a/b is not a valid folder name; use name=b\n", "name=a/b");
    WITH("command line: name .. is not a valid folder name; use name=run\n", "name=..");
    WITH("", "parallel.rank_order=pp-dp-tp-ep-cp");
    WITH("command line: parallel.rank_order dp-tp is not tp, cp, ep, dp and pp, each once; use "
         "parallel.rank_order=dp-tp-cp-ep-pp\n",
         "parallel.rank_order=dp-tp");
    WITH("command line: parallel.rank_order tp-tp-cp-ep-dp-pp is not tp, cp, ep, dp and pp, each once; "
         "use parallel.rank_order=tp-cp-ep-dp-pp\n",
         "parallel.rank_order=tp-tp-cp-ep-dp-pp");
    WITH("command line: parallel.rank_order PP-DP-TP-CP-EP is not tp, cp, ep, dp and pp, each once; use "
         "parallel.rank_order=pp-dp-tp-cp-ep\n",
         "parallel.rank_order=PP-DP-TP-CP-EP");
    WITH("command line: parallel.rank_order pp, dp, tp is not tp, cp, ep, dp and pp, each once; use "
         "parallel.rank_order=pp-dp-tp-cp-ep\n",
         "parallel.rank_order=pp, dp, tp");
    WITH("command line: parallel.rank_order - is not tp, cp, ep, dp and pp, each once; use "
         "parallel.rank_order=tp-cp-ep-dp-pp\n",
         "parallel.rank_order=-");
}

Test(recipe_check, profiled_steps)
{
    const char *const short_run[] = {"train.train_iters=10", "profile.timeline=true"};
    WITH("", short_run[0], short_run[1]);
    WITH("command line: profile.profile_step_start 50 is after train.train_iters 10; use "
         "profile.profile_step_start=10\n",
         short_run[0], short_run[1], "profile.profile_step_start=50");
    WITH("command line: profile.profile_step_end 4 is before profile.profile_step_start 5; use "
         "profile.profile_step_end=5\n",
         short_run[0], short_run[1], "profile.profile_step_start=5", "profile.profile_step_end=4");
    WITH("", short_run[0], short_run[1], "profile.profile_step_start=5", "profile.profile_step_end=5");
    WITH("warning: command line: profile.profile_step_start has no effect: profile.timeline is false, and no "
         "timeline is written\n",
         short_run[0], "profile.profile_step_start=50"); // without a timeline the rule does not apply
    WITH("", short_run[0], short_run[1], "cluster.device=strict");
    WITH("", short_run[0], short_run[1], "cluster.device=dry"); // a dry run writes none
}

/* ---- every suggestion is tried ---- */

/* Keys with values that fit or conflict; the first value is the common one. */
static const struct {
    const char *key;
    const char *values[8];
} keys[] = {
    {"model.num_layers", {"4", "1", "7", "9", "0"}},
    {"model.hidden_size", {"64", "60", "66", "100", "1"}},
    {"model.num_attention_heads", {"4", "3", "5", "8", "12"}},
    {"model.seq_length", {"32", "31", "48"}},
    {"model.num_query_groups", {"auto", "1", "2", "3", "4"}},
    {"model.kv_channels", {"auto", "15", "16"}},
    {"model.position_embedding_type", {"learned_absolute", "rope", "alibi"}},
    {"model.ffn_hidden_size", {"auto", "100", "96"}},
    {"model.activation", {"gelu", "swiglu", "geglu", "squared_relu"}},
    {"model.vocab_size", {"auto", "100", "60000"}},
    {"model.hidden_dropout", {"0", "1", "-1"}},
    {"parallel.tensor_parallel_size", {"1", "2", "3", "4", "5", "8"}},
    {"parallel.pipeline_parallel_size", {"1", "2", "3", "6"}},
    {"parallel.data_parallel_size", {"auto", "1", "2", "3"}},
    {"parallel.sequence_parallel", {"false", "true"}},
    {"parallel.rank_order", {"tp-cp-ep-dp-pp", "dp-tp", "pp-dp-tp-cp-x", "--"}},
    {"pipeline.schedule", {"1f1b", "gpipe", "interleaved", "zb-v", "zb-h1", "file"}},
    {"pipeline.schedule_file", {"none", ZB_V}},
    {"pipeline.virtual_stages", {"auto", "1", "2", "3"}},
    {"pipeline.num_layers_per_virtual_pipeline_stage", {"0", "1", "2", "3"}},
    {"pipeline.microbatch_group_size", {"0", "2", "3"}},
    {"pipeline.layout", {"[]", "[2, 2]", "[1, 2, 3]", "[4, 0]"}},
    {"train.micro_batch_size", {"1", "2", "3"}},
    {"train.global_batch_size", {"24", "30", "7", "16"}},
    {"train.train_iters", {"100", "10", "1.5"}},
    {"optimizer.lr", {"1e-3", "0"}},
    {"optimizer.min_lr", {"0", "1"}},
    {"optimizer.lr_decay_style", {"cosine", "WSD"}},
    {"optimizer.lr_warmup_iters", {"0", "50", "200"}},
    {"optimizer.lr_decay_iters", {"auto", "20"}},
    {"optimizer.lr_wsd_decay_iters", {"0", "5", "80"}},
    {"data.train", {"d"}},
    {"data.valid", {"none", "v"}},
    {"data.split", {"auto", "1, 0, 0", "9, 1, 0"}},
    {"data.eod_mask_loss", {"false", "true"}},
    {"tokenizer.tokenizer_type", {"byte", "GPT2BPE", "none"}},
    {"tokenizer.vocab_file", {"none", "v.json"}},
    {"train.eval_interval", {"0", "5"}},
    {"checkpoint.save", {"auto", "none"}},
    {"checkpoint.save_interval", {"0", "5"}},
    {"name", {"x", "a/b", "."}},
};
enum { KEYS = sizeof keys / sizeof *keys };

/* Everything on the command line, so that a suggestion can replace the value it fixes. */
static struct loaded load_values(const char *const values[KEYS], int world)
{
    struct text texts[KEYS] = {0};
    const char *overrides[KEYS + 1] = {NULL};
    for (int i = 0; i < KEYS; i++) {
        text_add(&texts[i], "%s=%s", keys[i].key, values[i]);
        overrides[i] = texts[i].chars;
    }
    struct loaded loaded = load("seed: 1\n", overrides, world);
    for (int i = 0; i < KEYS; i++)
        text_free(&texts[i]);
    return loaded;
}

static int key_index(const char *name, size_t length)
{
    for (int i = 0; i < KEYS; i++)
        if (strlen(keys[i].key) == length && strncmp(keys[i].key, name, length) == 0)
            return i;
    return -1;
}

/* The key and values of "...; use KEY=A or B" or "WHERE: KEY ...; use A". Returns how many values. */
static int read_suggestion(char *line, int *key, const char *out[2])
{
    static const char use[] = "; use ";
    char *start = NULL;
    for (char *at = line; (at = strstr(at, use)) != NULL; at++)
        start = at + strlen(use);
    if (start == NULL)
        return 0;
    *key = key_index(start, strcspn(start, "="));
    if (*key >= 0)
        start += strcspn(start, "=") + 1;
    else {
        const char *name = strstr(line, ": ") + 2;
        *key = key_index(name, strcspn(name, " "));
        cr_assert(*key >= 0, "no key in %s", line);
    }
    char * or = strstr(start, " or ");
    out[0] = start;
    out[1] = or != NULL ? or +4 : NULL;
    if (or != NULL)
        * or = 0;
    return or != NULL && strchr(out[1], '=') == NULL ? 2 : 1; // another key's is not tried
}

/* Each value suggested by a line of `messages` must fix at least this problem and cause no other. */
static void try_suggestions(struct loaded *loaded, const char *const values[KEYS], int world, int *lines,
                            int *tried)
{
    char *rest = loaded->messages.chars;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (*line == 0 || strncmp(line, "warning", 7) == 0)
            continue;
        char *whole = strdup(line);
        const char *proposed[2];
        int key = -1, count = read_suggestion(line, &key, proposed);
        *lines += 1;
        *tried += count > 0 ? 1 : 0;
        for (int i = 0; i < count; i++) {
            const char *changed[KEYS];
            memcpy(changed, values, sizeof changed);
            changed[key] = proposed[i];
            struct loaded after = load_values(changed, world);
            // A rule that depended on this key may now apply; so either fewer problems, or this one is gone.
            cr_assert(after.errors < loaded->errors || strstr(text_chars(&after.messages), whole) == NULL,
                      "%s=%s does not help:\n%s\nthe message is still\n%s", keys[key].key, proposed[i], whole,
                      text_chars(&after.messages));
            bool hides_others = strstr(whole, "out of range") != NULL || strstr(whole, "integer") != NULL;
            cr_assert(hides_others || after.errors < loaded->errors, "%s=%s causes others:\n%s\nnow\n%s",
                      keys[key].key, proposed[i], whole, text_chars(&after.messages));
            loaded_free(&after);
        }
        free(whole);
    }
}

Test(recipe_check, every_suggestion_is_valid)
{
    const int recipes = UNDER_SANITIZER ? 15 : long_tests() ? 200 : 80;
    struct philox random = philox_named(5, "suggestions");
    int lines = 0, tried = 0;
    for (uint64_t n = 0; n < (uint64_t)recipes; n++) {
        const char *values[KEYS];
        for (int i = 0; i < KEYS; i++) {
            uint32_t count = 1, word = philox_word(random, n, i);
            while (count < 8 && keys[i].values[count] != NULL)
                count++;
            values[i] = keys[i].values[word % 8 < 6 ? 0 : (word >> 8) % count];
        }
        static const int worlds[] = {0, 0, 0, 4, 6, 8};
        int world = worlds[philox_word(random, n, KEYS) % 6];
        struct loaded loaded = load_values(values, world);
        if (loaded.errors > 0)
            try_suggestions(&loaded, values, world, &lines, &tried);
        loaded_free(&loaded);
    }
    cr_log_info("%d problems, %d with a suggestion\n", lines, tried);
    cr_assert_gt(lines, recipes);
    cr_assert_gt(tried, lines * 9 / 10, "only %d of %d problems have a suggestion", tried, lines);
}
