// SPDX-License-Identifier: Apache-2.0
#include "layers/stage.h"

#include "base/memory.h"
#include "layers/parameters/gradients.h"
#include "layers/parameters/sharded.h"

#include <stdlib.h>

/* ---- memory layout ---- */

/* Starts the declarations of a layer. Layers share scratch memory, one at a time; and KEEP_INPUT_TO_WEIGHT
 * too if W follows I immediately. */
static struct slot_layout begin_layer(const struct layer_context *context, const struct slot_layout *so_far)
{
    struct slot_layout layout = *so_far;
    layout.bytes[RECOMPUTE] = layout.bytes[SCRATCH] = 0;
    if (!context->split_weight)
        layout.bytes[KEEP_INPUT_TO_WEIGHT] = 0;
    return layout;
}

static void end_layer(struct slot_layout *so_far, const struct slot_layout *layout)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        if (so_far->bytes[lifetime] < layout->bytes[lifetime])
            so_far->bytes[lifetime] = layout->bytes[lifetime];
}

/* Declares a layer in `self`. *recomputed: its offset in RECOMPUTE, advanced past the layer. */
static void declare_view(struct stage *stage, const struct stage_layer *layer, unsigned modules,
                         enum lifetime until_weight, size_t *recomputed, void *self)
{
    struct slot_layout layout = begin_layer(stage->context, &stage->layout);
    layout.bytes[RECOMPUTE] = *recomputed;
    layout.recomputed = modules;
    layout.until_weight = until_weight;
    layer->kind->declare(stage->context, &layout, layer->layer, layer->x, self);
    *recomputed = layout.bytes[RECOMPUTE];
    end_layer(&stage->layout, &layout);
}

/* Lifetime of the input of layer i, or of the output of the stage for i = count: the first of them is the
 * input of the stage. */
static enum lifetime input_lifetime(const struct stage *stage, int i)
{
    for (int j = 0; j < i; j++)
        if (stage->layers[j].kind->has_input)
            return KEEP_UNTIL_BACKWARD_INPUT;
    return KEEP_INPUT;
}

/* During recomputation the layers of a run are adjacent in RECOMPUTE. F needs room for one of them, and for
 * the inputs of all but the first. */
static void declare_run(struct stage *stage, struct recompute_run run)
{
    const struct layer_context *context = stage->context;
    int64_t tokens = context_local_tokens(context), hidden = context->model->hidden_size;
    struct slot_layout inputs = begin_layer(context, &stage->layout);
    for (int i = run.first; i < run.first + run.count; i++) {
        enum lifetime lifetime = i == run.first ? input_lifetime(stage, i) : RECOMPUTE;
        if (stage->layers[i].kind->has_input)
            stage->layers[i].x = slot_layout_add(&inputs, lifetime, tokens, hidden);
    }
    end_layer(&stage->layout, &inputs);
    size_t backward_offset = inputs.bytes[RECOMPUTE];
    // B needs it only within I.
    enum lifetime until_weight = context->split_weight ? KEEP_INPUT_TO_WEIGHT : RECOMPUTE;
    for (int i = run.first; i < run.first + run.count; i++) {
        struct stage_layer *layer = &stage->layers[i];
        size_t forward_offset = inputs.bytes[RECOMPUTE];
        struct slot_layout before = stage->layout;
        declare_view(stage, layer, run.modules, RECOMPUTE, &forward_offset, layer->forward);
        struct slot_layout after = stage->layout;
        stage->layout = before; // kept tensors are identical in both declarations
        declare_view(stage, layer, run.modules, until_weight, &backward_offset, layer->backward);
        end_layer(&stage->layout, &after);
    }
    if (run.modules != 0)
        stage->layers[run.first + run.count - 1].recompute_from = run.first;
}

/* How many layers of the stage can be recomputed. */
static int recomputable(const struct stage *stage)
{
    int count = 0;
    for (int i = 0; i < stage->count; i++)
        count += stage->layers[i].kind->recompute != NULL ? 1 : 0;
    return count;
}

/* Returns the run of layer i, in layers of the stage. Only layers that can be recomputed count for the
 * recipe's run lengths: there are `count`, `before` of them before layer i. */
static struct recompute_run run_of(const struct stage *stage, int i, int count, int before)
{
    if (stage->layers[i].kind->recompute == NULL)
        return (struct recompute_run){.first = i, .count = 1};
    struct recompute_run run = recompute_run_of(&stage->context->options->recompute, count, before);
    run.first += i - before;
    for (int j = run.first; j < run.first + run.count; j++)
        CHECK(stage->layers[j].kind->recompute != NULL);
    return run;
}

/* Lists the layers, with memory for their declarations. */
static enum status create_layers(struct stage *stage, struct stage_span span)
{
    stage->layers = memory_zeroed((size_t)span.count, sizeof *stage->layers, "the layers of a stage");
    stage->count = span.count;
    for (int i = 0; i < span.count; i++) {
        struct stage_layer *layer = &stage->layers[i];
        layer->layer = span.first + i;
        layer->kind = model_layer_kind(stage->context->model, layer->layer);
        layer->recompute_from = -1;
        layer->forward = memory_zeroed(1, layer->kind->bytes, "a layer");
        layer->backward = memory_zeroed(1, layer->kind->bytes, "a layer");
    }
    stage->has_input = span.count == 0 || stage->layers[0].kind->has_input;
    stage->has_output = span.count == 0 || stage->layers[span.count - 1].kind->has_output;
    return OK;
}

enum status stage_create(const struct layer_context *context, struct stage_span span, struct stage *out)
{
    *out = (struct stage){.context = context, .layout.working = context->working};
    TRY(create_layers(out, span));
    const int count = recomputable(out);
    for (int i = 0, before = 0; i < out->count;) {
        struct recompute_run run = run_of(out, i, count, before);
        declare_run(out, run);
        before += out->layers[i].kind->recompute != NULL ? run.count : 0;
        i += run.count;
    }
    if (out->has_output)
        out->output = slot_layout_add(&out->layout, input_lifetime(out, out->count),
                                      context_local_tokens(context), context->model->hidden_size);
    return OK;
}

void stage_destroy(struct stage *stage)
{
    for (int i = 0; i < stage->count; i++) {
        free(stage->layers[i].forward);
        free(stage->layers[i].backward);
    }
    free(stage->layers);
    *stage = (struct stage){0};
}

/* Returns the input of layer i; after the last layer, that of the next stage. {0} without. */
static struct tensor input_of(const struct stage *stage, const struct pass *pass, int i)
{
    bool inside = i < stage->count, there = inside ? stage->layers[i].kind->has_input : stage->has_output;
    if (!there)
        return (struct tensor){0};
    return pass_tensor(pass, inside ? stage->layers[i].x : stage->output);
}

struct tensor stage_input(const struct stage *stage, const struct pass *pass)
{
    return input_of(stage, pass, 0);
}

struct tensor stage_output(const struct stage *stage, const struct pass *pass)
{
    return input_of(stage, pass, stage->count);
}

struct tensor stage_logits(const struct stage *stage, const struct pass *pass)
{
    for (int i = 0; i < stage->count; i++)
        if (stage->layers[i].kind->logits != NULL)
            return stage->layers[i].kind->logits(stage->layers[i].forward, pass);
    return (struct tensor){0};
}

/* ---- one layer ---- */

/* Acquires the values of layer i and prefetches those of layer i + step. */
static enum status acquire(const struct stage *stage, int i, int step)
{
    int next = i + step;
    bool ends = next < 0 || next >= stage->count;
    return weights_acquire(stage->context->weights, stage->context->compute, stage->layers[i].layer,
                           stage->layers[ends ? i : next].layer);
}

static enum status release(const struct stage *stage, int i)
{
    return weights_release(stage->context->weights, stage->context->compute, stage->layers[i].layer);
}

/* Attributes what is enqueued to layer i, for observers, until leave(). */
static const struct stage_layer *enter(const struct stage *stage, int i)
{
    rank_context()->layer = stage->layers[i].layer;
    return &stage->layers[i];
}

static enum status leave(enum status status)
{
    rank_context()->layer = NO_LAYER;
    return status;
}

static enum status layer_forward(const struct stage *stage, const struct pass *pass, int i)
{
    const struct stage_layer *layer = enter(stage, i);
    return leave(layer->kind->forward(layer->forward, pass, input_of(stage, pass, i + 1)));
}

static enum status layer_recompute(const struct stage *stage, const struct pass *pass, int i,
                                   struct tensor out)
{
    const struct stage_layer *layer = enter(stage, i);
    return leave(layer->kind->recompute(layer->backward, pass, out));
}

/* Recomputes the dropped activations of the run that ends with layer i; acquires the values of layer i. */
static enum status recompute_run(const struct stage *stage, const struct pass *pass, int i)
{
    int first = stage->layers[i].recompute_from;
    for (int j = first; first >= 0 && j < i; j++) {
        TRY(acquire(stage, j, 1));
        TRY(layer_recompute(stage, pass, j, input_of(stage, pass, j + 1)));
        TRY(release(stage, j));
    }
    TRY(acquire(stage, i, -1));
    return first >= 0 ? layer_recompute(stage, pass, i, (struct tensor){0}) : OK;
}

static enum status layer_backward_input(const struct stage *stage, const struct pass *pass, int i,
                                        struct tensor dx)
{
    TRY(recompute_run(stage, pass, i));
    const struct stage_layer *layer = enter(stage, i);
    TRY(leave(layer->kind->backward_input(layer->backward, pass, dx)));
    return release(stage, i);
}

/* Weight gradients do not read weights: no weights_acquire(). */
static enum status layer_backward_weight(const struct stage *stage, const struct pass *pass, int i)
{
    const struct layer_context *context = stage->context;
    const int number = stage->layers[i].layer;
    TRY(gradients_begin(context->weights->gradients, context->compute, number));
    const struct stage_layer *layer = enter(stage, i);
    TRY(leave(layer->kind->backward_weight(layer->backward, pass)));
    return gradients_end(context->weights->gradients, context->compute, number, pass->is_last);
}

/* ---- a pass ---- */

enum status stage_forward(const struct stage *stage, const struct pass *pass)
{
    for (int i = 0; i < stage->count; i++) {
        TRY(acquire(stage, i, 1));
        TRY(layer_forward(stage, pass, i));
        TRY(release(stage, i));
    }
    return OK;
}

enum status stage_backward_input(const struct stage *stage, const struct pass *pass, struct tensor dx)
{
    for (int i = stage->count - 1; i >= 0; i--)
        TRY(layer_backward_input(stage, pass, i, dx));
    return OK;
}

enum status stage_backward_weight(const struct stage *stage, const struct pass *pass)
{
    CHECK(stage->context->split_weight);
    for (int i = stage->count - 1; i >= 0; i--)
        TRY(layer_backward_weight(stage, pass, i));
    return OK;
}

enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx)
{
    for (int i = stage->count - 1; i >= 0; i--) {
        TRY(layer_backward_input(stage, pass, i, dx));
        TRY(layer_backward_weight(stage, pass, i));
    }
    return OK;
}

enum status stage_mark_gradients_ready(const struct stage *stage)
{
    const struct layer_context *context = stage->context;
    for (int i = stage->count - 1; i >= 0; i--)
        TRY(gradients_mark_ready(context->weights->gradients, context->compute, stage->layers[i].layer));
    return OK;
}
