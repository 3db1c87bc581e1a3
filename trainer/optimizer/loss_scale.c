// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/loss_scale.h"

struct loss_scale loss_scale_of(const struct recipe *recipe)
{
    const struct recipe_precision *p = &recipe->precision;
    bool fixed = p->loss_scale > 0.0;
    if (p->params_dtype != F16)
        return (struct loss_scale){.scale = 0.0};
    return (struct loss_scale){
        .scale = fixed ? p->loss_scale : p->initial_loss_scale,
        .hysteresis = p->hysteresis,
        .fixed = fixed,
        .min_scale = p->min_loss_scale,
        .window = p->loss_scale_window,
        .initial_hysteresis = p->hysteresis,
    };
}

void loss_scale_resume(struct loss_scale *state, double scale, int64_t good_steps, int64_t hysteresis)
{
    if (!(state->scale > 0.0) || state->fixed || !(scale > 0.0))
        return;
    state->scale = scale > state->min_scale ? scale : state->min_scale;
    state->good_steps = good_steps;
    state->hysteresis = hysteresis;
}

static void record_overflow(struct loss_scale *s)
{
    s->good_steps = 0;
    s->hysteresis -= s->hysteresis > 0;
    if (s->hysteresis > 0)
        return;
    s->stuck = s->scale <= s->min_scale;
    if (!s->stuck)
        s->scale = s->scale * 0.5 > s->min_scale ? s->scale * 0.5 : s->min_scale;
}

static void record_good_step(struct loss_scale *s)
{
    s->good_steps++;
    if (s->good_steps < s->window)
        return;
    s->good_steps = 0;
    s->hysteresis = s->initial_hysteresis;
    if (s->scale * 2.0 <= LOSS_SCALE_MAX)
        s->scale *= 2.0;
}

void loss_scale_step(struct loss_scale *state, bool overflow)
{
    state->skipped = overflow ? state->skipped + 1 : 0;
    state->stuck = false;
    if (!(state->scale > 0.0))
        return;
    if (state->fixed)
        state->stuck = state->skipped >= LOSS_SCALE_PATIENCE;
    else if (overflow)
        record_overflow(state);
    else
        record_good_step(state);
}
