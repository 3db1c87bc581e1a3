// SPDX-License-Identifier: Apache-2.0
/* NCCL between emulated GPUs. Ranks are threads or processes; a comm is a file in shared memory with a slot
 * per rank, and one per pair:
 *
 * - a collective: every rank posts a chunk into its slot; when all have, every rank reads all slots
 * - a point-to-point message: the sender posts a chunk into the pair's slot once the last was read; it is
 *   sent when it has been read
 *
 * Like the real one: messages of one comm run one after another in the order of the calls; with
 * NCCL_LAUNCH_ORDER_IMPLICIT=1, which is required, those of all comms of a GPU start in the order of the
 * calls; before version 2.26 (EMULATOR_NCCL) they must not overlap; point-to-point messages of one group
 * progress together, and a send outside a group waits for its receiver; sums go around a ring, so each
 * slice starts at a different rank; a maximum drops a NaN; two ranks on one GPU of one host are
 * rejected, and so are two of one process that load kernels or connect in the middle of it; aborting a
 * comm cancels its messages, and those of its peers never complete; abort waits for the GPU's work for
 * other comms, which only one group of aborts resolves.
 *
 * Stricter: ranks with different calls, types or counts end the program with both sides' arguments. The
 * output of a message is garbage until it is complete, unless it is also its input. */
#include "base/status.h"
#include "tests/emulator/nccl/nccl_wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Per thread, as a GPU is: the order of its calls, and the open group. */
struct thread_state {
    uint64_t tickets, started;
    bool any_aborted;   // launch order is then no longer enforced
    int first_contacts; // between this rank and another, per comm and direction
    int depth, transfer_count;
    bool failed; // a call of the open group has failed
    bool aborts; // a comm was aborted in it
    int comms_in_flight;
    struct ncclComm *comm;
    cudaStream_t stream;
    struct transfer transfers[MAX_TRANSFERS];
};
static _Thread_local struct thread_state mine;
static _Thread_local char last_error[256];
static atomic_int registrations;

static ncclResult_t set_error(ncclResult_t result, const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return result;
}

/* ---- messages on a stream ---- */

static void comm_release(struct ncclComm *c)
{
    if (--c->references > 0)
        return;
    CHECK(munmap(c->shared, c->bytes) == 0);
    free(c);
}

/* Garbage in output that is not input. */
static void fill_garbage(const struct message *m)
{
    size_t each = nccl_bytes_of(m->args.type), out = m->args.count * each;
    if (m->args.kind == REDUCE_SCATTER)
        memset(m->out, 0xff, out);
    if (m->args.kind == ALL_GATHER && (m->in < m->out || m->in >= m->out + (size_t)m->comm->ranks * out))
        memset(m->out, 0xff, (size_t)m->comm->ranks * out);
    for (int i = 0; i < m->transfer_count; i++)
        if (!m->transfers[i].send)
            memset(m->transfers[i].data, 0xff, m->transfers[i].bytes);
}

static void set_in_progress(struct ncclComm *c, bool in_progress)
{
    mine.comms_in_flight += (int)in_progress - (int)c->in_progress;
    c->in_progress = in_progress;
}

static int version(void)
{
    const char *requested = getenv("EMULATOR_NCCL");
    return requested != NULL ? (int)strtol(requested, NULL, 10) : NCCL_VERSION(2, 28, 9);
}

/* Whether NCCL starts messages of different comms in the order of the calls; if not, the caller must. */
static bool orders_launches(void)
{
    return version() >= NCCL_VERSION(2, 26, 0);
}

static bool may_start(const struct message *m)
{
    bool first = mine.any_aborted || mine.started == m->ticket;
    if (!orders_launches() && (!first || (mine.comms_in_flight > 0 && !mine.any_aborted)))
        die(__FILE__, __LINE__, "the emulated NCCL",
            "call %llu of this GPU: before NCCL 2.26, messages must run one after another",
            (unsigned long long)m->ticket);
    return m->comm->finished == m->number && first;
}

static bool move(struct emulator_message *message, bool *moved)
{
    struct message *m = (struct message *)message;
    struct ncclComm *c = m->comm;
    bool done = c->aborted;
    if (!done && !m->started && may_start(m)) {
        m->started = *moved = true;
        mine.started++;
        set_in_progress(c, true);
        fill_garbage(m);
    }
    if (!done && m->started)
        done =
            m->args.kind == POINT_TO_POINT ? nccl_move_transfers(m, moved) : nccl_move_collective(m, moved);
    if (done) {
        set_in_progress(c, false);
        c->finished++;
        comm_release(c);
    }
    return done;
}

static void describe(const struct emulator_message *message, FILE *to)
{
    const struct message *m = (const struct message *)message;
    const struct ncclComm *c = m->comm;
    fprintf(to, "emulated NCCL: rank %d of %d %s %s, its call %llu of that comm", c->rank, c->ranks,
            m->started ? "is in" : "has not started", nccl_kind_name(m->args.kind),
            (unsigned long long)m->number);
    for (int r = 0; r < c->ranks && m->started && m->args.kind != POINT_TO_POINT; r++)
        if (atomic_load(&nccl_slot(c, r)->posted) < c->chunks + 1)
            fprintf(to, ", waits for rank %d", r);
    for (int i = 0; i < m->transfer_count && m->started; i++)
        if (!m->transfers[i].done)
            fprintf(to, ", %s rank %d", m->transfers[i].send ? "sends to" : "receives from",
                    m->transfers[i].peer);
    fputc('\n', to);
}

static bool is_registered(const struct ncclComm *c, const void *data)
{
    for (const struct registered *k = c->registered; k != NULL; k = k->next)
        if ((const char *)data >= k->data && (const char *)data < k->data + k->bytes)
            return true;
    return false;
}

static ncclResult_t enqueue(struct ncclComm *c, cudaStream_t stream, struct call_args args, const void *in,
                            void *out, const struct transfer *transfers, int transfer_count)
{
    struct message *m = calloc(1, sizeof *m + (size_t)transfer_count * sizeof *transfers);
    CHECK(m != NULL);
    args.call =
        args.kind == POINT_TO_POINT ? 0 : c->collectives++; // point-to-point calls are not counted by all
                                                            // ranks
    args.registered = is_registered(c, in) | is_registered(c, out) << 1;
    *m = (struct message){.base = {move, describe},
                          .comm = c,
                          .args = args,
                          .in = in,
                          .out = out,
                          .number = c->calls++,
                          .ticket = mine.tickets++,
                          .transfer_count = transfer_count};
    if (transfer_count > 0)
        memcpy(m->transfers, transfers, (size_t)transfer_count * sizeof *transfers);
    c->references++;
    emulator_enqueue_message(stream, &m->base);
    return ncclSuccess;
}

static ncclResult_t collective(const char *call, struct ncclComm *c, cudaStream_t stream,
                               struct call_args args, const void *in, void *out)
{
    if (emulator_fails(call))
        return set_error(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
    if (c == NULL || c->aborted)
        return set_error(ncclInvalidArgument, "no comm");
    return enqueue(c, stream, args, in, out, NULL, 0);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t how,
                           ncclComm_t comm, cudaStream_t stream)
{
    struct call_args args = {.kind = ALL_REDUCE, .type = (int32_t)type, .how = (int32_t)how, .count = count};
    return collective("ncclAllReduce", comm, stream, args, in, out);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t out_count, ncclDataType_t type,
                               ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream)
{
    struct call_args args = {
        .kind = REDUCE_SCATTER, .type = (int32_t)type, .how = (int32_t)how, .count = out_count};
    return collective("ncclReduceScatter", comm, stream, args, in, out);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t in_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    struct call_args args = {.kind = ALL_GATHER, .type = (int32_t)type, .count = in_count};
    return collective("ncclAllGather", comm, stream, args, in, out);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    struct call_args args = {.kind = BROADCAST, .type = (int32_t)type, .root = root, .count = count};
    return collective("ncclBroadcast", comm, stream, args, in, out);
}

/* ---- groups of point-to-point messages ---- */

static ncclResult_t enqueue_group(void)
{
    if (mine.transfer_count == 0)
        return ncclSuccess;
    int count = mine.transfer_count;
    mine.transfer_count = 0;
    return enqueue(mine.comm, mine.stream, (struct call_args){.kind = POINT_TO_POINT}, NULL, NULL,
                   mine.transfers, count);
}

/* One comm and one stream at a time: no other use exists. */
static ncclResult_t add_transfer(struct transfer transfer, ncclComm_t comm, cudaStream_t stream)
{
    if (emulator_fails(transfer.send ? "ncclSend" : "ncclRecv")) {
        mine.failed = true;
        return set_error(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
    }
    if (comm == NULL || comm->aborted || transfer.peer < 0 || transfer.peer >= comm->ranks)
        return set_error(ncclInvalidArgument, "no comm, or no such peer");
    CHECK(mine.transfer_count < MAX_TRANSFERS);
    CHECK(mine.transfer_count == 0 || (mine.comm == comm && mine.stream == stream));
    transfer.bytes = transfer.count * nccl_bytes_of(transfer.type);
    transfer.registered = is_registered(comm, transfer.data);
    uint64_t bit = (uint64_t)1 << transfer.peer;
    mine.first_contacts += (comm->contacted[transfer.send] & bit) == 0;
    comm->contacted[transfer.send] |= bit;
    mine.comm = comm;
    mine.stream = stream;
    mine.transfers[mine.transfer_count++] = transfer;
    return mine.depth == 0 ? enqueue_group() : ncclSuccess;
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    char *data = (char *)(uintptr_t)in; // only read
    return add_transfer(
        (struct transfer){.send = true, .data = data, .count = count, .type = type, .peer = peer}, comm,
        stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_transfer((struct transfer){.data = out, .count = count, .type = type, .peer = peer}, comm,
                        stream);
}

ncclResult_t ncclGroupStart(void)
{
    mine.depth++;
    return ncclSuccess;
}

/* Freeing the CUDA resources of an aborted comm waits for the GPU, including messages of other comms. */
static void free_aborted(void)
{
    if (mine.comms_in_flight > 0)
        die(__FILE__, __LINE__, "the emulated NCCL",
            "ncclCommAbort waits for a message of another comm, which the same group does not abort");
}

ncclResult_t ncclGroupEnd(void)
{
    if (mine.depth == 0)
        return set_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--mine.depth > 0)
        return ncclSuccess;
    if (mine.aborts)
        free_aborted();
    mine.aborts = false;
    if (!mine.failed)
        return enqueue_group();
    mine.failed = false;
    mine.transfer_count = 0;
    return set_error(ncclUnhandledCudaError, "a call of the group has failed");
}

/* ---- comms ---- */

ncclResult_t ncclGetVersion(int *out)
{
    *out = version();
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    }
    return "?";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static const char template[] = "/dev/shm/emulated-nccl-XXXXXX";
    memset(id, 0, sizeof *id);
    memcpy(id->internal, template, sizeof template);
    int file = emulator_fails("ncclGetUniqueId") ? -1 : mkstemp(id->internal);
    if (file < 0)
        return set_error(ncclSystemError, "no shared memory");
    close(file);
    return ncclSuccess;
}

static ncclResult_t attach(struct ncclComm *c, const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return set_error(ncclSystemError, "the file of the comm does not exist");
    size_t slots = (size_t)c->ranks * (size_t)(c->ranks + 1);
    c->bytes = sizeof(struct shared) + slots * sizeof(struct slot);
    CHECK(ftruncate(file, (off_t)c->bytes) == 0);
    c->shared = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(c->shared != MAP_FAILED);
    close(file);
    return ncclSuccess;
}

static void publish_gpu(const struct ncclComm *c)
{
    c->shared->process[c->rank] = getpid();
    const char *host = getenv("NCCL_HOSTID");
    snprintf(c->shared->gpu[c->rank], GPU_CHARS, "GPU %d of %s", emulator_device(),
             host != NULL ? host : "here");
}

static bool shares_a_gpu(const struct ncclComm *c)
{
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank && strcmp(c->shared->gpu[r], c->shared->gpu[c->rank]) == 0) {
            snprintf(last_error, sizeof last_error, "Duplicate GPU detected : rank %d and rank %d both on %s",
                     c->rank, r, c->shared->gpu[r]);
            return true;
        }
    return false;
}

static bool is_set(const char *variable, const char *value)
{
    const char *set = getenv(variable);
    return set != NULL && strcmp(set, value) == 0;
}

/* Two GPUs of one process, of which one might wait for memory and the other for a message. */
static bool might_hang(const struct ncclComm *c)
{
    int here = 0;
    for (int r = 0; r < c->ranks; r++)
        here += c->shared->process[r] == getpid();
    if (here < 2 || (is_set("CUDA_MODULE_LOADING", "EAGER") && is_set("NCCL_RUNTIME_CONNECT", "0")))
        return false;
    snprintf(last_error, sizeof last_error,
             "%d GPUs of one process require CUDA_MODULE_LOADING=EAGER and NCCL_RUNTIME_CONNECT=0", here);
    return true;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    if (orders_launches() && !is_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1"))
        return set_error(ncclInvalidUsage, "the emulated NCCL requires NCCL_LAUNCH_ORDER_IMPLICIT=1");
    if (emulator_fails("ncclCommInitRank") || rank < 0 || rank >= ranks || ranks > 64)
        return set_error(ncclInvalidArgument, "no such rank");
    struct ncclComm *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    *c = (struct ncclComm){.rank = rank, .ranks = ranks, .references = 1};
    ncclResult_t result = attach(c, id.internal);
    if (result != ncclSuccess) {
        free(c);
        return result;
    }
    publish_gpu(c);
    if (atomic_fetch_add(&c->shared->joined, 1) == ranks - 1)
        unlink(id.internal);
    while (atomic_load(&c->shared->joined) < ranks)
        emulator_sleep();
    emulator_notify();
    if (shares_a_gpu(c) || might_hang(c)) {
        comm_release(c);
        return ncclInvalidUsage;
    }
    *comm = c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    CHECK(comm->calls == comm->finished); // the transport waits for its messages first,
    CHECK(comm->registered == NULL);      // and deregisters its memory
    comm_release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    CHECK(mine.depth <= 1); // in a group that is never ended, it would be deferred forever
    comm->aborted = true;
    mine.any_aborted = true;
    set_in_progress(comm, false);
    mine.aborts = mine.depth > 0;
    if (mine.depth == 0)
        free_aborted();
    comm_release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    (void)comm;
    *error = emulator_fails("ncclCommGetAsyncError") ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *data, size_t bytes, void **handle)
{
    if (emulator_fails("ncclCommRegister") || data == NULL || bytes == 0)
        return set_error(ncclInvalidArgument, "no memory to register");
    struct registered *known = malloc(sizeof *known);
    CHECK(known != NULL);
    *known = (struct registered){comm->registered, data, bytes};
    *handle = comm->registered = known;
    atomic_fetch_add(&registrations, 1);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    struct registered **link = &comm->registered;
    while (*link != NULL && *link != handle)
        link = &(*link)->next;
    CHECK(*link != NULL);
    *link = (*link)->next;
    free(handle);
    return ncclSuccess;
}

int emulated_nccl_first_contacts(void)
{
    return mine.first_contacts;
}

int emulated_nccl_registrations(void)
{
    return atomic_load(&registrations);
}
