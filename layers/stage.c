// SPDX-License-Identifier: Apache-2.0
#include "layers/stage.h"

#include <stdlib.h>

/* ---- what lies where ---- */

/* Before a layer is declared: its scratch is the whole rank's, one layer at a time; and so is what lies
 * between I and W, where W follows at once. */
static struct layout begin_layer(const struct env *env, const struct layout *so_far)
{
    struct layout layout = *so_far;
    layout.bytes[HOME_AGAIN] = layout.bytes[HOME_SCRATCH] = 0;
    if (!env->split_weight)
        layout.bytes[HOME_INPUT_TO_WEIGHT] = 0;
    return layout;
}

static void end_layer(struct layout *so_far, const struct layout *layout)
{
    for (int home = 0; home < HOME_COUNT; home++)
        if (so_far->bytes[home] < layout->bytes[home])
            so_far->bytes[home] = layout->bytes[home];
}

/* One more view of a layer. `again` is where in HOME_AGAIN it begins, and then where it ends. */
static struct block declare_view(struct stage *stage, int i, struct region x, unsigned modules,
                                 enum home until_weight, size_t *again)
{
    struct layout layout = begin_layer(stage->env, &stage->layout);
    layout.bytes[HOME_AGAIN] = *again;
    layout.again = modules;
    layout.until_weight = until_weight;
    struct block block = block_declare(stage->env, &layout, stage->first_layer + i, x);
    *again = layout.bytes[HOME_AGAIN];
    end_layer(&stage->layout, &layout);
    return block;
}

/* The layers of a run lie beside each other in HOME_AGAIN when they are computed again; F needs room there
 * for one of them, and for the inputs of all but the first. */
static void declare_run(struct stage *stage, struct recompute_run run)
{
    const struct env *env = stage->env;
    int64_t tokens = env_local_tokens(env), hidden = env->model->hidden_size;
    struct layout inputs = begin_layer(env, &stage->layout);
    for (int i = run.first; i < run.first + run.count; i++) {
        enum home home = i == 0 ? HOME_INPUT : i == run.first ? HOME_UNTIL_INPUT : HOME_AGAIN;
        stage->layers[i].forward.x = layout_add(&inputs, home, tokens, hidden);
        stage->layers[i].again_from = -1;
    }
    end_layer(&stage->layout, &inputs);
    size_t lying = inputs.bytes[HOME_AGAIN];
    // B needs it no longer than I does.
    enum home until_weight = env->split_weight ? HOME_INPUT_TO_WEIGHT : HOME_AGAIN;
    for (int i = run.first; i < run.first + run.count; i++) {
        struct stage_layer *layer = &stage->layers[i];
        struct region x = layer->forward.x;
        size_t passing = inputs.bytes[HOME_AGAIN];
        struct layout before = stage->layout;
        layer->forward = declare_view(stage, i, x, run.modules, HOME_AGAIN, &passing);
        struct layout after = stage->layout;
        stage->layout = before; // what is kept is the same in both views
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
        out->head = head_declare(env, &layout, layer_count == 0 ? HOME_INPUT : HOME_UNTIL_INPUT);
        end_layer(&out->layout, &layout);
    } else {
        out->through = layout_add(&out->layout, layer_count == 0 ? HOME_INPUT : HOME_UNTIL_INPUT,
                                  env_local_tokens(env), env->model->hidden_size);
    }
    return OK;
}

void stage_destroy(struct stage *stage)
{
    free(stage->layers);
    *stage = (struct stage){0};
}

/* Where the input of block i lies; behind the last block, of the head or of the next stage. */
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

enum status stage_forward(const struct stage *stage, const struct pass *pass)
{
    if (stage->has_embedding)
        TRY(embedding_layer_forward(&stage->embedding, pass, input_of(stage, pass, 0)));
    for (int i = 0; i < stage->layer_count; i++)
        TRY(block_forward(&stage->layers[i].forward, pass, input_of(stage, pass, i + 1)));
    return stage->has_head ? head_forward(&stage->head, pass) : OK;
}

/* What F did not keep of the run that ends with layer i. */
static enum status forward_again(const struct stage *stage, const struct pass *pass, int i)
{
    int first = stage->layers[i].again_from;
    for (int j = first; first >= 0 && j <= i; j++) {
        struct tensor out = j < i ? input_of(stage, pass, j + 1) : (struct tensor){0};
        TRY(block_forward_again(&stage->layers[j].backward, pass, out));
    }
    return OK;
}

enum status stage_backward_input(const struct stage *stage, const struct pass *pass, struct tensor dx)
{
    if (stage->has_head)
        TRY(head_backward_input(&stage->head, pass, dx));
    for (int i = stage->layer_count - 1; i >= 0; i--) {
        TRY(forward_again(stage, pass, i));
        TRY(block_backward_input(&stage->layers[i].backward, pass, dx));
    }
    return stage->has_embedding ? embedding_layer_backward_input(&stage->embedding, pass, dx) : OK;
}

static enum status call_done(struct layer_done done, int layer)
{
    return done.call != NULL ? done.call(done.context, layer) : OK;
}

enum status stage_backward_weight(const struct stage *stage, const struct pass *pass, struct layer_done done)
{
    CHECK(stage->env->split_weight);
    if (stage->has_head) {
        TRY(head_backward_weight(&stage->head, pass));
        TRY(call_done(done, (int)stage->env->model->num_layers));
    }
    for (int i = stage->layer_count - 1; i >= 0; i--) {
        TRY(block_backward_weight(&stage->layers[i].backward, pass));
        TRY(call_done(done, stage->first_layer + i));
    }
    if (!stage->has_embedding)
        return OK;
    TRY(embedding_layer_backward_weight(&stage->embedding, pass));
    return call_done(done, LAYER_EMBEDDING);
}

enum status stage_backward(const struct stage *stage, const struct pass *pass, struct tensor dx,
                           struct layer_done done)
{
    if (stage->has_head) {
        TRY(head_backward_input(&stage->head, pass, dx));
        TRY(head_backward_weight(&stage->head, pass));
        TRY(call_done(done, (int)stage->env->model->num_layers));
    }
    for (int i = stage->layer_count - 1; i >= 0; i--) {
        TRY(forward_again(stage, pass, i));
        TRY(block_backward_input(&stage->layers[i].backward, pass, dx));
        TRY(block_backward_weight(&stage->layers[i].backward, pass));
        TRY(call_done(done, stage->first_layer + i));
    }
    if (!stage->has_embedding)
        return OK;
    TRY(embedding_layer_backward_input(&stage->embedding, pass, dx));
    TRY(embedding_layer_backward_weight(&stage->embedding, pass));
    return call_done(done, LAYER_EMBEDDING);
}
