// SPDX-License-Identifier: Apache-2.0
/* squares_each(), sum_each() and adamw_each() are bit-identical to their single ops in sequence: lists with
 * more members than fit in a launch, of tensors with one element, several blocks, and none; and each is one
 * op, also if the list is freed before it runs. */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 330, ELEMENTS = 32000, BLOCKS = 400, BF16_ROW = 8 };

/* Elements per member: few, none, and more than a thread block handles. */
static int64_t size_of(int i)
{
    return i % 11 == 3 ? 0 : i % 100 == 7 ? 5000 - i : 1 + i * 7 % 67;
}

/* Members are contiguous, some aligned and some not. */
static int64_t elements_before(int member)
{
    int64_t sum = 0;
    for (int i = 0; i < member; i++)
        sum += size_of(i);
    return sum;
}

static struct tensor part_of(const void *data, enum dtype dtype, int member)
{
    char *begin = (char *)(uintptr_t)data + (size_t)elements_before(member) * dtype_bytes(dtype);
    return tensor_1d(begin, dtype, size_of(member));
}

/* The caller's list may be freed at once. */
static enum status free_list(void *list, size_t bytes, enum status status)
{
    memset(list, 0xff, bytes);
    free(list);
    return status;
}

static struct squares squares_of(const float *x, double *out, int64_t blocks_before, int member)
{
    struct tensor part = part_of(x, F32, member);
    return (struct squares){part, tensor_1d(out + blocks_before, F64, squares_blocks(part))};
}

static int64_t enqueue_squares(struct fixture *fixture, const float *x, double *out, bool as_list)
{
    struct squares *list = malloc(MEMBERS * sizeof *list);
    int64_t blocks = 0;
    for (int i = 0; i < MEMBERS; i++) {
        list[i] = squares_of(x, out, blocks, i);
        blocks += list[i].out.dim[0];
        if (!as_list)
            cr_assert_eq(squares(fixture->stream, list[i]), OK, "%s", fail_text());
    }
    cr_assert_leq(blocks, BLOCKS);
    enum status status = as_list ? squares_each(fixture->stream, (struct squares_list){list, MEMBERS}) : OK;
    cr_assert_eq(free_list(list, MEMBERS * sizeof *list, status), OK, "%s", fail_text());
    return blocks;
}

Test(ops_lists, squares)
{
    struct fixture fixture = fixture_open(2);
    const float *x = fixture_normals(&fixture, "x", ELEMENTS, 1.0);
    double *each = fixture_doubles(&fixture, BLOCKS), *all = fixture_doubles(&fixture, BLOCKS);
    cr_assert_leq(elements_before(MEMBERS), ELEMENTS);
    int64_t blocks = enqueue_squares(&fixture, x, each, false);
    enqueue_squares(&fixture, x, all, true);
    cr_assert_eq(stream_sync(fixture.stream), OK);
    cr_expect_eq(memcmp(each, all, (size_t)blocks * sizeof *all), 0);
    for (int64_t b = 0; b < blocks; b++)
        cr_assert_gt(all[b], 0.0, "block %lld", (long long)b);
    for (int64_t b = blocks; b < BLOCKS; b++)
        cr_assert(isnan(all[b]), "no memory after the last block is written");
    fixture_close(&fixture);
}

Test(ops_lists, sums)
{
    struct fixture fixture = fixture_open(2);
    double *x = fixture_doubles(&fixture, ELEMENTS);
    double *each = fixture_doubles(&fixture, MEMBERS), *all = fixture_doubles(&fixture, MEMBERS + 1);
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = 1.0 / (double)(i + 1);
    struct sum *list = malloc(MEMBERS * sizeof *list);
    for (int i = 0; i < MEMBERS; i++) {
        list[i] = (struct sum){part_of(x, F64, i), tensor_1d(&each[i], F64, 1)};
        cr_assert_eq(sum(fixture.stream, list[i]), OK, "%s", fail_text());
        list[i].out.data = &all[i];
    }
    enum status status = sum_each(fixture.stream, (struct sum_list){list, MEMBERS});
    cr_assert_eq(free_list(list, MEMBERS * sizeof *list, status), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int i = 0; i < MEMBERS; i++)
        cr_expect(memcmp(&all[i], &each[i], sizeof *all) == 0 && (all[i] > 0.0) == (size_of(i) > 0),
                  "member %d: %g, alone %g", i, all[i], each[i]);
    cr_expect(isnan(all[MEMBERS]));
    fixture_close(&fixture);
}

/* ---- adamw ---- */

struct vectors {
    float *weight, *gradient, *m, *v;
    uint16_t *narrow; // the working weights, or bf16 weights without masters
};

static struct vectors vectors_of(struct fixture *fixture)
{
    struct vectors x = {.weight = fixture_normals(fixture, "w", ELEMENTS, 1.0),
                        .gradient = fixture_normals(fixture, "g", ELEMENTS, 1.0),
                        .m = fixture_normals(fixture, "m", ELEMENTS, 0.1),
                        .v = fixture_normals(fixture, "v", ELEMENTS, 0.1),
                        .narrow = fixture_shorts(fixture, ELEMENTS)};
    for (int i = 0; i < ELEMENTS; i++) {
        x.v[i] *= x.v[i];
        x.narrow[i] = narrow_nearest(BF16, x.weight[i]);
    }
    return x;
}

enum kind { IN_FP32, WITH_MASTERS, WITHOUT_MASTERS };

static struct adamw step_of(const struct vectors *x, const struct adamw_hyper *hyper, enum kind kind,
                            int member)
{
    struct adamw op = {.weight = part_of(x->weight, F32, member),
                       .gradient = part_of(x->gradient, F32, member),
                       .m = part_of(x->m, F32, member),
                       .v = part_of(x->v, F32, member),
                       .hyper = hyper,
                       .decay = member % 2 == 0};
    struct tensor narrow = part_of(x->narrow, BF16, member);
    if (kind == WITH_MASTERS)
        op.working = narrow;
    if (kind == WITHOUT_MASTERS)
        op.weight = narrow;
    op.stochastic = (struct stochastic){.generator = philox_named((uint64_t)member, "rounding"),
                                        .begin = member,
                                        .width = BF16_ROW,
                                        .columns = 2 * BF16_ROW};
    return op;
}

static void expect_same(const struct vectors *a, const struct vectors *b, enum kind kind)
{
    cr_expect(same_bits(a->weight, b->weight, ELEMENTS), "kind %d: weights", kind);
    cr_expect(same_bits(a->m, b->m, ELEMENTS) && same_bits(a->v, b->v, ELEMENTS), "kind %d: moments", kind);
    cr_expect_eq(memcmp(a->narrow, b->narrow, ELEMENTS * sizeof *a->narrow), 0, "kind %d: narrow", kind);
}

Test(ops_lists, adamw)
{
    for (enum kind kind = IN_FP32; kind <= WITHOUT_MASTERS; kind++) {
        struct fixture fixture = fixture_open(2);
        struct adamw_hyper hyper = {0.01F, 0.1F, 0.05F, 1e-6F, 0.271F, 0.142F, 0.125F, 0.1F, 0.0F, 3};
        fixture_register(&fixture, &hyper, sizeof hyper);
        const struct vectors before = vectors_of(&fixture), each = vectors_of(&fixture),
                             all = vectors_of(&fixture);
        struct adamw *list = malloc(MEMBERS * sizeof *list);
        for (int i = 0; i < MEMBERS; i++) {
            cr_assert_eq(adamw(fixture.stream, step_of(&each, &hyper, kind, i)), OK, "%s", fail_text());
            list[i] = step_of(&all, &hyper, kind, i);
        }
        enum status status = adamw_each(fixture.stream, (struct adamw_list){list, MEMBERS});
        cr_assert_eq(free_list(list, MEMBERS * sizeof *list, status), OK, "%s", fail_text());
        cr_assert_eq(stream_sync(fixture.stream), OK);
        expect_same(&each, &all, kind);
        int64_t used = elements_before(MEMBERS), unchanged = 0;
        for (int64_t e = 0; e < used; e++)
            unchanged += memcmp(&all.m[e], &before.m[e], sizeof *all.m) == 0;
        cr_expect_eq(unchanged, 0, "kind %d: every member is stepped", kind);
        cr_expect(same_bits(all.m + used, before.m + used, ELEMENTS - used),
                  "memory after the last member is unchanged");
        fixture_close(&fixture);
    }
}

/* A device that defers ops must copy the list. */
Test(ops_lists, the_list_may_be_freed_after_enqueue)
{
    struct device *device;
    struct stream *stream;
    struct buffer memory;
    cr_assert_eq(device_open(&(struct device_options){.name = "strict", .threads = 1}, &device), OK);
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, 4 * sizeof(double), &memory), OK);
    double *x = memory.data;
    x[0] = 1.0, x[1] = 2.0;
    struct sum *list = calloc(2, sizeof *list);
    for (int i = 0; i < 2; i++)
        list[i] = (struct sum){tensor_1d(x, F64, 1 + i), tensor_1d(x + 2 + i, F64, 1)};
    enum status status = sum_each(stream, (struct sum_list){list, 2});
    cr_assert_eq(free_list(list, 2 * sizeof *list, status), OK, "%s", fail_text());
    cr_expect(isnan(x[2]), "it has not run yet");
    cr_assert_eq(stream_sync(stream), OK, "%s", fail_text());
    cr_expect(x[2] == 1.0 && x[3] == 3.0, "%g and %g", x[2], x[3]);
    buffer_free(&memory);
    stream_destroy(stream);
    device_close(device);
}
