// SPDX-License-Identifier: Apache-2.0
/* Loss scaling: the sequence of scales, against a model written from the description of Megatron-LM's
 * DynamicGradScaler; and the three ops that use it. */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "trainer/optimizer/loss_scale.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static struct recipe recipe_of(double fixed, double initial, double least, int64_t window, int64_t hysteresis)
{
    return (struct recipe){.precision = {.params_dtype = F16,
                                         .loss_scale = fixed,
                                         .initial_loss_scale = initial,
                                         .min_loss_scale = least,
                                         .loss_scale_window = window,
                                         .hysteresis = hysteresis}};
}

/* "x" overflows, "." does not: the scale after each. */
Test(loss_scale, dynamic_scale_follows_the_table)
{
    static const struct {
        const char *steps;
        double least;
        int64_t window, hysteresis;
        double scale[12]; // from 16
    } tables[] = {
        {"x.x.x", 1, 3, 2, {16, 16, 8, 8, 4}},                 // the second one, and those after it
        {"...x..x", 1, 3, 2, {16, 16, 32, 32, 32, 32, 16}},    // the full hysteresis again after growth
        {"..x..x...", 1, 3, 1, {16, 16, 8, 8, 8, 4, 4, 4, 8}}, // consecutive
        {"xxxx.", 4, 3, 1, {8, 4, 4, 4, 4}},                   // at the minimum
        {"xx", 3, 3, 1, {8, 4}},
        {"xxxx", 3, 3, 1, {8, 4, 3, 3}},
        {"....", 1, 1, 2, {32, 64, 128, 256}},
    };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        struct recipe recipe = recipe_of(0.0, 16.0, tables[t].least, tables[t].window, tables[t].hysteresis);
        struct loss_scale state = loss_scale_of(&recipe);
        for (size_t i = 0; tables[t].steps[i] != 0; i++) {
            loss_scale_step(&state, tables[t].steps[i] == 'x');
            cr_expect_eq(state.scale, tables[t].scale[i], "%s, step %zu: %g", tables[t].steps, i + 1,
                         state.scale);
        }
    }
}

/* The trackers of DynamicGradScaler.update(), which has no floor of its own. */
struct model {
    double scale, least;
    int64_t growth, hysteresis, window, whole;
};

static void update(struct model *m, bool found_inf)
{
    if (found_inf) {
        m->growth = 0;
        m->hysteresis--;
        if (m->hysteresis <= 0)
            m->scale = fmax(m->scale * 0.5, m->least);
        return;
    }
    m->growth++;
    if (m->growth == m->window) {
        m->growth = 0;
        m->hysteresis = m->whole;
        m->scale *= 2.0;
    }
}

Test(loss_scale, matches_the_reference_model)
{
    struct philox dice = philox_named(3, "overflows");
    int64_t at = 0;
    for (int64_t window = 1; window <= 7; window += 2)
        for (int64_t hysteresis = 1; hysteresis <= 4; hysteresis++)
            for (int often = 1; often <= 3; often++) {
                struct recipe recipe = recipe_of(0.0, 0x1p20, 0.75, window, hysteresis);
                struct loss_scale state = loss_scale_of(&recipe);
                struct model model = {0x1p20, 0.75, 0, hysteresis, window, hysteresis};
                for (int step = 0; step < 300; step++, at++) {
                    // Alternately rare and frequent.
                    uint32_t bar = (uint32_t)(often * (step / 50 % 2 == 0 ? 200 : 700)) / 3;
                    bool overflow = model.scale > 0x1p40 || philox_word(dice, 0, (uint64_t)at) % 1000 < bar;
                    bool could_fall = model.scale > model.least || model.hysteresis > 1;
                    update(&model, overflow);
                    loss_scale_step(&state, overflow);
                    cr_assert_eq(state.scale, model.scale, "step %d: %g and %g", step, state.scale,
                                 model.scale);
                    cr_assert_eq(state.stuck, overflow && !could_fall, "step %d, scale %g", step,
                                 state.scale);
                }
            }
}

Test(loss_scale, fixed_scale_is_constant_and_reports_being_stuck)
{
    struct recipe recipe = recipe_of(1000.0, 0x1p32, 1.0, 1, 1);
    struct loss_scale state = loss_scale_of(&recipe);
    for (int i = 1; i <= 3 * LOSS_SCALE_PATIENCE; i++) {
        bool good = i == LOSS_SCALE_PATIENCE; // the count restarts
        loss_scale_step(&state, !good);
        cr_assert_eq(state.scale, 1000.0);
        cr_assert_eq(state.stuck, i >= 2 * LOSS_SCALE_PATIENCE, "step %d", i);
    }
    loss_scale_step(&state, false);
    cr_expect_not(state.stuck);
    recipe.precision.params_dtype = BF16;
    cr_expect_eq(loss_scale_of(&recipe).scale, 0.0);
}

Test(loss_scale, resumes_within_the_new_range)
{
    struct recipe recipe = recipe_of(0.0, 1024.0, 512.0, 10, 2);
    struct loss_scale state = loss_scale_of(&recipe);
    loss_scale_resume(&state, 4096.0, 7, 1);
    cr_expect(state.scale == 4096.0 && state.good_steps == 7 && state.hysteresis == 1);
    loss_scale_resume(&state, 64.0, 3, 2); // from a run with a smaller minimum
    cr_expect_eq(state.scale, 512.0);
    loss_scale_resume(&state, 0.0, 1, 1); // from a run without loss scaling
    cr_expect(state.scale == 512.0 && state.good_steps == 3 && state.hysteresis == 2);
    recipe = recipe_of(8.0, 1024.0, 1.0, 10, 2);
    state = loss_scale_of(&recipe);
    loss_scale_resume(&state, 4096.0, 7, 1);
    cr_expect_eq(state.scale, 8.0);
}

Test(loss_scale, growth_is_bounded)
{
    struct recipe recipe = recipe_of(0.0, 1.0, 1.0, 1, 1);
    struct loss_scale state = loss_scale_of(&recipe);
    for (int i = 0; i < 5000; i++)
        loss_scale_step(&state, false);
    cr_expect(state.scale > 1e17 && state.scale <= LOSS_SCALE_MAX);
}

/* ---- the ops ---- */

enum { N = 300, V = 40, T = 6 };

/* Two samples, 5 tokens in all, squares 9 and 16 of gradients multiplied by `scale`. */
static void clip_of(double limit, const float *scale, double squares_0, double result[4],
                    struct adamw_hyper *hyper)
{
    struct fixture fixture = fixture_open(1);
    double loss[2] = {3.0, 7.0}, tokens[2] = {2.0, 3.0}, squares[2] = {squares_0, 16.0};
    void *const mine[] = {loss, tokens, squares};
    for (int i = 0; i < 3; i++)
        fixture_register(&fixture, mine[i], sizeof loss);
    fixture_register(&fixture, result, 4 * sizeof *result);
    fixture_register(&fixture, hyper, sizeof *hyper);
    float kept = scale != NULL ? *scale : 0.0F;
    fixture_register(&fixture, &kept, sizeof kept);
    struct clip op = {.loss = tensor_1d(loss, F64, 2),
                      .tokens = tensor_1d(tokens, F64, 2),
                      .squares = tensor_1d(squares, F64, 2),
                      .limit = limit,
                      .loss_scale = scale != NULL ? &kept : NULL,
                      .hyper = hyper,
                      .result = tensor_1d(result, F64, 4)};
    cr_assert_eq(clip(fixture.stream, op), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    fixture_close(&fixture);
}

Test(loss_scale, clipping_removes_the_scale_and_detects_overflow)
{
    static const double overflows[] = {INFINITY, NAN};
    struct adamw_hyper hyper = {.lr = 1.0F};
    double result[4];
    clip_of(0.0, NULL, 9.0, result, &hyper);
    cr_expect(result[0] == 2.0 && result[1] == 1.0 && result[2] == 5.0 && result[3] == 1.0);
    cr_expect(hyper.gradient_scale == 0.2F && hyper.skip == 0.0F && hyper.lr == 1.0F);
    clip_of(0.0, &(float){8.0F}, 9.0, result, &hyper);
    cr_expect(result[0] == 2.0 && result[1] == 0.125 && result[2] == 5.0 && result[3] == 8.0);
    cr_expect(hyper.gradient_scale == 0.2F / 8.0F && hyper.skip == 0.0F);
    clip_of(0.0625, &(float){8.0F}, 9.0, result, &hyper); // half of the unscaled norm
    cr_expect_float_eq(hyper.gradient_scale, 0.2F / 16.0F, 1e-6F);
    for (int i = 0; i < 2; i++) {
        clip_of(1.0, &(float){8.0F}, overflows[i], result, &hyper);
        cr_expect(!isfinite(result[1]) && hyper.gradient_scale == 0.0F && hyper.skip != 0.0F);
        clip_of(1.0, NULL, overflows[i], result, &hyper); // not caused by the scale: the run ends
        cr_expect(!isfinite(result[1]) && hyper.skip == 0.0F);
    }
}

Test(loss_scale, a_skipped_step_changes_nothing)
{
    struct fixture fixture = fixture_open(2);
    struct adamw_hyper hyper = {0.1F, 0.1F, 0.05F, 1e-6F, 0.2F, 0.1F, 0.0F, 0.1F, 1.0F, 1};
    fixture_register(&fixture, &hyper, sizeof hyper);
    float *vectors[4], *before[4];
    uint16_t *working = fixture_shorts(&fixture, N);
    for (int i = 0; i < 4; i++) {
        vectors[i] = fixture_normals(&fixture, &"wgmv"[i], N, 1.0);
        vectors[i][7] = i == 1 ? INFINITY : vectors[i][7];
        before[i] = fixture_copy(&fixture, vectors[i], N);
    }
    struct adamw op = {.weight = tensor_1d(vectors[0], F32, N),
                       .gradient = tensor_1d(vectors[1], F32, N),
                       .m = tensor_1d(vectors[2], F32, N),
                       .v = tensor_1d(vectors[3], F32, N),
                       .hyper = &hyper,
                       .decay = true,
                       .working = tensor_1d(working, F16, N)};
    cr_assert_eq(adamw(fixture.stream, op), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int i = 0; i < 4; i++)
        cr_expect(same_bits(vectors[i], before[i], N));
    for (int i = 0; i < N; i++)
        cr_assert_eq(working[i], 0xffff); // unchanged: as initialized by fixture_shorts()
    fixture_close(&fixture);
}

static struct loss_backward backward_of(struct fixture *fixture, struct tensor logits, const float *scale)
{
    float *numbers[3] = {fixture_floats(fixture, T), fixture_floats(fixture, T), fixture_floats(fixture, T)};
    int32_t *label = fixture_ints(fixture, T);
    for (int t = 0; t < T; t++) {
        numbers[0][t] = 3.0F, numbers[1][t] = 50.0F, numbers[2][t] = t == 2 ? 0.0F : 1.0F;
        label[t] = t * 5;
    }
    return (struct loss_backward){.logits = logits,
                                  .max = tensor_1d(numbers[0], F32, T),
                                  .sum = tensor_1d(numbers[1], F32, T),
                                  .mask = numbers[2],
                                  .label = label,
                                  .columns = V - 3,
                                  .scale = scale};
}

/* Bitwise a power of two times the unscaled result; in f16, values above 65504 are infinite, and values below
 * 2^-24 are preserved. */
Test(loss_scale, is_applied_at_the_logits)
{
    struct fixture fixture = fixture_open(2);
    float scales[2] = {4096.0F, 0x1p18F};
    fixture_register(&fixture, scales, sizeof scales);
    float *plain = fixture_normals(&fixture, "logits", T * V, 4.0),
          *scaled = fixture_copy(&fixture, plain, T * V);
    uint16_t *narrow = fixture_shorts(&fixture, T * V), *unscaled = fixture_shorts(&fixture, T * V);
    for (int i = 0; i < T * V; i++)
        narrow[i] = unscaled[i] = narrow_nearest(F16, plain[i] - 12.0F);
    struct loss_backward ops[4] = {
        backward_of(&fixture, tensor_2d(plain, F32, T, V), NULL),
        backward_of(&fixture, tensor_2d(scaled, F32, T, V), &scales[0]),
        backward_of(&fixture, tensor_2d(unscaled, F16, T, V), NULL),
        backward_of(&fixture, tensor_2d(narrow, F16, T, V), &scales[1]),
    };
    for (int i = 0; i < 4; i++)
        cr_assert_eq(loss_backward(fixture.stream, ops[i]), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    int lost = 0, kept = 0;
    for (int i = 0; i < T * V; i++) {
        cr_assert_eq(scaled[i], plain[i] * 4096.0F, "element %d", i);
        lost += unscaled[i] == 0;
        kept += narrow[i] == 0;
    }
    cr_expect_gt(lost - kept, 50, "%d are 0 without a scale, %d with", lost, kept);
    cr_expect_eq(narrow[V + 5], 0xfc00, "minus infinity at the label of token 1");
    cr_expect_eq(narrow[2 * V + 10], 0, "and 0 at a masked token");
    fixture_close(&fixture);
}
