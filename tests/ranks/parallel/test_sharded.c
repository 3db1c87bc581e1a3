// SPDX-License-Identifier: Apache-2.0
/* Values and gradients of ZeRO 3, layer by layer, on every transport: acquired values are bitwise those of
 * one rank, in fp32 and rounded to bf16, and reduced gradients are the sum over ranks, then microbatches.
 * And the gradients of a layer on two meshes, each summed over its own ranks.
 *
 * Three faults are injected. A bucket cut at the wrong element, and a missing acquire, are detected on any
 * device. Reads before the all-gather has completed, or after the release, are NaN on `strict`, whose
 * streams run as late as possible. */
#include "layers/model.h"
#include "layers/parameters/gradients.h"
#include "layers/parameters/sharded.h"
#include "tests/fixtures/model_family.h"
#include "tests/ranks/parallel/ranks.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, UNITS = LAYERS + 2, MICROBATCHES = 2, LINE = 16 };
static const int layers[UNITS] = {LAYERS, 2, 1, 0, LAYER_EMBEDDING};

struct fixture {
    struct rank_test *test;
    struct params params;
    struct groups groups;
    struct data_parallel_options options;
    struct weights whole, sharded;
};

static void declare(const struct rank_test *test, struct params *out)
{
    struct model_config model = gpt2_model((struct model_config){
        .num_layers = LAYERS,
        .hidden_size = 40,
        .num_attention_heads = 4,
        .num_query_groups = 2,
        .ffn_hidden_size = 52,
        .kv_channels = 6,
        .seq_length = 5,
        .vocab_size = 531, // so that the head and the embedding do not fit at the same time
        .make_vocab_size_divisible_by = 8,
        .init_method_std = 0.02,
    });
    struct degrees degrees = {.tp = 1, .cp = 1, .ep = 1, .dp = test->all->size, .pp = 1};
    MUST(params_declare(&model, &degrees, false, out));
}

static void fixture_open_in(struct fixture *s, struct rank_test *test, enum dtype working, bool overlap)
{
    *s = (struct fixture){.test = test, .groups = {.data = test->all}};
    declare(test, &s->params);
    s->options =
        (struct data_parallel_options){.overlap_grad_reduce = overlap, .overlap_param_gather = overlap};
    struct weights_config config = {.device = test->device,
                                    .params = &s->params,
                                    .layers = layers,
                                    .layer_count = UNITS,
                                    .working = working,
                                    .training = true,
                                    .groups = &s->groups,
                                    .options = &s->options};
    MUST(weights_create(&config, &s->whole));
    s->options.zero_stage = 3;
    MUST(weights_create(&config, &s->sharded));
    MUST(weights_initialize(&s->whole, test->stream, 7));
    MUST(weights_initialize(&s->sharded, test->stream, 7));
    MUST(stream_sync(test->stream));
}

static void fixture_open(struct fixture *s, struct rank_test *test, bool overlap)
{
    fixture_open_in(s, test, F32, overlap);
}

static void fixture_close(struct fixture *s)
{
    weights_destroy(&s->whole);
    weights_destroy(&s->sharded);
    params_free(&s->params);
}

/* Number of elements in which two tensors differ, as read on `stream`. */
static int64_t differ(struct fixture *s, struct stream *stream, struct tensor a, struct tensor b)
{
    size_t bytes = tensor_bytes(a);
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    size_t each = dtype_bytes(a.dtype);
    int64_t wrong = a.dtype != b.dtype;
    MUST(copy_to_host(stream, x, a.data, bytes));
    MUST(copy_to_host(stream, y, b.data, bytes));
    MUST(stream_sync(stream));
    for (size_t i = 0; i < bytes; i += each)
        wrong += memcmp(x + i, y + i, each) != 0;
    free(x);
    free(y);
    (void)s;
    return wrong;
}

/* Of all values of a layer, as read on `stream`. */
static int64_t wrong_values(struct fixture *s, struct stream *stream, int layer)
{
    int first, count = params_of_layer(&s->params, layer, &first);
    int64_t wrong = 0;
    for (int i = first; i < first + count; i++)
        wrong += differ(s, stream, weights_held(&s->whole, i)->weight, weights_held(&s->sharded, i)->weight);
    return wrong;
}

/* Forward, then backward, as in a step; each layer runs with the next all-gather in flight. */
static int64_t forward_and_backward(struct fixture *s)
{
    struct rank_test *test = s->test;
    int64_t wrong = 0;
    for (int k = 0; k < 2 * UNITS; k++) {
        int at = k < UNITS ? UNITS - 1 - k : k - UNITS, next = k < UNITS ? at - 1 : at + 1;
        int layer = layers[at];
        EXPECT_OK(test, weights_acquire(&s->sharded, test->stream, layer,
                                        next >= 0 && next < UNITS ? layers[next] : layer));
        wrong += wrong_values(s, test->stream, layer);
        EXPECT_OK(test, weights_release(&s->sharded, test->stream, layer));
        expect(test, weights_held(&s->sharded, 0)->weight.data == NULL, "released, but the view is not NULL");
    }
    return wrong;
}

/* ---- gradients ---- */

/* This rank's contributions to every gradient of every microbatch. */
static struct buffer *make_sources(struct fixture *s)
{
    int count = s->params.count;
    struct buffer *sources = calloc((size_t)count * MICROBATCHES, sizeof *sources);
    CHECK(sources != NULL);
    for (int i = 0; i < count * MICROBATCHES; i++) {
        int row = i % count, salt = 100 * row + i / count;
        int64_t elements = slice_padded(&weights_held(&s->sharded, row)->slice);
        float *host = malloc((size_t)elements * sizeof *host);
        for (int64_t k = 0; k < elements; k++)
            host[k] = order_sensitive(s->test->all->rank, k, salt);
        sources[i] = device_copy(s->test, host, (size_t)elements * sizeof *host);
        free(host);
    }
    return sources;
}

/* The host never waits here: streams may run as late as they like. */
static void backward(struct fixture *s, const struct buffer *sources, bool is_last)
{
    struct rank_test *test = s->test;
    struct gradients *gradients = s->sharded.gradients;
    for (int k = 0; k < UNITS; k++) {
        int first, count = params_of_layer(&s->params, layers[k], &first);
        EXPECT_OK(test, gradients_begin(gradients, test->stream, layers[k]));
        for (int i = first; i < first + count; i++) {
            struct tensor gradient = weights_held(&s->sharded, i)->gradient, source = gradient;
            source.data = sources[i].data;
            EXPECT_OK(test, copy(test->stream, (struct copy){.in = source, .out = gradient}));
        }
        EXPECT_OK(test, gradients_end(gradients, test->stream, layers[k], is_last));
    }
}

/* Elements of this rank's shard that are not the sum over ranks and then over microbatches. */
static int64_t wrong_gradients(struct fixture *s)
{
    struct rank_test *test = s->test;
    int64_t wrong = 0;
    for (int o = 0; o < s->sharded.owned_count; o++) {
        const struct owned_param *owned = &s->sharded.owned[o];
        int64_t count = tensor_count(owned->gradient), before = owned->begin * (count / owned->count);
        float *host = malloc((size_t)count * sizeof *host);
        MUST(copy_to_host(test->stream, host, owned->gradient.data, (size_t)count * sizeof *host));
        MUST(stream_sync(test->stream));
        for (int64_t i = 0; i < count; i++) {
            float sum = 0.0F;
            for (int m = 0; m < MICROBATCHES; m++) {
                int salt = 100 * owned->held->index + m;
                float of_ranks = order_sensitive(0, before + i, salt);
                for (int r = 1; r < test->all->size; r++)
                    of_ranks += order_sensitive(r, before + i, salt);
                sum += of_ranks;
            }
            wrong += memcmp(&sum, &host[i], sizeof sum) != 0;
        }
        free(host);
    }
    return wrong;
}

static int64_t step(struct fixture *s)
{
    struct rank_test *test = s->test;
    struct buffer *sources = make_sources(s);
    EXPECT_OK(test, gradients_zero(s->sharded.gradients, test->stream));
    for (int m = 0; m < MICROBATCHES; m++)
        backward(s, sources + m * (ptrdiff_t)s->params.count, m == MICROBATCHES - 1);
    EXPECT_OK(test, gradients_finish_reduce(s->sharded.gradients, test->stream));
    int64_t wrong = wrong_gradients(s);
    for (int i = 0; i < s->params.count * MICROBATCHES; i++)
        buffer_free(&sources[i]);
    free(sources);
    return wrong;
}

/* ---- main ---- */

/* New values everywhere, as after an optimizer step; none is representable in bf16. */
static void update(struct fixture *s)
{
    struct rank_test *test = s->test;
    const float value = 3.001F;
    for (int i = 0; i < s->whole.count; i++)
        EXPECT_OK(test, fill(test->stream, (struct fill){.out = s->whole.list[i].weight, .value = value}));
    for (int i = 0; i < s->sharded.owned_count; i++)
        if (!s->sharded.owned[i].held->second_use)
            EXPECT_OK(test,
                      fill(test->stream, (struct fill){.out = s->sharded.owned[i].value, .value = value}));
    EXPECT_OK(test, weights_gather(&s->sharded, test->stream));
}

static void check_zero_3(struct rank_test *test, enum dtype working, bool overlap)
{
    struct fixture s;
    fixture_open_in(&s, test, working, overlap);
    for (int i = 0; i < 2; i++) {
        int64_t wrong = forward_and_backward(&s);
        expect(test, wrong == 0, "%lld values differ from those of one rank in %s, round %d",
               (long long)wrong, dtype_name(working), i);
        wrong = step(&s);
        expect(test, wrong == 0, "%lld gradients are not the sum", (long long)wrong);
        update(&s);
    }
    EXPECT_OK(test, stream_sync(test->stream));
    fixture_close(&s);
}

/* A slice of every bucket is an element longer than its owner expects, where it fits, and its neighbor
 * shorter. */
static void wrong_cut(struct rank_test *test)
{
    struct fixture s;
    fixture_open(&s, test, true);
    struct bucket_plan *plan = &s.sharded.plan;
    for (int b = 0; b < plan->count; b++)
        for (int r = 1; r < plan->ranks; r++) {
            int64_t *counts = &plan->buckets[b].counts[r - 1];
            int longer = counts[0] % LINE != 0 ? 0 : 1;
            if (counts[longer] % LINE == 0 || counts[1 - longer] == 0)
                continue;
            counts[longer]++;
            counts[1 - longer]--;
            break;
        }
    // The ranks that can detect it depend on whose slices are moved: at least one must.
    double found[2] = {(double)forward_and_backward(&s), (double)step(&s)};
    struct buffer all = device_copy(test, found, sizeof found);
    MUST(group_all_reduce(test->all, test->stream, tensor_1d(all.data, F64, 2), REDUCE_SUM));
    host_copy(test, &all, found, sizeof found);
    expect(test, found[0] > 0.0 && found[1] > 0.0, "a wrong slice boundary was not detected");
    buffer_free(&all);
    fixture_close(&s);
}

/* Each layer is complete exactly once in a step, whatever the ZeRO stage. */
static void complete_once(struct rank_test *test)
{
    struct fixture s;
    fixture_open(&s, test, true);
    struct gradients *both[] = {s.whole.gradients, s.sharded.gradients};
    for (int k = 0; k < 2; k++) {
        EXPECT_OK(test, gradients_check(both[k]));
        EXPECT_OK(test, gradients_zero(both[k], test->stream));
        for (int i = 1; i < UNITS; i++)
            EXPECT_OK(test, gradients_mark_ready(both[k], test->stream, layers[i]));
        expect(test, gradients_mark_ready(both[k], test->stream, layers[1]) == BAD_ARGUMENT,
               "complete twice");
        expect(test, gradients_finish_reduce(both[k], test->stream) == BAD_ARGUMENT, "never complete");
        EXPECT_OK(test, gradients_mark_ready(both[k], test->stream, layers[0]));
        EXPECT_OK(test, gradients_finish_reduce(both[k], test->stream));
    }
    s.whole.layers[1].first++;
    expect(test, gradients_check(both[0]) == BAD_ARGUMENT, "a parameter without a layer");
    s.whole.layers[1].first--;
    struct param *row = (struct param *)(uintptr_t)s.sharded.list[1].param;
    row->mesh = MESH_EXPERT;
    expect(test, gradients_check(both[1]) == BAD_ARGUMENT, "two meshes in one bucket");
    row->mesh = MESH_DENSE;
    EXPECT_OK(test, stream_sync(test->stream));
    fixture_close(&s);
}

/* ---- two reduction groups ---- */

static int salt_of(const struct held_param *held)
{
    return 7 * held->index;
}

/* One microbatch, bucketed: every element of every gradient, in order of the layers. */
static void accumulate(struct rank_test *test, struct weights *w)
{
    for (int k = 0; k < UNITS; k++) {
        const struct held_layer *layer = weights_layer(w, layers[k]);
        EXPECT_OK(test, gradients_begin(w->gradients, test->stream, layers[k]));
        for (int i = layer->first; i < layer->first + layer->count; i++) {
            const struct held_param *held = &w->list[i];
            int64_t count = tensor_count(held->gradient);
            float *host = malloc((size_t)count * sizeof *host);
            for (int64_t e = 0; e < count; e++)
                host[e] = order_sensitive(test->world->rank, e, salt_of(held));
            MUST(copy_to_device(test->stream, held->gradient.data, host, (size_t)count * sizeof *host));
            MUST(stream_sync(test->stream));
            free(host);
        }
        EXPECT_OK(test, gradients_end(w->gradients, test->stream, layers[k], true));
    }
}

/* Elements that are not the sum over the ranks of a group. */
static int64_t wrong_sums(struct rank_test *test, const struct held_param *held, const struct group *group)
{
    int64_t count = tensor_count(held->gradient), wrong = 0;
    float *host = malloc((size_t)count * sizeof *host);
    MUST(copy_to_host(test->stream, host, held->gradient.data, (size_t)count * sizeof *host));
    MUST(stream_sync(test->stream));
    for (int64_t e = 0; e < count; e++) {
        float sum = order_sensitive(group->ranks[0], e, salt_of(held));
        for (int r = 1; r < group->size; r++)
            sum += order_sensitive(group->ranks[r], e, salt_of(held));
        wrong += memcmp(&sum, &host[e], sizeof sum) != 0;
    }
    free(host);
    return wrong;
}

/* A layer whose MLP is on the expert mesh: its gradients are summed over fewer ranks than those of
 * attention. */
static void two_groups(struct rank_test *test)
{
    int n = test->all->size;
    struct params params;
    struct mesh mesh;
    struct groups *groups = NULL;
    struct weights w;
    struct degrees degrees = {.tp = 1, .cp = 1, .ep = n % 2 == 0 ? 2 : n, .dp = n, .pp = 1};
    declare(test, &params);
    for (int i = 0; i < params.count; i++)
        params.list[i].mesh = strstr(params.list[i].name, ".mlp.") != NULL ? MESH_EXPERT : MESH_DENSE;
    MUST(mesh_create(degrees, NULL, &mesh));
    MUST(groups_create(test->world, &mesh, 1, &groups));
    struct data_parallel_options options = {.overlap_grad_reduce = true, .bucket_size_mb = 0.004};
    struct weights_config config = {.device = test->device,
                                    .params = &params,
                                    .layers = layers,
                                    .layer_count = UNITS,
                                    .training = true,
                                    .groups = groups,
                                    .options = &options};
    MUST(weights_create(&config, &w));
    EXPECT_OK(test, gradients_zero(w.gradients, test->stream));
    accumulate(test, &w);
    EXPECT_OK(test, gradients_finish_reduce(w.gradients, test->stream));
    for (int i = 0; i < w.count; i++) {
        const struct group *group = groups_of(groups, w.list[i].param->mesh).data;
        expect(test, w.list[i].param->mesh == MESH_DENSE ? group->size == n : group->size < n,
               "equal groups");
        int64_t wrong = wrong_sums(test, &w.list[i], group);
        expect(test, wrong == 0, "%lld elements of %s are not the sum over %d ranks", (long long)wrong,
               w.list[i].param->name, group->size);
    }
    weights_destroy(&w);
    groups_destroy(groups);
    params_free(&params);
}

/* ---- timing ---- */

/* Acquired on one stream and read on another; read after the release; not acquired at all. */
static void read_unsynchronized(struct rank_test *test, bool strict)
{
    struct fixture s;
    struct stream *other = NULL;
    int layer = layers[1], first;
    fixture_open(&s, test, false);
    params_of_layer(&s.params, layer, &first);
    struct tensor target = weights_held(&s.whole, first)->weight;
    struct tensor none = weights_held(&s.sharded, first)->weight;
    expect(test, copy(test->stream, (struct copy){.in = none, .out = target}) == BAD_ARGUMENT,
           "not acquired");

    MUST(stream_create(test->device, "other", &other));
    EXPECT_OK(test, weights_acquire(&s.sharded, test->stream, layer, layer));
    int64_t early = wrong_values(&s, other, layer);
    struct tensor kept = weights_held(&s.sharded, first)->weight;
    EXPECT_OK(test, weights_release(&s.sharded, test->stream, layer));
    EXPECT_OK(test, stream_sync(test->stream));
    int64_t late = differ(&s, test->stream, kept, target);
    expect(test, !strict || early > 0, "a read before the all-gather completed gave correct values");
    expect(test, !strict || late > 0, "a read after the release gave correct values");
    stream_destroy(other);
    fixture_close(&s);
}

static enum status body(struct world *world, void *argument)
{
    const struct run *run = argument;
    struct rank_test test;
    TRY(rank_test_open(&test, world, run));
    check_zero_3(&test, F32, true);
    check_zero_3(&test, F32, false);
    check_zero_3(&test, BF16, true);
    if (!UNDER_SANITIZER) // as bf16
        check_zero_3(&test, F16, false);
    wrong_cut(&test);
    complete_once(&test);
    two_groups(&test);
    read_unsynchronized(&test, strcmp(run->device, "strict") == 0);
    return rank_test_close(&test);
}

int main(int argc, char **argv)
{
    return run_all(argc, argv, body);
}
