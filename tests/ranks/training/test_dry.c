// SPDX-License-Identifier: Apache-2.0
/* The dry device plans memory: the bytes it counts for each rank and part equal what the same rank of a real
 * run allocates, exactly. So does the closed formula, which runs nothing. */
#include "planner/memory/memory_formula.h"
#include "tests/support/tiny.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/engine/agree.h"
#include "trainer/engine/step.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_CHUNKS = 4 };

#define FULL       " memory.recompute_granularity=full "
#define OFFLOAD    " memory.offload_activations=true "
#define SELECTIVE  " memory.recompute_granularity=selective memory.recompute_modules="
#define OVERLAP    " parallel.sequence_parallel=true parallel.tp_comm_overlap=true "
#define BF16_ALL   " precision.params_dtype=bf16 "
#define FP16_ALL   " precision.params_dtype=fp16 "
#define NO_MASTERS " precision.main_params_dtype=bf16 "

struct layout_case {
    enum tiny_family family;
    const char *layout;
    int threads;
};

struct dry_case {
    struct run run;
    int steps, chunks;
    struct memory_use use[MAX_RANKS];
    struct slot_use slots[MAX_RANKS][MAX_CHUNKS][SLOT_LIFETIMES];
    struct memory_table formula[MAX_RANKS]; // of the dry run
};

static enum status rank_main(struct world *world, void *argument)
{
    struct dry_case *job = argument;
    struct rank_state state;
    struct step_result result;
    double loss;
    bool stop;
    TRY(rank_create(&job->run, world, &(struct rank_options){.training = true}, &state));
    TRY(checkpoint_reserve(&state));
    for (int i = 0; i < job->steps; i++)
        TRY(rank_step(&state, &result));
    if (job->steps > 1)
        TRY(rank_evaluate(&state, &loss, &stop));
    if (job->steps > 1) // as a checkpoint does
        TRY(rank_agree(&state, OK));
    job->use[world->rank] = device_memory(state.device);
    CHECK(job->run.schedule->chunks <= MAX_CHUNKS);
    for (int chunk = 0; chunk < job->run.schedule->chunks; chunk++)
        stash_slots(&executor_store(state.executor)->stash, chunk, job->slots[world->rank][chunk]);
    rank_destroy(&state);
    return OK;
}

static enum status run_case(const struct tiny *tiny, const struct layout_case *c, bool dry,
                            struct dry_case *job, int *size)
{
    struct recipe *recipe = NULL;
    char common[160];
    snprintf(common, sizeof common,
             "cluster.threads_per_rank=%d cluster.device=%s checkpoint.async_save=true checkpoint.save=saves",
             c->threads, dry ? "dry" : "cpu");
    TRY(tiny_recipe(tiny, c->family, common, c->layout, 0, &recipe));
    *size = recipe_world_size(recipe);
    CHECK(*size <= MAX_RANKS);
    // The planning pass runs one step; a real run has more steps, and evaluates.
    *job = (struct dry_case){.steps = dry ? 1 : 2};
    enum status status = run_create(recipe, !dry, &job->run);
    job->chunks = status == OK ? job->run.schedule->chunks : 0;
    for (int rank = 0; status == OK && dry && rank < *size; rank++)
        status = memory_formula(&job->run, rank, c->threads, &job->formula[rank]);
    if (status == OK && !dry)
        status = world_run("local", *size, rank_main, job);
    for (int rank = 0; status == OK && dry && rank < *size; rank++)
        status = world_run_dry(*size, rank, rank_main, job);
    run_destroy(&job->run);
    recipe_destroy(recipe);
    return status;
}

/* Activations by slot; no other activations exist. */
static enum status compare_slots(const struct dry_case *real, const struct dry_case *dry, int rank)
{
    int64_t bytes = 0;
    for (int chunk = 0; chunk < real->chunks; chunk++)
        for (int kind = 0; kind < SLOT_LIFETIMES; kind++) {
            const struct slot_use *use = &real->slots[rank][chunk][kind],
                                  *planned = &dry->slots[rank][chunk][kind],
                                  *formula = &dry->formula[rank].slots[chunk * SLOT_LIFETIMES + kind];
            bytes += use->slots * use->bytes;
            if (use->slots != planned->slots || use->bytes != planned->bytes ||
                use->slots != formula->slots || use->bytes != formula->bytes)
                return fail(OUT_OF_BOUND,
                            "rank %d, chunk %d: %lld slots of %lld bytes of %s; %lld of %lld were planned, "
                            "and the formula says %lld of %lld",
                            rank, chunk, (long long)use->slots, (long long)use->bytes,
                            lifetime_name((enum lifetime)kind), (long long)planned->slots,
                            (long long)planned->bytes, (long long)formula->slots, (long long)formula->bytes);
        }
    int64_t rounded = (bytes + 63) / 64 * 64, all = real->use[rank].peak_bytes[PART_ACTIVATIONS];
    return all == (bytes > 0 ? rounded : 64)
               ? OK
               : fail(OUT_OF_BOUND, "rank %d: slots of %lld bytes; activations take %lld", rank,
                      (long long)bytes, (long long)all);
}

static enum status compare_rank(const struct dry_case *real, const struct dry_case *dry, int rank)
{
    const struct memory_use *use = &real->use[rank], *planned = &dry->use[rank];
    const struct memory_table *formula = &dry->formula[rank];
    for (int part = 0; part < PART_COUNT; part++)
        if (use->peak_bytes[part] != planned->peak_bytes[part] ||
            use->peak_bytes[part] != formula->part_bytes[part])
            return fail(OUT_OF_BOUND,
                        "rank %d: %lld bytes of %s; %lld were planned, and the formula says %lld", rank,
                        (long long)use->peak_bytes[part], part_name((enum part)part),
                        (long long)planned->peak_bytes[part], (long long)formula->part_bytes[part]);
    if (use->peak_total_bytes != planned->peak_total_bytes || use->peak_total_bytes != formula->bytes)
        return fail(OUT_OF_BOUND,
                    "rank %d: a peak of %lld bytes; %lld were planned, and the formula says %lld", rank,
                    (long long)use->peak_total_bytes, (long long)planned->peak_total_bytes,
                    (long long)formula->bytes);
    for (int part = PART_WORKSPACE; rank == 0 && part <= PART_SNAPSHOT; part++)
        if (use->peak_bytes[part] == 0)
            return fail(OUT_OF_BOUND, "%s of 0 bytes", part_name((enum part)part));
    return OK;
}

static enum status compare(const struct tiny *tiny, const struct layout_case *c)
{
    struct dry_case real, dry;
    int size = 0;
    TRY(run_case(tiny, c, false, &real, &size));
    TRY(run_case(tiny, c, true, &dry, &size));
    enum status status = OK;
    for (int rank = 0; status == OK && rank < size; rank++)
        status = compare_rank(&real, &dry, rank);
    for (int rank = 0; status == OK && rank < size; rank++)
        status = compare_slots(&real, &dry, rank);
    for (int rank = 0; rank < size; rank++)
        memory_table_free(&dry.formula[rank]);
    return status;
}

static const struct layout_case cases[] = {
    {TINY_GPT, "", 1},
    {TINY_GPT, TINY_DROPOUT, 2},
    {TINY_GPT, "tp=2 pp=2 dp=2 parallel.sequence_parallel=true", 1},
    {TINY_LLAMA, "tp=4 pp=2 pipeline.schedule=zb-h1 pipeline.layout=[4,1]", 1},
    {TINY_LLAMA, "pp=4 pipeline.layout=[2,0,3,0] train.micro_batch_size=1", 3},
    {TINY_GPT, "tp=2 pp=3 pipeline.optimizer_post_validation=true", 1},
    {TINY_GPT, "tp=3 model.make_vocab_size_divisible_by=4 pp=2 pipeline.schedule=interleaved", 1},
    {TINY_LLAMA, "tp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=zb-v pipeline.layout=[1,1,1,2]",
     1},
    {TINY_LLAMA, "tp=4 pp=2 parallel.sequence_parallel=true model.qk_layernorm=true model.add_qkv_bias=true",
     1},
    {TINY_GPT, BF16_ALL "tp=2 model.qk_layernorm=true model.kv_channels=32" SELECTIVE "[norm,core_attn]", 2},
    {TINY_LLAMA,
     "tp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=zb-v "
     "pipeline.layout=[0,1,2,2]" TINY_PARALLEL,
     1},
    {TINY_GPT,
     BF16_ALL "tp=2 pp=4 pipeline.layout=[0,2,2,1] precision.matmul_format=hybrid" TINY_TWO_NORMS FULL, 2},
    {TINY_GPT, "tp=2" TINY_PARALLEL OVERLAP SELECTIVE "[norm,activation]", 1},
    {TINY_GPT, "pp=4 pipeline.schedule=dualpipe dp=2 train.micro_batch_size=1", 1},
    {TINY_LLAMA, "pp=2 pipeline.schedule=dualpipev pipeline.layout=[0,2,1,2]", 1},
    {TINY_GPT, "pp=4 pipeline.schedule=gpipe pipeline.layout=[0,0,5,0] train.micro_batch_size=1", 1},
    // Low-precision matmuls have copies of their operands.
    {TINY_GPT, "tp=2 parallel.sequence_parallel=true precision.matmul_format=hybrid", 1},
    {TINY_LLAMA, BF16_ALL "dp=2 precision.matmul_format=e4m3 precision.scaling=delayed", 1},
    {TINY_LLAMA,
     "tp=4 pp=2 pipeline.layout=[4,1] precision.forward_format=ternary "
     "precision.high_precision_layers=[layers.1,fc2]",
     1},
    // Overlapped tensor-parallel communication: receive buffers.
    {TINY_GPT, "tp=2 pp=2 pipeline.schedule=zb-v" OVERLAP, 2},
    {TINY_LLAMA, "tp=4 precision.forward_format=e4m3" OVERLAP FULL, 1},
    // Recomputed activations have other lifetimes.
    {TINY_GPT, "pp=2 pipeline.schedule=zb-h1" FULL "memory.recompute_num_layers=2", 1},
    {TINY_LLAMA, "tp=2 parallel.sequence_parallel=true" FULL "memory.recompute_num_layers=3", 1},
    {TINY_LLAMA, "pp=2 pipeline.schedule=zb-v" FULL, 1},
    {TINY_GPT, "pp=2 pipeline.schedule=interleaved" FULL "memory.recompute_method=block", 1},
    {TINY_GPT, "pp=2 pipeline.schedule=v-half tp=2" FULL "memory.recompute_method=block", 1},
    {TINY_GPT, SELECTIVE "[core_attn]", 1},
    {TINY_LLAMA, "pp=2 tp=2" SELECTIVE "[norm,activation]", 1},
    {TINY_LLAMA,
     "pp=4 pipeline.layout=[1,0,2,2] pipeline.schedule=zb-h2" SELECTIVE "[norm,activation,core_attn]", 1},
    {TINY_GPT, "pp=4 pipeline.layout=[1,2,0,2]" OFFLOAD, 1},
    {TINY_LLAMA, "pp=2 tp=2 parallel.sequence_parallel=true pipeline.schedule=zb-v" OFFLOAD FULL, 1},
    {TINY_GPT, "pp=2 pipeline.schedule=interleaved" OFFLOAD SELECTIVE "[norm]", 1},
    {TINY_GPT, "dp=2 parallel.zero_stage=3 memory.offload_optimizer=true" FULL, 1},
    {TINY_GPT,
     "pp=4 dp=2 pipeline.layout=[1,1,1,2] parallel.zero_stage=1 train.micro_batch_size=1 "
     "memory.offload_optimizer=true" OFFLOAD,
     1},
    // Sharded.
    {TINY_GPT, "dp=3 pp=2 parallel.zero_stage=1 train.global_batch_size=12", 1},
    {TINY_GPT, "dp=4 tp=2 parallel.sequence_parallel=true parallel.zero_stage=2 train.micro_batch_size=1", 1},
    {TINY_LLAMA, "dp=2 pp=2 pipeline.schedule=interleaved parallel.zero_stage=3", 1},
    {TINY_GPT, "dp=2 pp=2 pipeline.schedule=zb-v parallel.zero_stage=3 parallel.overlap_param_gather=true",
     1},
    {TINY_LLAMA,
     "dp=2 pp=2 parallel.zero_stage=3 parallel.overlap_grad_reduce=false "
     "pipeline.optimizer_post_validation=true model.tie_word_embeddings=true",
     1},
    // bf16 with fp32 master weights.
    {TINY_GPT, BF16_ALL "tp=2 pp=2 dp=2 parallel.zero_stage=1 parallel.sequence_parallel=true", 1},
    {TINY_LLAMA, BF16_ALL "pp=3 pipeline.optimizer_post_validation=true" SELECTIVE "[norm,core_attn]", 2},
    {TINY_LLAMA, BF16_ALL "dp=2 parallel.zero_stage=2 memory.offload_optimizer=true", 1},
    {TINY_GPT,
     BF16_ALL "dp=3 pp=2 parallel.zero_stage=3 parallel.overlap_param_gather=true train.global_batch_size=12 "
              "pipeline.optimizer_post_validation=true",
     1},
    {TINY_LLAMA, BF16_ALL "dp=2 pp=2 pipeline.schedule=zb-v parallel.zero_stage=3" FULL, 1},
    {TINY_GPT, FP16_ALL "model.vocab_size=3000", 2},
    {TINY_LLAMA, FP16_ALL "tp=2 pp=2 model.vocab_size=3001", 1},
    {TINY_LLAMA,
     FP16_ALL "tp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true model.vocab_size=3001", 1},
    {TINY_GPT, FP16_ALL "pp=3 model.ffn_hidden_size=800", 1},
    {TINY_GPT, FP16_ALL "pp=2 model.ffn_hidden_size=800 precision.matmul_format=mxfp8", 1},
    {TINY_GPT,
     FP16_ALL "pp=2 model.ffn_hidden_size=800 precision.matmul_format=mxfp8 "
              "precision.high_precision_layers=[layers.0,layers.-1.mlp.fc1]",
     1},
    {TINY_GPT,
     FP16_ALL "model.ffn_hidden_size=800 precision.matmul_format=mxfp8 precision.grad_weight_format=none", 1},
    {TINY_GPT,
     FP16_ALL
     "tp=2 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true model.ffn_hidden_size=800",
     1},
    {TINY_GPT, FP16_ALL "tp=2 pp=2 parallel.sequence_parallel=true" FULL, 1},
    {TINY_LLAMA, FP16_ALL "pp=2 dp=2 parallel.zero_stage=3 pipeline.optimizer_post_validation=true", 2},
    // The copy of a rank's file, or a part of it.
    {TINY_LLAMA, "model.vocab_size=20000 checkpoint.staging_mb=1", 1},
    {TINY_GPT, "pp=4 pipeline.schedule=dualpipe dp=2 parallel.zero_stage=1 train.micro_batch_size=1", 1},
    {TINY_GPT, "dp=2 checkpoint.save_optim=false", 1},
    {TINY_GPT, FP16_ALL "precision.matmul_format=hybrid precision.scaling=delayed", 1},
    // Without master weights.
    {TINY_GPT,
     BF16_ALL NO_MASTERS "tp=2 pp=2 dp=2 parallel.zero_stage=1 pipeline.optimizer_post_validation=true", 1},
    {TINY_LLAMA, BF16_ALL NO_MASTERS "dp=2 parallel.zero_stage=3 memory.offload_optimizer=true", 1},
};

int main(void)
{
    struct tiny tiny;
    int bad = 0;
    MUST(tiny_create(&tiny));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += UNDER_TSAN ? 7 : UNDER_SANITIZER ? 5 : 1) {
        enum status status = compare(&tiny, &cases[i]);
        bad += status != OK;
        printf("\"%s\": %s\n", cases[i].layout, status == OK ? "equal" : fail_text());
    }
    tiny_destroy(&tiny);
    return bad != 0;
}
