// SPDX-License-Identifier: Apache-2.0
#include "layers/stage.h"

#include "layers/parameters/sharded.h"

#include <stdlib.h>

/* ---- memory layout ---- */

/* Starts the declarations of a layer. Layers share scratch memory, one at a time; and KEEP_INPUT_TO_WEIGHT
 * too if W follows I immediately. */
static struct layout begin_layer(const struct env *env, const struct layout *so_far)
{
    struct layout layout = *so_far;
    layout.bytes[RECOMPUTE] = layout.bytes[SCRATCH] = 0;
    if (!env->split_weight)
        layout.bytes[KEEP_INPUT_TO_WEIGHT] = 0;
    return layout;
}

static void end_layer(struct layout *so_far, const struct layout *layout)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        if (so_far->bytes[lifetime] < layout->bytes[lifetime])
            so_far->bytes[lifetime] = layout->bytes[lifetime];
}

/* Declares a layer. *recomputed: its offset in RECOMPUTE, advanced past the layer. */
static struct block declare_view(struct stage *stage, int i, struct region x, unsigned modules,
                                 enum lifetime until_weight, size_t *recomputed)
{
    struct layout layout = begin_layer(stage->env, &stage->layout);
    layout.bytes[RECOMPUTE] = *recomputed;
    layout.recomputed = modules;
    layout.until_weight = until_weight;
    struct block block = block_declare(stage->env, &layout, stage->first_layer + i, x);
    *recomputed = layout.bytes[RECOMPUTE];
    end_layer(&stage->layout, &layout);
    return block;
}

/* During recomputation the layers of a run are adjacent in RECOMPUTE. F needs room for one of them, and for
 * the inputs of all but the first. */
static void declare_run(struct stage *stage, struct recompute_run run)
{
    const struct env *env = stage->env;
    int64_t tokens = env_local_tokens(env), hidden = env->model->hidden_size;
    struct layout inputs = begin_layer(env, &stage->layout);
    for (int i = run.first; i < run.first + run.count; i++) {
        enum lifetime lifetime = i == 0 ? KEEP_INPUT : i == run.first ? KEEP_UNTIL_BACKWARD_INPUT : RECOMPUTE;
        stage->layers[i].forward.x = layout_add(&inputs, lifetime, tokens, hidden);
        stage->layers[i].again_from = -1;
    }
    end_layer(&stage->layout, &inputs);
    size_t lying = inputs.bytes[RECOMPUTE];
    // B needs it only within I.
    enum lifetime until_weight = env->split_weight ? KEEP_INPUT_TO_WEIGHT : RECOMPUTE;
    for (int i = run.first; i < run.first + run.count; i++) {
        struct stage_layer *layer = &stage->layers[i];
        struct region x = layer->forward.x;
        size_t passing = inputs.bytes[RECOMPUTE];
        struct layout before = stage->layout;
        layer->forward = declare_view(stage, i, x, run.modules, RECOMPUTE, &passing);
        struct layout after = stage->layout;
        stage->layout = before; // kept tensors are identical in both declarations
        layer->backward = declare_view(stage, i, x, run.modules, until_weight, &lying);
        end_layer(&stage->layout, &after);
    }
    if (run.modules != 0)
        stage->layers[run.first + run.count - 1].again_from = run.first;
}

enum status stage_create(const struct env *env, struct stage_span span, struct stage *out)
{
    *out = (struct stage){
        .env = env,
        .first_layer = span.first_layer,
        .layer_count = span.layer_count,
        .has_embedding = span.has_embedding,
        .has_head = span.has_head,
        .layout.working = env->working,
    };
    int layer_count = span.layer_count;
    out->layers = calloc((size_t)layer_count + 1, sizeof *out->layers);
    if (out->layers == NULL)
        return fail(NO_MEMORY, "no memory for %d layers", layer_count);

    if (out->has_embedding) {
        struct layout layout = begin_layer(env, &out->layout);
        out->embedding = embedding_declare(env, &layout);
        end_layer(&out->layout, &layout);
    }
    for (int i = 0; i < layer_count;) {
        struct recompute_run run = recompute_run_of(&env->recompute, layer_count, i);
        declare_run(out, run);
        i += run.count;
    }
    if (out->has_head) {
        struct layout layout = begin_layer(env, &out->layout);
        out->head = head_declare(env, &layout, layer_count == 0 ? KEEP_INPUT : KEEP_UNTIL_BACKWARD_INPUT);
        end_layer(&out->layout, &layout);
    } else {
        out->through = layout_add(&out->layout, layer_count == 0 ? KEEP_INPUT : KEEP_UNTIL_BACKWARD_INPUT,
                                  env_local_tokens(env), env->model->hidden_size);
    }
    return OK;
}

void stage_destroy(struct stage *stage)
{
    free(stage->layers);
    *stage = (struct stage){0};
}

/* Returns the input of block i; after the last block, that of the head or of the next stage. */
static struct tensor input_of(const struct stage *stage, const struct pass *pass, int i)
{
    if (i < stage->layer_count)
        return pass_tensor(pass, stage->layers[i].forward.x);
    return pass_tensor(pass, stage->has_head ? stage->head.x : stage->through);
}

struct tensor stage_input(const struct stage *stage, const struct pass *pass)
{
    return stage->has_embedding ? (struct tensor){0} : input_of(stage, pass, 0);
}

struct tensor stage_output(const struct stage *stage, const struct pass *pass)
{
    return stage->has_head ? (struct tensor){0} : pass_tensor(pass, stage->through);
}

/* ---- one layer: -1 is the embedding, layer_count the head ---- */

static int first_of(const struct stage *stage)
{
    return stage->has_embedding ? -1 : 0;
}

static int last_of(const struct stage *stage)
{
    return stage->has_head ? stage->layer_count : stage->layer_count - 1;
}

/* Layer index as in struct param. */
static int layer_of(const struct stage *stage, int i)
{
    return i < 0                     ? LAYER_EMBEDDING
           : i == stage->layer_count ? (int)stage->env->model->num_layers
                                     : stage->first_layer + i;
}

/* Acquires the values of layer i and prefetches those of layer i + step. */
static enum status acquire(const struct stage *stage, int i, int step)
{
    int next = i + step;
    bool ends = next < first_of(stage) || next > last_of(stage);
    return weights_acquire(stage->env->weights, stage->env->compute, layer_of(stage, i),
                           layer_of(stage, ends ? i : next));
}

static enum status let_go(const struct stage *stage, int i)
{
    return weights_release(stage->env->weights, stage->env->compute, layer_of(stage, i));
}

static enum status layer_forward(const struct stage *stage, const struct pass *pass, int i)
{
    if (i < 0)
        return embedding_layer_forward(&stage->embedding, pass, input_of(stage, pass, 0));
    if (i == stage->layer_count)
        return head_forward(&stage->head, pass);
    return block_forward(&stage->layers[i].forward, pass, input_of(stage, pass, i + 1));
}

/* Recomputes the dropped activations of the run that ends with layer i, and acquires the values of layer i.
 * */
static enum status forward_again(const struct stage *stage, const struct pass *pass, int i)
{
    int first = i >= 0 && i < stage->layer_count ? stage->layers[i].again_from : -1;
    for (int j = first; first >= 0 && j < i; j++) {
        TRY(acquire(stage, j, 1));
        TRY(block_forward_again(&stage->layers[j].backward, pass, input_of(stage, pass, j + 1)));
        TRY(let_go(stage, j));
    }
    TRY(acquire(stage, i, -1));
    return first >= 0 ? block_forward_again(&stage->layers[i].backward, pass, (struct tensor){0}) : OK;
}

static enum status layer_backward_input(const struct stage *stage, const struct pass *pass, int i,
                                        struct tensor dx)
{
    TRY(forward_again(stage, pass, i));
    if (i < 0)
        TRY(embedding_layer_backward_input(&stage->embedding, pass, dx));
    else if (i == stage->layer_count)
        TRY(head_backward_input(&stage->head, pass, dx));
    else
        TRY(block_backward_input(&stage->layers[i].backward, pass, dx));
    return let_go(stage, i);
}

/* Weight gradients do not read weights: no weights_acquire(). */
static enum status layer_backward_weight(const struct stage *stage, const struct pass *pass, int i,
                                         struct layer_done done)
{
    const struct env *env = stage->env;
    int layer = layer_of(stage, i);
    TRY(weights_open_gradients(env->weights, env->compute, layer));
    if (i < 0)
        TRY(embedding_layer_backward_weight(&stage->embedding, pass));
    else if (i == stage->layer_count)
        TRY(head_backward_weight(&stage->head, pass));
    else
        TRY(block_backward_weight(&stage->layers[i].backward, pass));
    TRY(weights_close_gradients(env->weights, env->compute, layer));
    return done.call != NULL ? done.call(done.context, layer) : OK;
}

/* ---- a pass ---- */

enum status stage_forward(const struct stage *stage, const struct pass *pass)
{
    for (int i = first_of(stage); i <= last_of(stage); i++) {
        TRY(acquire(stage, i, 1));
        TRY(layer_forward(stage, pass, i));
        TRY(let_go(stage, i));
    }
    return OK;
}

enum status stage_backward_input(const struct stage *stage, const struct pass *pass, struct tensor dx)
{
    for (int i = last_of(stage); i >= first_of(stage); i--)
        TRY(layer_backward_input(stage, pass, i, dx));
    return OK;
}

enum status stage_backward_weight(const struct stage *stage, const struct pass *pass, struct layer_done done)
{
    CHECK(stage->env->split_weight);
    for (int i = last_of(stage); i >= first_of(stage); i--)
        TRY(layer_backward_weight(stage, pass, i, done));
    return OK;
}

enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx,
                           struct layer_done done)
{
    for (int i = last_of(stage); i >= first_of(stage); i--) {
        TRY(layer_backward_input(stage, pass, i, dx));
        TRY(layer_backward_weight(stage, pass, i, done));
    }
    return OK;
}
