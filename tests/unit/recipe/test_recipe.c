// SPDX-License-Identifier: Apache-2.0
/* Reading a recipe: YAML, values, sections, bases, the command line. Every error message is compared in
 * full. */
#include "planner/recipe/planned_recipe.h"
#include "tests/unit/recipe/recipe_case.h"
#include "trainer/recipe/recipe_table.h"

#include <sys/stat.h>

Test(recipe, minimal_recipe_gets_all_defaults)
{
    struct loaded l = load(SMALL, NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages), "");
    const struct recipe *r = l.recipe;
    cr_assert(r->model.num_layers == 4 && r->model.hidden_size == 64 && r->model.kv_channels == 16);
    cr_assert(r->model.num_query_groups == 4 && r->model.ffn_hidden_size == 256 &&
              r->model.vocab_size == 257);
    cr_assert(r->seed == 1234 && r->deterministic && r->optimizer.lr == 1e-3 &&
              r->optimizer.lr_decay_iters == 10);
    cr_assert(r->parallel.data_parallel_size == 1 && recipe_world_size(r) == 1 &&
              recipe_microbatches(r) == 8);
    cr_assert_str_eq(r->parallel.rank_order, "tp-cp-ep-dp-pp");
    cr_assert_str_eq(r->pipeline.schedule, "1f1b");
    cr_assert(r->data.train.count == 1 && r->data.train.list[0].weight == 1.0);
    cr_assert_str_eq(r->data.train.list[0].path, "d");
    cr_assert(r->data.split[0] == 969 && r->data.split[1] == 30 && r->data.split[2] == 1);
    cr_assert_null(r->tokenizer.vocab_file);
    loaded_free(&l);
}

Test(recipe, aliases_are_read)
{
    struct loaded l =
        load("model: {n_layer: 4, n_embd: 64, n_head: 4, n_positions: 32, num_key_value_heads: 2,\n"
             "        intermediate_size: 96, rope_theta: 5e5, rms_norm_eps: 1e-6, hidden_act: silu,\n"
             "        position_embedding_type: rope}\n"
             "parallel: {tp: 2, pp: 2, dp: 2, cp: 1, ep: 1}\n" TRAIN OPTIMIZER DATA,
             NULL, 0);
    cr_assert_str_eq(text_chars(&l.messages), "");
    const struct recipe *r = l.recipe;
    cr_assert(r->model.num_query_groups == 2 && r->model.ffn_hidden_size == 96 &&
              r->model.rotary_base == 5e5);
    cr_assert(r->model.norm_epsilon == 1e-6 && r->model.activation == ACTIVATION_SWIGLU &&
              recipe_world_size(r) == 8);
    loaded_free(&l);
}

Test(recipe, overrides_win_and_lists_are_yaml)
{
    const char *const overrides[] = {"tp=2",
                                     "parallel.pp=2",
                                     "pipeline.layout=[3, 1]",
                                     "data.train=[a, {path: 'b c', weight: 2.5}]",
                                     "model.activation=gelu_new",
                                     "name=other",
                                     "data.split=99,1",
                                     NULL};
    struct loaded l = load(SMALL "parallel: {tp: 4}\n", overrides, 0);
    cr_assert_str_eq(text_chars(&l.messages), "");
    const struct recipe *r = l.recipe;
    cr_assert(r->parallel.tensor_parallel_size == 2 && r->parallel.pipeline_parallel_size == 2);
    cr_assert(recipe_stage_layers(r, 0) == 3 && recipe_stage_layers(r, 1) == 1);
    cr_assert_eq(recipe_stage_first_layer(r, 1), 3);
    cr_assert(r->data.train.count == 2 && r->data.train.list[1].weight == 2.5);
    cr_assert_str_eq(r->data.train.list[1].path, "b c");
    cr_assert_eq(r->model.activation, ACTIVATION_GELU_TANH);
    cr_assert_str_eq(r->logging.run_dir, "runs/other");
    cr_assert_str_eq(r->checkpoint.save, "runs/other/checkpoints");
    cr_assert(r->data.split[0] == 99 && r->data.split[1] == 1 && r->data.split[2] == 0);
    loaded_free(&l);
}

Test(recipe, none_and_auto_reset_a_value)
{
    const char *const overrides[] = {"checkpoint.save=none",   "checkpoint.load=none",
                                     "model.kv_channels=auto", "dp=auto",
                                     "data.valid=none",        NULL};
    struct loaded l = load(MODEL TRAIN OPTIMIZER "data: {train: d, valid: v}\n", overrides, 4);
    cr_assert_str_eq(text_chars(&l.messages), "");
    cr_assert_null(l.recipe->checkpoint.save);
    cr_assert_null(l.recipe->checkpoint.load);
    cr_assert_eq(l.recipe->model.kv_channels, 16);
    cr_assert_eq(l.recipe->parallel.data_parallel_size, 4);
    cr_assert(l.recipe->data.valid.count == 0 && l.recipe->data.split[1] == 30);
    loaded_free(&l);
}

Test(recipe, layers_are_distributed_evenly)
{
    for (int layers = 1; layers <= 13; layers++)
        for (int pp = 1; pp <= layers; pp++) {
            char one[64], two[64];
            snprintf(one, sizeof one, "model.num_layers=%d", layers);
            snprintf(two, sizeof two, "pp=%d", pp);
            struct loaded l = load(SMALL, (const char *const[]){one, two, NULL}, 0);
            cr_assert_str_eq(text_chars(&l.messages), "");
            int64_t sum = 0;
            for (int s = 0; s < pp; s++) {
                int64_t here = recipe_stage_layers(l.recipe, s);
                cr_assert(here == layers / pp || (here == layers / pp + 1 && s < layers % pp));
                cr_assert_eq(recipe_stage_first_layer(l.recipe, s), sum);
                sum += here;
            }
            cr_assert_eq(sum, layers);
            loaded_free(&l);
        }
}

/* A name or alias that only one section has; a section and a name of several are refused. */
Test(recipe, unique_names_need_no_section)
{
    struct loaded l = load(SMALL,
                           (const char *const[]){"schedule=gpipe", "lr=0.5", "mbs=2", "gbs=8", "vp=1",
                                                 "zero=1", "activation=gelu", "tp=2", "dp=2", NULL},
                           0);
    cr_assert_str_eq(text_chars(&l.messages), "");
    cr_expect_str_eq(l.recipe->pipeline.schedule, "gpipe");
    cr_expect_eq(l.recipe->optimizer.lr, 0.5);
    cr_expect_eq(l.recipe->train.micro_batch_size, 2);
    cr_expect_eq(l.recipe->train.global_batch_size, 8);
    cr_expect_eq(l.recipe->data_parallel.zero_stage, 1);
    cr_expect_eq(l.recipe->parallel.tensor_parallel_size, 2);
    loaded_free(&l);
    FOR_OVERRIDE("train=1", "command line: train is a section; write train.KEY=value\n");
    for (int i = 0; i < recipe_row_count; i++) { // nothing hides a key at the top
        const struct recipe_row *row = &recipe_rows[i];
        if (recipe_row_section_length(row) == 0)
            cr_expect_eq(recipe_row_find_dotted(&planner_keys, row->key), i, "%s", row->key);
    }
}

Test(recipe, unknown_keys_name_the_nearest)
{
    EXPECT_MESSAGES(SMALL "sede: 1\n", "R:5: unknown key sede; did you mean seed?\n");
    EXPECT_MESSAGES(
        SMALL "parallel: {tensor_paralel_size: 2}\n",
        "R:5: unknown key parallel.tensor_paralel_size; did you mean parallel.tensor_parallel_size?\n");
    EXPECT_MESSAGES(SMALL "modle: {num_layers: 2}\n", "R:5: unknown key modle; did you mean model?\n");
    EXPECT_MESSAGES(SMALL "train_iters: 5\n",
                    "R:5: unknown key train_iters; in a file, write train: {train_iters: ...}\n");
    EXPECT_MESSAGES(MODEL TRAIN "optimizer: {lr: 1, train_iters: 5}\n" DATA,
                    "R:3: unknown key optimizer.train_iters; did you mean train.train_iters?\n");
    EXPECT_MESSAGES(SMALL "train.train_iters: 5\n",
                    "R:5: unknown key train.train_iters; in a file, write train: {train_iters: ...}\n");
    EXPECT_MESSAGES(SMALL "zzzzzz: 5\n", "R:5: unknown key zzzzzz\n");
    EXPECT_MESSAGES(
        "model: {model: {num_layers: 4}, num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: "
        "32}\n" TRAIN OPTIMIZER DATA,
        "R:1: unknown key model.model; the keys of model are not nested\n");
    EXPECT_MESSAGES(SMALL "parallel: {pipeline: {schedule: gpipe}}\n",
                    "R:5: pipeline is inside parallel, but it is a top-level section; unindent it\n");
    FOR_OVERRIDE("train.train_iter=5",
                 "command line: unknown key train.train_iter; did you mean train.train_iters?\n");
    FOR_OVERRIDE("memory.recompute=full",
                 "command line: unknown key memory.recompute; use memory.recompute_granularity\n");
    FOR_OVERRIDE("optimizer.betas=[0.9,0.95]", "command line: unknown key optimizer.betas; use "
                                               "optimizer.adam_beta1 and optimizer.adam_beta2\n");
    FOR_OVERRIDE("recompute=full", "command line: unknown key recompute; use memory.recompute_granularity\n");
    FOR_OVERRIDE(
        "position_embedding_type=rotary",
        "command line: model.position_embedding_type \"rotary\" is not learned_absolute, rope or alibi; "
        "did you mean rope?\n");
    FOR_OVERRIDE("model.model=5",
                 "command line: unknown key model.model; the keys of model are not nested\n");
    FOR_OVERRIDE("model=5", "command line: model is a section; write model.KEY=value\n");
    FOR_OVERRIDE("model.num_experts=8",
                 "command line: unknown key model.num_experts: mixture of experts is not implemented\n");
    FOR_OVERRIDE("tokenizer.zzzzzz=8",
                 "command line: unknown key tokenizer.zzzzzz; the keys of tokenizer are "
                 "tokenizer_type, vocab_file, merge_file, tokenizer_model\n");
    FOR_OVERRIDE("--tp=2", "command line: --tp=2: keys have no dashes; use tp=2\n");
    FOR_OVERRIDE("--bf16", "command line: --bf16 is not key=value; use precision.params_dtype=bf16\n");
    FOR_OVERRIDE("optimizer.type=adam",
                 "command line: unknown key optimizer.type: AdamW is the only optimizer\n");
    FOR_OVERRIDE("parallel.data_parallel_shard_degree=2",
                 "command line: unknown key parallel.data_parallel_shard_degree; use "
                 "parallel.data_parallel_size with parallel.zero_stage=3\n");
    FOR_OVERRIDE("--help", "command line: --help is not key=value\n");
    FOR_OVERRIDE("base=x.yaml", "command line: base can only be given in a file\n");
}

Test(recipe, a_key_given_twice_names_both_lines)
{
    EXPECT_MESSAGES(SMALL "seed: 1\nname: x\nseed: 2\n",
                    "R:7: seed is given twice, first in line 5; remove one of them\n");
    EXPECT_MESSAGES(
        SMALL "parallel:\n  tp: 1\n  tensor_parallel_size: 2\n",
        "R:7: parallel.tensor_parallel_size is given twice, first in line 6; remove one of them\n");
    EXPECT_MESSAGES(SMALL DATA, "R:5: data is given twice, first in line 4; remove one of them\n");
    expect_messages(SMALL, (const char *const[]){"tp=1", "parallel.tp=2", NULL}, 0,
                    "command line: parallel.tensor_parallel_size is given twice; remove one of them\n",
                    __LINE__);
}

Test(recipe, wrong_types)
{
    FOR_OVERRIDE("model.num_layers=abc",
                 "command line: model.num_layers \"abc\" is not an integer from 1 to 100000\n");
    FOR_OVERRIDE("model.num_layers=1.5",
                 "command line: model.num_layers \"1.5\" is not an integer from 1 to 100000; use 1 or 2\n");
    FOR_OVERRIDE("model.num_layers=1e1",
                 "command line: model.num_layers \"1e1\" is not an integer from 1 to 100000; use 10\n");
    FOR_OVERRIDE("model.num_layers=\"4\"",
                 "command line: model.num_layers \"4\" is text; remove the quotes\n");
    FOR_OVERRIDE("model.num_layers=",
                 "command line: model.num_layers is empty; expected an integer from 1 to 100000\n");
    FOR_OVERRIDE("model.num_layers=[1]",
                 "command line: model.num_layers is a list; expected an integer from 1 to 100000\n");
    FOR_OVERRIDE("seed={a: 1}", "command line: seed is a mapping; expected an integer from 0 to "
                                "9000000000000000\n");
    FOR_OVERRIDE("model.add_bias_linear=yes",
                 "command line: model.add_bias_linear \"yes\" is not true or false\n");
    FOR_OVERRIDE("model.normalization=layernorm",
                 "command line: model.normalization \"layernorm\" is not LayerNorm or RMSNorm; did you "
                 "mean LayerNorm?\n");
    FOR_OVERRIDE("optimizer.lr=fast", "command line: optimizer.lr \"fast\" is not a number above 0\n");
    FOR_OVERRIDE("optimizer.weight_decay=1e-400",
                 "command line: optimizer.weight_decay 1e-400 is too small for fp32, which ends at "
                 "1.2e-38; expected a number, 0 or more; use 0\n");
    FOR_OVERRIDE("optimizer.weight_decay=0e-400", "");
    FOR_OVERRIDE("name=", "command line: name is empty; expected text\n");
    FOR_OVERRIDE("name=\"a\\nb\"",
                 "command line: name has a character that cannot be printed; expected text\n");
    FOR_OVERRIDE("name=a\xff", "command line: name has a character that cannot be printed; expected "
                               "text\n");
    FOR_OVERRIDE("pipeline.layout=4",
                 "command line: pipeline.layout \"4\" is not a list of integers, like [3, 3, 2]\n");
    FOR_OVERRIDE("pipeline.layout=[4, x]",
                 "command line: pipeline.layout entry 2: \"x\" is not an integer from 0 to "
                 "100000\n");
    FOR_OVERRIDE("data.train=[{weight: 1}]", "command line: data.train source 1: path is missing; use "
                                             "{path: data/quickstart}\n");
    FOR_OVERRIDE("data.train=[a, {path: b, wieght: 1}]",
                 "command line: data.train source 2: unknown key wieght; did you mean weight?\n");
    FOR_OVERRIDE("data.train=[a, {path: b, x: 1}]",
                 "command line: data.train source 2: unknown key x; the keys are path and weight\n");
    FOR_OVERRIDE("data.valid=[{path: b, path: c}]",
                 "command line: data.valid source 1: path is given twice; remove one of them\n");
    FOR_OVERRIDE("data.train=[{path: b, weight: 1}, {path: b, weight: 0}]",
                 "command line: data.train source 2: weight 0 is out of range; expected a number above "
                 "0; use 1\n");
    FOR_OVERRIDE("data.train=[{weight: 1}, a, {path: b, wieght: 1}]",
                 "command line: data.train source 1: path is missing; use {path: data/quickstart}; source 3: "
                 "unknown key wieght; did you mean weight?\n");
    FOR_OVERRIDE("data.train={path: b, weight: 0}",
                 "command line: data.train weight 0 is out of range; expected a number above 0; use 1\n");
    EXPECT_MESSAGES(
        MODEL TRAIN OPTIMIZER "data: d\n",
        "R:4: data is a section; expected keys and values below it\nR: data.train is required, such as "
        "data/quickstart\n");
}

Test(recipe, numbers_out_of_range)
{
    FOR_OVERRIDE("model.num_layers=0",
                 "command line: model.num_layers 0 is out of range; expected an integer from 1 to "
                 "100000; use 1\n");
    FOR_OVERRIDE("model.num_layers=200000",
                 "command line: model.num_layers 200000 is out of range; expected an integer from 1 to "
                 "100000; use 100000\n");
    FOR_OVERRIDE(
        "model.num_layers=99999999999999999999",
        "command line: model.num_layers \"99999999999999999999\" is not an integer from 1 to 100000; use "
        "100000\n");
    FOR_OVERRIDE("optimizer.lr=0",
                 "command line: optimizer.lr 0 is out of range; expected a number above 0; use 3e-4\n");
    FOR_OVERRIDE("optimizer.lr=nan",
                 "command line: optimizer.lr nan is out of range; expected a number above 0; use 3e-4\n");
    FOR_OVERRIDE("optimizer.lr=inf",
                 "command line: optimizer.lr inf is out of range; expected a number above 0; use 3e-4\n");
    FOR_OVERRIDE("model.hidden_dropout=1",
                 "command line: model.hidden_dropout 1 is out of range; expected a number from 0 to "
                 "below 1; use 0.1\n");
    FOR_OVERRIDE("optimizer.adam_beta2=1.2",
                 "command line: optimizer.adam_beta2 1.2 is out of range; expected a number from 0 to "
                 "below 1; use 0.999\n");
    FOR_OVERRIDE("pipeline.layout=[5, -1]",
                 "command line: pipeline.layout entry 2: -1 is out of range; expected an integer from 0 "
                 "to 100000; use 0\n");
    FOR_OVERRIDE("seed=10000000000000000",
                 "command line: seed 10000000000000000 is out of range; expected an integer from 0 to "
                 "9000000000000000; use 9000000000000000\n");
    FOR_OVERRIDE("parallel.bucket_size_mb=1e7",
                 "command line: parallel.bucket_size_mb 1e7 is out of range; expected a number from "
                 "0.0001 to 1000000, or auto; use 1000000\n");
}

/* Numbers with a derived default also take auto; entries of a list do not. */
Test(recipe, numbers_that_may_be_auto)
{
#define TIMEOUT "command line: resilience.heartbeat_timeout_seconds "
    FOR_OVERRIDE("resilience.heartbeat_timeout_seconds=soon",
                 TIMEOUT "\"soon\" is not a number, 0 or more, or auto\n");
    FOR_OVERRIDE("resilience.heartbeat_timeout_seconds=",
                 TIMEOUT "is empty; expected a number, 0 or more, or auto\n");
    FOR_OVERRIDE("resilience.heartbeat_timeout_seconds=-1",
                 TIMEOUT "-1 is out of range; expected a number, 0 or more, or auto; use 0\n");
    FOR_OVERRIDE("resilience.heartbeat_timeout_seconds=1e300",
                 TIMEOUT "1e300 is out of range when rounded to fp32; expected a number, 0 or more, or auto; "
                         "use auto\n");
    FOR_OVERRIDE("resilience.heartbeat_timeout_seconds=auto", "");
    FOR_OVERRIDE("model.num_query_groups=x",
                 "command line: model.num_query_groups \"x\" is not an integer from 1 to 100000, or auto\n");
#undef TIMEOUT
}

/* A range applies to the fp32 value used in computation. Values below 1 stay below 1, and values above 0
 * above 0. */
Test(recipe, numbers_out_of_range_in_fp32)
{
    static const char below[] =
        " is out of range when rounded to fp32; expected a number from 0 to below 1; use ";
    static const char *const shares[][3] = {{"model.hidden_dropout", "0.99999998", "0.1\n"},
                                            {"model.attention_dropout", "0.99999999", "0.1\n"},
                                            {"optimizer.adam_beta1", "0.99999999999", "0.9\n"},
                                            {"optimizer.adam_beta2", "0.99999999999", "0.999\n"}};
    static const char *const positive[][3] = {{"optimizer.lr", "1e-300", "above 0; use 3e-4\n"},
                                              {"optimizer.adam_eps", "1e-60", "above 0; use 1e-8\n"},
                                              {"optimizer.clip_grad", "1.1e-38", ", 0 or more; use 0\n"},
                                              {"optimizer.min_lr", "1e-46", ", 0 or more; use 0\n"},
                                              {"model.init_method_std", "1e-300", "above 0; use 0.02\n"},
                                              {"model.norm_epsilon", "1e-60", "above 0; use 1e-5\n"}};
    char override[100], expected[200];
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        snprintf(override, sizeof override, "%s=%s", shares[i][0], shares[i][1]);
        snprintf(expected, sizeof expected, "command line: %s %s%s%s", shares[i][0], shares[i][1], below,
                 shares[i][2]);
        FOR_OVERRIDE(override, expected);
        snprintf(override, sizeof override, "%s=0.9999999", shares[i][0]);
        FOR_OVERRIDE(override, "");
    }
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++) {
        bool open = *positive[i][2] == 'a';
        snprintf(override, sizeof override, "%s=%s", positive[i][0], positive[i][1]);
        snprintf(expected, sizeof expected,
                 "command line: %s %s is too small for fp32, which ends at 1.2e-38; expected a number%s%s",
                 positive[i][0], positive[i][1], open ? " " : "", positive[i][2]);
        FOR_OVERRIDE(override, expected);
    }
    FOR_OVERRIDE("optimizer.clip_grad=1.2e-38", "");
    FOR_OVERRIDE("optimizer.lr=1e39",
                 "command line: optimizer.lr 1e39 is out of range when rounded to fp32; expected a "
                 "number above 0; use 3e-4\n");
    FOR_OVERRIDE("model.rotary_base=0.5", "command line: model.rotary_base 0.5 is out of range; expected "
                                          "a number, 1 or more; use 1\n");
}

/* One to three weights; omitted ones are 0. */
Test(recipe, splits)
{
    FOR_OVERRIDE("data.split=-1, 2",
                 "command line: data.split entry 1: -1 is out of range; expected a number, 0 or more; "
                 "use 0\n");
    FOR_OVERRIDE("data.split=1,x", "command line: data.split entry 2: \"x\" is not a number, 0 or more\n");
    FOR_OVERRIDE("data.split=969 30, 1",
                 "command line: data.split entry 1: \"969 30\" is not a number, 0 or more\n");
    FOR_OVERRIDE("data.split=[9, y]", "command line: data.split entry 2: \"y\" is not a number, 0 or more\n");
    FOR_OVERRIDE("data.split=9,",
                 "command line: data.split entry 2: is empty; expected a number, 0 or more\n");
    FOR_OVERRIDE("data.split=4,3,2,1",
                 "command line: data.split has 4 numbers; expected one to three numbers, like 969, 30, "
                 "1\n");
    FOR_OVERRIDE("data.split=0, 1",
                 "command line: data.split has no training part: the first share is 0; use 969,30,1\n");
}

Test(recipe, zero_has_four_stages)
{
    FOR_OVERRIDE("parallel.zero_stage=0", "");
    FOR_OVERRIDE("parallel.zero_stage=4",
                 "command line: parallel.zero_stage 4 is out of range; expected an integer from 0 to 3; "
                 "use 3\n");
}

/* Some editors write one before UTF-8; lines and columns are counted after it. */
Test(recipe, a_byte_order_mark_is_skipped)
{
    EXPECT_MESSAGES("\xEF\xBB\xBF" SMALL, "");
    EXPECT_MESSAGES("\xEF\xBB\xBF# no more\n" SMALL, "");
    EXPECT_MESSAGES("\xEF\xBB\xBFseed: 1: 2\n",
                    "R:1:8: not YAML: mapping values are not allowed in this context; a second \": \" in one "
                    "line? put the value in quotes\n");
    EXPECT_MESSAGES("\xEF\xBB\xBF\xEF\xBB\xBF" SMALL, "R:1:1: a control character\n");
    EXPECT_MESSAGES("\xFF\xFEs\n", "R: is UTF-16; save it as UTF-8\n");
}

Test(recipe, yaml_errors_name_line_and_column)
{
    EXPECT_MESSAGES("model:\n\tnum_layers: 4\n", "R:2:1: a tab in the indentation; use spaces\n");
    EXPECT_MESSAGES("seed: [1, 2\nname: x\n",
                    "R:2:5: not YAML: did not find expected ',' or ']'; a list that is not closed? "
                    "(while parsing a flow sequence from line 1)\n");
    EXPECT_MESSAGES("seed: 1: 2\n",
                    "R:1:8: not YAML: mapping values are not allowed in this context; a second \": \" in one "
                    "line? put the value in quotes\n");
    EXPECT_MESSAGES("model:\n  num_layers: 4\n hidden_size: 4\n",
                    "R:3:2: not YAML: did not find expected key; is this "
                    "line indented like its neighbours? (while parsing a "
                    "block mapping from line 1)\n");
    EXPECT_MESSAGES("name: \"abc\n",
                    "R:2:1: not YAML: found unexpected end of stream; a quote that is not closed? (while "
                    "scanning a quoted scalar from line 1)\n");
    EXPECT_MESSAGES(
        "name: @x\n",
        "R:1:7: not YAML: found character that cannot start any token; put a value that begins with "
        "this character in quotes\n");
    EXPECT_MESSAGES("name: \xff\n", "R:1:7: a byte that is not UTF-8\n");
    EXPECT_MESSAGES("name: a\x01\n", "R:1:8: a control character\n");
    EXPECT_MESSAGES("name: \"a\\0b\"\n", "R:1:7: a value with a zero byte (\\0) inside\n");
    FOR_OVERRIDE("pipeline.layout=[2, 2",
                 "command line: pipeline.layout [2, 2 is not YAML; is a bracket or a quote missing?\n");
}

Test(recipe, unsupported_yaml_is_rejected)
{
    EXPECT_MESSAGES("a: &x 1\nb: *x\n",
                    "R:1:4: anchors (&name) are not supported; use `base: other.yaml` to share settings\n");
    EXPECT_MESSAGES("a: *x\n",
                    "R:1:4: aliases (*name) are not supported; use `base: other.yaml` to share settings\n");
    EXPECT_MESSAGES("<<: {a: 1}\n",
                    "R:1:1: merge keys (<<) are not supported; use `base: other.yaml` to share settings\n");
    EXPECT_MESSAGES("a: !!int 1\n", "R:1:4: tags (!name) are not supported; remove it\n");
    EXPECT_MESSAGES("seed: 1\n---\nseed: 2\n", "R:2:1: a second document; a file has a single document\n");
    EXPECT_MESSAGES("- seed\n", "R:1: expected keys and values, such as `seed: 1`\n");
    EXPECT_MESSAGES("seed\n", "R:1: expected keys and values, such as `seed: 1`\n");
    EXPECT_MESSAGES("? [a]\n: 1\n", "R:1:3: a key that is itself a list or a mapping\n");
}

Test(recipe, required_keys)
{
    const char *all = "R: model.num_layers is required, such as 12\nR: model.hidden_size is required, "
                      "such as 768\nR: model.num_attention_heads is required, such as 12\nR: "
                      "model.seq_length is required, such as 1024\nR: train.global_batch_size is "
                      "required, such as 32\nR: train.train_iters is required, such as 1000\nR: "
                      "optimizer.lr is required, such as 3e-4\nR: data.train is required, such as "
                      "data/quickstart\n";
    EXPECT_MESSAGES("", all);
    EXPECT_MESSAGES("# nothing\n---\nmodel:\n", all);
    FOR_OVERRIDE("data.train=[]", "command line: data.train is required, such as data/quickstart\n");
}

Test(recipe, all_problems_are_reported_at_once)
{
    expect_messages(
        "sede: 1\nmodel: {num_layers: x, hidden_size: 64, num_attention_heads: 5, seq_length: 32}\n" OPTIMIZER
        "train: {global_batch_size: 9, micro_batch_size: 2}\nparallel: {expert_parallel_size: 2}\n",
        (const char *const[]){"optimizer.min_lr=1", "nonsense", NULL}, 0,
        "R:1: unknown key sede; did you mean seed?\nR:2: model.num_layers \"x\" is not an integer from 1 "
        "to 100000\nR:5: unknown key parallel.expert_parallel_size: mixture of experts is not "
        "implemented\ncommand line: nonsense is not key=value\nR: train.train_iters is required, such as "
        "1000\nR: data.train is required, such as data/quickstart\nR:2: model.hidden_size 64 "
        "is not divisible by "
        "model.num_attention_heads 5; use model.hidden_size=60 or 65\nR:4: train.global_batch_size 9 is "
        "not divisible by train.micro_batch_size 2 x parallel.data_parallel_size 1; use "
        "train.global_batch_size=8 or 10\ncommand line: optimizer.min_lr 1 is more than optimizer.lr "
        "0.001; use optimizer.min_lr=0.001\n",
        __LINE__);
}

Test(recipe, rejects_huge_and_deep_input)
{
    enum { HUGE_BYTES = 2 << 20 };
    char *huge = malloc(HUGE_BYTES + 1);
    memset(huge, '\n', HUGE_BYTES);
    huge[HUGE_BYTES] = 0;
    EXPECT_MESSAGES(huge, "R: larger than 1 MiB, the limit of a YAML file\n");
    memset(huge, '[', HUGE_BYTES);
    huge[1 << 19] = 0;
    EXPECT_MESSAGES(huge, "R:1:18: nested too deeply (more than 16 levels)\n");
    for (int i = 0; i < 30000; i++)
        memcpy(huge + 2 * i, i == 0 ? "[1" : ",1", 2);
    huge[60000] = 0;
    EXPECT_MESSAGES(huge, "R:1:40000: too many keys and values (more than 20000)\n");
    free(huge);
}

/* ---- files ---- */

/* Writes folder/name, loads folder/load, and returns the messages, with the folder called F. */
static struct loaded load_files(const char *const (*files)[2], const char *which,
                                const char *const *overrides)
{
    char folder[] = "/tmp/cuboid-recipes-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    struct text path = {0};
    for (size_t i = 0; files[i][0] != NULL; i++) {
        text_free(&path);
        text_add(&path, "%s/%s", folder, files[i][0]);
        if (files[i][1] == NULL)
            cr_assert_eq(mkdir(path.chars, 0700), 0);
        else
            cr_assert_eq(file_write_atomic(path.chars, files[i][1], strlen(files[i][1])), OK);
    }
    text_free(&path);
    text_add(&path, "%s/%s", folder, which);
    struct loaded loaded = {0};
    struct problems problems = {0};
    size_t count = overrides != NULL ? 1 : 0;
    enum status status = planned_recipe_load(path.chars, overrides, count, 0, &loaded.recipe, &problems);
    cr_assert_eq(status == OK, problems.errors == 0);
    for (size_t i = 0; i < problems.count; i++)
        text_add(&loaded.messages, "%s\n", problems.list[i].text);
    text_replace(&loaded.messages, folder, "F");
    problems_free(&problems);
    for (size_t i = 0; files[i][0] != NULL; i++) {
        text_free(&path);
        text_add(&path, "%s/%s", folder, files[i][0]);
        remove(path.chars);
    }
    remove(folder);
    text_free(&path);
    return loaded;
}

Test(recipe, a_base_is_merged_first)
{
    static const char *const files[][2] = {
        {"sub", NULL},
        {"a.yaml", "base: sub/b.yaml\nmodel: {num_layers: 6}\nparallel: {tp: 2}\ndata: {train: mine}\n"},
        {"sub/b.yaml",
         "base: ../c.yaml\nparallel: {tensor_parallel_size: 4, pp: 2}\ndata: {train: [x, y]}\n"},
        {"c.yaml", SMALL "seed: 7\n"},
        {NULL, NULL}};
    struct loaded l = load_files(files, "a.yaml", (const char *const[]){"model.hidden_size=128"});
    cr_assert_str_eq(text_chars(&l.messages), "");
    const struct recipe *r = l.recipe;
    cr_assert(r->model.num_layers == 6 && r->model.hidden_size == 128 && r->seed == 7);
    cr_assert(r->parallel.tensor_parallel_size == 2 && r->parallel.pipeline_parallel_size == 2);
    cr_assert_eq(r->data.train.count, 1);
    cr_assert_str_eq(r->data.train.list[0].path, "mine");
    cr_assert_str_eq(r->name, "a");
    // Each value records the file it is from.
    struct text resolved = {0};
    recipe_resolved_text(r, &resolved);
    cr_assert_not_null(strstr(resolved.chars, "a.yaml:2\n"));
    cr_assert_not_null(strstr(resolved.chars, "sub/b.yaml:2\n"));
    cr_assert_not_null(strstr(resolved.chars, "sub/../c.yaml:5\n"));
    cr_assert_not_null(strstr(resolved.chars, "# command line\n"));
    text_free(&resolved);
    loaded_free(&l);
}

static void expect_file_messages(const char *const (*files)[2], const char *which, const char *expected)
{
    struct loaded l = load_files(files, which, NULL);
    cr_expect_str_eq(text_chars(&l.messages), expected, "got %s", text_chars(&l.messages));
    loaded_free(&l);
}

Test(recipe, invalid_bases)
{
    static const char *const files[][2] = {
        {"a.yaml", "base: b.yaml\n"},          {"b.yaml", "name: b\nbase: ./a.yaml\n"},
        {"self.yaml", "base: self.yaml\n"},    {"lost.yaml", "base: nowhere.yaml\n" SMALL},
        {"list.yaml", "base: [a.yaml]\n"},     {"broken.yaml", "base: bad.yaml\n"},
        {"bad.yaml", "seed: 1\nseed: x: y\n"}, {"sub", NULL},
        {"folder.yaml", "base: sub\n"},        {NULL, NULL}};
    expect_file_messages(
        files, "a.yaml",
        "F/b.yaml:2: base F/a.yaml: is already being read; a recipe cannot be its own base\n");
    expect_file_messages(
        files, "self.yaml",
        "F/self.yaml:1: base F/self.yaml: is already being read; a recipe cannot be its own base\n");
    expect_file_messages(files, "lost.yaml",
                         "F/lost.yaml:1: base F/nowhere.yaml: No such file or directory\n");
    expect_file_messages(files, "borken.yml",
                         "F/borken.yml: No such file or directory; did you mean F/broken.yaml?\n");
    expect_file_messages(files, "list.yaml", "F/list.yaml:1: base expects the path of one recipe\n");
    expect_file_messages(files, "broken.yaml",
                         "F/bad.yaml:2:8: not YAML: mapping values are not allowed in this context; a "
                         "second \": \" in one line? put the value in quotes\n");
    expect_file_messages(files, "folder.yaml",
                         "F/folder.yaml:1: base F/sub: is a directory, not a file; use the file in it\n");
    expect_file_messages(files, "nothing.yaml", "F/nothing.yaml: No such file or directory\n");
}

Test(recipe, rejects_endless_files)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    cr_assert_eq(planned_recipe_load("/dev/zero", NULL, 0, 0, &recipe, &problems), BAD_RECIPE);
    cr_assert_str_eq(problems.list[0].text, "/dev/zero: is a device, not a regular file; use a file");
    problems_free(&problems);
}
