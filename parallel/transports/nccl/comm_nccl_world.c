// SPDX-License-Identifier: Apache-2.0
/* World of the nccl transport: the bootstrap world, which is the same ranks as threads, or as processes over
 * MPI or without it (store/store.h); the assignment of GPUs to ranks; and failure handling.
 *
 *     local rank r  ->  GPU r of this machine      or the only one visible (srun --gpus-per-task)
 *
 * First the ranks exchange the identity of their GPUs: two ranks on one GPU, and GPUs of different types, are
 * rejected by name, on every rank.
 *
 * Caution: when a rank fails, the others wait for it on their GPUs. It sets `failed`, which waiting ranks
 * poll (the guard of their messages) and then abort their own comms: NCCL comms are destroyed only by the
 * thread that uses them. Ranks that are processes are notified by NCCL, or end with their launcher. */
#include "parallel/transports/nccl/comm_nccl.h"

#include "base/memory.h"
#include "base/text.h"
#include "parallel/transports/store/comm_store.h"
#include "parallel/transports/transport_info.h"
#include "parallel/transports/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- GPU assignment ---- */

enum { HOST_CHARS = 64, MESSAGE_CHARS = 512, LAUNCH_ORDER = NCCL_VERSION(2, 26, 0) };

/* The data that ranks exchange. */
struct participant {
    int32_t status; // of finding the GPU
    char host[HOST_CHARS], bus_id[16], name[64];
    char message[MESSAGE_CHARS]; // error message
};

static int ranks_per_gpu(const struct nccl_world *w)
{
    int requested = w->job->options->ranks_per_gpu;
    return requested > 1 ? requested : 1;
}

static enum status choose(const struct nccl_world *w, struct participant *participant, int *index)
{
    int count, local = w->bootstrap->local_rank, share = ranks_per_gpu(w);
    struct cuda_gpu gpu;
    TRY(cuda_gpu_count(&count));
    *index = local / share;
    if (*index >= count && count == 1 && w->bootstrap->ops != transport_for_cpu(false))
        *index = 0; // may be a different GPU on each rank: the bus id tells
    if (*index >= count)
        return fail(NOT_SUPPORTED,
                    "cluster.device cuda: %d ranks on this machine, and %d GPU%s: room for %d "
                    "(cluster.ranks_per_gpu %d); use more nodes, %d ranks on each (srun "
                    "--ntasks-per-node=%d), or smaller degrees",
                    w->bootstrap->local_size, count, count == 1 ? "" : "s", share * count, share,
                    share * count, share * count);
    TRY(cuda_gpu_choose(*index, &gpu));
    snprintf(participant->bus_id, sizeof participant->bus_id, "%s", gpu.bus_id);
    snprintf(participant->name, sizeof participant->name, "%s", gpu.name);
    return OK;
}

/* All ranks report the first rank with an error; then the checks that need all ranks. */
static enum status compare(const struct nccl_world *w, const struct participant *participants)
{
    int size = w->bootstrap->size, share = ranks_per_gpu(w);
    for (int r = 0; r < size; r++)
        if (participants[r].status != OK)
            return fail((enum status)participants[r].status, "%s (rank %d, %s)", participants[r].message, r,
                        participants[r].host);
    for (int r = 1; r < size; r++)
        if (strcmp(participants[r].name, participants[0].name) != 0)
            return fail(
                NOT_SUPPORTED,
                "cluster.device cuda: mixed GPU types: rank 0 has %s (%s), rank %d %s (%s); use GPUs of "
                "one type in a run (CUDA_VISIBLE_DEVICES, cluster.partition)",
                participants[0].name, participants[0].host, r, participants[r].name, participants[r].host);
    for (int r = 0; r < size; r++) {
        int sharing = 0, other = r;
        for (int q = 0; q < r; q++)
            if (strcmp(participants[r].host, participants[q].host) == 0 &&
                strcmp(participants[r].bus_id, participants[q].bus_id) == 0) {
                sharing++;
                other = q;
            }
        if (sharing >= share)
            return fail(
                NOT_SUPPORTED,
                "cluster.device cuda: rank %d and rank %d are on one GPU, %s of %s; give each its own "
                "(srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES), or, for tests, cluster.ranks_per_gpu %d",
                other, r, participants[r].bus_id, participants[r].host, sharing + 1);
    }
    return OK;
}

static enum status exchange_participants(struct nccl_world *w, int *index)
{
    struct world *bootstrap = w->bootstrap;
    struct participant *participants = memory_zeroed((size_t)bootstrap->size, sizeof *participants,
                                                     "the participants of a communicator"),
                       *mine = &participants[bootstrap->rank];
    gethostname(mine->host, sizeof mine->host - 1);
    mine->status = (int32_t)choose(w, mine, index);
    if (mine->status != OK)
        snprintf(mine->message, sizeof mine->message, "%s", fail_text());
    enum status status = OK;
    if (bootstrap->size > 1) {
        int *ranks =
            memory_zeroed((size_t)bootstrap->size, sizeof *ranks, "the participants of a communicator");
        for (int r = 0; r < bootstrap->size; r++)
            ranks[r] = r;
        struct comm *all = NULL;
        _Static_assert(sizeof *participants % sizeof(int32_t) == 0, "sent as an array of int32");
        int64_t words = sizeof *participants / sizeof(int32_t);
        status = bootstrap->ops->comm_create(bootstrap, "participants", 0, ranks, bootstrap->size, &all);
        if (status == OK)
            status = bootstrap->ops->all_gather(all, w->stream, tensor_1d(mine, I32, words), NULL,
                                                tensor_1d(participants, I32, bootstrap->size * words));
        if (status == OK)
            status = stream_sync(w->stream);
        if (all != NULL)
            bootstrap->ops->comm_destroy(all);
        free(ranks);
    }
    if (status == OK)
        status = compare(w, participants);
    free(participants);
    return status;
}

/* ---- failures ---- */

/* Returns an error if any comm of this rank has one, or another rank has failed. */
static enum status check_world(struct cuda_guard *guard)
{
    struct nccl_world *w = (struct nccl_world *)guard;
    const struct nccl_library *nccl = &w->job->nccl;
    int failed = atomic_load(&w->job->failed);
    enum status status = OK;
    if (failed > 0)
        status = fail(PEER_LOST, "rank %d has failed: %s", failed - 1, w->job->why);
    for (struct nccl_comm *c = w->comms; c != NULL && status == OK; c = c->next) {
        ncclResult_t result = ncclSuccess;
        if (c->nccl == NULL)
            continue;
        status = nccl_check(nccl, c, nccl->ncclCommGetAsyncError(c->nccl, &result), "ncclCommGetAsyncError",
                            c->comm.name);
        if (status == OK && result != ncclInProgress)
            status = nccl_check(nccl, c, result, "comm", c->comm.name);
    }
    if (status != OK)
        nccl_abort(w);
    return status;
}

static void report_failure(struct nccl_world *w, const char *why)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&w->job->failed, &none, -1))
        return;
    snprintf(w->job->why, sizeof w->job->why, "%.*s", (int)sizeof w->job->why - 1, why);
    atomic_store(&w->job->failed, w->bootstrap->rank + 1);
}

/* ---- world ---- */

/* Two ranks on one GPU: NCCL treats them as two machines. Uses loopback, the only network from a machine to
 * itself, and few GPU resources per rank, so that all fit. Keeps environment variables set by the user. */
static void share_gpu(const struct nccl_world *w)
{
    static const char *const settings[][2] = {
        {"NCCL_NET", "Socket"},     {"NCCL_IB_DISABLE", "1"}, {"NCCL_SOCKET_IFNAME", "lo"},
        {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_RAS_ENABLE", "0"}, {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MAX_CTAS", "2"},
    };
    char id[HOST_CHARS];
    snprintf(id, sizeof id, "cuboid-rank-%d", w->bootstrap->rank);
    setenv("NCCL_HOSTID", id, 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
}

static enum status open_bootstrap(struct nccl_world *w)
{
    TRY(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &w->host));
    return stream_create(w->host, "bootstrap", &w->stream);
}

/* ---- order of messages before NCCL 2.26 ---- */

enum status nccl_wait_for_turn(const struct nccl_world *w, cudaStream_t stream)
{
    return w->last == NULL ? OK
                           : cuda_check(NULL, cudaStreamWaitEvent(stream, w->last, 0), "cudaStreamWaitEvent");
}

enum status nccl_pass_turn(const struct nccl_world *w, cudaStream_t stream)
{
    return w->last == NULL ? OK : cuda_check(NULL, cudaEventRecord(w->last, stream), "cudaEventRecord");
}

/* ---- a rank ---- */

/* Allocates memory for the first messages of all comms before any is sent: a later allocation could wait for
 * a GPU that waits for this rank's message (nccl_run). */
static enum status alloc_warm_up(struct nccl_world *w)
{
    if (w->bootstrap->size == 1)
        return OK;
    TRY(cuda_check(NULL, cudaStreamCreateWithFlags(&w->warm_up, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags"));
    if (w->job->chained) {
        TRY(cuda_check(NULL, cudaEventCreateWithFlags(&w->last, cudaEventDisableTiming),
                       "cudaEventCreateWithFlags"));
        TRY(nccl_pass_turn(w, w->warm_up));
    }
    return cuda_check(NULL,
                      cudaMalloc(&w->warm_up_buffer, sizeof(int32_t) * (size_t)(w->bootstrap->size + 1)),
                      "cudaMalloc");
}

static void free_warm_up(struct nccl_world *w)
{
    if (w->warm_up_buffer != NULL)
        cudaFree(w->warm_up_buffer);
    if (w->last != NULL)
        cudaEventDestroy(w->last);
    if (w->warm_up != NULL)
        cudaStreamDestroy(w->warm_up);
}

static enum status rank_main(struct world *bootstrap, void *argument)
{
    struct nccl_job *job = argument;
    struct nccl_world w = {.guard = {check_world}, .job = job, .bootstrap = bootstrap};
    struct world world = *bootstrap;
    world.ops = &transport_nccl;
    world.observed = NULL;
    world.state = &w;

    enum status status = open_bootstrap(&w);
    if (status == OK)
        status = exchange_participants(&w, &world.device_index);
    if (status == OK && ranks_per_gpu(&w) > 1 && bootstrap->size > 1)
        share_gpu(&w);
    if (status == OK)
        status = alloc_warm_up(&w);
    if (status == OK)
        status = job->body(&world, job->argument);
    if (status != OK && status != STOPPED) {
        char text[1024]; // aborting may change the error text
        snprintf(text, sizeof text, "%s", fail_text());
        report_failure(&w, text);
        nccl_abort(&w);
        status = fail(status, "%s", text);
    }
    world_close(&world);
    free_warm_up(&w);
    stream_destroy(w.stream);
    device_close(w.host);
    return status;
}

/* One process with several GPUs. A CUDA allocation of one rank may wait for another rank's GPU, which may be
 * blocked in a message that waits for this rank (NCCL issues 613 and 787). All allocations therefore precede
 * the first message: kernels are loaded with the process, not at their first launch, and connections are
 * created with their comm, not at their first message. Keeps environment variables set by the user. */
static void load_early(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

enum status nccl_run(const struct world_options *options,
                     enum status (*body)(struct world *world, void *argument), void *argument)
{
    struct launcher launcher;
    TRY(launcher_find(&launcher));
    const struct transport_ops *bootstrap = transport_for_cpu(launcher.size > 0);
    if (launcher.size > 0 && (bootstrap == NULL || !launcher.has_mpi))
        bootstrap = &transport_store;
    if (options->ranks_per_gpu > 1 && options->size > 1 && launcher.size == 0)
        return fail(
            BAD_USAGE,
            "cluster.ranks_per_gpu %d: NCCL supports several ranks on one GPU only in separate processes; "
            "use mpirun -n %d",
            options->ranks_per_gpu, options->size);
    struct nccl_job job = {.options = options, .body = body, .argument = argument};
    if (options->size > 1) {
        // Since NCCL 2.26; read once per process, when the first comm is created.
        setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
        if (launcher.size == 0)
            load_early();
        int version = 0;
        TRY(nccl_library_open(&job.nccl));
        TRY(nccl_check(&job.nccl, NULL, job.nccl.ncclGetVersion(&version), "ncclGetVersion", ""));
        job.chained = version < LAUNCH_ORDER;
    }
    return bootstrap->run(options, rank_main, &job);
}

void nccl_describe_library(struct text *out)
{
    struct nccl_library nccl;
    int version = 0;
    if (nccl_library_open(&nccl) != OK)
        text_add(out, ", no NCCL: %s", fail_text());
    else if (nccl.ncclGetVersion(&version) == ncclSuccess)
        text_add(out, ", NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}
