// SPDX-License-Identifier: Apache-2.0
/* Attention in bf16 and f16 against S x S matrices in double precision, head dimensions 64 and 128. On the
 * cuda device these shapes use tensor cores, with full, partial and masked tiles: the wgmma kernels
 * (kernels/cuda/attention/attention_wgmma*.cu), on a GPU that has them, and mma.sync (attention_mma.cu).
 * Terms of a bound:
 *
 * - u: one rounding to bf16 or f16, 2^-8 or 2^-11 relative: of weights and their gradients, which tensor
 *   cores take in the operand type, and of results
 * - TINY: the same for f16 subnormals, absolute: 2^-25
 * - rest: all fp32 arithmetic; so far below u that a simple bound suffices */
#include "tests/support/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY 0x1p-25

struct shape {
    int64_t batch, sequence, heads, groups, head_dim;
    int documents; // length of each, 0: none
    float dropout;
    struct attention_variant variant;
};

/* 128 rows per block, 32 to 128 columns per tile, up to four tiles in flight. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 128, 0, 0.0F, {0}},
    {2, 64, 2, 1, 64, 0, 0.0F, {0}},
    {1, 210, 2, 1, 64, 70, 0.0F, {0}},
    {1, 132, 2, 2, 128, 0, 0.25F, {0}},
    {1, 130, 4, 2, 64, 50, 0.25F, {0}},
    {2, 133, 2, 1, 128, 1, 0.0F, {0}},
    {1, 164, 3, 1, 64, 0, 0.25F, {0}},
    {1, 300, 2, 1, 64, 0, 0.0F, {.window = 100}},
    {1, 290, 2, 2, 128, 120, 0.25F, {.window = 33, .alibi_heads = 12, .alibi_begin = 6}},
    {1, 140, 4, 2, 64, 0, 0.0F, {.alibi_heads = 16, .alibi_begin = 2}},
    {1, 150, 4, 2, 64, 60, 0.25F, {.window = 40, .softcap = 1.5F}},
    {1, 70, 2, 1, 128, 0, 0.0F, {.alibi_heads = 2, .softcap = 2.0F}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct trial {
    struct fixture fixture;
    struct shape shape;
    enum dtype dtype;
    bool rounds_heads;                  // rounds each head's dk and dv before adding those of a group:
                                        // cuDNN's
    int64_t tokens, width, group_width; // A*D, G*D
    struct attention_backward op;       // including forward
    struct reference_attention reference;
    double *dout, *weights, *lse, *out, *dq, *dk, *dv; // of the reference
};

/* Normally distributed, or NaN without a name. */
static struct tensor matrix(struct trial *c, const char *name, int64_t rows, int64_t columns)
{
    uint16_t *data = fixture_shorts(&c->fixture, rows * columns);
    const float *from = name != NULL ? fixture_normals(&c->fixture, name, rows * columns, 1.0) : NULL;
    for (int64_t i = 0; from != NULL && i < rows * columns; i++)
        data[i] = narrow_nearest(c->dtype, from[i]);
    return tensor_2d(data, c->dtype, rows, columns);
}

static double *widened(struct trial *c, struct tensor t)
{
    double *out = fixture_doubles(&c->fixture, t.dim[0] * t.dim[1]);
    for (int64_t i = 0; i < t.dim[0] * t.dim[1]; i++)
        out[i] = narrow_value(t.dtype, ((const uint16_t *)t.data)[i / t.dim[1] * t.stride[0] + i % t.dim[1]]);
    return out;
}

/* q, k and v are columns of one matrix, as in the model; the gradients too. */
static void lay_out(struct trial *c)
{
    int64_t a = c->width, g = a + c->group_width, columns = g + c->group_width;
    struct tensor qkv = matrix(c, "qkv", c->tokens, columns), gradient = matrix(c, NULL, c->tokens, columns);
    struct attention_forward *f = &c->op.forward;
    *f = (struct attention_forward){
        .batch = c->shape.batch, .sequence = c->shape.sequence, .head_dim = c->shape.head_dim};
    f->scale = 1.0F / sqrtf((float)c->shape.head_dim);
    attention_variant_set(&c->shape.variant, f);
    f->q = tensor_columns(qkv, 0, a);
    f->k = tensor_columns(qkv, a, g);
    f->v = tensor_columns(qkv, g, columns);
    f->out = matrix(c, NULL, c->tokens, a);
    f->lse =
        tensor_2d(fixture_floats(&c->fixture, c->shape.heads * c->tokens), F32, c->shape.heads, c->tokens);
    c->op.dout = matrix(c, "dout", c->tokens, a);
    c->op.dq = tensor_columns(gradient, 0, a);
    c->op.dk = tensor_columns(gradient, a, g);
    c->op.dv = tensor_columns(gradient, g, columns);
    int64_t *sample = fixture_longs(&c->fixture, c->tokens);
    int32_t *document = fixture_ints(&c->fixture, c->tokens);
    for (int64_t t = 0; t < c->tokens; t++) {
        sample[t] = 1000 + t / c->shape.sequence;
        document[t] = c->shape.documents > 0 ? (int32_t)(t % c->shape.sequence / c->shape.documents) : 0;
    }
    f->document = c->shape.documents > 0 ? document : NULL;
    f->dropout = (struct dropout){.probability = c->shape.dropout,
                                  .generator = philox_named(7, "attention"),
                                  .sample = sample,
                                  .columns = c->shape.sequence,
                                  .column_begin = 3}; // this rank's heads begin at the fourth
}

static void make_reference(struct trial *c)
{
    const struct attention_forward *f = &c->op.forward;
    const struct shape *s = &c->shape;
    int64_t square = s->sequence * s->sequence, pairs = s->batch * s->heads * square;
    double *factor = NULL;
    if (s->dropout > 0.0F) {
        factor = fixture_doubles(&c->fixture, pairs);
        for (int64_t i = 0; i < pairs; i++)
            factor[i] = reference_attention_dropout(f, i / square / s->heads, i / square % s->heads,
                                                    i / s->sequence % s->sequence, i % s->sequence);
    }
    c->reference = (struct reference_attention){.batch = s->batch,
                                                .sequence = s->sequence,
                                                .heads = s->heads,
                                                .groups = s->groups,
                                                .head_dim = s->head_dim,
                                                .variant = s->variant,
                                                .scale = (double)f->scale,
                                                .document = f->document,
                                                .q = widened(c, f->q),
                                                .k = widened(c, f->k),
                                                .v = widened(c, f->v),
                                                .factor = factor};
    c->dout = widened(c, c->op.dout);
    c->weights = fixture_doubles(&c->fixture, pairs);
    c->lse = fixture_doubles(&c->fixture, s->heads * c->tokens);
    c->out = fixture_doubles(&c->fixture, c->tokens * c->width);
    c->dq = fixture_doubles(&c->fixture, c->tokens * c->width);
    c->dk = fixture_doubles(&c->fixture, c->tokens * c->group_width);
    c->dv = fixture_doubles(&c->fixture, c->tokens * c->group_width);
    reference_attention_weights(&c->reference, c->weights, c->lse);
    reference_attention_forward(&c->reference, c->out);
    reference_attention_backward(&c->reference, c->dout, c->dq, c->dk, c->dv);
}

static struct trial trial_of(struct shape shape, enum dtype dtype)
{
    struct trial c = {
        .fixture = fixture_open(1), .shape = shape, .dtype = dtype, .tokens = shape.batch * shape.sequence};
    c.width = shape.heads * shape.head_dim;
    c.group_width = shape.groups * shape.head_dim;
    lay_out(&c);
    make_reference(&c);
    return c;
}

static void run_forward(struct trial *c)
{
    cr_assert_eq(attention_forward(c->fixture.stream, c->op.forward), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(c->fixture.stream), OK);
}

/* The backward pass reads the reference's out and lse, rounded, which excludes forward's errors. */
static void run_backward(struct trial *c)
{
    for (int64_t i = 0; i < c->tokens * c->width; i++)
        ((uint16_t *)c->op.forward.out.data)[i] = narrow_nearest(c->dtype, (float)c->out[i]);
    for (int64_t i = 0; i < c->shape.heads * c->tokens; i++)
        ((float *)c->op.forward.lse.data)[i] = (float)c->lse[i];
    cr_assert_eq(attention_backward(c->fixture.stream, c->op), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(c->fixture.stream), OK);
}

/* The relative fp32 error of a weight e^(s - lse): its score's D products, scaling and difference to lse, e^x
 * itself (4 units), and for forward the sum of S and its rescaling at every tile. */
static double rest(const struct trial *c, int64_t b, int64_t h, int64_t s, int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence;
    const double *q = a->q + ((t + s) * a->heads + h) * d,
                 *k = a->k + ((t + r) * a->groups + h / (a->heads / a->groups)) * d;
    double size = 0.0, n = (double)a->sequence;
    for (int64_t i = 0; i < d; i++)
        size += fabs(q[i] * k[i]);
    return UNIT * ((double)(d + 6) * size * a->scale + 4.0 * fabs(c->lse[h * c->tokens + t + s]) + n / 4.0 +
                   3.0 * n + 16.0);
}

static int64_t outside(struct trial *c, struct tensor got, const double *want, const double *bound,
                       const char *what)
{
    const double *values = widened(c, got);
    int64_t wrong = 0;
    double worst = 0.0;
    for (int64_t i = 0; i < got.dim[0] * got.dim[1]; i++) {
        double error = fabs(values[i] - want[i]);
        wrong += !(error <= bound[i]);
        worst = fmax(worst, bound[i] > 0.0 ? error / bound[i] : 0.0);
    }
    if (getenv("SHOW_WORST") != NULL)
        fprintf(stderr, "%s: largest error %.3f of its bound\n", what, worst);
    return wrong;
}

static double *zeros(struct trial *c, int64_t count)
{
    double *x = fixture_doubles(&c->fixture, count);
    memset(x, 0, (size_t)count * sizeof *x);
    return x;
}

/* out: each weight rounded, times its value; then out itself. */
static int64_t forward_outside(struct trial *c)
{
    const struct reference_attention *a = &c->reference;
    double u = narrow_unit(c->dtype), *bound = zeros(c, c->tokens * c->width);
    int64_t wrong = 0, d = a->head_dim;
    for (int64_t row = 0; row < a->batch * a->heads * a->sequence; row++) {
        int64_t s = row % a->sequence, h = row / a->sequence % a->heads, b = row / a->sequence / a->heads;
        int64_t token = b * a->sequence + s, at = (token * a->heads + h) * d, pair = row * a->sequence;
        double common = 0.0;
        for (int64_t r = 0; r <= s; r++)
            common += c->weights[pair + r] * rest(c, b, h, s, r);
        for (int64_t r = 0; r <= s; r++) {
            const double *v = a->v + ((b * a->sequence + r) * a->groups + h / (a->heads / a->groups)) * d;
            double factor = a->factor != NULL ? a->factor[pair + r] : 1.0, p = c->weights[pair + r];
            double error = p * (u + common + rest(c, b, h, s, r)) + (p > 0.0 ? TINY : 0.0);
            for (int64_t j = 0; j < d; j++)
                bound[at + j] += factor * error * fabs(v[j]);
        }
        for (int64_t j = 0; j < d; j++)
            bound[at + j] = (bound[at + j] + u * fabs(c->out[at + j])) * (1.0 + 4.0 * u) + TINY;
        double got = (double)((float *)c->op.forward.lse.data)[h * c->tokens + token];
        wrong += !(fabs(got - c->lse[h * c->tokens + token]) <= common);
    }
    return wrong + outside(c, c->op.forward.out, c->out, bound, "out");
}

struct bounds {
    double *dq, *dk, *dv;
};

/* One pair's contribution. dq, dk: each ds rounded, and delta computed from the rounded out; dv: each weight
 * rounded. */
static void add_pair(const struct trial *c, const struct bounds *bound, int64_t b, int64_t h, int64_t s,
                     int64_t r)
{
    const struct reference_attention *a = &c->reference;
    int64_t d = a->head_dim, t = b * a->sequence, group = h / (a->heads / a->groups);
    int64_t pair = ((b * a->heads + h) * a->sequence + s) * a->sequence + r;
    int64_t q = ((t + s) * a->heads + h) * d, k = ((t + r) * a->groups + group) * d;
    double u = narrow_unit(c->dtype), p = c->weights[pair],
           factor = a->factor != NULL ? a->factor[pair] : 1.0;
    double dp = 0.0, dp_size = 0.0, delta = 0.0, delta_size = 0.0;
    if (p == 0.0)
        return;
    for (int64_t i = 0; i < d; i++) {
        dp += c->dout[q + i] * a->v[k + i] * factor;
        dp_size += fabs(c->dout[q + i] * a->v[k + i]) * factor;
        delta += c->dout[q + i] * c->out[q + i];
        delta_size += fabs(c->dout[q + i] * c->out[q + i]);
    }
    double fp32 = rest(c, b, h, s, r) + UNIT * (double)(3 * a->heads * a->sequence);
    double head = c->rounds_heads ? u * (1.0 + 4.0 * u) : 0.0;
    double ds_error = p * fabs(dp - delta) * (u + fp32) + p * delta_size * u +
                      p * UNIT * (double)(d + 4) * (dp_size + delta_size) + TINY;
    for (int64_t i = 0; i < d; i++) {
        bound->dq[q + i] += a->scale * fabs(a->k[k + i]) * ds_error;
        bound->dk[k + i] += a->scale * fabs(a->q[q + i]) * (ds_error + head * p * fabs(dp - delta));
        bound->dv[k + i] += factor * fabs(c->dout[q + i]) * (p * (u + fp32 + head) + TINY);
    }
}

static int64_t gradient_outside(struct trial *c, struct tensor got, const double *want, double *bound,
                                const char *what)
{
    double u = narrow_unit(c->dtype);
    for (int64_t i = 0; i < got.dim[0] * got.dim[1]; i++)
        if (bound[i] > 0.0) // a masked pair contributes nothing
            bound[i] = (bound[i] + u * fabs(want[i])) * (1.0 + 4.0 * u) + TINY;
    return outside(c, got, want, bound, what);
}

static int64_t backward_outside(struct trial *c)
{
    const struct reference_attention *a = &c->reference;
    struct bounds bound = {zeros(c, c->tokens * c->width), zeros(c, c->tokens * c->group_width),
                           zeros(c, c->tokens * c->group_width)};
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t s = 0; s < a->sequence; s++)
                for (int64_t r = 0; r <= s; r++)
                    add_pair(c, &bound, b, h, s, r);
    return gradient_outside(c, c->op.dq, c->dq, bound.dq, "dq") +
           gradient_outside(c, c->op.dk, c->dk, bound.dk, "dk") +
           gradient_outside(c, c->op.dv, c->dv, bound.dv, "dv");
}

static void compare(struct shape s, enum dtype dtype)
{
    char what[120];
    struct trial c = trial_of(s, dtype);
    snprintf(what, sizeof what, "%s, %lld x %lld tokens, %lld heads of %lld in %lld groups",
             dtype_name(dtype), (long long)s.batch, (long long)s.sequence, (long long)s.heads,
             (long long)s.head_dim, (long long)s.groups);
    run_forward(&c);
    cr_expect_eq(forward_outside(&c), 0, "forward, %s", what);
    run_backward(&c);
    cr_expect_eq(backward_outside(&c), 0, "backward, %s", what);
    cr_expect(fixture_shorts_are_guarded(c.op.forward.out.data, c.tokens * c.width));
    cr_expect(fixture_shorts_are_guarded(c.op.dq.data, c.tokens * (c.width + 2 * c.group_width)));
    fixture_close(&c.fixture);
}

/* The kernels that compute capability 9.0 selects, and those of every GPU; one kind elsewhere.
 * CUBOID_TEST_KIND selects a single one: if one hangs, the other can still be tested. */
static const char *const kinds[] = {"own", "mma"};
static int kind_count(void)
{
    return fixture_is_emulated || getenv("CUBOID_TEST_DEVICE") != NULL ? 2 : 1; // 1: the cpu
}

static bool is_selected(int kind)
{
    const char *only = getenv("CUBOID_TEST_KIND");
    const bool taken = only == NULL || strcmp(only, kinds[kind]) == 0;
    if (taken)
        setenv("CUBOID_TEST_ATTENTION", kinds[kind], 1);
    return taken;
}

Test(attention_narrow, matches_attention)
{
    for (int kind = 0; kind < kind_count(); kind++) {
        for (int i = 0; i < (fixture_runs_few() ? 3 : SHAPES) && is_selected(kind); i++)
            compare(shapes[i], BF16);
        if (is_selected(kind))
            compare(shapes[4], F16);
    }
}

/* So many tiles that pipeline stages are reused: a stage released too early shows when the producer runs
 * first, and a missing wait when one of the others is slow. (Half of them in tools/test, but on a GPU.) */
Test(attention_narrow, long_sequences_wrap_around_the_tile_ring)
{
    static const struct {
        struct shape shape;
        enum dtype dtype;
        const char *order;
    } runs[] = {{{1, 450, 2, 1, 128, 0, 0.0F, {0}}, BF16, "forward"},
                {{1, 700, 1, 1, 64, 300, 0.0F, {0}}, F16, "reverse"},
                {{2, 400, 1, 1, 128, 0, 0.25F, {0}}, BF16, "forward"},
                {{1, 700, 1, 1, 64, 0, 0.0F, {0}}, BF16, "7"}};
    const bool few = fixture_runs_few() || (kind_count() == 1 && !long_tests());
    for (int i = few ? 1 : 0; i < (UNDER_SANITIZER ? 2 : 4) && is_selected(0); i += few ? 2 : 1) {
        setenv("EMULATOR_ORDER", runs[i].order, 1);
        compare(runs[i].shape, runs[i].dtype);
    }
}

/* The sm_90a kernels launch one block per multiprocessor, each of which loops over work tiles: at least 400
 * work tiles per pass, for as many blocks as the GPU has, with a few tiles each, and for so few that each has
 * hundreds. This covers all combinations of barrier phases, stages, and loads of the next tile during stores
 * of the previous; only some blocks have a last round. The emulator takes about 5 ms of a core per work tile
 * with head dimension 64 and 10 ms with 128, minutes in all. With 2 multiprocessors and a limit it runs all
 * cases, in tools/test but the first two, with fewer sequences and heads, for several rounds per block; with
 * more and no limit the first, of 3 or 4 work tiles per block, in tools/test a quarter of it. */
Test(attention_narrow, blocks_loop_over_hundreds_of_work_tiles)
{
    static const struct {
        struct shape shape;
        enum dtype dtype;
        const char *blocks, *order;
        int64_t batch, heads, groups; // of the emulator's case with 2 multiprocessors
    } runs[] = {
        {{25, 5, 16, 16, 64, 0, 0.0F, {0}}, BF16, "3", "7", 4, 8, 8}, // one tile each, 400 work tiles
        {{25, 9, 16, 16, 64, 0, 0.0F, {0}}, F16, "0", "7", 3, 8, 8},
        {{1, 137, 8, 4, 128, 50, 0.25F, {0}}, BF16, "1", "reverse", 1, 8, 4},
        // Two tiles of rows in the backward pass.
        {{1, 137, 202, 202, 64, 0, 0.0F, {0}}, F16, "3", "11", 1, 8, 8},
        {{67, 11, 12, 6, 64, 4, 0.25F, {0}}, BF16, "7", "7", 4, 12, 6}, // shared keys, documents, dropout
        {{25, 5, 16, 16, 128, 0, 0.0F, {0}}, F16, "1", "7", 2, 8, 8},
        {{67, 11, 12, 6, 128, 4, 0.25F, {0}}, BF16, "0", "7", 3, 6, 3},
    };
    const bool limited = !fixture_is_emulated || getenv("EMULATOR_PROCESSORS") == NULL;
    // (The cpu has no such blocks.)
    const int count = UNDER_SANITIZER || kind_count() == 1 ? 0 : limited ? sizeof runs / sizeof *runs : 1;
    for (int i = limited && fixture_runs_few() ? 2 : 0; i < count && is_selected(0); i++) {
        struct shape shape = runs[i].shape;
        if (fixture_is_emulated && limited) {
            shape.batch = runs[i].batch;
            shape.heads = runs[i].heads;
            shape.groups = runs[i].groups;
        } else if (fixture_is_emulated && !long_tests()) {
            setenv("EMULATOR_PROCESSORS", "33", 1);
            shape.batch = 7;
        }
        setenv("CUBOID_TEST_BLOCKS", limited ? runs[i].blocks : "0", 1);
        setenv("EMULATOR_ORDER", runs[i].order, 1);
        compare(shape, runs[i].dtype);
    }
    unsetenv("CUBOID_TEST_BLOCKS");
}

/* A trial after its backward pass, and a copy of its forward output. */
struct computed {
    struct trial c;
    uint16_t *out;
};

static struct computed computed_of(struct shape shape)
{
    struct computed done = {.c = trial_of(shape, BF16)};
    const int64_t count = done.c.tokens * done.c.width;
    done.out = fixture_shorts(&done.c.fixture, count);
    run_forward(&done.c);
    memcpy(done.out, done.c.op.forward.out.data, (size_t)count * sizeof *done.out);
    run_backward(&done.c);
    return done;
}

static void expect_same_bits(const struct computed *a, const struct computed *b, const char *what)
{
    const size_t tokens = (size_t)a->c.tokens * sizeof(uint16_t), q = (size_t)a->c.width;
    cr_expect_eq(memcmp(a->out, b->out, tokens * q), 0, "%s", what);
    cr_expect_eq(memcmp(a->c.op.dq.data, b->c.op.dq.data, tokens * (q + 2 * (size_t)a->c.group_width)), 0,
                 "%s", what);
}

/* One block that runs all work tiles gives the same bits as one block per tile. */
Test(attention_narrow, bits_do_not_depend_on_the_number_of_blocks)
{
    static const char *const blocks[] = {"1", "2", "1000000"};
    struct computed done[3];
    if (!is_selected(0))
        return;
    for (int i = 0; i < 3; i++) {
        setenv("CUBOID_TEST_BLOCKS", blocks[i], 1);
        done[i] = computed_of((struct shape){1, 200, 2, 1, 64, 70, 0.25F, {0}});
    }
    for (int i = 1; i < 3; i++)
        expect_same_bits(&done[0], &done[i], blocks[i]);
    for (int i = 0; i < 3; i++)
        fixture_close(&done[i].c.fixture);
    unsetenv("CUBOID_TEST_BLOCKS");
}

enum { ALONE = 200 }; // tokens of one sequence of one head of 64
struct results {
    uint16_t out[ALONE * 64], gradient[ALONE * 3 * 64];
};

/* With q, k and v as columns of a wider matrix. */
static void compute(struct results *to, int64_t more, const char *kind)
{
    setenv("CUBOID_TEST_ATTENTION", kind, 1);
    struct trial c = trial_of((struct shape){1, ALONE, 1, 1, 64, 0, 0.0F, {0}}, BF16);
    const struct tensor qkv = matrix(&c, "qkv", c.tokens, 3 * 64 + more);
    c.op.forward.q = tensor_columns(qkv, 0, 64);
    c.op.forward.k = tensor_columns(qkv, 64, 128);
    c.op.forward.v = tensor_columns(qkv, 128, 192);
    run_forward(&c);
    memcpy(to->out, c.op.forward.out.data, sizeof to->out);
    run_backward(&c);
    memcpy(to->gradient, c.op.dq.data, sizeof to->gradient);
    fixture_close(&c.fixture);
}

/* Their sums have different orders, so the bits show which of the two has run. */
Test(attention_narrow, uses_sm_90_kernels_on_sm_90)
{
    struct results got, mma;
    if (!fixture_is_emulated)
        return;
    compute(&got, 0, "own");
    compute(&mma, 0, "mma");
    cr_expect_neq(memcmp(got.out, mma.out, sizeof mma.out), 0);
    cr_expect_neq(memcmp(got.gradient, mma.gradient, sizeof mma.gradient), 0);
    setenv("EMULATOR_CAPABILITY", "8.0", 1);
    compute(&got, 0, "own");
    cr_expect_eq(memcmp(&got, &mma, sizeof mma), 0, "a GPU of 8.0");
    setenv("EMULATOR_CAPABILITY", "10.0", 1);
    compute(&got, 0, "own");
    cr_expect_eq(memcmp(&got, &mma, sizeof mma), 0, "a GPU of 10.0");
    unsetenv("EMULATOR_CAPABILITY");
    compute(&got, 8, "own"); // the row stride is not a multiple of a head
    compute(&mma, 8, "mma");
    cr_expect_eq(memcmp(&got, &mma, sizeof mma), 0, "a row stride that no tensor map supports");
}

/* Compute capability 8.6 and 8.9 have 99 KiB of shared memory per block. */
Test(attention_narrow, fits_in_little_shared_memory)
{
    if (!fixture_is_emulated)
        return;
    setenv("EMULATOR_CAPABILITY", "8.9", 1);
    setenv("CUBOID_TEST_ATTENTION", "own", 1);
    for (int64_t head_dim = 64; head_dim <= 128; head_dim += 64) {
        struct trial c = trial_of((struct shape){1, 33, 1, 1, head_dim, 0, 0.0F, {0}}, F16);
        run_forward(&c);
        run_backward(&c);
        fixture_close(&c.fixture);
    }
    unsetenv("EMULATOR_CAPABILITY");
}

/* Repeated runs are bit-identical; on the emulator in another order of threads and blocks. */
Test(attention_narrow, bits_do_not_depend_on_block_order)
{
    const char *const orders[] = {"forward", "reverse"};
    for (int kind = 0; kind < kind_count(); kind++) {
        struct computed done[2];
        if (!is_selected(kind))
            continue;
        for (int i = 0; i < 2; i++) {
            setenv("EMULATOR_ORDER", orders[i], 1);
            done[i] = computed_of((struct shape){1, 150, 2, 1, 64, 40, 0.25F, {0}});
        }
        expect_same_bits(&done[0], &done[1], kinds[kind]);
        fixture_close(&done[0].c.fixture);
        fixture_close(&done[1].c.fixture);
    }
}

/* The bounds detect these errors; without any, -1, nothing is outside. */
Test(attention_narrow, bounds_detect_injected_faults)
{
    const struct attention_variant variant = {.window = 20, .alibi_heads = 12, .alibi_begin = 4};
    for (int kind = 0; kind < kind_count(); kind++) {
        if (!is_selected(kind))
            continue;
        struct trial c = trial_of((struct shape){1, 70, 4, 2, 64, 30, 0.25F, variant}, BF16);
        const struct attention_forward intact = c.op.forward;
        for (int fault = -1; fault < 7; fault++) {
            struct attention_forward *const op = &c.op.forward;
            *op = intact;
            op->scale *= fault == 0 ? 1.05F : 1.0F;
            op->dropout.column_begin -= fault == 1;          // another head's mask
            op->document = fault == 2 ? NULL : op->document; // documents ignored
            if (fault == 3)                                  // the wrong group, for two of four heads
                op->k.data = (uint16_t *)op->k.data + 64;
            op->window += fault == 4 ? 1 : fault == 5 ? -1 : 0; // off by one
            op->alibi.begin = fault == 6 ? 0 : op->alibi.begin; // slopes by the local head
            run_forward(&c);
            cr_expect_eq(forward_outside(&c) > 0, fault >= 0, "forward, fault %d", fault);
            run_backward(&c);
            cr_expect_eq(backward_outside(&c) > 0, fault >= 0, "backward, fault %d", fault);
        }
        fixture_close(&c.fixture);
    }
}

/* cuDNN's attention: the emulated one, or a GPU's if CUBOID_TEST_CUDNN requests it. Unsupported cases use our
 * own kernels, so none of these have documents or dropout. */
static bool cudnn_requested(const char *how)
{
    if (!fixture_is_emulated && getenv("CUBOID_TEST_CUDNN") == NULL)
        return false;
    setenv("CUBOID_TEST_ATTENTION", how, 1);
    return true;
}

/* Several sequences, so that lse's strides matter; shared and unshared keys; the same bounds. */
Test(attention_narrow, cudnn_matches)
{
    static const struct shape of_cudnn[] = {
        {2, 33, 2, 1, 64, 0, 0.0F, {0}}, {2, 70, 4, 2, 128, 0, 0.0F, {0}}, {3, 21, 4, 4, 80, 0, 0.0F, {0}}};
    const char *const ways[] = {"cudnn", "cudnn-nondeterministic", "auto"};
    for (int i = 0; i < 7 && cudnn_requested(ways[i / 3]); i++) {
        struct trial c = trial_of(of_cudnn[i % 3], i % 3 == 0 ? F16 : BF16);
        c.rounds_heads = c.shape.groups != c.shape.heads;
        run_forward(&c);
        cr_expect_eq(forward_outside(&c), 0, "%s, shape %d", ways[i / 3], i % 3);
        run_backward(&c);
        cr_expect_eq(backward_outside(&c), 0, "%s, shape %d", ways[i / 3], i % 3);
        cr_expect(fixture_shorts_are_guarded(c.op.forward.out.data, c.tokens * c.width));
        cr_expect(fixture_shorts_are_guarded(c.op.dq.data, c.tokens * (c.width + 2 * c.group_width)));
        fixture_close(&c.fixture);
    }
}

/* One engine's sums are nondeterministic; the emulated one perturbs every second run to show it. */
Test(attention_narrow, cudnn_is_deterministic_if_required)
{
    const char *const ways[] = {"cudnn", "cudnn-nondeterministic"};
    for (int way = 0; way < 2 && cudnn_requested(ways[way]); way++) {
        struct trial c = trial_of((struct shape){2, 72, 4, 2, 64, 0, 0.0F, {0}}, BF16);
        const size_t bytes = (size_t)(c.tokens * (c.width + 2 * c.group_width)) * sizeof(uint16_t);
        uint16_t *first = fixture_shorts(&c.fixture, (int64_t)(bytes / sizeof *first));
        run_backward(&c);
        memcpy(first, c.op.dq.data, bytes);
        run_backward(&c);
        if (way == 0)
            cr_expect_eq(memcmp(first, c.op.dq.data, bytes), 0);
        else if (fixture_is_emulated)
            cr_expect_neq(memcmp(first, c.op.dq.data, bytes), 0);
        fixture_close(&c.fixture);
    }
}
