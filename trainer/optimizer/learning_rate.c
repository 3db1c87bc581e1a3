// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/learning_rate.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* The decay phase of WSD: from 1 at progress 0 to 0 at progress 1 (2405.18392 for 1 - sqrt). */
static double wsd_shape(enum wsd_decay style, double progress)
{
    switch (style) {
    case WSD_EXPONENTIAL:
        return 2.0 * pow(0.5, progress) - 1.0;
    case WSD_LINEAR:
        return 1.0 - progress;
    case WSD_COSINE:
        return 0.5 * (1.0 + cos(pi * progress));
    case WSD_MINUS_SQUARE_ROOT:
        return 1.0 - sqrt(progress);
    }
    return 0.0;
}

static double warmup_stable_decay(const struct recipe_optimizer *o, int64_t step)
{
    int64_t begin = o->lr_decay_iters - o->lr_wsd_decay_iters;
    if (step <= begin)
        return 1.0;
    return wsd_shape(o->lr_wsd_decay_style, (double)(step - begin) / (double)o->lr_wsd_decay_iters);
}

double learning_rate(const struct recipe_optimizer *optimizer, int64_t step)
{
    int64_t warmup = optimizer->lr_warmup_iters;
    if (warmup > 0 && step <= warmup)
        return optimizer->lr * (double)step / (double)warmup;
    if (optimizer->lr_decay_style == LR_CONSTANT)
        return optimizer->lr;
    if (step > optimizer->lr_decay_iters)
        return optimizer->min_lr;
    if (optimizer->lr_decay_style == LR_INVERSE_SQUARE_ROOT) {
        double from = warmup > 0 ? (double)warmup : 1.0;
        double lr = optimizer->lr * sqrt(from / (double)step);
        return lr > optimizer->min_lr ? lr : optimizer->min_lr;
    }
    double progress = (double)(step - warmup) / (double)(optimizer->lr_decay_iters - warmup), share = 0.0;
    switch (optimizer->lr_decay_style) {
    case LR_LINEAR:
        share = 1.0 - progress;
        break;
    case LR_COSINE:
        share = 0.5 * (1.0 + cos(pi * progress));
        break;
    case LR_WSD:
        share = warmup_stable_decay(optimizer, step);
        break;
    case LR_CONSTANT:
    case LR_INVERSE_SQUARE_ROOT:
        break;
    }
    return optimizer->min_lr + share * (optimizer->lr - optimizer->min_lr);
}
