// SPDX-License-Identifier: Apache-2.0
/* Every layer against the same layer in double precision on one rank (tests/support/reference_layers.h), in
 * worlds of 1, 2 and 4 tensor-parallel ranks, with and without sequence parallelism, with tensor-parallel
 * communication before and overlapped with the matmuls, for both model families, with dropout, documents and
 * replicated key/value heads. Outputs are compared with the reference's, gradients with its finite
 * differences: of L = <output, random>, or of the loss where a layer ends in one.
 *     |got - want| <= 8 sqrt(N) u s       u = 2^-24; N: terms of all sums, forward and backward
 * s is the element's size, or the rms of its tensor if that is larger (its sum may have canceled); a bias has
 * at least the size of its matrix's gradient. Gradients are reduced over ranks only where their descriptors
 * require it, which this tests too. Faults injected at the end must be detected.
 *     test_layers DEVICE...         the reference, which takes most of the time, is computed once for all */
#include "tests/ranks/layers/layers_bench.h"
#include "tests/support/sanitized.h"

#include "trainer/verify/bound.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(struct bench *b, const char *what, double ratio)
{
    int rank = b->world->rank;
    if (!(ratio > b->trial->ratio[rank]))
        return;
    b->trial->ratio[rank] = ratio;
    snprintf(b->trial->where[rank], sizeof b->trial->where[rank], "%s", what);
}

struct comparing {
    struct bench *bench;
    const char *what;
    const float *got, *also; // also: added to got, or NULL
    const double *want, *least;
    double factor, rms;
    int64_t columns;
};
static void compare_one(void *context, int64_t local, int64_t global)
{
    const struct comparing *c = context;
    double got = (double)c->got[local] + (c->also != NULL ? (double)c->also[local] : 0.0);
    double size = fmax(fmax(fabs(c->want[global]), c->rms), c->least != NULL ? c->least[global] : 0.0);
    double error = fabs(got - c->want[global]), bound = c->factor * size;
    note(c->bench, c->what, isnan(got) ? INFINITY : error > 0.0 ? error / bound : 0.0);
}

static double rms(const double *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return count > 0 ? sqrt(sum / (double)count) : 0.0;
}

/* count: of the global tensor. also: a second device array that is added to the first, or NULL. least: a size
 * per global element, or NULL. */
struct expectation {
    const char *what;
    const double *want, *least;
    int64_t count;
};
static enum status compare(struct bench *b, const struct window *w, const void *device, const void *also,
                           struct expectation e)
{
    int64_t n = w->rows * window_columns(w);
    float *host = calloc((size_t)(2 * n) + 1, sizeof *host);
    if (host == NULL)
        return fail(NO_MEMORY, "no memory for a tensor");
    size_t bytes = (size_t)n * sizeof *host;
    enum status status = copy_to_host(b->stream, host, device, bytes);
    if (status == OK && also != NULL)
        status = copy_to_host(b->stream, host + n, also, bytes);
    if (status == OK)
        status = stream_sync(b->stream);
    struct comparing c = {
        .bench = b,
        .what = e.what,
        .got = host,
        .also = also != NULL ? host + n : NULL,
        .want = e.want,
        .least = e.least,
        .factor = 8.0 * 0x1p-24 * sqrt(terms_of(b->context.model, b->subject)),
        .rms = rms(e.want, e.count),
    };
    if (status == OK)
        window_walk(w, &c, compare_one);
    free(host);
    return status;
}

/* ---- a rank ---- */

/* Reduces gradients over ranks as the rows require. */
static enum status add_partials(struct bench *b)
{
    for (int i = 0; i < b->weights.count && b->trial->fault != PARTIAL_SUMS_LEFT; i++) {
        const struct held_param *held = &b->weights.list[i];
        struct tensor flat = tensor_1d(held->gradient.data, F32, tensor_count(held->gradient));
        if (held->param->partial != PARTIAL_NONE)
            TRY(group_all_reduce(held->param->partial == PARTIAL_TP ? b->groups->tp : b->groups->kv,
                                 b->stream, flat, REDUCE_SUM));
    }
    return OK;
}

/* For each element of a bias the rms of its matrix's row of gradients; NULL for other rows. */
static double *least_sizes(const struct expected *e, int row)
{
    int matrix = bound_companion(&e->params, row);
    if (matrix < 0 || e->gradient[matrix] == NULL)
        return NULL;
    int64_t rows = e->params.list[matrix].dim[0], columns = e->params.list[matrix].dim[1];
    double *least = calloc((size_t)rows, sizeof *least);
    for (int64_t i = 0; least != NULL && i < rows; i++)
        least[i] = rms(e->gradient[matrix] + i * columns, columns);
    return least;
}

/* Rows of other layers must have stayed zero. */
static enum status compare_gradient(struct bench *b, const struct held_param *held)
{
    const struct expected *e = b->trial->expected;
    int64_t count = held->param->dim[0] * held->param->dim[1];
    struct window w = window_of_slice(held);
    const void *also = NULL;
    for (int i = 0; i < b->weights.count && b->subject == WHOLE; i++)
        if (b->weights.list[i].param->tie == held->index)
            also = b->weights.list[i].gradient.data;
    double *zeros = calloc((size_t)count, sizeof *zeros), *least = least_sizes(e, held->index);
    struct expectation expectation = {.what = held->param->name,
                                      .want =
                                          e->gradient[held->index] != NULL ? e->gradient[held->index] : zeros,
                                      .least = least,
                                      .count = count};
    enum status status = zeros != NULL ? compare(b, &w, held->gradient.data, also, expectation)
                                       : fail(NO_MEMORY, "no memory for zeros");
    free(zeros);
    free(least);
    return status;
}

static enum status compare_loss(struct bench *b)
{
    double sums[2 * B], want = b->trial->expected->l, tokens = 0.0;
    TRY(copy_to_host(b->stream, sums, b->sums.data, sizeof sums));
    TRY(stream_sync(b->stream));
    for (int t = 0; t < T; t++)
        tokens += (double)b->trial->expected->numbers.mask[t];
    double bound = 8.0 * 0x1p-24 * sqrt(terms_of(b->context.model, b->subject)) * fabs(want);
    double ratio = fabs(sums[0] + sums[1] - want) / bound;
    note(b, "loss", isnan(ratio) || sums[2] + sums[3] != tokens ? INFINITY : ratio);
    return OK;
}

/* Writes the gradient of y to `dy`. Ranks that hold the same key/value heads each have the gradient of their
 * own query heads: here the first one has all of it, and the others have none. */
static enum status write_gradient(struct bench *b, const struct window *to, void *dy)
{
    const struct expected *e = b->trial->expected;
    int64_t count = T * to->width, q = params_find(&b->params, "layers.0.attention.q.weight");
    double *mine = calloc((size_t)count + 1, sizeof *mine);
    if (mine == NULL)
        return fail(NO_MEMORY, "no memory for a gradient");
    for (int64_t i = 0; i < count; i++)
        mine[i] = e->random[i];
    for (int run = 0; run < to->runs && facts[b->subject].out == FUSED; run++)
        for (int64_t t = 0; t < T && !weights_held(&b->weights, (int)q + run)->slice.first_replica; t++)
            memset(mine + t * to->width + to->begin[run], 0, (size_t)to->count[run] * sizeof *mine);
    enum status status = bench_write(b, to, mine, dy);
    free(mine);
    return status;
}

static enum status run_layer(struct bench *b)
{
    const struct expected *e = b->trial->expected;
    enum shape in = facts[b->subject].in, out = facts[b->subject].out;
    struct window from = window_of(b, in), to = window_of(b, out), residual = window_of(b, HIDDEN);
    const struct window *back = in == NONE ? &residual : &from;
    struct tensor x = tensor_2d(b->x.data, F32, from.rows, window_columns(&from)), y, dy, dx;
    y = tensor_2d(b->y.data, F32, to.rows, window_columns(&to));
    dy = tensor_2d(b->dy.data, F32, to.rows, window_columns(&to));
    dx = tensor_2d(b->dx.data, F32, back->rows, window_columns(back));
    TRY(bench_write(b, &from, e->x, x.data));
    TRY(write_gradient(b, &to, dy.data));

    TRY(bench_forward(b, x, &y));
    if (out == LOSS)
        TRY(compare_loss(b));
    else
        TRY(compare(b, &to, y.data, NULL, (struct expectation){"output", e->y, NULL, T * to.width}));
    TRY(bench_backward_input(b, x, dy, &dx));
    if (in != NONE)
        TRY(compare(b, &from, dx.data, NULL, (struct expectation){"dx", e->dx, NULL, T * from.width}));
    TRY(bench_backward_weight(b, x, dy));
    TRY(add_partials(b));
    for (int i = 0; i < b->weights.count; i++)
        if (!(b->subject == WHOLE && b->weights.list[i].param->tie >= 0))
            TRY(compare_gradient(b, &b->weights.list[i]));
    return OK;
}

static enum status rank_body(struct world *world, void *argument)
{
    struct bench bench;
    enum status status = bench_open(argument, world, &bench);
    if (status == OK)
        status = run_layer(&bench);
    bench_close(&bench);
    return status;
}

/* ---- main ---- */

/* Layouts of a layer. */
struct layer_layout {
    int tp;
    bool sequence_parallel, comm_stream;
};

/* The largest error / bound of all ranks; -1 if it could not be run. */
static double try_layer(const struct expected *expected, const char *device, struct layer_layout sharing,
                        enum fault fault, char where[PARAM_NAME_CHARS])
{
    int tp = sharing.tp;
    struct trial trial = {.expected = expected,
                          .device = device,
                          .sequence_parallel = sharing.sequence_parallel,
                          .comm_stream = sharing.comm_stream,
                          .fault = fault};
    if (world_run("local", tp, rank_body, &trial) != OK) {
        printf("  FAILED: %s\n", fail_text());
        return -1.0;
    }
    int worst = 0;
    for (int rank = 1; rank < tp; rank++)
        if (trial.ratio[rank] > trial.ratio[worst])
            worst = rank;
    memcpy(where, trial.where[worst], PARAM_NAME_CHARS);
    return trial.ratio[worst];
}

static int check_device(const struct expected *expected, const char *device)
{
    static const struct layer_layout worlds[] = {{.tp = 1},
                                                 {.tp = 2},
                                                 {.tp = 2, .sequence_parallel = true},
                                                 {.tp = 4},
                                                 {.tp = 4, .sequence_parallel = true},
                                                 {.tp = 2, .sequence_parallel = true, .comm_stream = true},
                                                 {.tp = 4, .sequence_parallel = true, .comm_stream = true}};
    int bad = 0;
    printf("  %-14s %-6s", facts[expected->subject].name, device);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        // Every third world, others for the next layer, family, and device (of another second letter).
        const size_t turn = (size_t)(expected->family - families) + (size_t)expected->subject + i;
        if (!long_tests() && (turn + (size_t)device[1]) % 3 != 0) {
            printf("       ");
            continue;
        }
        char where[PARAM_NAME_CHARS] = "";
        double ratio = try_layer(expected, device, worlds[i], NO_FAULT, where);
        bool good = ratio >= 0.0 && ratio <= 1.0;
        printf("  %.3f%s%s", ratio, good ? "" : " WRONG ", good ? "" : where);
        bad += !good;
    }
    printf("\n");
    return bad;
}

static int check_subject(const struct family *family, enum subject subject, char *const *devices)
{
    struct expected expected;
    int bad = 0;
    expected_create(family, subject, &expected);
    expected_solve(&expected);
    for (int i = 0; devices[i] != NULL; i++)
        bad += check_device(&expected, devices[i]);
    expected_destroy(&expected);
    return bad;
}

static int check_faults(char *const *devices)
{
    static const struct {
        const char *what;
        int family;
        enum subject subject;
        struct layer_layout sharing;
        enum fault fault;
    } faults[] = {
        {"a norm's sums over ranks left out", 0, NORM, {2, true, false}, PARTIAL_SUMS_LEFT},
        {"positions' sums over ranks left out", 0, EMBEDDING, {2, true, false}, PARTIAL_SUMS_LEFT},
        {"a last bias's sum over ranks left out", 0, BLOCK, {4, true, false}, PARTIAL_SUMS_LEFT},
        {"sums of replicated heads left out", 2, ATTENTION, {4, false, false}, PARTIAL_SUMS_LEFT},
        {"the sums over ranks of the norms of q and k left out",
         4,
         ATTENTION,
         {2, false, false},
         PARTIAL_SUMS_LEFT},
        {"the sums over ranks of a norm of the embedding left out",
         5,
         EMBEDDING,
         {2, true, false},
         PARTIAL_SUMS_LEFT},
        {"a shared norm's sums over ranks left out", 5, BLOCK, {2, true, false}, PARTIAL_SUMS_LEFT},
        {"one branch left out of a shared norm's gradient", 5, BLOCK, {1, false, false}, BRANCH_LEFT_OUT},
        {"one branch twice in a shared norm's gradient", 5, BLOCK, {2, true, false}, BRANCH_ADDED_TWICE},
        {"gate and up swapped on one rank", 3, MLP, {2, false, false}, SWAPPED_GATE},
        {"dropout of the next samples", 1, BLOCK, {2, false, false}, OTHER_SAMPLES},
        {"two positions swapped, learned", 0, EMBEDDING, {1, false, false}, OTHER_POSITIONS},
        {"two positions swapped, rotary", 2, ATTENTION, {2, true, false}, OTHER_POSITIONS},
    };
    int bad = 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct expected expected;
        expected_create(&families[faults[i].family], faults[i].subject, &expected);
        expected_solve(&expected);
        for (int d = 0; devices[d] != NULL; d++) {
            char where[PARAM_NAME_CHARS] = "";
            double ratio = try_layer(&expected, devices[d], faults[i].sharing, faults[i].fault, where);
            printf("  %s, %s: %.2g (%s)%s\n", faults[i].what, devices[d], ratio, where,
                   ratio > 1.0 ? "" : " NOT DETECTED");
            bad += !(ratio > 1.0);
        }
        expected_destroy(&expected);
    }
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_layers DEVICE...\n");
        return 2;
    }
    int bad = 0;
    printf("largest error / bound at tp 1, 2, 2 sequence parallel, 4, 4 sequence parallel; "
           "2 and 4 with overlapped communication\n");
    for (int f = 0; f < FAMILIES; f++) {
        printf("%s\n", families[f].name);
        for (int subject = 0; subject < SUBJECTS; subject++)
            bad += check_subject(&families[f], (enum subject)subject, argv + 1);
    }
    if (!UNDER_SANITIZER) { // it would only repeat that wrong values are found
        printf("injected faults\n");
        bad += check_faults(argv + 1);
    }
    printf("%s\n", bad == 0 ? "all passed" : "FAILED");
    return bad == 0 ? 0 : 1;
}
