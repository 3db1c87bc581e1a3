// SPDX-License-Identifier: Apache-2.0
#include "layers/stage.h"

#include <stdlib.h>

/* Before a layer is declared: its scratch is the whole rank's, one layer at a time; and so is what lies
 * between I and W, where W follows at once. */
static struct layout begin_layer(const struct env *env, const struct layout *so_far)
{
    struct layout layout = *so_far;
    layout.bytes[HOME_SCRATCH] = 0;
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

enum status stage_create(const struct env *env, struct stage_span span, struct stage *out)
{
    *out = (struct stage){
        .env = env,
        .first_layer = span.first_layer,
        .layer_count = span.layer_count,
        .has_embedding = span.has_embedding,
        .has_head = span.has_head,
    };
    int layer_count = span.layer_count, first_layer = span.first_layer;
    out->blocks = calloc((size_t)layer_count + 1, sizeof *out->blocks);
    if (out->blocks == NULL)
        return fail(NO_MEMORY, "no memory for %d layers", layer_count);

    if (out->has_embedding) {
        struct layout layout = begin_layer(env, &out->layout);
        out->embedding = embedding_declare(env, &layout);
        end_layer(&out->layout, &layout);
    }
    for (int i = 0; i < layer_count; i++) {
        struct layout layout = begin_layer(env, &out->layout);
        out->blocks[i] = block_declare(env, &layout, first_layer + i, i == 0 ? HOME_INPUT : HOME_UNTIL_INPUT);
        end_layer(&out->layout, &layout);
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
    free(stage->blocks);
    *stage = (struct stage){0};
}

/* Where the input of block i lies; behind the last block, of the head or of the next stage. */
static struct tensor input_of(const struct stage *stage, const struct pass *pass, int i)
{
    if (i < stage->layer_count)
        return pass_tensor(pass, stage->blocks[i].x);
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
        TRY(block_forward(&stage->blocks[i], pass, input_of(stage, pass, i + 1)));
    return stage->has_head ? head_forward(&stage->head, pass) : OK;
}

enum status stage_backward_input(const struct stage *stage, const struct pass *pass, struct tensor dx)
{
    if (stage->has_head)
        TRY(head_backward_input(&stage->head, pass, dx));
    for (int i = stage->layer_count - 1; i >= 0; i--)
        TRY(block_backward_input(&stage->blocks[i], pass, dx));
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
        TRY(block_backward_weight(&stage->blocks[i], pass));
        TRY(call_done(done, stage->blocks[i].layer));
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
        TRY(block_backward_input(&stage->blocks[i], pass, dx));
        TRY(block_backward_weight(&stage->blocks[i], pass));
        TRY(call_done(done, stage->blocks[i].layer));
    }
    if (!stage->has_embedding)
        return OK;
    TRY(embedding_layer_backward_input(&stage->embedding, pass, dx));
    TRY(embedding_layer_backward_weight(&stage->embedding, pass));
    return call_done(done, LAYER_EMBEDDING);
}
