// SPDX-License-Identifier: Apache-2.0
/* bf16 and f16. First the two formats themselves, against their definition in powers of two. */
#include "tests/support/narrow_numbers.h"
#include "tests/support/ops_stand.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const enum dtype narrow_types[] = {BF16, F16};

static struct tensor cast_of(struct stand *stand, struct tensor in, struct tensor out)
{
    cr_assert_eq(cast(stand->stream, (struct cast){.in = in, .out = out}), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(stand->stream), OK);
    return out;
}

/* Every pattern of two bytes is the number that its fields say, and comes back from fp32 as it was. */
Test(ops_narrow, every_pattern_there_and_back)
{
    enum { PATTERNS = 65536 };
    for (int d = 0; d < 2; d++) {
        struct stand stand = stand_open(2);
        float *wide = stand_floats(&stand, PATTERNS);
        uint16_t *pattern = stand_shorts(&stand, PATTERNS), *back = stand_shorts(&stand, PATTERNS);
        for (int i = 0; i < PATTERNS; i++)
            pattern[i] = (uint16_t)i;
        struct tensor f32 = tensor_1d(wide, F32, PATTERNS);
        cast_of(&stand, tensor_1d(pattern, narrow_types[d], PATTERNS), f32);
        cast_of(&stand, f32, tensor_1d(back, narrow_types[d], PATTERNS));
        for (int i = 0; i < PATTERNS; i++) {
            double want = narrow_value(narrow_types[d], (uint16_t)i);
            if (isnan(want)) {
                cr_assert(isnan(wide[i]) && isnan(narrow_value(narrow_types[d], back[i])), "%04x", i);
                continue;
            }
            cr_assert((double)wide[i] == want && (signbit(wide[i]) != 0) == (i >= 0x8000),
                      "%04x is %a, not %a", i, (double)wide[i], want);
            cr_assert_eq(back[i], i, "%04x came back as %04x", i, back[i]);
        }
        stand_close(&stand);
    }
}

/* fp32 numbers on both sides of every place where rounding turns: representable ones, the middles between
 * neighbours, the fp32 numbers next to those, and the ends; and numbers from everywhere. */
Test(ops_narrow, rounds_to_nearest_even)
{
    enum { MIDDLES = 0x8000, COUNT = 2 * MIDDLES * 4 };
    for (int d = 0; d < 2; d++) {
        struct stand stand = stand_open(2);
        float *wide = stand_floats(&stand, COUNT);
        int64_t n = 0;
        for (int i = 0; i + 1 < MIDDLES; i++) {
            double low = narrow_value(narrow_types[d], (uint16_t)i),
                   high = narrow_value(narrow_types[d], (uint16_t)(i + 1));
            if (isnan(low) || isnan(high) || isinf(low))
                continue;
            // Beyond the largest the steps go on, as if there were one more exponent.
            float middle =
                (float)(isinf(high) ? low + (low - narrow_value(narrow_types[d], (uint16_t)(i - 1))) / 2.0
                                    : low / 2.0 + high / 2.0);
            wide[n++] = middle;
            wide[n++] = -nextafterf(middle, 0.0F);
            wide[n++] = nextafterf(middle, INFINITY);
        }
        for (uint64_t i = 0; n < COUNT; i++) {
            uint32_t bits = philox_word(philox_named(3, "bits"), 0, i);
            memcpy(&wide[n++], &bits, sizeof bits);
        }
        uint16_t *got = stand_shorts(&stand, COUNT);
        cast_of(&stand, tensor_1d(wide, F32, COUNT), tensor_1d(got, narrow_types[d], COUNT));
        for (int64_t i = 0; i < COUNT; i++) {
            uint16_t want = narrow_nearest(narrow_types[d], wide[i]);
            cr_assert(got[i] == want || (isnan(wide[i]) && isnan(narrow_value(narrow_types[d], got[i]))),
                      "%s of %a is %04x, not %04x", dtype_name(narrow_types[d]), (double)wide[i], got[i],
                      want);
        }
        stand_close(&stand);
    }
}

Test(ops_narrow, cast_keeps_to_its_rows_and_refuses_the_rest)
{
    struct stand stand = stand_open(2);
    enum { ROWS = 40, COLUMNS = 1500, STRIDE = 1511 };
    float *wide = stand_normals(&stand, "x", ROWS * COLUMNS, 1.0);
    uint16_t *bf16 = stand_shorts(&stand, ROWS * STRIDE), *f16 = stand_shorts(&stand, ROWS * STRIDE);
    struct tensor in = tensor_2d(wide, F32, ROWS, COLUMNS);
    struct tensor middle = tensor_columns(tensor_2d(bf16, BF16, ROWS, STRIDE), 0, COLUMNS);
    cast_of(&stand, in, middle);
    cast_of(&stand, middle, tensor_columns(tensor_2d(f16, F16, ROWS, STRIDE), 0, COLUMNS));
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < COLUMNS; i++) {
            uint16_t want = narrow_nearest(BF16, wide[r * COLUMNS + i]);
            cr_assert_eq(bf16[r * STRIDE + i], want);
            cr_assert_eq(f16[r * STRIDE + i], narrow_nearest(F16, (float)narrow_value(BF16, want)));
        }
        for (int i = COLUMNS; i < STRIDE; i++)
            cr_assert_eq(bf16[r * STRIDE + i], 0xffff, "the gap behind row %d was written", r);
    }
    cr_expect(stand_shorts_are_guarded(bf16, ROWS * STRIDE) && stand_shorts_are_guarded(f16, ROWS * STRIDE));
    cr_expect_eq(cast(stand.stream, (struct cast){in, tensor_2d(bf16, I32, ROWS, COLUMNS)}), BAD_ARGUMENT);
    cr_expect_str_eq(fail_text(),
                     "cast: in is f32[40, 1500] and out is i32[40, 1500]; one shape, and f32, bf16 or "
                     "f16, is what can be cast");
    cr_expect_eq(cast(stand.stream, (struct cast){in, tensor_2d(bf16, BF16, ROWS, 3)}), BAD_ARGUMENT);
    stand_close(&stand);
}
