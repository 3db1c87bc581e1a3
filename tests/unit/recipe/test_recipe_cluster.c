// SPDX-License-Identifier: Apache-2.0
/* Devices and transports of a recipe, as supported by this build. */
#include "tests/unit/recipe/recipe_case.h"

#include "kernels/device.h"
#include "parallel/comm.h"

/* SMALL with these overrides, alone. */
#define WITH(expected, ...) \
    expect_messages(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)

/* The run itself checks whether there is a GPU. */
Test(recipe_check, the_device_of_a_gpu)
{
    if (device_is_built("cuda")) {
        WITH("", "cluster.device=cuda");
        WITH("", "cluster.device=cuda", "precision.params_dtype=bf16");
        WITH("", "cluster.device=cuda", "memory.offload_activations=true", "memory.offload_optimizer=true");
        WITH("", "cluster.device=cuda", "precision.allow_tf32=true", "cluster.matmul_algorithms=auto");
        WITH("command line: precision.allow_tf32 true needs fp32 on a GPU: precision.params_dtype is "
             "bf16; use precision.allow_tf32=false\n",
             "cluster.device=cuda", "precision.allow_tf32=true", "precision.params_dtype=bf16");
        if (transport_is_built("nccl")) {
            WITH("", "cluster.device=cuda", "tp=2");
            WITH("", "cluster.device=cuda", "tp=2", "cluster.transport=nccl", "cluster.ranks_per_gpu=2");
            WITH("command line: cluster.transport local does not support cluster.device cuda; use "
                 "cluster.transport=nccl\n",
                 "cluster.device=cuda", "tp=2", "cluster.transport=local");
        } else {
            WITH("command line: cluster.device cuda: 2 ranks, but cluster.transport nccl is not in this "
                 "build (meson setup -Dcuda=enabled; needs nvcc and nccl.h); use one "
                 "rank, or cluster.device=cpu\n",
                 "cluster.device=cuda", "tp=2");
        }
    } else {
        WITH("command line: cluster.device cuda is not in this build, which has cpu, strict, dry; build "
             "cuda with meson setup -Dcuda=enabled (needs nvcc), or use cluster.device=cpu\n",
             "cluster.device=cuda");
    }
}

/* A recipe for a GPU is planned for a GPU, also in builds without CUDA. */
Test(recipe_check, device_simulated_by_dry)
{
    static const struct {
        const char *yaml, *overrides[3], *counts;
    } cases[] = {
        {SMALL "cluster: {device: cuda}\n", {"cluster.device=dry"}, "cuda"},
        {SMALL "cluster: {device: cuda}\n", {"cluster.device=dry", "cluster.dry_device=cpu"}, "cpu"},
        {SMALL "cluster: {device: strict}\n", {"cluster.device=dry"}, "cpu"},
        {SMALL, {"cluster.device=dry", "cluster.dry_device=cuda"}, "cuda"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loaded loaded = load(cases[i].yaml, cases[i].overrides, 0);
        cr_assert_neq(loaded.recipe, NULL, "%s", text_chars(&loaded.messages));
        cr_expect_str_eq(text_chars(&loaded.messages), "");
        cr_expect_str_eq(loaded.recipe->cluster.dry_device, cases[i].counts, "case %zu", i);
        loaded_free(&loaded);
    }
    WITH("warning: command line: cluster.dry_device has no effect: cluster.device is cpu, and only dry "
         "simulates another device\n",
         "cluster.dry_device=cuda");
}

Test(recipe_check, graphs_require_passes_without_messages)
{
    WITH("", "cluster.device=dry", "cluster.cuda_graphs=true", "dp=2", "parallel.zero_stage=1");
    WITH("command line: cluster.cuda_graphs true does not support messages or copies inside layers: "
         "parallel.tensor_parallel_size is 2, parallel.zero_stage 3 and memory.offload_activations true; "
         "use 1, at most 1, and false, or cluster.cuda_graphs=false\n",
         "cluster.device=dry", "cluster.cuda_graphs=true", "tp=2", "dp=2", "parallel.zero_stage=3",
         "memory.offload_activations=true");
    WITH("warning: command line: cluster.cuda_graphs has no effect: cluster.device is cpu, and CUDA graphs "
         "need a GPU\n",
         "cluster.cuda_graphs=true");
}

Test(recipe_check, gpu_only_features)
{
    WITH("command line: precision.allow_tf32 true needs fp32 on a GPU: cluster.device cpu has no TF32; "
         "use precision.allow_tf32=false\n",
         "precision.allow_tf32=true");
    WITH("command line: cluster.matmul_algorithms needs a GPU, but cluster.device is strict; use "
         "cluster.matmul_algorithms=none\n",
         "cluster.device=strict", "cluster.matmul_algorithms=auto");
    WITH("command line: cluster.matmul_epilogues needs a GPU, but cluster.device is cpu; use "
         "cluster.matmul_epilogues=apart\n",
         "cluster.matmul_epilogues=auto");
    WITH("", "cluster.device=dry", "precision.allow_tf32=true", "cluster.matmul_algorithms=here");
    WITH("", "cluster.device=dry", "cluster.matmul_epilogues=fused");
}

Test(recipe_check, the_transport_of_gpus)
{
    const char *others = transport_is_built("mpi") ? "local or cluster.transport=mpi" : "local";
    char text[300];
    if (transport_is_built("nccl")) {
        snprintf(text, sizeof text,
                 "command line: cluster.transport nccl does not support cluster.device cpu; use "
                 "cluster.transport=%s\n",
                 others);
        WITH(text, "cluster.transport=nccl");
    } else {
        snprintf(text, sizeof text,
                 "command line: cluster.device cpu: 1 rank, but cluster.transport nccl is not in this "
                 "build (meson setup -Dcuda=enabled; needs nvcc and nccl.h); use "
                 "cluster.transport=%s\n",
                 others);
        WITH(text, "cluster.transport=nccl");
    }
    WITH("command line: cluster.ranks_per_gpu 2 needs cluster.transport nccl, not auto with cluster.device "
         "cpu; use cluster.ranks_per_gpu=1\n",
         "cluster.ranks_per_gpu=2");
}

Test(recipe_check, the_attention_of_cudnn)
{
    const char *const dry = "cluster.device=dry", *const cudnn = "model.attention_backend=cudnn",
                      *const bf16 = "precision.params_dtype=bf16";
    const struct {
        const char *messages, *device, *dtype, *other;
    } refused[] = {
        {"cuDNN needs a GPU: use cluster.device=cuda", "cluster.device=cpu", bf16, NULL},
        {"its dropout mask depends on the layout: use model.attention_dropout=0", dry, bf16,
         "model.attention_dropout=0.1"},
        {"it does not support documents: use data.reset_attention_mask=false", dry, bf16,
         "data.reset_attention_mask=true"},
        {"it runs without the mask of a sliding window: use model.window_size=0", dry, bf16,
         "model.window_size=100"},
        {"it runs without ALiBi: use model.position_embedding_type=rope", dry, bf16,
         "model.position_embedding_type=alibi"},
        {"it runs without soft-capping: use model.attn_logit_softcapping=0", dry, bf16,
         "model.attn_logit_softcapping=50"},
        {"it needs a two-byte type: use precision.params_dtype=bf16 or fp16", dry,
         "precision.params_dtype=fp32", NULL},
        {"it supports head sizes up to 128 in multiples of 8: use model.kv_channels=64 or 128", dry, bf16,
         "model.kv_channels=12"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "command line: model.attention_backend cudnn: %s; or use model.attention_backend=own\n",
                 refused[i].messages);
        WITH(text, cudnn, refused[i].device, refused[i].dtype, refused[i].other);
    }
    WITH("command line: model.attention_backend cudnn: it does not support documents: use "
         "data.reset_attention_mask=false; it supports head sizes up to 128 in multiples of 8: use "
         "model.kv_channels=64 or 128; or use model.attention_backend=own\n",
         dry, bf16, cudnn, "data.reset_attention_mask=true", "model.kv_channels=132");
    WITH("", dry, bf16, cudnn);
    WITH("", dry, bf16, "model.attention_backend=fused");
    WITH("", "model.attention_backend=flash");
}

/* ---- cluster profiles and nodes ---- */

/* logging.peak_flops, and its line of the resolved recipe. */
static double peak_of(const char *const *overrides, const char *line)
{
    struct loaded loaded = load(SMALL, overrides, 0);
    struct text text = {0};
    cr_assert_neq(loaded.recipe, NULL, "%s", text_chars(&loaded.messages));
    recipe_resolved_text(loaded.recipe, &text);
    cr_expect_not_null(strstr(text.chars, line), "%s", text.chars);
    double peak = loaded.recipe->logging.peak_flops;
    text_free(&text);
    loaded_free(&loaded);
    return peak;
}
#define PEAK(line, ...) peak_of((const char *const[]){__VA_ARGS__, NULL}, line)

Test(recipe_cluster, a_profile_has_the_peak)
{
    cr_expect_eq(PEAK("  peak_flops: 0                                # derived\n", "seed=1"), 0.0);
    cr_expect_eq(PEAK("# derived from cluster.profile dgx-h100\n", "cluster.profile=dgx-h100"), 67e12);
    cr_expect_eq(PEAK("  profile: selene ", "cluster.profile=selene", "precision.params_dtype=bf16"), 312e12);
    cr_expect_eq(PEAK("# command line\n", "cluster.profile=dgx-h100", "logging.peak_flops=1e12"), 1e12);
    cr_expect_eq(PEAK("# derived from", "cluster.profile=dgx-h100", "logging.peak_flops=auto"), 67e12);
    WITH("warning: command line: cluster.profile dgx-v100-32 has no peak for bf16, so mfu is not "
         "reported; set "
         "logging.peak_flops\n",
         "cluster.profile=dgx-v100-32", "precision.params_dtype=bf16");
}

Test(recipe_cluster, unusable_profiles_are_rejected)
{
    WITH("command line: cluster.profile: ./no.yaml: No such file or directory\n",
         "cluster.profile=./no.yaml");
    WITH("command line: cluster.gpus_per_node 16, but a node of cluster.profile dgx-a100-80 has 8 "
         "devices; use "
         "cluster.gpus_per_node=8\n",
         "cluster.profile=dgx-a100-80", "cluster.gpus_per_node=16");
    const char *const overrides[] = {"cluster.profile=dgx-a100", NULL};
    struct loaded loaded = load(SMALL, overrides, 0);
    cr_expect_not_null(strstr(text_chars(&loaded.messages),
                              "command line: cluster.profile: unknown cluster profile "
                              "dgx-a100; did you mean dgx-a100-40?"),
                       "%s", text_chars(&loaded.messages));
    loaded_free(&loaded);
}

Test(recipe_cluster, nodes_have_the_ranks_of_the_layout)
{
    WITH("", "cluster.nodes=2", "cluster.gpus_per_node=2", "tp=2"); // dp is derived
    WITH("", "cluster.nodes=2", "tp=2");                            // for cuboid submit
    // Whole nodes of the profile.
    WITH("command line: cluster.nodes 2 x cluster.gpus_per_node 8 are 16 ranks, but the layout has 2 (tp "
         "2 x pp 1 "
         "x dp 1); use parallel.data_parallel_size=8\n",
         "cluster.profile=dgx-a100-80", "cluster.nodes=2", "tp=2", "dp=1");
    WITH("command line: cluster.nodes 2 x cluster.gpus_per_node 4 are 8 ranks, but the layout has 2 (tp "
         "2 x pp 1 "
         "x dp 1); use parallel.data_parallel_size=4\n",
         "cluster.nodes=2", "cluster.gpus_per_node=4", "tp=2", "dp=1");
    WITH("command line: cluster.nodes 2 x cluster.gpus_per_node 4 are 8 ranks, but the layout has 6 (tp "
         "2 x pp 3 "
         "x dp 1); use parallel.pipeline_parallel_size=4\n",
         "cluster.nodes=2", "cluster.gpus_per_node=4", "tp=2", "pp=3", "dp=1");
    // The degree follows from the nodes: other nodes are suggested, also where the batch is the obstacle.
    WITH("command line: cluster.nodes 2 x cluster.gpus_per_node 4 are 8 ranks, not a multiple of the 6 of a "
         "replica (tp 2 x pp 3); use cluster.nodes=3\n",
         "cluster.nodes=2", "cluster.gpus_per_node=4", "tp=2", "pp=3");
    WITH("command line: cluster.nodes 7 x cluster.gpus_per_node 2 are 14 ranks, not a multiple of the 4 of a "
         "replica (tp 2 x pp 2); use cluster.nodes=4 or 8\n",
         "cluster.nodes=7", "cluster.gpus_per_node=2", "tp=2", "pp=2");
    WITH("R:2: train.global_batch_size 8 is not divisible by train.micro_batch_size 1 x "
         "parallel.data_parallel_size 3, of cluster.nodes 3; use train.global_batch_size=6 or 9; or "
         "cluster.nodes=2 or 4\n",
         "cluster.nodes=3", "cluster.gpus_per_node=2", "tp=2");
    WITH("R:2: train.global_batch_size 8 is not divisible by train.micro_batch_size 1 x "
         "parallel.data_parallel_size 3; use train.global_batch_size=6 or 9\n",
         "cluster.nodes=3", "cluster.gpus_per_node=2", "tp=2", "dp=3");
    // A launcher that has started fewer.
    expect_messages(SMALL, (const char *const[]){"cluster.nodes=2", "cluster.gpus_per_node=4", "tp=2", NULL},
                    4,
                    "command line: cluster.nodes 2 x cluster.gpus_per_node 4 are 8 ranks (srun -N 2 "
                    "--ntasks-per-node=4), but 4 were started (tp 2 x pp 1 x dp 2); use cluster.nodes=1\n",
                    __LINE__);
    // Nodes of which the layout fills fewer.
    WITH("command line: cluster.nodes 5 x cluster.gpus_per_node 2 are 10 ranks, but the layout has 4 (tp "
         "2 x pp 1 "
         "x dp 2); use cluster.nodes=2\n",
         "cluster.nodes=5", "cluster.gpus_per_node=2", "tp=2", "dp=2");
}

/* A reference of one rank has no nodes: `verify` and `generate` load it from the same recipe. */
Test(recipe_cluster, one_rank_has_no_nodes)
{
    const char *overrides[64] = {NULL};
    struct text made[64] = {0};
    size_t count = 0;
    for (; recipe_one_rank_override((int)count, &made[count]); count++)
        overrides[count] = made[count].chars;
    struct loaded loaded = load(SMALL "cluster: {nodes: 4, gpus_per_node: 8}\n", overrides, 0);
    cr_assert_neq(loaded.recipe, NULL, "%s", text_chars(&loaded.messages));
    cr_expect(recipe_world_size(loaded.recipe) == 1 && loaded.recipe->cluster.nodes == 0);
    loaded_free(&loaded);
    for (size_t i = 0; i < count; i++)
        text_free(&made[i]);
}

/* Slurm's notation: minutes, minutes:seconds, hours:minutes:seconds, and days- before hours. */
Test(recipe_cluster, time_limits)
{
    static const struct {
        const char *text;
        int64_t seconds;
    } cases[] = {
        {"90", 5400},   {"2:30", 150}, {"12:00:00", 43200}, {"1-12", 129600}, {"2-00:30", 174600},
        {"0-0:0:7", 7}, {"", -1},      {"abc", -1},         {"1:2:3:4", -1},  {"1-", -1},
        {"-5", -1},     {"1h", -1},    {"1:", -1},          {"1--2", -1},     {"+5", -1},
        {" 5", -1},     {"1-2-3", -1}, {"1:2:", -1},        {"5 ", -1},       {"12345678901", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(slurm_seconds(cases[i].text), cases[i].seconds, "%s: %lld", cases[i].text,
                     (long long)slurm_seconds(cases[i].text));
    WITH("", "cluster.time=1-00:00:00");
    WITH("command line: cluster.time 0 is not a time limit of Slurm; use minutes (90), "
         "hours:minutes:seconds (12:00:00) or days-hours (2-12), in quotes\n",
         "cluster.time=0");
}
