// SPDX-License-Identifier: Apache-2.0
/* A layout never changes results: 12 steps of layouts with the same arithmetic, compared bitwise: losses,
 * gradient norms, final weights and moments, validation loss. Layouts of a group share tp, dp and the
 * microbatch size; they differ in pipeline size, layout and schedule, rank order, bucket size, threads,
 * device (`strict` poisons freed memory), and whether ranks are threads or processes.
 *     test_layouts            ranks are threads
 *     test_layouts MPIRUN     ranks are processes, compared with one run whose ranks are threads */
#include "schedules/schedule.h"
#include "tests/support/launched.h"
#include "tests/support/sanitized.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first layout is the reference; the list ends with NULL. `processes`: layouts that also run under
 * mpirun. */
struct layout_group {
    const char *name;
    enum tiny_family family;
    const char *common;
    const char *const *layouts, *const *processes;
    const char *const *pipelines; // each is run with every valid schedule
    const char *resumed[2];       // stopped in the first, resumed in the second
};

static const char *const none[] = {NULL};
static const struct trace_options local = {.transport = "local"};

/* dp 1, tp 1: pipelines. 4 microbatches. */
#define AUTO_2                                                                              \
    "pp=2 pipeline.schedule=auto pipeline.virtual_stages=2 pipeline.auto_memory_limit=1.5 " \
    "pipeline.auto_i=1.4 pipeline.auto_w=0.6 pipeline.auto_comm=0.1"
#define AUTO_4                                                                                             \
    "pp=4 pipeline.schedule=auto pipeline.auto_memory_limit=2 pipeline.auto_f=0.7 pipeline.auto_comm=0.3 " \
    "pipeline.layout=[1,1,2,1]"
static const char *const deep[] = {
    "",
    "", // repeated
    "cluster.threads_per_rank=2",
    "cluster.threads_per_rank=1 cluster.device=strict",
    "pp=2 pipeline.layout=[4,1]",
    "pp=2 pipeline.layout=[0,5]",
    "pp=3 cluster.device=strict",
    "pp=4 pipeline.layout=[2,0,3,0]",
    "pp=4 pipeline.layout=[0,2,1,2] pipeline.schedule=zb-h1 cluster.device=strict",
    "pp=2 pipeline.schedule=interleaved pipeline.microbatch_group_size=3",
    "pp=4 pipeline.schedule=dualpipev pipeline.layout=[1,0,2,0,0,1,0,1] cluster.device=strict",
    AUTO_2,
    AUTO_4 " cluster.device=strict",
    NULL,
};
static const char *const deep_pipelines[] = {"pp=4", NULL};
static const char *const deep_processes[] = {"pp=4 pipeline.schedule=zb-h1",
                                             "pp=2 pipeline.schedule=dualpipev",
                                             "pp=2 pipeline.schedule=interleaved",
                                             "pp=2 pipeline.schedule=zb-v",
                                             AUTO_2,
                                             AUTO_4,
                                             NULL};

/* tp 2, dp 2, sequence parallel, dropout, documents: rank order, buckets, overlap. */
static const char *const wide[] = {
    "",
    "parallel.rank_order=dp-tp-cp-ep-pp",
    "parallel.bucket_size_mb=0.0001",
    "parallel.bucket_size_mb=1000 cluster.threads_per_rank=2",
    "parallel.bucket_size_mb=0.0001 parallel.overlap_grad_reduce=false",
    "pp=2 parallel.rank_order=pp-dp-tp-cp-ep cluster.device=strict",
    "pp=2 parallel.rank_order=cp-ep-dp-pp-tp parallel.bucket_size_mb=0.002",
    "parallel.zero_stage=1",
    "parallel.zero_stage=1 parallel.bucket_size_mb=0.002 cluster.device=strict",
    "parallel.zero_stage=1 pp=2 pipeline.schedule=zb-v",
    "parallel.zero_stage=1 pp=2 parallel.overlap_grad_reduce=false pipeline.schedule=interleaved",
    NULL,
};
static const char *const wide_pipelines[] = {"pp=2", NULL};
static const char *const wide_processes[] = {"parallel.bucket_size_mb=0.0001",
                                             "pp=2 parallel.rank_order=dp-pp-tp-cp-ep",
                                             "parallel.zero_stage=1 parallel.bucket_size_mb=0.002", NULL};

/* tp larger than the number of query groups; padding of the vocabulary, which does not move the ranks'
 * slices. */
static const char *const replicated[] = {
    "",
    "model.make_vocab_size_divisible_by=16 parallel.rank_order=dp-tp-cp-ep-pp",
    "model.make_vocab_size_divisible_by=128 pp=2",
    "pp=2 pipeline.layout=[3,2]",
    "cluster.device=strict",
    "pp=2 parallel.rank_order=pp-tp-cp-ep-dp",
    "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1",
    NULL,
};
static const char *const replicated_processes[] = {"", NULL};

/* Fewer microbatches than stages. */
static const char *const few[] = {"", "pp=2", "pp=4 pipeline.layout=[1,1,1,2] cluster.device=strict",
                                  "pp=2 parallel.zero_stage=1", NULL};
/* One microbatch per step: gradients may be sharded too. */
static const char *const single[] = {
    "",
    "pp=2",
    "pp=4 pipeline.layout=[1,1,1,2] cluster.device=strict",
    "parallel.zero_stage=1",
    "pp=2 parallel.zero_stage=2 cluster.device=strict",
    "parallel.zero_stage=3 parallel.overlap_param_gather=true",
    "pp=4 parallel.zero_stage=3 pipeline.schedule=zb-h1 cluster.device=strict",
    NULL,
};
static const char *const few_pipelines[] = {"pp=4", NULL};

/* Gradients of the two directions are accumulated separately: the summation order does not depend on p. */
static const char *const two_directions[] = {
    "pp=2",
    "pp=4",
    "pp=2 pipeline.layout=[0,5] cluster.device=strict",
    "pp=4 pipeline.layout=[2,0,3,0] parallel.bucket_size_mb=0.0001",
    "pp=4 parallel.rank_order=pp-dp-tp-cp-ep parallel.overlap_grad_reduce=false cluster.device=strict",
    NULL,
};
static const char *const two_directions_data[] = {
    "pp=2",
    "pp=4",
    "pp=2 pipeline.layout=[0,5] cluster.device=strict",
    "pp=4 pipeline.layout=[2,0,3,0] parallel.bucket_size_mb=0.0001",
    "pp=4 parallel.rank_order=pp-dp-tp-cp-ep parallel.overlap_grad_reduce=false cluster.device=strict",
    "pp=2 parallel.zero_stage=1 cluster.device=strict",
    "pp=4 parallel.zero_stage=1 parallel.bucket_size_mb=0.002",
    NULL,
};
static const char *const two_directions_processes[] = {"pp=4", NULL};

/* Tensor sizes that dp does not divide. */
static const char *const thirds[] = {
    "",
    "parallel.zero_stage=1",
    "parallel.zero_stage=1 parallel.bucket_size_mb=0.0001 cluster.device=strict",
    "parallel.zero_stage=1 pp=4",
    NULL,
};

/* Gradients of each microbatch are reduced over the ranks, then added to those of earlier microbatches. */
#define NO_OVERLAP " parallel.overlap_grad_reduce=false "
#define PREFETCH   " parallel.overlap_param_gather=true "
static const char *const zero_2_and_3[] = {
    "parallel.zero_stage=2",
    "parallel.zero_stage=2 cluster.device=strict",
    "parallel.zero_stage=2" NO_OVERLAP "pp=2 pipeline.schedule=zb-v cluster.device=strict",
    "parallel.zero_stage=3 cluster.device=strict",
    "parallel.zero_stage=3" PREFETCH "cluster.device=strict parallel.bucket_size_mb=0.0001",
    "parallel.zero_stage=3" PREFETCH "pp=2",
    "parallel.zero_stage=3" PREFETCH "pp=2 pipeline.schedule=interleaved cluster.device=strict",
    "parallel.zero_stage=3" PREFETCH NO_OVERLAP "pp=2 pipeline.schedule=zb-v",
    "parallel.zero_stage=3" PREFETCH "pp=2 pipeline.schedule=zb-h1 pipeline.optimizer_post_validation=true",
    "parallel.zero_stage=3" PREFETCH "memory.recompute_granularity=full memory.recompute_num_layers=2 "
    "cluster.device=strict",
    NULL,
};
static const char *const zero_2_and_3_processes[] = {"parallel.zero_stage=3" PREFETCH "pp=2", NULL};
static const char *const zero_2_and_3_two_directions[] = {
    "pp=2 parallel.zero_stage=2",
    "pp=2 parallel.zero_stage=3 cluster.device=strict",
    "pp=4 parallel.zero_stage=3" PREFETCH "pipeline.layout=[2,0,3,0]",
    NULL,
};
static const char *const zero_2_and_3_thirds[] = {
    "parallel.zero_stage=2",
    "parallel.zero_stage=3" PREFETCH "cluster.device=strict",
    "parallel.zero_stage=3 pp=4",
    NULL,
};

/* bf16: sums of activations over tp are rounded once, and everything else is as in fp32. */
static const char *const narrow[] = {
    "",
    "cluster.threads_per_rank=2",
    "pp=2 cluster.device=strict",
    "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1",
    "pp=2 pipeline.schedule=zb-v parallel.zero_stage=1 parallel.bucket_size_mb=0.002",
    "pp=2 parallel.rank_order=pp-dp-tp-cp-ep memory.recompute_granularity=full memory.recompute_num_layers=2",
    NULL,
};
static const char *const narrow_processes[] = {"pp=2 parallel.zero_stage=1", NULL};
static const char *const narrow_zero_2_and_3[] = {
    "parallel.zero_stage=2",
    "parallel.zero_stage=3" PREFETCH "cluster.device=strict",
    "parallel.zero_stage=3" PREFETCH "pp=2",
    "parallel.zero_stage=3" NO_OVERLAP "pp=2 pipeline.schedule=zb-h1 cluster.device=strict",
    "parallel.zero_stage=3 memory.recompute_granularity=full memory.recompute_num_layers=2",
    NULL,
};
static const char *const narrow_zero_2_and_3_processes[] = {"parallel.zero_stage=3" PREFETCH "pp=2", NULL};
/* Stochastic rounding by the element's global index in the tensor. */
static const char *const no_masters[] = {
    "",
    "cluster.threads_per_rank=2 parallel.rank_order=dp-tp-cp-ep-pp",
    "pp=2 parallel.zero_stage=1 parallel.bucket_size_mb=0.002 cluster.device=strict",
    "pp=2 parallel.zero_stage=2 pipeline.schedule=zb-v memory.offload_optimizer=true",
    "parallel.zero_stage=3" PREFETCH "cluster.device=strict",
    "pp=2 parallel.zero_stage=3 pipeline.schedule=zb-h1 pipeline.optimizer_post_validation=true",
    NULL,
};
static const char *const narrow_single[] = {
    "",
    "pp=2 parallel.zero_stage=1 pipeline.schedule=zb-v",
    "parallel.zero_stage=2 cluster.device=strict",
    "pp=2 parallel.zero_stage=3",
    "pp=2 parallel.zero_stage=3" PREFETCH "pipeline.schedule=zb-h1 cluster.device=strict",
    NULL,
};

/* Tensor-parallel communication overlapped with the matmuls. */
static const char *const overlapped[] = {
    "cluster.device=strict",
    "pp=2 pipeline.schedule=zb-v parallel.zero_stage=1 cluster.device=strict",
    "pp=2 parallel.rank_order=pp-dp-tp-cp-ep memory.recompute_granularity=full memory.recompute_num_layers=2",
    NULL,
};
static const char *const overlapped_processes[] = {"pp=2 pipeline.schedule=zb-h1", NULL};

/* fp16: the first steps and some later ones are skipped, the same on all ranks; runs are resumed within a
 * loss-scale window. */
#define MOVING_SCALE                                                                         \
    "precision.params_dtype=fp16 precision.initial_loss_scale=16384 precision.hysteresis=1 " \
    "precision.loss_scale_window=3 "
static const char *const half[] = {
    "",
    "pp=2 cluster.device=strict",
    "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1 cluster.threads_per_rank=2",
    "pp=2 pipeline.schedule=zb-v parallel.zero_stage=1 parallel.bucket_size_mb=0.002",
    NULL,
};

static const struct layout_group groups[] = {
    {"gpt, pipelines, windows, soft-capping",
     TINY_GPT,
     TINY_WINDOW TINY_SOFTCAP,
     deep,
     deep_processes,
     deep_pipelines,
     {"pp=2", "pp=4 pipeline.layout=[0,2,1,2]"}},
    {"gpt, tp 2 dp 2, sequence parallel, dropout, documents",
     TINY_GPT,
     "tp=2 dp=2 parallel.sequence_parallel=true train.micro_batch_size=1" TINY_DROPOUT TINY_DOCUMENTS,
     wide,
     wide_processes,
     wide_pipelines,
     {"parallel.rank_order=dp-tp-cp-ep-pp parallel.zero_stage=1", "pp=2 pipeline.schedule=zb-h1"}},
    {"llama, tp 4, replicated heads, norms of q and k, soft-capping, padding",
     TINY_LLAMA,
     "tp=4" TINY_QUERY_KEY_NORMS TINY_SOFTCAP,
     replicated,
     replicated_processes,
     none,
     {"", ""}},
    {"llama with parallel branches, dp 2, m 1, windows and attention dropout",
     TINY_LLAMA,
     "dp=2 train.micro_batch_size=4 model.attention_dropout=0.3" TINY_PARALLEL TINY_WINDOW,
     single,
     none,
     few_pipelines,
     {"pp=2", "pp=2"}},
    {"llama, dp 2, m 2, conversations",
     TINY_LLAMA,
     "dp=2 train.micro_batch_size=2" TINY_LLAMA_BYTES TINY_CONVERSATIONS,
     few,
     none,
     few_pipelines,
     {"pp=2", "pp=2"}},
    {"gpt, dualpipe, dp 2, dropout",
     TINY_GPT,
     "pipeline.schedule=dualpipe dp=2 train.micro_batch_size=1" TINY_DROPOUT,
     two_directions_data,
     two_directions_processes,
     none,
     {"pp=2", "pp=4 pipeline.layout=[0,2,1,2] parallel.zero_stage=1"}},
    {"gpt, ALiBi, dp 3, odd sizes",
     TINY_GPT,
     "dp=3 train.micro_batch_size=1 train.global_batch_size=6 model.vocab_size=301" TINY_ALIBI,
     thirds,
     none,
     none,
     {"parallel.zero_stage=1 parallel.bucket_size_mb=0.001", "pp=2 parallel.zero_stage=1"}},
    {"gpt, ZeRO 2 and 3, tp 2 dp 2, sequence parallel, ALiBi, dropout",
     TINY_GPT,
     "tp=2 dp=2 parallel.sequence_parallel=true train.micro_batch_size=1" TINY_ALIBI TINY_DROPOUT,
     zero_2_and_3,
     zero_2_and_3_processes,
     none,
     {"parallel.zero_stage=3", "pp=2 parallel.zero_stage=2"}},
    {"llama, ZeRO 2 and 3, dp 4, untied",
     TINY_LLAMA,
     "dp=4 train.micro_batch_size=1",
     zero_2_and_3,
     none,
     none,
     {"pp=2 parallel.zero_stage=2", "parallel.zero_stage=3" PREFETCH}},
    {"gpt, ZeRO 2 and 3, dualpipe, dp 2",
     TINY_GPT,
     "pipeline.schedule=dualpipe dp=2 train.micro_batch_size=1",
     zero_2_and_3_two_directions,
     none,
     none,
     {"pp=2 parallel.zero_stage=3", "pp=2 parallel.zero_stage=2"}},
    {"gpt, ZeRO 2 and 3, dp 3, odd sizes",
     TINY_GPT,
     "dp=3 train.micro_batch_size=1 train.global_batch_size=6 model.vocab_size=301",
     zero_2_and_3_thirds,
     none,
     none,
     {"parallel.zero_stage=3", "pp=2 parallel.zero_stage=3"}},
    {"llama, dualpipe, tp 2, sequence parallel, m 3, tied",
     TINY_LLAMA,
     "pipeline.schedule=dualpipe tp=2 parallel.sequence_parallel=true train.global_batch_size=6 "
     "model.tie_word_embeddings=true",
     two_directions,
     none,
     none,
     {"pp=4", "pp=2"}},
    {"llama in bf16 with parallel branches and two norms, tp 2 dp 2, sequence parallel, dropout",
     TINY_LLAMA,
     "precision.params_dtype=bf16 tp=2 dp=2 parallel.sequence_parallel=true "
     "train.micro_batch_size=1" TINY_DROPOUT TINY_TWO_NORMS,
     narrow,
     narrow_processes,
     none,
     {"pp=2 parallel.zero_stage=1", "pp=3"}},
    {"gpt in bf16, ZeRO 2 and 3, tp 2 dp 2, sequence parallel, windows, soft-capping, dropout",
     TINY_GPT,
     "precision.params_dtype=bf16 tp=2 dp=2 parallel.sequence_parallel=true "
     "train.micro_batch_size=1" TINY_WINDOW TINY_SOFTCAP TINY_DROPOUT,
     narrow_zero_2_and_3,
     narrow_zero_2_and_3_processes,
     none,
     {"parallel.zero_stage=3", "pp=2 parallel.zero_stage=2"}},
    {"gpt in bf16 without master weights, tp 2 dp 2, dropout",
     TINY_GPT,
     "precision.params_dtype=bf16 precision.main_params_dtype=bf16 tp=2 dp=2 "
     "train.micro_batch_size=4" TINY_DROPOUT,
     no_masters,
     none,
     none,
     {"parallel.zero_stage=3", "pp=2 parallel.zero_stage=1"}},
    {"llama in bf16, dp 2, m 1: every stage of ZeRO",
     TINY_LLAMA,
     "precision.params_dtype=bf16 dp=2 train.micro_batch_size=4",
     narrow_single,
     none,
     none,
     {"parallel.zero_stage=1", "pp=2 parallel.zero_stage=3"}},
    {"llama in bf16 with parallel branches, tp 4, overlapped communication",
     TINY_LLAMA,
     "precision.params_dtype=bf16 tp=4 parallel.sequence_parallel=true "
     "parallel.tp_comm_overlap=true" TINY_PARALLEL,
     overlapped,
     overlapped_processes,
     none,
     {"", "pp=2"}},
    {"gpt in fp16, squared ReLU, norm of the embedding, tp 2 dp 2, sequence parallel, dropout",
     TINY_GPT,
     MOVING_SCALE "tp=2 dp=2 parallel.sequence_parallel=true train.micro_batch_size=1 "
                  "model.activation=squared_relu model.embed_layernorm=true" TINY_DROPOUT,
     half,
     narrow_processes,
     none,
     {"pp=2 parallel.zero_stage=1", "pp=3"}},
};

struct test {
    struct tiny tiny;
    int runs, failures;
};

/* ---- one run and its comparison ---- */

static enum status run(const struct tiny *tiny, const struct layout_group *group, const char *layout,
                       const struct trace_options *options, struct trace *out)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, group->family, group->common, layout, 0, &recipe));
    enum status status = trace_run(recipe, options, out);
    recipe_destroy(recipe);
    return status;
}

/* Records the result. */
static void record(struct test *test, const struct layout_group *group, const char *layout,
                   enum status status, const struct trace *reference, const struct trace *trace)
{
    struct text why = {0};
    test->runs++;
    if (status != OK)
        text_add(&why, "%s", fail_text());
    if (status != OK || trace_differs(reference, trace, &why)) {
        printf("FAILED  %s: \"%s\" against \"%s\": %s\n", group->name, layout, group->layouts[0],
               text_chars(&why));
        test->failures++;
    }
    text_free(&why);
}

static void check(struct test *test, const struct layout_group *group, const char *layout,
                  const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    record(test, group, layout, run(&test->tiny, group, layout, &local, &trace), reference, &trace);
}

/* Stopped after a quarter of the steps, which for fp16 is within a loss-scale window, and resumed in another
 * layout. */
static void check_resumed(struct test *test, const struct layout_group *group, const char *before,
                          const char *after, const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    char first[300], second[300], save[TINY_FOLDER_CHARS + 40];
    snprintf(save, sizeof save, "checkpoint.save=%s/save-%d", test->tiny.folder, test->runs);
    snprintf(first, sizeof first, "%s %s", before, save);
    snprintf(second, sizeof second, "%s %s", after, save);
    struct trace_options stop = {.transport = "local", .stop_after = TINY_STEPS / 4},
                         resume = {.transport = "local", .resume = true};
    enum status status = run(&test->tiny, group, first, &stop, &trace);
    if (status == OK)
        status = run(&test->tiny, group, second, &resume, &trace);
    record(test, group, second, status, reference, &trace);
}

/* Every schedule the recipe accepts for this pipeline, at least three. DualPipe is excluded: it adds the
 * gradients of its two directions in its own order (test_schedules.c). */
static void check_schedules(struct test *test, const struct layout_group *group, const char *pipeline,
                            const struct trace *reference)
{
    static const char *const must[] = {"gpipe", "1f1b", "zb-h1"};
    for (int i = 0; schedule_about(i) != NULL; i++)
        for (int v = 1; v <= 2; v++) {
            const char *name = schedule_about(i)->name;
            char layout[200];
            if (strcmp(name, "dualpipe") == 0)
                continue;
            if (!long_tests() && (2 * i + v + (int)(group - groups)) % 8 != 0)
                continue; // test_schedules runs all of them
            snprintf(layout, sizeof layout, "%s pipeline.schedule=%s pipeline.virtual_stages=%d", pipeline,
                     name, v);
            bool needed = false;
            for (size_t k = 0; k < sizeof must / sizeof *must; k++)
                needed = needed || (v == 1 && strcmp(name, must[k]) == 0);
            struct recipe *recipe = NULL;
            bool taken = tiny_recipe(&test->tiny, group->family, group->common, layout, 0, &recipe) == OK;
            recipe_destroy(recipe);
            if (taken || needed)
                check(test, group, layout, reference);
        }
}

/* ---- main ---- */

/* Flips one bit of one weight after the last step. */
static enum status flip_bit(void *context, struct rank_state *w, int64_t step,
                            const struct step_result *result)
{
    (void)context;
    (void)result;
    struct owned_param *owned =
        weights_owned(&w->weights, params_find(&w->params, "layers.1.mlp.fc2.weight"));
    if (step < w->run->recipe->train.train_iters || owned == NULL)
        return OK;
    uint32_t bits;
    TRY(copy_to_host(w->compute, &bits, owned->value.data, sizeof bits));
    TRY(stream_sync(w->compute));
    bits ^= 1;
    TRY(copy_to_device(w->compute, owned->value.data, &bits, sizeof bits));
    return stream_sync(w->compute);
}

/* The hook on_batches_loaded also sees evaluation batches. */
static enum status count_loaded(void *context, struct rank_state *w, int64_t step)
{
    int *counts = context; // of steps, of evaluations
    if (w->world->rank == 0)
        counts[step == 0]++;
    return OK;
}

static void check_loaded(struct test *test, const struct layout_group *group, const struct trace *reference)
{
    int counts[2] = {0};
    struct trace_options options = {.transport = "local",
                                    .observer = {counts, .on_batches_loaded = count_loaded}};
    struct trace trace = {.steps = 0};
    enum status status = run(&test->tiny, group, group->layouts[0], &options, &trace);
    test->runs++;
    if (status != OK || counts[0] != reference->steps || counts[1] != 2) {
        printf("FAILED  %s: the hook saw %d steps and %d evaluations\n", group->name, counts[0], counts[1]);
        test->failures++;
    }
}

/* Tests the comparison itself: it must detect a difference of one bit, and name it. */
static void check_flipped(struct test *test, const struct layout_group *group, const struct trace *reference)
{
    struct trace_options options = {.transport = "local", .observer = {.on_step_end = flip_bit}};
    struct trace trace = {.steps = 0};
    struct text why = {0};
    enum status status = run(&test->tiny, group, group->layouts[0], &options, &trace);
    test->runs++;
    if (status != OK || !trace_differs(reference, &trace, &why) ||
        strstr(text_chars(&why), "layers.1.mlp.fc2.weight") == NULL) {
        printf("FAILED  %s: one bit was flipped, and the comparison reported \"%s\"\n", group->name,
               text_chars(&why));
        test->failures++;
    }
    text_free(&why);
}

static void check_threads(struct test *test, const struct layout_group *group, const struct trace *reference)
{
    struct trace trace = {.steps = 0};
    struct trace_options often = {.transport = "local", .evaluates_often = true};
    const int number = (int)(group - groups) % 4;
    if (long_tests() || (!UNDER_SANITIZER && number == 2)) { // these check the test itself, not the trainer
        check_flipped(test, group, reference);
        check_loaded(test, group, reference);
    }
    if (long_tests() || number == 0) { // otherwise one of the two, for half of the groups
        enum status status = run(&test->tiny, group, group->layouts[0], &often, &trace);
        record(test, group, "evaluating after each step", status, reference, &trace);
    }
    if (long_tests() || number == 1)
        check_resumed(test, group, group->resumed[0], group->resumed[1], reference);
    for (int i = 1; group->layouts[i] != NULL; i++)
        if (!UNDER_SANITIZER || (UNDER_ASAN && i == 5) || group->layouts[i + 1] == NULL) // has most features
            check(test, group, group->layouts[i], reference);
    for (int i = 0; !UNDER_SANITIZER && group->pipelines[i] != NULL; i++)
        check_schedules(test, group, group->pipelines[i], reference);
}

static void check_group(struct test *test, const struct layout_group *group)
{
    struct trace reference = {.steps = 0};
    int runs = test->runs, failures = test->failures;
    enum status status = run(&test->tiny, group, group->layouts[0], &local, &reference);
    record(test, group, group->layouts[0], status, &reference, &reference);
    if (status != OK)
        return;
    check_threads(test, group, &reference);
    printf("%s: %d runs, loss %.9g to %.9g, %d differ\n", group->name, test->runs - runs, reference.loss[0],
           reference.loss[reference.steps - 1], test->failures - failures);
    fflush(stdout);
}

/* ---- under mpirun ---- */

enum { GROUPS = sizeof groups / sizeof *groups, MAX_PROCESSES = 60 };

/* The layouts of all groups in one launch: starting processes takes longer than a run. */
static void check_processes(struct test *test, const char *mpirun, const char *program)
{
    const struct layout_group *group_of[MAX_PROCESSES];
    struct launch runs[MAX_PROCESSES];
    int count = 0;
    for (size_t g = 0; g < GROUPS; g++)
        for (int i = 0; groups[g].processes[i] != NULL && (i < 2 || long_tests()); i++) {
            CHECK(count < MAX_PROCESSES);
            group_of[count] = &groups[g];
            runs[count++] = (struct launch){
                .family = groups[g].family, .common = groups[g].common, .layout = groups[g].processes[i]};
        }
    struct trace *traces = calloc((size_t)count, sizeof *traces), reference = {.steps = 0};
    CHECK(traces != NULL);
    enum status launched = launch(&(struct mpirun){mpirun, program, &test->tiny}, runs, count, traces);
    for (int i = 0; i < count; i++) {
        const struct layout_group *group = group_of[i];
        enum status status = launched;
        if (status == OK && (i == 0 || group != group_of[i - 1]))
            status = run(&test->tiny, group, group->layouts[0], &local, &reference);
        record(test, group, runs[i].layout, status, &reference, &traces[i]);
    }
    free(traces);
}

/* Under a sanitizer every second group: ThreadSanitizer has those that AddressSanitizer has not. */
static bool is_selected(const struct layout_group *group)
{
    return !UNDER_SANITIZER || (group - groups) % 2 == UNDER_TSAN;
}

int main(int argc, char **argv)
{
    if (launched_is_rank(argc, argv))
        return launched_rank(argc, argv);
    struct test test = {.runs = 0};
    MUST(tiny_create(&test.tiny));
    if (argc > 1)
        check_processes(&test, argv[1], argv[0]);
    for (size_t g = 0; argc == 1 && g < GROUPS; g++)
        if (is_selected(&groups[g]))
            check_group(&test, &groups[g]);
    tiny_destroy(&test.tiny);
    printf("%d runs, %d failures\n", test.runs, test.failures);
    return test.failures != 0 || test.runs == 0;
}
