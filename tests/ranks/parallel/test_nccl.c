// SPDX-License-Identifier: Apache-2.0
/* test_nccl [MPIRUN]        everything
 *    test_nccl shared SHARE    under mpirun: ranks on one GPU, SHARE of which are allowed
 *
 * Whole trainings on 2 x 2 x 2 GPUs of the emulator with NCCL between them, which is the emulator's too.
 * Sums in rank order are bit-identical to those of threads that add in shared memory, whatever the schedule;
 * NCCL's own order gives other bits, within the bounds of verify. One case has device memory that the host
 * cannot access: only NCCL moves its data. */
#include "parallel/comm.h"
#include "tests/emulator/include/nccl.h"
#include "tests/support/launched.h"
#include "tests/support/tiny_verify.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL                                                                                        \
    "cluster.device=cuda model.hidden_size=16 model.num_attention_heads=4 model.ffn_hidden_size=32 " \
    "model.num_layers=4 model.seq_length=8 train.micro_batch_size=1 train.eval_interval=1 "          \
    "train.eval_iters=1 optimizer.lr_warmup_iters=1 optimizer.lr_decay_iters=2 "                     \
    "parallel.bucket_size_mb=0.002 "
#define COMMON MODEL "train.global_batch_size=4 train.train_iters=1 "

/* The first of each is the reference, on threads that share their memory. */
static const char *const cubes[] = {
    "tp=2 dp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=1f1b",
    "tp=2 dp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=zb-h1 "
    "parallel.rank_order=dp-pp-tp-cp-ep",
    "tp=2 dp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=interleaved "
    "parallel.tp_comm_overlap=true",
    "tp=2 dp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=zb-v "
    "parallel.overlap_grad_reduce=false parallel.nccl_ub=true deterministic=false", // independent of order
    "tp=2 dp=2 pp=2 parallel.sequence_parallel=true pipeline.schedule=gpipe "
    "pipeline.optimizer_post_validation=true",
    NULL,
};
/* bf16: one microbatch per step, so that gradients may be sharded; and offload at the same time. */
#define CUBE   "tp=2 dp=2 pp=2 parallel.sequence_parallel=true "
#define NARROW MODEL "precision.params_dtype=bf16 train.train_iters=2 "
static const char *const narrow[] = {
    CUBE,
    CUBE "parallel.zero_stage=1 parallel.rank_order=dp-pp-tp-cp-ep",
    CUBE "parallel.zero_stage=2 memory.offload_optimizer=true",
    CUBE "parallel.zero_stage=3 memory.recompute_granularity=full",
    NULL,
};
static const char *const offloaded[] = {
    CUBE "pipeline.schedule=1f1b",
    CUBE "pipeline.schedule=gpipe memory.offload_activations=true memory.offload_optimizer=true",
    CUBE "pipeline.schedule=interleaved memory.offload_activations=true parallel.zero_stage=1",
    CUBE "pipeline.schedule=zb-v memory.recompute_granularity=selective",
    NULL,
};
/* Sums of four, which depend on the order. */
static const char *const wide[] = {"tp=1 dp=4 pp=1", "tp=1 dp=4 pp=1", NULL};
/* And with tensor-parallel communication overlapped with the matmuls; the emulator's GEMMs give the same
 * bits for any number of rows. */
static const char *const overlapped[] = {
    "tp=4 dp=1 pp=2 parallel.sequence_parallel=true",
    "tp=4 dp=1 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true pipeline.schedule=zb-h1",
    NULL};

static enum status train(const struct tiny *tiny, const char *common, const char *transport,
                         const char *layout, struct trace *out)
{
    struct recipe *recipe = NULL;
    char overrides[400];
    snprintf(overrides, sizeof overrides, "%s cluster.transport=%s", layout, transport);
    enum status status = tiny_recipe(tiny, TINY_GPT, common, overrides, 0, &recipe);
    if (status == OK)
        status = trace_run(recipe, &(struct trace_options){.transport = transport, .looks_ahead = true}, out);
    recipe_destroy(recipe);
    return status;
}

static int report_failure(const char *layout, const char *what)
{
    printf("FAILED %s: %s\n", layout, what);
    return 1;
}

/* Against threads that add in place in rank order, and dereference each other's pointers. */
static int same_bits(const struct tiny *tiny, const char *common, const char *const *layouts,
                     const char *memory, struct trace *reference)
{
    struct trace trace = {0};
    int failures = 0;
    if (train(tiny, common, "local", layouts[0], reference) != OK)
        return report_failure(layouts[0], fail_text());
    setenv("EMULATOR_MEMORY", memory, 1);
    for (int i = 1; layouts[i] != NULL; i++) {
        struct text why = {0};
        if (train(tiny, common, "nccl", layouts[i], &trace) != OK)
            failures += report_failure(layouts[i], fail_text());
        else if (trace_differs(reference, &trace, &why))
            failures += report_failure(layouts[i], text_chars(&why));
        text_free(&why);
    }
    unsetenv("EMULATOR_MEMORY");
    return failures;
}

/* NCCL's own order: other bits, or the comparison above detects nothing; and within the bound of one rank. */
static int nccl_order(const struct tiny *tiny, const struct trace *reference)
{
    struct trace trace = {0};
    struct text why = {0};
    int failures = 0;
    if (train(tiny, COMMON TINY_DROPOUT, "nccl", "tp=1 dp=4 pp=1 deterministic=false", &trace) != OK)
        failures += report_failure("nondeterministic", fail_text());
    else if (!trace_differs(reference, &trace, &why))
        failures += report_failure("nondeterministic",
                                   "the bits are those of rank order: is NCCL's ring no longer emulated?");
    text_free(&why);

    struct verify_report report = {0};
    struct comparison comparison = {.family = TINY_GPT,
                                    .common = COMMON,
                                    .layout = "cluster.transport=nccl deterministic=false dp=4",
                                    .one = ""};
    if (tiny_verify(tiny, &comparison, 1, (struct step_observer){0}, &report) != OK)
        failures += report_failure("verify", fail_text());
    else if (report.outside > 0)
        failures += report_failure("verify", "outside of the bounds");
    verify_report_free(&report);
    return failures;
}

/* Connections exist before the first step: every pair that communicates in a step has communicated before. */
struct connections {
    int before[8];
    atomic_int later;
};

static enum status count_before(void *context, struct rank_state *w)
{
    ((struct connections *)context)->before[w->world->rank] = emulated_nccl_first_contacts();
    return OK;
}

static enum status count_later(void *context, struct rank_state *w, int64_t step,
                               const struct step_result *result)
{
    struct connections *m = context;
    (void)step, (void)result;
    atomic_fetch_add(&m->later, emulated_nccl_first_contacts() - m->before[w->world->rank]);
    return OK;
}

static int check_connections(const struct tiny *tiny, const char *layout)
{
    struct connections connections = {.later = 0};
    struct recipe *recipe = NULL;
    struct trace trace;
    struct trace_options options = {.transport = "nccl",
                                    .observer = {.context = &connections,
                                                 .on_weights_initialized = count_before,
                                                 .on_step_end = count_later}};
    enum status status =
        tiny_recipe(tiny, TINY_GPT, COMMON "cluster.transport=nccl deterministic=false", layout, 0, &recipe);
    if (status == OK)
        status = trace_run(recipe, &options, &trace);
    recipe_destroy(recipe);
    if (status != OK)
        return report_failure(layout, fail_text());
    return atomic_load(&connections.later) > 0
               ? report_failure(layout, "ranks communicate for the first time in a step")
               : 0;
}

/* The kernels' 16-bit types against the CPU's: one rank on the cpu device, other sums, the same roundings. */
static int compare_with_cpu(const struct tiny *tiny, const char *precision)
{
    struct verify_report report = {0};
    char common[300];
    snprintf(
        common, sizeof common,
        "precision.params_dtype=%s train.micro_batch_size=1 train.global_batch_size=4 model.hidden_size=16 "
        "model.num_attention_heads=4 model.ffn_hidden_size=32 model.seq_length=8" TINY_DROPOUT,
        precision);
    struct comparison comparison = {.family = TINY_LLAMA,
                                    .common = common,
                                    .layout = "cluster.device=cuda tp=2 dp=2 pp=2 parallel.zero_stage=1",
                                    .one = ""};
    int failures = 0;
    if (tiny_verify(tiny, &comparison, 2, (struct step_observer){0}, &report) != OK)
        failures += report_failure(precision, fail_text());
    else if (report.outside > 0)
        failures += report_failure(precision, "outside of the bounds of the cpu");
    printf("%s: gradients %.3f of their bounds, loss %.3f\n", precision,
           largest_ratio(&report, VERIFY_GRADIENT, NULL), largest_ratio(&report, QUANTITY_LOSS, NULL));
    verify_report_free(&report);
    return failures;
}

/* Ranks as processes: the ids are broadcast over MPI, the data is sent between processes. */
static int same_bits_of_processes(const struct tiny *tiny, char **argv, const struct trace *reference)
{
    struct trace trace = {0};
    struct text why = {0};
    struct mpirun mpirun = {argv[1], argv[0], tiny};
    struct launch what = {.family = TINY_GPT,
                          .common = COMMON TINY_DROPOUT,
                          .layout = "tp=1 dp=4 pp=1 cluster.transport=nccl",
                          .looks_ahead = true};
    int failures = 0;
    if (launch(&mpirun, &what, 1, &trace) != OK)
        failures += report_failure("mpirun", fail_text());
    else if (trace_differs(reference, &trace, &why))
        failures += report_failure("mpirun", text_chars(&why));
    text_free(&why);
    return failures;
}

/* ---- rejected configurations ---- */

static enum status reaches_training(struct world *world, void *argument)
{
    (void)world;
    (void)argument;
    return OK;
}

/* 4 ranks, and an environment in which the error message must contain `words`. */
static int check_rejected(const char *variable, const char *value, int ranks_per_gpu, const char *words)
{
    const char *gpus = getenv("EMULATOR_GPUS");
    char before[16];
    snprintf(before, sizeof before, "%s", gpus != NULL ? gpus : "1");
    struct world_options options = {.transport = "nccl", .size = 4, .ranks_per_gpu = ranks_per_gpu};
    setenv(variable, value, 1);
    bool refused = world_run_as(&options, reaches_training, NULL) != OK;
    unsetenv("EMULATOR_FAIL");
    setenv("EMULATOR_GPUS", before, 1);
    if (refused && strstr(fail_text(), words) != NULL)
        return 0;
    return report_failure(words, refused ? fail_text() : "it did not fail");
}

static int invalid_machines(void)
{
    return check_rejected("EMULATOR_GPUS", "3", 1,
                          "cluster.device cuda: 4 ranks on this machine, and 3 GPUs: room for 3 "
                          "(cluster.ranks_per_gpu 1); use more nodes, 3 ranks on each (srun "
                          "--ntasks-per-node=3), or smaller degrees (rank 3, ") +
           check_rejected("EMULATOR_FAIL", "cudaGetDeviceCount", 1, "cluster.device cuda: no GPU found") +
           check_rejected("EMULATOR_GPUS", "4", 2,
                          "cluster.ranks_per_gpu 2: NCCL supports several ranks on one GPU only in separate "
                          "processes; use mpirun -n 4");
}

/* The last GPU of four is of another type. */
static int mixed_gpu_types(void)
{
    setenv("EMULATOR_FAIL", "cudaGetDeviceProperties", 1);
    return check_rejected("EMULATOR_GPUS", "4", 1,
                          "cluster.device cuda: mixed GPU types: rank 0 has emulated GPU (");
}

static enum status allocate_during_messages(struct world *world, void *argument)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    const int ranks[] = {0, 1};
    (void)argument;
    TRY(device_open(&(struct device_options){.name = "cuda", .threads = 1, .index = world->device_index},
                    &device));
    enum status status = stream_create(device, "test", &stream);
    int before = emulator_calls().allocations;
    if (status == OK)
        status = comm_create(world, "both", 1, ranks, 2, &comm);
    if (status == OK && emulator_calls().allocations != before)
        status = fail(BAD_ARGUMENT, "a comm takes memory, and another GPU may be blocked in a message");
    if (status == OK)
        status = comm->ops->barrier(comm, stream);
    if (status == OK)
        status = stream_sync(stream);
    stream_destroy(stream);
    if (comm != NULL)
        comm_destroy(comm);
    device_close(device);
    return status;
}

static int check_allocation_during_messages(void)
{
    struct world_options options = {.transport = "nccl", .size = 2, .ranks_per_gpu = 1};
    return world_run_as(&options, allocate_during_messages, NULL) == OK
               ? 0
               : report_failure("two threads", fail_text());
}

/* A message that fails within a group of calls: the group must still be ended, or the comm could not be
 * aborted. */
static int a_message_fails_in_a_group(void)
{
    struct world_options options = {.transport = "nccl", .size = 2, .ranks_per_gpu = 1};
    setenv("EMULATOR_FAIL", "ncclSend", 1);
    enum status status = world_run_as(&options, allocate_during_messages, NULL);
    unsetenv("EMULATOR_FAIL");
    const char *words = "ncclSend both: ";
    return status != OK && strstr(fail_text(), words) != NULL
               ? 0
               : report_failure(words, status != OK ? fail_text() : "it did not fail");
}

static enum status wait_on_two_comms(struct world *world, struct device *device, struct stream **streams,
                                     struct comm **comms)
{
    const int ranks[] = {0, 1};
    static const char *const names[] = {"first", "second"};
    for (int i = 0; i < 2; i++) {
        TRY(stream_create(device, names[i], &streams[i]));
        TRY(comm_create(world, names[i], i + 1, ranks, 2, &comms[i]));
    }
    if (world->rank == 1)
        return fail(NOT_FINITE, "the loss is not finite");
    for (int i = 0; i < 2; i++)
        TRY(comms[i]->ops->barrier(comms[i], streams[i]));
    return stream_sync(streams[1]);
}

/* Rank 1 fails while rank 0's GPU is blocked in messages of two comms. */
static enum status rank_1_fails(struct world *world, void *argument)
{
    struct device *device = NULL;
    struct stream *streams[2] = {NULL, NULL};
    struct comm *comms[2] = {NULL, NULL};
    (void)argument;
    TRY(device_open(&(struct device_options){.name = "cuda", .threads = 1, .index = world->device_index},
                    &device));
    enum status status = wait_on_two_comms(world, device, streams, comms);
    for (int i = 0; i < 2; i++) {
        stream_destroy(streams[i]);
        if (comms[i] != NULL)
            comm_destroy(comms[i]);
    }
    device_close(device);
    return status;
}

static int comms_are_aborted_together(void)
{
    struct world_options options = {.transport = "nccl", .size = 2, .ranks_per_gpu = 1};
    const char *words = "the loss is not finite";
    bool failed = world_run_as(&options, rank_1_fails, NULL) != OK;
    return failed && strstr(fail_text(), words) != NULL
               ? 0
               : report_failure(words, failed ? fail_text() : "it did not fail");
}

/* Run in each process: two ranks on one GPU. */
static int shared_gpu(const char *share)
{
    struct world_options options = {.transport = "nccl", .ranks_per_gpu = share[0] - '0'};
    enum status status = world_run_as(&options, allocate_during_messages, NULL);
    if (options.ranks_per_gpu > 1)
        return status == OK ? 0 : report_failure(share, fail_text());
    const char *words = "cluster.device cuda: rank 0 and rank 1 are on one GPU, 0000:00:00.0 of ";
    return status != OK && strstr(fail_text(), words) != NULL ? 0 : report_failure(words, fail_text());
}

int main(int argc, char **argv)
{
    if (launched_is_rank(argc, argv))
        return launched_rank(argc, argv);
    if (argc == 3)
        return shared_gpu(argv[2]);
    struct tiny tiny;
    struct trace reference;
    MUST(tiny_create(&tiny));
    int failures = same_bits(&tiny, COMMON TINY_DROPOUT, cubes, "open", &reference);
    if (emulated_nccl_registrations() != 8) // and all are released: destroying a comm checks this
        failures += report_failure(cubes[3], "not one registration of gradients for each rank");
    failures +=
        same_bits(&tiny, NARROW "train.global_batch_size=2 " TINY_DROPOUT, narrow, "open", &reference);
    failures +=
        same_bits(&tiny, NARROW "train.global_batch_size=4 " TINY_DROPOUT, offloaded, "open", &reference);
    failures +=
        compare_with_cpu(&tiny, "bf16") + compare_with_cpu(&tiny, "fp16 precision.initial_loss_scale=1024");
    failures += same_bits(&tiny, COMMON TINY_DROPOUT, overlapped, "open", &reference);
    failures +=
        check_connections(&tiny, "tp=4 pp=2 parallel.sequence_parallel=true parallel.tp_comm_overlap=true");
    failures += check_connections(&tiny, "dp=4 parallel.zero_stage=1");
    failures += same_bits(&tiny, COMMON TINY_DROPOUT, wide, "guarded", &reference); // takes longer
    if (argc > 1)
        failures += same_bits_of_processes(&tiny, argv, &reference);
    failures += nccl_order(&tiny, &reference);
    failures += check_allocation_during_messages() + invalid_machines() + mixed_gpu_types() +
                a_message_fails_in_a_group() + comms_are_aborted_together();
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures != 0;
}
