// SPDX-License-Identifier: Apache-2.0
/* The learning rate against Megatron-LM's for 48 combinations of decay style, warm-up and length, which
 * tests/oracle/make_learning_rates.py computes, and against values computed by hand: lr 1, min_lr 0.1,
 * warm-up 10, decay until 110, so that step 35 is a quarter and step 60 half of the decay. */
#include "trainer/optimizer/learning_rate.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct recipe_optimizer config_of(enum lr_decay style)
{
    return (struct recipe_optimizer){
        .lr = 1.0, .min_lr = 0.1, .lr_decay_style = style, .lr_warmup_iters = 10, .lr_decay_iters = 110};
}

static void expect_rate(const struct recipe_optimizer *o, int64_t step, double want)
{
    double got = learning_rate(o, step);
    cr_expect_float_eq(got, want, 1e-12, "style %d, step %lld: %.15g, expected %.15g", (int)o->lr_decay_style,
                       (long long)step, got, want);
}

Test(learning_rate, linear_warm_up_reaches_lr)
{
    for (int style = LR_CONSTANT; style <= LR_WSD; style++) {
        struct recipe_optimizer o = config_of((enum lr_decay)style);
        o.lr_wsd_decay_iters = 20;
        expect_rate(&o, 1, 0.1);
        expect_rate(&o, 5, 0.5);
        expect_rate(&o, 9, 0.9);
        expect_rate(&o, 10, 1.0);
    }
}

Test(learning_rate, constant_is_constant)
{
    struct recipe_optimizer o = config_of(LR_CONSTANT);
    expect_rate(&o, 11, 1.0);
    expect_rate(&o, 1000000, 1.0); // also after the decay
    o.lr_warmup_iters = 0;
    expect_rate(&o, 1, 1.0);
}

Test(learning_rate, linear_and_cosine_reach_min_lr)
{
    struct recipe_optimizer o = config_of(LR_LINEAR);
    expect_rate(&o, 35, 0.775);
    expect_rate(&o, 60, 0.55);
    expect_rate(&o, 110, 0.1);
    expect_rate(&o, 111, 0.1);
    expect_rate(&o, 1000000, 0.1);

    o = config_of(LR_COSINE);
    expect_rate(&o, 35, 0.1 + 0.9 * 0.853553390593273762); // (1 + sqrt(1/2)) / 2
    expect_rate(&o, 60, 0.55);
    expect_rate(&o, 85, 0.1 + 0.9 * 0.146446609406726238);
    expect_rate(&o, 110, 0.1);
    expect_rate(&o, 1000000, 0.1);
}

Test(learning_rate, inverse_square_root_starts_at_lr_after_warm_up)
{
    struct recipe_optimizer o = config_of(LR_INVERSE_SQUARE_ROOT);
    expect_rate(&o, 40, 0.5); // sqrt(10 / 40)
    expect_rate(&o, 110, sqrt(10.0 / 110.0));
    expect_rate(&o, 111, 0.1); // the decay has ended
    o.lr_decay_iters = 5000;
    expect_rate(&o, 250, 0.2);
    expect_rate(&o, 999, 0.100050037531277357);
    expect_rate(&o, 1000, 0.1);
    expect_rate(&o, 4000, 0.1); // never below min_lr

    o.lr_warmup_iters = 0;
    expect_rate(&o, 1, 1.0);
    expect_rate(&o, 4, 0.5);
}

Test(learning_rate, wsd_is_stable_and_then_decays)
{
    struct recipe_optimizer o = config_of(LR_WSD);
    o.lr_wsd_decay_iters = 20;
    const struct {
        enum wsd_decay style;
        double quarter, half; // progress of the decay, as a fraction of lr - min_lr
    } shapes[] = {
        {WSD_EXPONENTIAL, 0.681792830507429087, 0.414213562373095049}, // 2 * 2^-x - 1
        {WSD_LINEAR, 0.75, 0.5},
        {WSD_COSINE, 0.853553390593273762, 0.5},
        {WSD_MINUS_SQUARE_ROOT, 0.5, 0.292893218813452476},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        o.lr_wsd_decay_style = shapes[i].style;
        expect_rate(&o, 11, 1.0);
        expect_rate(&o, 90, 1.0);
        expect_rate(&o, 95, 0.1 + 0.9 * shapes[i].quarter);
        expect_rate(&o, 100, 0.1 + 0.9 * shapes[i].half);
        expect_rate(&o, 110, 0.1);
        expect_rate(&o, 1000, 0.1);
    }
}

Test(learning_rate, stays_in_range_and_never_rises_after_warm_up)
{
    for (int style = LR_CONSTANT; style <= LR_WSD; style++)
        for (int64_t warmup = 0; warmup <= 30; warmup += 10)
            for (int wsd = WSD_EXPONENTIAL; wsd <= WSD_MINUS_SQUARE_ROOT; wsd++) {
                struct recipe_optimizer o = config_of((enum lr_decay)style);
                o.lr_warmup_iters = warmup;
                o.lr_decay_iters = 31; // one step of decay only, at the longest warm-up
                o.lr_wsd_decay_iters = 1;
                o.lr_wsd_decay_style = (enum wsd_decay)wsd;
                double before = 1.0;
                for (int64_t step = warmup + 1; step < 200; step++) {
                    double lr = learning_rate(&o, step);
                    cr_assert(lr >= 0.1 - 1e-15 && lr <= before + 1e-15,
                              "style %d warm-up %lld step %lld: %g", style, (long long)warmup,
                              (long long)step, lr);
                    before = lr;
                }
            }
}

/* A warm-up as long as the whole decay must not divide by zero. */
Test(learning_rate, accepts_warm_up_as_long_as_the_decay)
{
    for (int style = LR_CONSTANT; style <= LR_COSINE; style++) {
        struct recipe_optimizer o = config_of((enum lr_decay)style);
        o.lr_decay_iters = 10;
        expect_rate(&o, 10, 1.0);
        expect_rate(&o, 11, style == LR_CONSTANT ? 1.0 : 0.1);
    }
}

static int index_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return 0; // "-": no WSD
}

Test(learning_rate, matches_megatron_schedules)
{
    static const char *const styles[] = {[LR_CONSTANT] = "constant",
                                         [LR_LINEAR] = "linear",
                                         [LR_COSINE] = "cosine",
                                         [LR_INVERSE_SQUARE_ROOT] = "inverse-square-root",
                                         [LR_WSD] = "WSD"};
    static const char *const shapes[] = {[WSD_EXPONENTIAL] = "exponential",
                                         [WSD_LINEAR] = "linear",
                                         [WSD_COSINE] = "cosine",
                                         [WSD_MINUS_SQUARE_ROOT] = "minus_sqrt"};
    FILE *file = fopen(SOURCE_ROOT "/tests/oracle/golden_learning_rates.txt", "r");
    cr_assert_not_null(file);
    char style[32], shape[32];
    long long warmup, decay, wsd, step, seen = 0;
    double want;
    while (fscanf(file, "%31s %31s %lld %lld %lld %lld %la", style, shape, &warmup, &decay, &wsd, &step,
                  &want) == 7) {
        struct recipe_optimizer o = config_of((enum lr_decay)index_of(style, styles, LR_WSD + 1));
        o.lr_warmup_iters = warmup;
        o.lr_decay_iters = decay;
        o.lr_wsd_decay_iters = wsd;
        o.lr_wsd_decay_style = (enum wsd_decay)index_of(shape, shapes, WSD_MINUS_SQUARE_ROOT + 1);
        double got = learning_rate(&o, step);
        cr_expect(fabs(got - want) <= 1e-15, "%s %s, warm-up %lld, decay %lld, step %lld: %.17g, not %.17g",
                  style, shape, warmup, decay, step, got, want);
        seen++;
    }
    cr_expect(feof(file) && seen > 48 * 8, "%lld lines", seen);
    fclose(file);
}
