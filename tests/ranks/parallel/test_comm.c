// SPDX-License-Identifier: Apache-2.0
/* Every call of every transport, against closed forms and against sums made in rank order here.
 *     test_comm local cpu                  worlds of 2, 3, 4, 8 threads
 *     mpirun -n 4 test_comm mpi strict
 * Then the test itself: the same cases must detect faults injected into a transport. */
#include "tests/ranks/parallel/comm_narrow.h"
#include "tests/ranks/parallel/ranks.h"
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- collectives ---- */

/* One element, fewer than ranks, whole slices and a few more; the last in several segments (of mpi). */
static const int64_t all_counts[] = {1, 7, 1024, 16385, 300000};
/* Each way to slice an array, once. */
static const int64_t few_counts[] = {1, 7, 1024, 16421};
#ifdef ON_THE_EMULATOR // which is slow
enum { FEW = true };
#else
enum { FEW = UNDER_SANITIZER };
#endif
static const int64_t *const counts = FEW ? few_counts : all_counts;
enum { COUNTS = (FEW ? sizeof few_counts : sizeof all_counts) / sizeof *all_counts };

/* i % 8 * slope + first: small integers, whose sums do not depend on the order. The first eight determine
 * the rest. */
enum { PERIOD = 8 };
static void integers(enum dtype dtype, int64_t slope, int64_t first, char *out)
{
    size_t size = dtype_bytes(dtype);
    for (int i = 0; i < PERIOD; i++) {
        int64_t v = i * slope + first;
        double f64 = (double)v;
        float f32 = (float)v;
        int32_t i32 = (int32_t)v;
        uint16_t bf16 = narrow_nearest(BF16, f32), f16 = narrow_nearest(F16, f32);
        const void *const from[DTYPE_COUNT] = {
            [F32] = &f32, [F64] = &f64, [I32] = &i32, [I64] = &v, [BF16] = &bf16, [F16] = &f16};
        memcpy(out + (size_t)i * size, from[dtype], size);
    }
}

static void sum_of_integers(struct rank_test *test, enum dtype dtype, int64_t count, enum reduction how)
{
    int n = test->world->size, rank = test->world->rank;
    size_t size = dtype_bytes(dtype), bytes = size * (size_t)count;
    char mine[PERIOD * sizeof(int64_t)], all[PERIOD * sizeof(int64_t)], *host = malloc(bytes);
    bool sum = how == REDUCE_SUM;
    integers(dtype, 1, rank, mine);
    integers(dtype, sum ? n : 1, sum ? n * (n - 1) / 2 : n - 1, all);
    for (int64_t i = 0; i < count; i++)
        memcpy(host + (size_t)i * size, mine + (size_t)(i % PERIOD) * size, size);
    struct buffer x = device_copy(test, host, bytes);
    EXPECT_OK(test, group_all_reduce(test->all, test->stream, tensor_1d(x.data, dtype, count), how));
    host_copy(test, &x, host, bytes);
    buffer_free(&x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += memcmp(host + (size_t)i * size, all + (size_t)(i % PERIOD) * size, size) != 0;
    expect(test, wrong == 0, "all_reduce of %lld %s: %lld wrong", (long long)count, dtype_name(dtype),
           (long long)wrong);
    free(host);
}

static void sums_of_integers(struct rank_test *test)
{
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (int c = 0; c < COUNTS; c++) {
            sum_of_integers(test, (enum dtype)dtype, counts[c], REDUCE_SUM);
            sum_of_integers(test, (enum dtype)dtype, counts[c], REDUCE_MAX);
        }
}

/* Bitwise in rank order, and in no other. */
static void sums_in_rank_order(struct rank_test *test)
{
    int n = test->world->size;
    for (int c = 0; c < COUNTS; c++) {
        int64_t count = counts[c], wrong = 0;
        float *host = malloc((size_t)count * sizeof *host);
        for (int64_t i = 0; i < count; i++)
            host[i] = order_sensitive(test->world->rank, i, c);
        struct buffer x = device_copy(test, host, (size_t)count * sizeof *host);
        EXPECT_OK(test, group_all_reduce(test->all, test->stream, tensor_1d(x.data, F32, count), REDUCE_SUM));
        host_copy(test, &x, host, (size_t)count * sizeof *host);
        buffer_free(&x);
        for (int64_t i = 0; i < count; i++) {
            float sum = order_sensitive(0, i, c);
            for (int r = 1; r < n; r++)
                sum += order_sensitive(r, i, c);
            wrong += memcmp(&sum, &host[i], sizeof sum) != 0;
        }
        expect(test, wrong == 0, "all_reduce of %lld: %lld sums are not in rank order", (long long)count,
               (long long)wrong);
        free(host);
    }
}

static void maximum_keeps_nan(struct rank_test *test)
{
    int n = test->world->size;
    for (int who = 0; who < n; who++) {
        float host[3] = {(float)test->world->rank, test->world->rank == who ? 0.0f / 0.0f : 1.0f, -1.0f};
        struct buffer x = device_copy(test, host, sizeof host);
        EXPECT_OK(test, group_all_reduce(test->all, test->stream, tensor_1d(x.data, F32, 3), REDUCE_MAX));
        host_copy(test, &x, host, sizeof host);
        buffer_free(&x);
        expect(test, host[0] == (float)(n - 1) && host[1] != host[1] && host[2] == -1.0f,
               "maximum with a NaN at rank %d is %g %g %g", who, (double)host[0], (double)host[1],
               (double)host[2]);
    }
}

static void scatters(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    for (int c = 0; c < COUNTS; c++) {
        int64_t k = counts[c], wrong = 0;
        float *host = malloc((size_t)(n * k) * sizeof *host);
        for (int64_t i = 0; i < n * k; i++)
            host[i] = order_sensitive(rank, i, 100 + c);
        struct buffer in = device_copy(test, host, (size_t)(n * k) * sizeof *host),
                      out = device_copy(test, host, (size_t)k * 4);
        EXPECT_OK(test, group_reduce_scatter(test->all, test->stream, tensor_1d(in.data, F32, n * k),
                                             tensor_1d(out.data, F32, k)));
        host_copy(test, &out, host, (size_t)k * sizeof *host);
        for (int64_t i = 0; i < k; i++) {
            float sum = order_sensitive(0, rank * k + i, 100 + c);
            for (int r = 1; r < n; r++)
                sum += order_sensitive(r, rank * k + i, 100 + c);
            wrong += memcmp(&sum, &host[i], sizeof sum) != 0;
        }
        expect(test, wrong == 0, "reduce_scatter of %lld: %lld wrong", (long long)k, (long long)wrong);
        buffer_free(&in);
        buffer_free(&out);
        free(host);
    }
}

static void gathers(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    for (int c = 0; c < 2 * COUNTS; c++) {
        bool in_place = c >= COUNTS;
        int64_t k = counts[c % COUNTS], wrong = 0;
        int32_t *host = malloc((size_t)(n * k) * sizeof *host);
        for (int64_t i = 0; i < n * k; i++)
            host[i] = i / k == rank ? (int32_t)(i % k + 1000 * rank) : -1;
        struct buffer out = device_copy(test, host, (size_t)(n * k) * sizeof *host);
        struct buffer in = device_copy(test, host + rank * k, (size_t)k * sizeof *host);
        void *from = in_place ? (int32_t *)out.data + rank * k : in.data;
        EXPECT_OK(test, group_all_gather(test->all, test->stream, tensor_1d(from, I32, k),
                                         tensor_1d(out.data, I32, n * k)));
        host_copy(test, &out, host, (size_t)(n * k) * sizeof *host);
        for (int64_t i = 0; i < n * k; i++)
            wrong += host[i] != (int32_t)(i % k + 1000 * (i / k));
        expect(test, wrong == 0, "all_gather of %lld%s: %lld wrong", (long long)k,
               in_place ? " in place" : "", (long long)wrong);
        buffer_free(&in);
        buffer_free(&out);
        free(host);
    }
}

static void broadcasts(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    for (int c = 0; c < COUNTS; c++)
        for (int root = 0; root < n; root++) {
            int64_t count = counts[c], wrong = 0;
            int64_t *host = malloc((size_t)count * sizeof *host);
            for (int64_t i = 0; i < count; i++)
                host[i] = rank == root ? i * 10 + root : -1;
            struct buffer x = device_copy(test, host, (size_t)count * sizeof *host);
            EXPECT_OK(test, group_broadcast(test->all, test->stream, tensor_1d(x.data, I64, count), root));
            host_copy(test, &x, host, (size_t)count * sizeof *host);
            for (int64_t i = 0; i < count; i++)
                wrong += host[i] != i * 10 + root;
            expect(test, wrong == 0, "broadcast of %lld from %d: %lld wrong", (long long)count, root,
                   (long long)wrong);
            buffer_free(&x);
            free(host);
        }
}

/* Rank a sends b (a * 7 + b * 3) % 5 * scale elements, so many pairs exchange nothing. */
static void all_to_all(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    for (int scale = 1; scale <= 10000; scale *= 100) {
        int64_t in_counts[64], out_counts[64], in_all = 0, out_all = 0, at = 0, wrong = 0;
        for (int r = 0; r < n; r++) {
            in_all += in_counts[r] = (rank * 7 + r * 3) % 5 * scale;
            out_all += out_counts[r] = (r * 7 + rank * 3) % 5 * scale;
        }
        int32_t *host = malloc((size_t)(in_all + out_all + 1) * sizeof *host);
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < in_counts[r]; i++)
                host[at++] = (int32_t)(rank * 1000000 + r * 100000 + i);
        struct buffer in = device_copy(test, host, (size_t)in_all * sizeof *host);
        struct buffer out = device_copy(test, host, (size_t)out_all * sizeof *host);
        EXPECT_OK(test, group_all_to_all(test->all, test->stream, tensor_1d(in.data, I32, in_all), in_counts,
                                         tensor_1d(out.data, I32, out_all), out_counts));
        // The callers' arrays may be freed before the message is received.
        memset(in_counts, 0xff, sizeof in_counts);
        host_copy(test, &out, host, (size_t)out_all * sizeof *host);
        at = 0;
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < out_counts[r]; i++)
                wrong += host[at++] != (int32_t)(r * 1000000 + rank * 100000 + i);
        expect(test, wrong == 0, "all_to_all x %d: %lld wrong", scale, (long long)wrong);
        buffer_free(&in);
        buffer_free(&out);
        free(host);
    }
}

/* ---- exchanges ---- */

/* Two messages to either neighbor and two from either, all in one batch; of two messages between two ranks
 * the first must arrive first. */
static void exchanges(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    for (int c = 0; c < COUNTS; c++) {
        int64_t k = counts[c], wrong = 0;
        int32_t *host = malloc((size_t)(8 * k) * sizeof *host);
        struct message batch[8];
        for (int m = 0; m < 4; m++)
            for (int64_t i = 0; i < k; i++)
                host[m * k + i] = (int32_t)(rank * 100 + m * 10 + i % 10);
        struct buffer x = device_copy(test, host, (size_t)(8 * k) * sizeof *host);
        int32_t *data = x.data;
        for (int m = 0; m < 8; m++) {
            int step = m % 4 / 2 == 0 ? 1 : n - 1; // messages 0, 1 go up, 2, 3 down; 4, 5 come from above
            batch[m] = (struct message){
                .data = tensor_1d(data + m * k, I32, k), .peer = (rank + step) % n, .send = m < 4};
        }
        EXPECT_OK(test, group_exchange(test->all, test->stream, batch, 8));
        host_copy(test, &x, host, (size_t)(8 * k) * sizeof *host);
        for (int m = 4; m < 8; m++) {
            // The rank above sent down. With two ranks both neighbors are the same rank, whose
            // messages arrive in its order: 0, 1, 2, 3.
            int peer = (rank + (m < 6 ? 1 : n - 1)) % n;
            int theirs = n == 2 ? m - 4 : m < 6 ? m - 2 : m - 6;
            for (int64_t i = 0; i < k; i++)
                wrong += host[m * k + i] != (int32_t)(peer * 100 + theirs * 10 + i % 10);
        }
        expect(test, wrong == 0, "exchange of %lld: %lld wrong", (long long)k, (long long)wrong);
        buffer_free(&x);
        free(host);
    }
}

static void barriers(struct rank_test *test)
{
    // Rank r writes before the barrier and reads all after it; only the barrier makes that correct.
    for (int round = 0; round < 20; round++)
        EXPECT_OK(test, group_barrier(test->all, test->stream));
}

/* ---- many at once ---- */

static void sum_check(struct rank_test *test, struct buffer *x, int64_t count, int salt, const char *what)
{
    float *host = malloc((size_t)count * sizeof *host);
    host_copy(test, x, host, (size_t)count * sizeof *host);
    int n = test->world->size;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += host[i] != (float)(n * ((i + salt) % 8) + n * (n - 1) / 2);
    expect(test, wrong == 0, "%s %d: %lld of %lld wrong", what, salt, (long long)wrong, (long long)count);
    free(host);
}

static struct buffer start_sum(struct rank_test *test, int64_t count, int salt)
{
    float *host = malloc((size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++)
        host[i] = (float)((i + salt) % 8 + test->world->rank);
    struct buffer x = device_copy(test, host, (size_t)count * sizeof *host);
    free(host);
    return x;
}

/* All ranks enqueue the same messages in the same order, on three streams of which two share a comm, and
 * wait for them each in its own order. */
static void many_in_flight(struct rank_test *test)
{
    enum { MESSAGES = 24, STREAMS = 3 };
    int n = test->world->size, rank = test->world->rank, ranks[64];
    struct stream *streams[STREAMS];
    struct group *back = NULL;
    struct buffer x[MESSAGES];
    struct event done[MESSAGES];
    int64_t lengths[MESSAGES];
    for (int r = 0; r < n; r++)
        ranks[r] = n - 1 - r;
    EXPECT_OK(test, group_create(test->world, "reversed", 2, ranks, n, &back));
    for (int s = 0; s < STREAMS; s++)
        EXPECT_OK(test, stream_create(test->device, "many", &streams[s]));
    for (int m = 0; m < MESSAGES; m++) {
        lengths[m] = 1 + (int64_t)scramble((uint32_t)m, 0, 5) % (m % 3 == 0 ? 60000 : 200);
        x[m] = start_sum(test, lengths[m], m);
    }
    for (int m = 0; m < MESSAGES; m++) {
        int s = m % STREAMS;
        EXPECT_OK(test, group_all_reduce(s == 2 ? back : test->all, streams[s],
                                         tensor_1d(x[m].data, F32, lengths[m]), REDUCE_SUM));
        done[m] = stream_record(streams[s]);
    }
    for (int i = 0; i < MESSAGES; i++)
        EXPECT_OK(test, event_sync(done[(i * 5 + rank * 7) % MESSAGES]));
    for (int m = 0; m < MESSAGES; m++) {
        sum_check(test, &x[m], lengths[m], m, "in flight");
        buffer_free(&x[m]);
    }
    for (int s = 0; s < STREAMS; s++)
        stream_destroy(streams[s]);
    group_destroy(back);
}

/* rank 0: start A, wait A, send B       rank 1: start A, receive B, wait A */
static void crossed_waits(struct rank_test *test)
{
    int rank = test->world->rank;
    for (int64_t count = 4; count <= (FEW ? 40000 : 400000); count *= 100) {
        struct stream *other = NULL;
        EXPECT_OK(test, stream_create(test->device, "b", &other));
        struct buffer a = start_sum(test, count, 1), b = start_sum(test, count, 2);
        struct tensor data = tensor_1d(b.data, F32, count);
        EXPECT_OK(test, group_all_reduce(test->all, test->stream, tensor_1d(a.data, F32, count), REDUCE_SUM));
        struct event a_done = stream_record(test->stream);
        if (rank == 0)
            EXPECT_OK(test, event_sync(a_done));
        if (rank < 2)
            EXPECT_OK(test, group_exchange(
                                test->all, other,
                                &(struct message){.data = data, .peer = 1 - rank, .send = rank == 0}, 1));
        EXPECT_OK(test, stream_sync(other));
        EXPECT_OK(test, event_sync(a_done));
        sum_check(test, &a, count, 1, "crossed");
        float first = -1;
        host_copy(test, &b, &first, sizeof first);
        expect(test, first == (rank < 2 ? 2.0f : (float)(2 + rank)), "crossed message %g", (double)first);
        buffer_free(&a);
        buffer_free(&b);
        stream_destroy(other);
    }
}

/* Rank 0 enqueues three sends on one stream and waits for an answer on another; rank 1 answers only after
 * the third. So rank 0 must start its second and third send while it waits for the answer. */
static void queued_sends(struct rank_test *test)
{
    int rank = test->world->rank;
    struct stream *up = NULL, *down = NULL;
    EXPECT_OK(test, stream_create(test->device, "up", &up));
    EXPECT_OK(test, stream_create(test->device, "down", &down));
    struct buffer x[4];
    for (int m = 0; m < 4; m++)
        x[m] = start_sum(test, 50000, m);
    for (int m = 0; m < 3 && rank < 2; m++) {
        struct message message = {
            .data = tensor_1d(x[m].data, F32, 50000), .peer = 1 - rank, .send = rank == 0};
        EXPECT_OK(test, group_exchange(test->all, up, &message, 1));
    }
    struct message answer = {.data = tensor_1d(x[3].data, F32, 50000), .peer = 1 - rank, .send = rank == 1};
    if (rank == 1)
        EXPECT_OK(test, stream_sync(up));
    if (rank < 2)
        EXPECT_OK(test, group_exchange(test->all, down, &answer, 1));
    EXPECT_OK(test, stream_sync(down));
    EXPECT_OK(test, stream_sync(up));
    for (int m = 0; m < 4; m++) {
        float first = -1;
        host_copy(test, &x[m], &first, sizeof first);
        int from = rank >= 2 ? rank : m < 3 ? 0 : 1;
        expect(test, first == (float)(m + from), "queued message %d is %g", m, (double)first);
        buffer_free(&x[m]);
    }
    stream_destroy(up);
    stream_destroy(down);
}

/* Two messages on two streams match in the order of the calls, although one side starts the second first and
 * the other the first. */
static void messages_on_two_streams(struct rank_test *test)
{
    int rank = test->world->rank;
    struct stream *streams[2] = {0};
    struct buffer x[2] = {0};
    for (int m = 0; m < 2; m++) {
        EXPECT_OK(test, stream_create(test->device, "messages", &streams[m]));
        x[m] = start_sum(test, 5000, m + 2);
    }
    for (int m = 0; m < 2 && rank < 2; m++) {
        struct message message = {
            .data = tensor_1d(x[m].data, F32, 5000), .peer = 1 - rank, .send = rank == 0};
        EXPECT_OK(test, group_exchange(test->all, streams[m], &message, 1));
    }
    for (int m = 0; m < 2; m++)
        EXPECT_OK(test, stream_sync(streams[rank == 0 ? 1 - m : m]));
    for (int m = 0; m < 2; m++) {
        float first = -1;
        host_copy(test, &x[m], &first, sizeof first);
        expect(test, first == (float)(m + 2 + (rank < 2 ? 0 : rank)), "message %d of two is %g", m,
               (double)first);
        buffer_free(&x[m]);
        stream_destroy(streams[m]);
    }
}

/* ---- groups ---- */

static void groups_of_a_mesh(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    struct degrees degrees = {.tp = n % 2 == 0 ? 2 : 1, .cp = 1, .ep = 1, .dp = n == 8 ? 2 : 1};
    degrees.pp = n / degrees.tp / degrees.dp;
    struct mesh mesh;
    struct groups *g = NULL;
    EXPECT_OK(test, mesh_create(degrees, "tp-cp-ep-dp-pp", &mesh));
    EXPECT_OK(test, groups_create(test->world, &mesh, degrees.tp, &g));
    if (g == NULL)
        return;
    if (degrees.pp > 1)
        EXPECT_OK(test, groups_add_ties(test->world, g, 0, degrees.pp - 1));
    struct group *all[] = {g->world, g->tp, g->data, g->pp, g->kv, g->ties};
    for (int i = 0; i < 6; i++) {
        if (all[i] == NULL) {
            expect(test, i == 5 && (g->coord.pp > 0 || degrees.pp == 1) && g->coord.pp < degrees.pp,
                   "group %d", i);
            continue;
        }
        int64_t want = 0, host = 1LL << rank;
        for (int r = 0; r < all[i]->size; r++)
            want += 1LL << all[i]->ranks[r];
        struct buffer x = device_copy(test, &host, sizeof host);
        EXPECT_OK(test, group_all_reduce(all[i], test->stream, tensor_1d(x.data, I64, 1), REDUCE_SUM));
        host_copy(test, &x, &host, sizeof host);
        expect(test, host == want, "group %s holds %llx, not %llx", all[i]->name, (long long)host,
               (long long)want);
        buffer_free(&x);
    }
    bool at_end = g->coord.pp == 0 || g->coord.pp == degrees.pp - 1;
    expect(test, (g->ties != NULL) == (degrees.pp > 1 && at_end), "ties");
    groups_destroy(g);
}

static void rejects_invalid_calls(struct rank_test *test)
{
    float host[8] = {0};
    int n = test->world->size;
    struct buffer x = device_copy(test, host, sizeof host);
    struct tensor wide = tensor_2d(x.data, F32, 2, 4), part = tensor_columns(wide, 0, 2);
    struct tensor six = tensor_1d(x.data, F32, 6), one = tensor_1d(x.data, F32, 1);
    struct message self = {.data = one, .peer = test->world->rank, .send = true};
    struct message far = {.data = one, .peer = n, .send = true};
    expect(test, group_all_reduce(test->all, test->stream, part, REDUCE_SUM) == BAD_ARGUMENT, "not dense");
    expect(test, group_all_reduce(NULL, test->stream, one, REDUCE_SUM) == BAD_ARGUMENT, "no group");
    expect(test, group_reduce_scatter(test->all, test->stream, one, six) == BAD_ARGUMENT, "shares");
    int64_t each[64] = {5};
    expect(test, group_all_gather_v(test->all, test->stream, six, each) == BAD_ARGUMENT, "counts");
    each[0] = 7;
    expect(test, group_reduce_scatter_v(test->all, test->stream, six, each) == BAD_ARGUMENT, "a count");
    expect(test, group_broadcast(test->all, test->stream, one, n) == BAD_ARGUMENT, "root");
    expect(test, group_exchange(test->all, test->stream, &self, 1) == BAD_ARGUMENT, "self");
    expect(test, group_exchange(test->all, test->stream, &far, 1) == BAD_ARGUMENT, "far");
    buffer_free(&x);
}

/* ---- injected faults ---- */

struct fault {
    const char *name;
    void (*seen_by)(struct rank_test *test);
    struct transport_ops ops;
    struct comm *reversed;
};

/* Found through the comm's own ops table, the first member of the fault's `ops`. */
static struct fault *fault_of(struct comm *comm)
{
    return (struct fault *)((char *)(uintptr_t)comm->ops - offsetof(struct fault, ops));
}

static enum status skip_a_rank(struct comm *comm, struct stream *stream, struct tensor data,
                               enum reduction how)
{
    TRY(stream_sync(stream));
    if (comm->rank == comm->size - 1)
        memset(data.data, 0, tensor_bytes(data));
    return comm->world->ops->all_reduce(comm, stream, data, how);
}

static enum status another_order(struct comm *comm, struct stream *stream, struct tensor data,
                                 enum reduction how)
{
    return comm->world->ops->all_reduce(fault_of(comm)->reversed, stream, data, how);
}

static enum status swap_two(struct comm *comm, struct stream *stream, const struct message *messages,
                            int count)
{
    struct message swapped[16];
    memcpy(swapped, messages, (size_t)count * sizeof *messages);
    swapped[0] = messages[1];
    swapped[1] = messages[0];
    return comm->world->ops->exchange(comm, stream, swapped, count);
}

static enum status drop_the_last(struct comm *comm, struct stream *stream, struct tensor in,
                                 const int64_t *each, struct tensor out)
{
    struct tensor shorter = tensor_1d(in.data, in.dtype, tensor_count(in));
    TRY(comm->world->ops->all_gather(comm, stream, shorter, each, out));
    TRY(stream_sync(stream));
    memset((char *)out.data + tensor_bytes(out) - dtype_bytes(out.dtype), 0xff, dtype_bytes(out.dtype));
    return OK;
}

static void injected(struct rank_test *test)
{
    int n = test->world->size, ranks[64];
    for (int r = 0; r < n; r++)
        ranks[r] = n - 1 - r;
    struct fault faults[] = {
        {.name = "a rank is skipped", .seen_by = sums_of_integers},
        {.name = "another order", .seen_by = sums_in_rank_order},
        {.name = "two messages swapped", .seen_by = exchanges},
        {.name = "the last element is lost", .seen_by = gathers},
    };
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
        faults[f].ops = *test->world->ops;
    faults[0].ops.all_reduce = skip_a_rank;
    faults[1].ops.all_reduce = another_order;
    faults[2].ops.exchange = swap_two;
    faults[3].ops.all_gather = drop_the_last;
    struct comm *reversed = NULL;
    EXPECT_OK(test, comm_create(test->world, "reversed", 3, ranks, n, &reversed));
    const struct transport_ops *original = test->all->comm->ops;
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        if (f == 1 && n == 2)
            continue; // a + b is b + a
        struct rank_test inner = *test;
        inner.failures = 0;
        faults[f].reversed = reversed;
        test->all->comm->ops = &faults[f].ops;
        faults[f].seen_by(&inner);
        test->all->comm->ops = original;
        expect(test, inner.failures > 0, "the injected fault was not detected: %s", faults[f].name);
    }
    comm_destroy(reversed);
}

/* Sums between processes need scratch memory, counted in the ledger; threads add in place. */
static void scratch_is_counted(struct rank_test *test)
{
    bool threads = strcmp(test->world->ops->name, "local") == 0;
    int64_t bytes = device_memory(test->device).peak_bytes[PART_COMMUNICATION];
    expect(test, threads ? bytes == 0 : bytes > 0, "%lld bytes of communication", (long long)bytes);
}

/* ---- main ---- */

static enum status body(struct world *world, void *argument)
{
    const struct run *run = argument;
    struct rank_test test;
    TRY(rank_test_open(&test, world, run));
    sums_of_integers(&test);
    sums_in_rank_order(&test);
    narrow_sums_round_once(&test);
    maximum_keeps_nan(&test);
    scatters(&test);
    gathers(&test);
    broadcasts(&test);
    all_to_all(&test);
    exchanges(&test);
    barriers(&test);
    many_in_flight(&test);
    crossed_waits(&test);
    queued_sends(&test);
    messages_on_two_streams(&test);
    groups_of_a_mesh(&test);
    rejects_invalid_calls(&test);
    injected(&test);
    scratch_is_counted(&test);
    return rank_test_close(&test);
}

int main(int argc, char **argv)
{
    return run_all(argc, argv, body);
}
