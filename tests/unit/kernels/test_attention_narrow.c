// SPDX-License-Identifier: Apache-2.0
/* Attention in bf16 and f16, head dimensions 64 and 128, against a reference in double precision
 * (narrow_attention.h). On the cuda device these shapes use tensor cores, with full, partial and masked
 * tiles: the wgmma kernels (kernels/cuda/attention/attention_*_sm90.cu), on a GPU that has them, and mma.sync
 * (attention_sm80.cu). */
#include "base/text.h"
#include "kernels/device_info.h"
#include "tests/support/narrow/narrow_attention.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 128 rows per block, 32 to 128 columns per tile, up to four tiles in flight. */
static const struct attention_shape shapes[] = {
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

static void compare(struct attention_shape s, enum dtype dtype)
{
    char what[120];
    struct attention_trial c = attention_trial_of(s, dtype);
    snprintf(what, sizeof what, "%s, %lld x %lld tokens, %lld heads of %lld in %lld groups",
             dtype_name(dtype), (long long)s.batch, (long long)s.sequence, (long long)s.heads,
             (long long)s.head_dim, (long long)s.groups);
    attention_trial_forward(&c);
    cr_expect_eq(attention_forward_outside(&c), 0, "forward, %s", what);
    attention_trial_backward(&c);
    cr_expect_eq(attention_backward_outside(&c), 0, "backward, %s", what);
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
        struct attention_shape shape;
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
        struct attention_shape shape;
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
        struct attention_shape shape = runs[i].shape;
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
    struct attention_trial c;
    uint16_t *out;
};

static struct computed computed_of(struct attention_shape shape)
{
    struct computed done = {.c = attention_trial_of(shape, BF16)};
    const int64_t count = done.c.tokens * done.c.width;
    done.out = fixture_shorts(&done.c.fixture, count);
    attention_trial_forward(&done.c);
    memcpy(done.out, done.c.op.forward.out.data, (size_t)count * sizeof *done.out);
    attention_trial_backward(&done.c);
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
        done[i] = computed_of((struct attention_shape){1, 200, 2, 1, 64, 70, 0.25F, {0}});
    }
    for (int i = 1; i < 3; i++)
        expect_same_bits(&done[0], &done[i], blocks[i]);
    for (int i = 0; i < 3; i++)
        fixture_close(&done[i].c.fixture);
    unsetenv("CUBOID_TEST_BLOCKS");
}

/* Whether the device under test is a GPU of compute capability 9.0. */
static bool is_sm_90(void)
{
    struct text text = {0};
    const bool is = kind_count() == 2 && device_describe("cuda", 0, &text) == OK &&
                    strstr(text_chars(&text), "compute capability 9.0") != NULL;
    text_free(&text);
    return is;
}

/* On compute capability 9.0 own attention runs on wgmma in both passes, and on mma.sync only if requested.
 * Both are within the bounds of one reference, so they differ by at most twice the bounds. */
Test(attention_narrow, launches_wgmma_kernels_on_sm_90)
{
    const char *const launched[] = {is_sm_90() ? "wgmma" : "mma.sync", "mma.sync"};
    for (int kind = 0; kind_count() == 2 && kind < 2; kind++) {
        for (int64_t head_dim = 64; head_dim <= 128 && is_selected(kind); head_dim += 64) {
            struct attention_trial c =
                attention_trial_of((struct attention_shape){1, 150, 2, 1, head_dim, 0, 0.0F, {0}}, BF16);
            struct text got = {0};
            char want[100];
            attention_trial_forward(&c);
            cr_expect_eq(attention_forward_outside(&c), 0, "%s, forward, head_dim %d", launched[kind],
                         (int)head_dim);
            attention_trial_backward(&c);
            cr_expect_eq(attention_backward_outside(&c), 0, "%s, backward, head_dim %d", launched[kind],
                         (int)head_dim);
            device_choices(c.fixture.device, &got);
            snprintf(want, sizeof want, "attention kernels launched: %s (forward, backward)\n",
                     launched[kind]);
            cr_expect_str_eq(text_chars(&got), want);
            text_free(&got);
            fixture_close(&c.fixture);
        }
    }
}

enum { ALONE = 200 }; // tokens of one sequence of one head of 64
struct results {
    uint16_t out[ALONE * 64], gradient[ALONE * 3 * 64];
};

/* With q, k and v as columns of a wider matrix. */
static void compute(struct results *to, int64_t more, const char *kind)
{
    setenv("CUBOID_TEST_ATTENTION", kind, 1);
    struct attention_trial c =
        attention_trial_of((struct attention_shape){1, ALONE, 1, 1, 64, 0, 0.0F, {0}}, BF16);
    const struct tensor qkv = attention_trial_matrix(&c, "qkv", c.tokens, 3 * 64 + more);
    c.op.forward.q = tensor_columns(qkv, 0, 64);
    c.op.forward.k = tensor_columns(qkv, 64, 128);
    c.op.forward.v = tensor_columns(qkv, 128, 192);
    attention_trial_forward(&c);
    memcpy(to->out, c.op.forward.out.data, sizeof to->out);
    attention_trial_backward(&c);
    memcpy(to->gradient, c.op.dq.data, sizeof to->gradient);
    fixture_close(&c.fixture);
}

/* Their sums have different orders, so the bits show which of the two has run. (A GPU's tensor cores may add
 * in one order in both, and it has one capability.) */
Test(attention_narrow, uses_sm_90_kernels_only_on_sm_90)
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
        struct attention_trial c =
            attention_trial_of((struct attention_shape){1, 33, 1, 1, head_dim, 0, 0.0F, {0}}, F16);
        attention_trial_forward(&c);
        attention_trial_backward(&c);
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
            done[i] = computed_of((struct attention_shape){1, 150, 2, 1, 64, 40, 0.25F, {0}});
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
        struct attention_trial c =
            attention_trial_of((struct attention_shape){1, 70, 4, 2, 64, 30, 0.25F, variant}, BF16);
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
            attention_trial_forward(&c);
            cr_expect_eq(attention_forward_outside(&c) > 0, fault >= 0, "forward, fault %d", fault);
            attention_trial_backward(&c);
            cr_expect_eq(attention_backward_outside(&c) > 0, fault >= 0, "backward, fault %d", fault);
        }
        fixture_close(&c.fixture);
    }
}

/* cuDNN's attention: the emulated one, or a GPU's if CUBOID_TEST_CUDNN requests it. Unsupported cases use our
 * own kernels, so none of these have documents or dropout. */
static bool cudnn_requested(const char *how)
{
    const char *only = getenv("CUBOID_TEST_KIND");
    if (only != NULL && strcmp(only, kinds[0]) != 0) // once, with the first kind
        return false;
    if (!fixture_is_emulated && getenv("CUBOID_TEST_CUDNN") == NULL)
        return false;
    setenv("CUBOID_TEST_ATTENTION", how, 1);
    return true;
}

/* Several sequences, so that lse's strides matter; shared and unshared keys; the same bounds. */
Test(attention_narrow, cudnn_matches)
{
    static const struct attention_shape of_cudnn[] = {
        {2, 33, 2, 1, 64, 0, 0.0F, {0}}, {2, 70, 4, 2, 128, 0, 0.0F, {0}}, {3, 21, 4, 4, 80, 0, 0.0F, {0}}};
    const char *const ways[] = {"cudnn", "cudnn-nondeterministic", "auto"};
    for (int i = 0; i < 7 && cudnn_requested(ways[i / 3]); i++) {
        struct attention_trial c = attention_trial_of(of_cudnn[i % 3], i % 3 == 0 ? F16 : BF16);
        c.rounds_heads = c.shape.groups != c.shape.heads;
        attention_trial_forward(&c);
        cr_expect_eq(attention_forward_outside(&c), 0, "%s, shape %d", ways[i / 3], i % 3);
        attention_trial_backward(&c);
        cr_expect_eq(attention_backward_outside(&c), 0, "%s, shape %d", ways[i / 3], i % 3);
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
        struct attention_trial c =
            attention_trial_of((struct attention_shape){2, 72, 4, 2, 64, 0, 0.0F, {0}}, BF16);
        const size_t bytes = (size_t)(c.tokens * (c.width + 2 * c.group_width)) * sizeof(uint16_t);
        uint16_t *first = fixture_shorts(&c.fixture, (int64_t)(bytes / sizeof *first));
        attention_trial_backward(&c);
        memcpy(first, c.op.dq.data, bytes);
        attention_trial_backward(&c);
        if (way == 0)
            cr_expect_eq(memcmp(first, c.op.dq.data, bytes), 0);
        else if (fixture_is_emulated)
            cr_expect_neq(memcmp(first, c.op.dq.data, bytes), 0);
        fixture_close(&c.fixture);
    }
}
