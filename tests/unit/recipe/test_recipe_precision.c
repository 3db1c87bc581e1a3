// SPDX-License-Identifier: Apache-2.0
/* The precision keys: options of a format, valid layers, and valid tensor splits. */
#include "tests/unit/recipe/recipe_case.h"

#include "kernels/device.h"

#include <stdio.h>

/* The messages for the smallest recipe with these overrides. */
#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)
#define HYBRID "precision.matmul_format=hybrid"

Test(recipe_precision, formats_and_scalings)
{
    WITH("", "precision.matmul_format=mxfp8");
    WITH("", HYBRID, "precision.scaling=blockwise");
    WITH("command line: precision.scaling blockwise applies to e4m3, e5m2 and hybrid, but "
         "precision.matmul_format mxfp8 has its own scales; use precision.scaling=auto\n",
         "precision.matmul_format=mxfp8", "precision.scaling=blockwise");
    WITH("command line: precision.scaling tensorwise applies to e4m3, e5m2 and hybrid, but "
         "precision.grad_weight_format nvfp4 has its own scales; use precision.scaling=auto\n",
         HYBRID, "precision.grad_weight_format=nvfp4", "precision.scaling=tensorwise");
    WITH("", HYBRID, "precision.scaling=delayed", "precision.fp8_amax_history_len=16",
         "precision.fp8_amax_compute_algo=most_recent", "precision.fp8_margin=1");
    WITH("command line: precision.scaling delayed updates scales before each step, but "
         "pipeline.optimizer_post_validation true starts the step before they are known; use "
         "pipeline.optimizer_post_validation=false\n",
         HYBRID, "precision.scaling=delayed", "pp=2", "pipeline.optimizer_post_validation=true");
    WITH("", HYBRID, "precision.params_dtype=bf16");
    WITH("command line: precision.matmul_format \"fp4\" is not none, e4m3, e5m2, hybrid, mxfp8, nvfp4 or "
         "ternary; did you mean nvfp4?\n",
         "precision.fp8_format=fp4");
}

/* Formats are simulated in fp32, so a GPU is slower with them; the CPU is the place to study them. */
Test(recipe_precision, a_simulated_format_on_a_gpu_is_reported)
{
#define DRY_CUDA "cluster.device=dry", "cluster.dry_device=cuda"
#define SLOW(key_value)                                                                                      \
    "warning: command line: precision." key_value " is simulated bit-exactly on cuda, several times slower " \
    "than bf16: for studies of accuracy only\n"
    WITH(SLOW("matmul_format hybrid"), DRY_CUDA, HYBRID);
    WITH(SLOW("grad_weight_format mxfp8"), DRY_CUDA, "precision.grad_weight_format=mxfp8");
    WITH("", DRY_CUDA, HYBRID, "precision.forward_format=none", "precision.grad_input_format=none",
         "precision.grad_weight_format=none");
    WITH("", HYBRID);
    if (device_is_built("cuda"))
        WITH(SLOW("matmul_format hybrid"), "cluster.device=cuda", HYBRID);
    FOR_OVERRIDE("fp8=true", "command line: unknown key fp8: fp8 on tensor cores is not implemented; "
                             "precision.matmul_format=hybrid simulates it (slower, to study accuracy)\n");
    FOR_OVERRIDE("fp8=false", "");
}

Test(recipe_precision, high_precision_layers_must_exist)
{
    WITH("", HYBRID, "precision.high_precision_layers=[layers.0, layers.-1.mlp, fc2, attention.qkv]");
    WITH("command line: precision.high_precision_layers: layers.4 is not a linear layer of this model; "
         "use layers.0 to layers.3, alone or followed by one of attention.qkv, attention.proj, mlp.fc1, "
         "mlp.fc2 (layers.0.mlp.fc2), or one of these alone\n",
         "precision.high_precision_layers=[layers.3, layers.4]");
    static const char *const unknown[] = {
        "head",           "layers",     "layers.", "layers.1x",
        "layers.0.norm1", "attention.", "mlp.fc",  "layers.99999999999999999999",
        "layers.-5",      "attention.q"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char override[100];
        snprintf(override, sizeof override, "precision.high_precision_layers=[%s]", unknown[i]);
        struct loaded loaded = load(SMALL, (const char *const[]){override, NULL}, 0);
        cr_expect_eq(loaded.errors, 1, "%s", unknown[i]);
        loaded_free(&loaded);
    }
}

Test(recipe_precision, shards_do_not_split_scaling_blocks)
{
    WITH("", "precision.matmul_format=mxfp8", "tp=2", "model.kv_channels=32");
    WITH("command line: parallel.tensor_parallel_size 4 gives each rank 16 channels of the heads, not a "
         "multiple of the 32 that share a scale in precision.matmul_format mxfp8; use "
         "parallel.tensor_parallel_size=2\n",
         "precision.matmul_format=mxfp8", "tp=4");
    WITH("command line: parallel.tensor_parallel_size 2 gives each rank 32 channels of the heads, not a "
         "multiple of the 128 that share a scale in precision.forward_format e4m3 with precision.scaling "
         "blockwise; use parallel.tensor_parallel_size=1\n",
         "precision.forward_format=e4m3", "precision.scaling=blockwise", "tp=2");
    WITH("command line: parallel.tensor_parallel_size 2 gives each rank 72 channels of the MLP, not a "
         "multiple of the 16 that share a scale in precision.matmul_format nvfp4; use "
         "parallel.tensor_parallel_size=1\n",
         "precision.matmul_format=nvfp4", "tp=2", "model.ffn_hidden_size=144");
    WITH("command line: model.seq_length 40 is not divisible by 16, the tokens of a Hadamard transform in "
         "precision.matmul_format nvfp4; use model.seq_length=32 or 48\n",
         "precision.matmul_format=nvfp4", "model.seq_length=40");
    WITH("", "precision.matmul_format=nvfp4", "precision.grad_weight_format=none", "model.seq_length=40");
}

Test(recipe_precision, loss_scale_requires_fp16)
{
    WITH("", "precision.params_dtype=fp16");
    WITH("", "precision.params_dtype=fp16", "precision.loss_scale=1024");
    WITH("", "precision.params_dtype=fp16", "precision.initial_loss_scale=65536",
         "precision.min_loss_scale=0.5", "precision.loss_scale_window=200", "precision.hysteresis=1");
    WITH("", "precision.initial_loss_scale=4294967296"); // the default
    WITH("warning: command line: precision.loss_scale has no effect: precision.params_dtype is bf16, and "
         "only fp16 scales the loss\n",
         "precision.params_dtype=bf16", "precision.loss_scale=1024");
    WITH("warning: command line: precision.hysteresis has no effect: precision.loss_scale is 1024, and "
         "only 0 (dynamic loss scaling) uses it\n",
         "precision.params_dtype=fp16", "precision.loss_scale=1024", "precision.hysteresis=4");
    WITH("command line: precision.min_loss_scale 128 is above precision.initial_loss_scale 64; use "
         "precision.min_loss_scale=64\n",
         "precision.params_dtype=fp16", "precision.initial_loss_scale=64", "precision.min_loss_scale=128");
    WITH("command line: precision.initial_loss_scale 0 is out of range; expected a number from 1e-06 to "
         "1000000000000000000; use 1e-06\n",
         "precision.initial_loss_scale=0");
    WITH("command line: precision.loss_scale -1 is out of range; expected a number from 0 to "
         "1000000000000000000; use 0\n",
         "precision.loss_scale=-1");
    WITH("command line: precision.hysteresis 0 is out of range; expected an integer from 1 to "
         "1000000000000; use 1\n",
         "precision.hysteresis=0");
    WITH("", HYBRID, "precision.params_dtype=fp16");
    WITH("", "precision.params_dtype=fp16", "dp=2", "parallel.zero_stage=3");
}

/* Master weights are fp32, or disabled. */
Test(recipe_precision, main_params_dtype_is_params_dtype_or_fp32)
{
    WITH("", "precision.params_dtype=bf16", "precision.main_params_dtype=bf16");
    WITH("", "precision.params_dtype=bf16", "precision.main_params_dtype=fp32");
    WITH("", "precision.params_dtype=bf16", "precision.main_params_dtype=bf16", "dp=2",
         "parallel.zero_stage=3");
    WITH("command line: precision.main_params_dtype bf16 requires precision.params_dtype bf16, not fp32; "
         "use precision.params_dtype=bf16 or precision.main_params_dtype=fp32\n",
         "precision.main_params_dtype=bf16");
}
