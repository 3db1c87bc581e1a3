// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/layers_bench.h"

enum status bench_declare(struct bench *b, struct layout *layout)
{
    const struct env *env = &b->env;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        l->column = column_linear_declare(env, layout, param_row(env, 0, "attention.q.weight"),
                                          param_row(env, 0, "attention.q.bias"));
        break;
    case ROW:
        l->row = row_linear_declare(env, layout, param_row(env, 0, "mlp.fc2.weight"),
                                    param_row(env, 0, "mlp.fc2.bias"));
        break;
    case NORM:
        l->norm = norm_declare(env, layout, "layers.0.norm1");
        break;
    case ATTENTION:
        l->attention = attention_declare(env, layout, 0);
        break;
    case MLP:
        l->mlp = mlp_declare(env, layout, 0);
        break;
    case BLOCK:
        l->block = block_declare(env, layout, 0, HOME_INPUT);
        break;
    case EMBEDDING:
        l->embedding = embedding_declare(env, layout);
        break;
    case HEAD:
        l->head = head_declare(env, layout, HOME_INPUT);
        break;
    case WHOLE:
        TRY(stage_create(env, (struct stage_span){0, LAYERS, true, true}, &l->stage));
        *layout = l->stage.layout;
        break;
    case SUBJECTS:
        break;
    }
    return OK;
}

enum status bench_forward(struct bench *b, struct tensor x, struct tensor *y)
{
    const struct pass *pass = &b->pass;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        return column_linear_forward(&l->column, pass, x, *y);
    case ROW:
        return row_linear_forward(&l->row, pass, x, y);
    case NORM:
        return norm_layer_forward(&l->norm, pass, x, *y);
    case ATTENTION:
        return attention_layer_forward(&l->attention, pass, x, y);
    case MLP:
        return mlp_forward(&l->mlp, pass, x, y);
    case BLOCK:
        TRY(copy(b->stream, (struct copy){.in = x, .out = pass_tensor(pass, l->block.x)}));
        return block_forward(&l->block, pass, *y);
    case EMBEDDING:
        return embedding_layer_forward(&l->embedding, pass, *y);
    case HEAD:
        TRY(copy(b->stream, (struct copy){.in = x, .out = pass_tensor(pass, l->head.x)}));
        return head_forward(&l->head, pass);
    case WHOLE:
        return stage_forward(&l->stage, pass);
    case SUBJECTS:
        break;
    }
    return OK;
}

/* The gradient of a row layer's output goes where the layer keeps it. */
static enum status enter(struct bench *b, const struct row_linear *last, struct tensor dy)
{
    return copy(b->stream, (struct copy){.in = dy, .out = pass_tensor(&b->pass, last->dy)});
}

enum status bench_backward_input(struct bench *b, struct tensor x, struct tensor dy, struct tensor *dx)
{
    const struct pass *pass = &b->pass;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        return column_linear_backward_input(&l->column, pass, dy, dx);
    case ROW:
        TRY(enter(b, &l->row, dy));
        return row_linear_backward_input(&l->row, pass, *dx);
    case NORM:
        TRY(fill(b->stream, (struct fill){.out = *dx, .value = 0.0F}));
        return norm_layer_backward_input(&l->norm, pass, dy, x, *dx);
    case ATTENTION:
        TRY(enter(b, &l->attention.proj, dy));
        return attention_layer_backward_input(&l->attention, pass, dx);
    case MLP:
        TRY(enter(b, &l->mlp.out, dy));
        return mlp_backward_input(&l->mlp, pass, dx);
    case BLOCK:
        TRY(copy(b->stream, (struct copy){.in = dy, .out = *dx}));
        return block_backward_input(&l->block, pass, *dx);
    case EMBEDDING:
        return embedding_layer_backward_input(&l->embedding, pass, dy);
    case HEAD:
        return head_backward_input(&l->head, pass, *dx);
    case WHOLE:
        return stage_backward_input(&l->stage, pass, *dx);
    case SUBJECTS:
        break;
    }
    return OK;
}

enum status bench_backward_weight(struct bench *b, struct tensor x, struct tensor dy)
{
    const struct pass *pass = &b->pass;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        return column_linear_backward_weight(&l->column, pass, x, dy);
    case ROW:
        return row_linear_backward_weight(&l->row, pass, x);
    case NORM:
        return norm_layer_backward_weight(&l->norm, pass);
    case ATTENTION:
        return attention_layer_backward_weight(&l->attention, pass, x);
    case MLP:
        return mlp_backward_weight(&l->mlp, pass, x);
    case BLOCK:
        return block_backward_weight(&l->block, pass);
    case EMBEDDING:
        return embedding_layer_backward_weight(&l->embedding, pass);
    case HEAD:
        return head_backward_weight(&l->head, pass);
    case WHOLE:
        return stage_backward_weight(&l->stage, pass, (struct layer_done){0});
    case SUBJECTS:
        break;
    }
    return OK;
}
