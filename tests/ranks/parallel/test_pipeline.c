// SPDX-License-Identifier: Apache-2.0
/* Transfers between stages and gradient buckets, on every transport.
 *     test_pipeline local cpu        worlds of 2, 3, 4, 8 threads
 *     mpirun -n 4 test_pipeline mpi strict */
#include "kernels/ops.h"
#include "parallel/buckets.h"
#include "parallel/p2p.h"
#include "tests/ranks/parallel/ranks.h"

#include <stdlib.h>
#include <string.h>

/* tp as given if it divides the world; the rest is dp for buckets, pp for pipelines. */
static struct groups *mesh_groups(struct rank_test *test, bool pipeline)
{
    int n = test->world->size;
    struct degrees d = {.tp = n == 8 ? 2 : 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    *(pipeline ? &d.pp : &d.dp) = n / d.tp;
    struct mesh mesh;
    struct groups *groups = NULL;
    MUST(mesh_create(d, NULL, &mesh));
    MUST(groups_create(test->world, &mesh, 1, &groups));
    return groups;
}

/* ---- p2p ---- */

enum { MICROBATCHES = 6, ELEMENTS = 3000 };

/* Every stage adds its number to the value received from the previous stage and forwards it; the last stage
 * sends it back, and each stage doubles it. Receives are enqueued as soon as a slot is free, two slots per
 * direction; the host waits only at the end. */
struct relay {
    struct p2p *p2p;
    struct stream *compute;
    struct buffer in[2], out[2], weight;
    struct event out_sent[2];
};

static void relay_create(struct rank_test *test, struct relay *r, const struct groups *groups,
                         const struct p2p_edge *edges, int count)
{
    float host[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = (float)(groups->coord.pp + 1);
    *r = (struct relay){0};
    EXPECT_OK(test, p2p_create(test->world, groups, test->device, edges, count, &r->p2p));
    EXPECT_OK(test, stream_create(test->device, "compute", &r->compute));
    r->weight = device_copy(test, host, sizeof host);
    for (int s = 0; s < 2; s++) {
        MUST(buffer_alloc(test->device, PART_ACTIVATIONS, sizeof host, &r->in[s]));
        MUST(buffer_alloc(test->device, PART_ACTIVATIONS, sizeof host, &r->out[s]));
    }
}

static void relay_destroy(struct relay *r)
{
    p2p_destroy(r->p2p);
    stream_destroy(r->compute);
    buffer_free(&r->weight);
    for (int s = 0; s < 2; s++) {
        buffer_free(&r->in[s]);
        buffer_free(&r->out[s]);
    }
}

static struct tensor view(const struct buffer *buffer)
{
    return tensor_1d(buffer->data, F32, ELEMENTS);
}

/* Microbatch m arrives from `from`, or is m + i for the first stage; then goes to `to` plus this stage's
 * weight, or to `result` at the last. */
static void forward_microbatch(struct rank_test *test, struct relay *r, int m, int from, int to,
                               bool gradient, struct buffer *result)
{
    struct tensor in = view(&r->in[m % 2]), out = view(&r->out[m % 2]);
    struct event arrived = {0};
    if (from >= 0)
        EXPECT_OK(test, p2p_recv(r->p2p, from, gradient, in, stream_record(r->compute), &arrived));
    else
        EXPECT_OK(test, fill(r->compute, (struct fill){.out = in, .value = (float)m}));
    EXPECT_OK(test, stream_wait(r->compute, arrived));
    EXPECT_OK(test, stream_wait(r->compute, r->out_sent[m % 2]));
    EXPECT_OK(test, copy(r->compute, (struct copy){.in = in, .out = out}));
    EXPECT_OK(test, add(r->compute, (struct add){.in = view(&r->weight), .out = out}));
    EXPECT_OK(test, poison(r->compute, (struct poison){.out = in}));
    if (to >= 0)
        EXPECT_OK(test, p2p_send(r->p2p, to, gradient, out, stream_record(r->compute), &r->out_sent[m % 2]));
    else
        EXPECT_OK(test, copy(r->compute, (struct copy){.in = out, .out = view(result)}));
}

/* Forward through the stages and backward again; checks the results at either end. */
static void relays(struct rank_test *test)
{
    struct groups *groups = mesh_groups(test, true);
    int stages = groups->mesh.degrees.pp, pp = groups->coord.pp, count = 0;
    struct p2p_edge edges[32];
    for (int s = 0; s + 1 < stages; s++) {
        edges[count++] = (struct p2p_edge){.from_pp = s, .to_pp = s + 1};
        edges[count++] = (struct p2p_edge){.from_pp = s + 1, .to_pp = s, .gradient = true};
    }
    struct relay r;
    relay_create(test, &r, groups, edges, count);
    struct buffer result[MICROBATCHES];
    for (int m = 0; m < MICROBATCHES; m++)
        MUST(buffer_alloc(test->device, PART_DATA, ELEMENTS * sizeof(float), &result[m]));
    for (int direction = 0; direction < 2; direction++) {
        bool up = direction == 0;
        int from = up                ? pp - 1
                   : pp + 1 < stages ? pp + 1
                                     : -1,
            to = up ? (pp + 1 < stages ? pp + 1 : -1) : pp - 1;
        for (int m = 0; m < MICROBATCHES; m++)
            forward_microbatch(test, &r, m, from, to, !up, &result[m]);
        EXPECT_OK(test, stream_sync(r.compute));
        for (int m = 0; m < MICROBATCHES && to < 0; m++) {
            float host[ELEMENTS];
            int wrong = 0;
            host_copy(test, &result[m], host, sizeof host);
            for (int i = 0; i < ELEMENTS; i++)
                wrong += host[i] != (float)(m + stages * (stages + 1) / 2);
            expect(test, wrong == 0, "relay %s, microbatch %d: %d wrong", up ? "up" : "down", m, wrong);
        }
    }
    for (int m = 0; m < MICROBATCHES; m++)
        buffer_free(&result[m]);
    relay_destroy(&r);
    groups_destroy(groups);
}

static void p2p_rejects(struct rank_test *test)
{
    struct groups *groups = mesh_groups(test, true);
    int stages = groups->mesh.degrees.pp;
    struct p2p *p2p = NULL;
    const struct p2p_edge self[] = {{.from_pp = 0, .to_pp = 0}};
    const struct p2p_edge far[] = {{.from_pp = 0, .to_pp = stages}};
    const struct p2p_edge twice[] = {{.from_pp = 0, .to_pp = 1}, {.from_pp = 0, .to_pp = 1}};
    expect(test, p2p_create(test->world, groups, test->device, self, 1, &p2p) == BAD_ARGUMENT,
           "an edge to itself");
    expect(test, p2p_create(test->world, groups, test->device, far, 1, &p2p) == BAD_ARGUMENT,
           "an edge to a missing rank");
    expect(test, p2p_create(test->world, groups, test->device, twice, 2, &p2p) == BAD_ARGUMENT,
           "an edge twice");
    EXPECT_OK(test, p2p_create(test->world, groups, test->device, twice, 1, &p2p));
    struct event done;
    float host = 0;
    struct buffer x = device_copy(test, &host, sizeof host);
    expect(test, p2p_send(p2p, 1, true, tensor_1d(x.data, F32, 1), (struct event){0}, &done) == BAD_ARGUMENT,
           "an edge that was not created");
    buffer_free(&x);
    p2p_destroy(p2p);
    groups_destroy(groups);
}

/* ---- buckets ---- */

/* Slices of different sizes, in place; some of them empty. After both calls every rank has the whole sum. */
static void uneven(struct rank_test *test)
{
    enum { KINDS = 4 };
    int n = test->world->size;
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t each[64], all = 0, wrong = 0;
        for (int r = 0; r < n; r++) {
            int64_t length[KINDS] = {r % 2 == 0 ? 0 : 3, r == 0 ? 70001 : 1, 20000 + 77 * r, r == n - 1};
            each[r] = length[kind];
            all += each[r];
        }
        float *host = malloc((size_t)all * sizeof *host + 1);
        for (int64_t i = 0; i < all; i++)
            host[i] = order_sensitive(test->world->rank, i, kind);
        struct buffer data = device_copy(test, host, (size_t)all * sizeof *host);
        struct tensor whole = tensor_1d(data.data, F32, all);
        EXPECT_OK(test, group_reduce_scatter_v(test->all, test->stream, whole, each));
        EXPECT_OK(test, group_all_gather_v(test->all, test->stream, whole, each));
        host_copy(test, &data, host, (size_t)all * sizeof *host);
        for (int64_t i = 0; i < all; i++) {
            float sum = order_sensitive(0, i, kind);
            for (int r = 1; r < n; r++)
                sum += order_sensitive(r, i, kind);
            wrong += memcmp(&sum, &host[i], sizeof sum) != 0;
        }
        expect(test, wrong == 0, "uneven slices, kind %d: %lld of %lld wrong", kind, (long long)wrong,
               (long long)all);
        buffer_free(&data);
        free(host);
    }
}

enum { RANGES = 9 };
static const int64_t lengths[RANGES] = {1000, 1, 0, 30000, 17, 64, 5000, 20000, 333};

static int64_t make_ranges(struct bucket_range ranges[RANGES])
{
    int64_t at = 0;
    for (int i = 0; i < RANGES; i++) {
        ranges[i] = (struct bucket_range){.begin = at, .end = at + lengths[i], .block = 100};
        at = (ranges[i].end + 15) / 16 * 16; // padding in between
    }
    return at;
}

/* One step: the gradients are written on a compute stream range by range; each range is ready as soon as it
 * is enqueued. The result goes to `host`. */
static void bucket_step(struct rank_test *test, struct group *data, struct buckets *b, struct buffer *flat,
                        struct buffer *source, const struct bucket_range *ranges, int64_t count, float *host)
{
    struct stream *compute = NULL, *optimizer = NULL;
    EXPECT_OK(test, stream_create(test->device, "compute", &compute));
    EXPECT_OK(test, stream_create(test->device, "optimizer", &optimizer));
    for (int i = 0; i < RANGES; i += 2) {
        int pieces = i + 1 < RANGES ? 2 : 1;
        for (int p = i; p < i + pieces; p++) {
            int64_t begin = ranges[p].begin, length = ranges[p].end - begin;
            if (length > 0)
                EXPECT_OK(
                    test,
                    copy(compute, (struct copy){.in = tensor_1d((float *)source->data + begin, F32, length),
                                                .out = tensor_1d((float *)flat->data + begin, F32, length)}));
        }
        EXPECT_OK(test, buckets_mark_ready(b, i, pieces, stream_record(compute)));
    }
    struct buffer result = {0};
    MUST(buffer_alloc(test->device, PART_DATA, (size_t)count * sizeof *host, &result));
    EXPECT_OK(test, buckets_wait(b, optimizer));
    EXPECT_OK(test, copy(optimizer, (struct copy){.in = tensor_1d(flat->data, F32, count),
                                                  .out = tensor_1d(result.data, F32, count)}));
    EXPECT_OK(test, stream_sync(optimizer));
    host_copy(test, &result, host, (size_t)count * sizeof *host);
    buffer_free(&result);
    stream_destroy(compute);
    stream_destroy(optimizer);
    (void)data;
}

/* Whether element i is in a slice of this rank. */
static bool is_mine(const struct bucket_plan *plan, int rank, int64_t i)
{
    for (int b = 0; b < plan->count; b++) {
        const struct bucket *bucket = &plan->buckets[b];
        if (i >= bucket_slice_begin(bucket, rank) && i < bucket_slice_begin(bucket, rank + 1))
            return true;
    }
    return false;
}

/* Any bucket size, overlapped or not, of everything or of this rank's slices: sums in rank order, bitwise,
 * in two consecutive steps. */
static void bucket_sums(struct rank_test *test)
{
    struct groups *groups = mesh_groups(test, false);
    struct group *data = groups->data;
    struct bucket_range ranges[RANGES];
    int64_t count = make_ranges(ranges);
    const int64_t bucket_bytes[] = {1, 4000, 100000, 1 << 30};
    const int want_buckets[] = {8, 5, 3, 1};
    float *host = malloc((size_t)count * sizeof *host);
    for (int c = 0; c < 12; c++) {
        struct buckets *b = NULL;
        struct buffer flat = {0};
        struct bucket_plan plan;
        bool scatter = c >= 8;
        MUST(buffer_alloc(test->device, PART_GRADIENTS, (size_t)count * sizeof *host, &flat));
        EXPECT_OK(test, bucket_plan_create(ranges, RANGES, bucket_bytes[c % 4], data->size, &plan));
        struct group *group_of[RANGES];
        for (int i = 0; i < plan.count; i++)
            group_of[i] = data;
        const struct data_parallel_options options = {.overlap_grad_reduce = c / 4 != 1};
        struct buckets_config config = {.group_of = group_of,
                                        .device = test->device,
                                        .gradients = tensor_1d(flat.data, F32, count),
                                        .plan = &plan,
                                        .scatter = scatter,
                                        .options = &options};
        EXPECT_OK(test, buckets_create(&config, &b));
        expect(test, plan.count == want_buckets[c % 4], "%d buckets of %lld bytes", plan.count,
               (long long)bucket_bytes[c % 4]);
        for (int step = 0; step < 2; step++) {
            for (int64_t i = 0; i < count; i++)
                host[i] = order_sensitive(data->rank, i, step);
            struct buffer source = device_copy(test, host, (size_t)count * sizeof *host);
            bucket_step(test, data, b, &flat, &source, ranges, count, host);
            int64_t wrong = 0;
            for (int r = 0; r < RANGES; r++)
                for (int64_t i = ranges[r].begin; i < ranges[r].end; i++) {
                    float sum = order_sensitive(0, i, step);
                    for (int q = 1; q < data->size; q++)
                        sum += order_sensitive(q, i, step);
                    bool counts = !scatter || is_mine(&plan, data->rank, i);
                    wrong += counts && memcmp(&sum, &host[i], sizeof sum) != 0;
                }
            expect(test, wrong == 0, "buckets of %lld, step %d: %lld wrong", (long long)bucket_bytes[c % 4],
                   step, (long long)wrong);
            buffer_free(&source);
        }
        buckets_destroy(b);
        bucket_plan_destroy(&plan);
        buffer_free(&flat);
    }
    free(host);
    groups_destroy(groups);
}

static void buckets_reject(struct rank_test *test)
{
    float host[100] = {0};
    const struct bucket_range good[] = {{.end = 40}, {.begin = 40, .end = 100}},
                              crossed[] = {{.end = 40}, {.begin = 39, .end = 100}}, far[] = {{.end = 101}};
    struct buffer flat = device_copy(test, host, sizeof host);
    struct tensor t = tensor_1d(flat.data, F32, 100);
    struct buckets *b = NULL;
    struct bucket_plan plan;
    struct group *const group_of[] = {test->all, test->all};
    const struct data_parallel_options options = {.overlap_grad_reduce = true};
    struct buckets_config config = {
        .group_of = group_of, .device = test->device, .gradients = t, .plan = &plan, .options = &options};
    expect(test, bucket_plan_create(crossed, 2, 8, 1, &plan) == BAD_ARGUMENT, "crossed");
    expect(test, bucket_plan_create(good, 2, 0, 1, &plan) == BAD_ARGUMENT, "0 bytes");
    expect(test, bucket_plan_create(good, 2, 8, 0, &plan) == BAD_ARGUMENT, "0 ranks");
    EXPECT_OK(test, bucket_plan_create(far, 1, 8, 1, &plan));
    expect(test, buckets_create(&config, &b) == BAD_ARGUMENT, "far");
    bucket_plan_destroy(&plan);
    EXPECT_OK(test, bucket_plan_create(good, 2, 8, test->all->size + 1, &plan));
    config.scatter = true;
    expect(test, buckets_create(&config, &b) == BAD_ARGUMENT, "another number of ranks");
    config.scatter = false;
    bucket_plan_destroy(&plan);
    EXPECT_OK(test, bucket_plan_create(good, 2, 8, 1, &plan));
    EXPECT_OK(test, buckets_create(&config, &b));
    EXPECT_OK(test, buckets_mark_ready(b, 0, 1, stream_record(test->stream)));
    expect(test, buckets_mark_ready(b, 0, 1, stream_record(test->stream)) == BAD_ARGUMENT, "ready twice");
    expect(test, buckets_mark_ready(b, 1, 2, stream_record(test->stream)) == BAD_ARGUMENT, "no such range");
    expect(test, buckets_wait(b, test->stream) == BAD_ARGUMENT, "never ready");
    EXPECT_OK(test, buckets_mark_ready(b, 1, 1, stream_record(test->stream)));
    EXPECT_OK(test, buckets_wait(b, test->stream));
    EXPECT_OK(test, stream_sync(test->stream));
    buckets_destroy(b);
    bucket_plan_destroy(&plan);
    buffer_free(&flat);
}

static enum status body(struct world *world, void *argument)
{
    const struct run *run = argument;
    struct rank_test test;
    TRY(rank_test_open(&test, world, run));
    relays(&test);
    p2p_rejects(&test);
    bucket_sums(&test);
    uneven(&test);
    buckets_reject(&test);
    return rank_test_close(&test);
}

int main(int argc, char **argv)
{
    return run_all(argc, argv, body);
}
