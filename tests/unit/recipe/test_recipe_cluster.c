// SPDX-License-Identifier: Apache-2.0
/* Devices and transports of a recipe, as far as this build has them. */
#include "tests/unit/recipe/recipe_case.h"

#include "kernels/device.h"
#include "parallel/comm.h"

/* SMALL with these overrides, alone. */
#define WITH(expected, ...) says(SMALL, (const char *const[]){__VA_ARGS__, NULL}, 0, expected, __LINE__)

/* Whether there is a GPU, the run itself says. */
Test(recipe_check, the_device_of_a_gpu)
{
    if (device_is_built("cuda")) {
        WITH("", "cluster.device=cuda");
        WITH("", "cluster.device=cuda", "precision.params_dtype=bf16");
        WITH("", "cluster.device=cuda", "memory.offload_activations=true", "memory.offload_optimizer=true");
        WITH("", "cluster.device=cuda", "precision.allow_tf32=true", "cluster.matmul_algorithms=auto");
        WITH("command line: precision.allow_tf32 true is for matrix multiplications of fp32 on a GPU: with "
             "precision.params_dtype bf16 there are none; precision.allow_tf32 false works\n",
             "cluster.device=cuda", "precision.allow_tf32=true", "precision.params_dtype=bf16");
        if (transport_is_built("nccl")) {
            WITH("", "cluster.device=cuda", "tp=2");
            WITH("", "cluster.device=cuda", "tp=2", "cluster.transport=nccl", "cluster.ranks_per_gpu=2");
            WITH("command line: cluster.transport local does not move the memory of cluster.device cuda; "
                 "cluster.transport nccl works\n",
                 "cluster.device=cuda", "tp=2", "cluster.transport=local");
        } else {
            WITH(
                "command line: cluster.device cuda: 2 ranks, and cluster.transport nccl is not in this build "
                "(meson setup -Dcuda=enabled -Dmpi=enabled, where nvcc, nccl.h and MPI are); one rank, or "
                "cluster.device cpu works\n",
                "cluster.device=cuda", "tp=2");
        }
    } else {
        WITH(
            "command line: cluster.device cuda is not in this build, which has cpu, strict, dry; meson setup "
            "-Dcuda=enabled, where nvcc is, builds cuda; cluster.device cpu works\n",
            "cluster.device=cuda");
    }
}

/* What a file says of a GPU is rehearsed for a GPU, also where this build has none. */
Test(recipe_check, whose_memory_a_dry_device_counts)
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
        cr_assert_neq(loaded.recipe, NULL, "%s", text_chars(&loaded.said));
        cr_expect_str_eq(text_chars(&loaded.said), "");
        cr_expect_str_eq(loaded.recipe->cluster.dry_device, cases[i].counts, "case %zu", i);
        loaded_free(&loaded);
    }
    WITH(
        "warning: command line: cluster.dry_device has no effect: cluster.device is cpu, and only dry stands "
        "for another\n",
        "cluster.dry_device=cuda");
}

Test(recipe_check, graphs_are_for_passes_without_messages)
{
    WITH("", "cluster.device=dry", "cluster.cuda_graphs=true", "dp=2", "parallel.zero_stage=1");
    WITH("command line: cluster.cuda_graphs true is for passes without messages or copies of their own: with "
         "parallel.tensor_parallel_size 2, parallel.zero_stage 3 and memory.offload_activations true layers "
         "have "
         "some; 1, at most 1, and false work, or cluster.cuda_graphs false\n",
         "cluster.device=dry", "cluster.cuda_graphs=true", "tp=2", "dp=2", "parallel.zero_stage=3",
         "memory.offload_activations=true");
    WITH(
        "warning: command line: cluster.cuda_graphs has no effect: cluster.device is cpu, and only a GPU has "
        "graphs\n",
        "cluster.cuda_graphs=true");
}

Test(recipe_check, what_only_a_gpu_has)
{
    WITH("command line: precision.allow_tf32 true is for matrix multiplications of fp32 on a GPU: "
         "cluster.device cpu has no TF32; precision.allow_tf32 false works\n",
         "precision.allow_tf32=true");
    WITH("command line: cluster.matmul_algorithms is for libraries that have several on a GPU, and "
         "cluster.device strict has one; cluster.matmul_algorithms none works\n",
         "cluster.device=strict", "cluster.matmul_algorithms=auto");
    WITH("command line: cluster.matmul_epilogues is for a GPU's library, and cluster.device cpu multiplies "
         "without; cluster.matmul_epilogues apart works\n",
         "cluster.matmul_epilogues=auto");
    WITH("", "cluster.device=dry", "precision.allow_tf32=true", "cluster.matmul_algorithms=here");
    WITH("", "cluster.device=dry", "cluster.matmul_epilogues=fused");
}

Test(recipe_check, the_transport_of_gpus)
{
    const char *others = transport_is_built("mpi") ? "local, or cluster.transport mpi" : "local";
    char text[300];
    if (transport_is_built("nccl")) {
        snprintf(text, sizeof text,
                 "command line: cluster.transport nccl does not move the memory of cluster.device cpu; "
                 "cluster.transport %s works\n",
                 others);
        WITH(text, "cluster.transport=nccl");
    } else {
        snprintf(text, sizeof text,
                 "command line: cluster.device cpu: 1 rank, and cluster.transport nccl is not in this build "
                 "(meson setup -Dcuda=enabled -Dmpi=enabled, where nvcc, nccl.h and MPI are); "
                 "cluster.transport %s works\n",
                 others);
        WITH(text, "cluster.transport=nccl");
    }
    WITH(
        "command line: cluster.ranks_per_gpu 2 is for ranks with a GPU each: with cluster.transport auto and "
        "cluster.device cpu, 1 works\n",
        "cluster.ranks_per_gpu=2");
}

Test(recipe_check, the_attention_of_cudnn)
{
    const char *const dry = "cluster.device=dry", *const cudnn = "model.attention_backend=cudnn",
                      *const bf16 = "precision.params_dtype=bf16";
    const struct {
        const char *said, *device, *dtype, *other;
    } refused[] = {
        {"cuDNN computes on GPUs; cluster.device cuda", "cluster.device=cpu", bf16, NULL},
        {"the weights that cuDNN drops are not those that another layout drops; model.attention_dropout 0",
         dry, bf16, "model.attention_dropout=0.1"},
        {"its graph knows no documents; data.reset_attention_mask false", dry, bf16,
         "data.reset_attention_mask=true"},
        {"it takes two-byte numbers; precision.params_dtype bf16 or fp16", dry, "precision.params_dtype=fp32",
         NULL},
        {"it takes heads of at most 128 columns by eights; model.kv_channels 64 or 128", dry, bf16,
         "model.kv_channels=12"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "command line: model.attention_backend cudnn: %s, or model.attention_backend own works\n",
                 refused[i].said);
        WITH(text, cudnn, refused[i].device, refused[i].dtype, refused[i].other);
    }
    WITH("command line: model.attention_backend cudnn: its graph knows no documents; "
         "data.reset_attention_mask "
         "false, and it takes heads of at most 128 columns by eights; model.kv_channels 64 or 128, or "
         "model.attention_backend own works\n",
         dry, bf16, cudnn, "data.reset_attention_mask=true", "model.kv_channels=132");
    WITH("", dry, bf16, cudnn);
    WITH("", dry, bf16, "model.attention_backend=fused");
    WITH("", "model.attention_backend=flash");
}
