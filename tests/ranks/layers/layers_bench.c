// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/layers/layers_bench.h"

#include "layers/model.h"
#include "layers/parameters/gradients.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- the slice of a tensor that a rank holds ---- */

struct window window_of(const struct bench *b, enum shape shape)
{
    struct window w = {.rows = T, .width = columns_of(b->context.model, shape), .runs = 1};
    w.count[0] = w.width;
    if (shape == HIDDEN) {
        w.row_begin = context_local_begin(&b->context);
        w.rows = context_local_tokens(&b->context);
    } else if (shape == FEATURES) {
        const struct slice *s =
            &weights_held(&b->weights, params_find(&b->params, "layers.0.mlp.fc2.weight"))->slice;
        w.begin[0] = s->begin[1];
        w.count[0] = s->count[1];
    } else if (shape == FUSED) {
        int64_t before = 0;
        int q = params_find(&b->params, "layers.0.attention.q.weight");
        for (w.runs = 0; w.runs < 3; w.runs++) {
            const struct held_param *held = weights_held(&b->weights, q + w.runs);
            w.begin[w.runs] = before + held->slice.begin[0];
            w.count[w.runs] = held->slice.count[0];
            before += held->param->dim[0];
        }
    }
    return w;
}

int64_t window_columns(const struct window *w)
{
    return w->count[0] + w->count[1] + w->count[2];
}

void window_walk(const struct window *w, void *context,
                 void (*visit)(void *context, int64_t local, int64_t global))
{
    int64_t local = 0;
    for (int64_t i = 0; i < w->rows; i++)
        for (int run = 0; run < w->runs; run++)
            for (int64_t j = 0; j < w->count[run]; j++)
                visit(context, local++, (w->row_begin + i) * w->width + w->begin[run] + j);
}

struct window window_of_slice(const struct held_param *held)
{
    const struct slice *s = &held->slice;
    return (struct window){.row_begin = s->begin[0],
                           .rows = s->count[0],
                           .width = held->param->dim[1],
                           .runs = 1,
                           .begin = {s->begin[1]},
                           .count = {s->count[1]}};
}

/* ---- copies to and from the device ---- */

struct narrowing {
    const double *from;
    float *to;
};
static void narrow_one(void *context, int64_t local, int64_t global)
{
    const struct narrowing *n = context;
    n->to[local] = (float)n->from[global];
}

enum status bench_write(struct bench *b, const struct window *w, const double *whole, void *device)
{
    size_t bytes = (size_t)(w->rows * window_columns(w)) * sizeof(float);
    float *host = calloc(1, bytes + 1);
    if (host == NULL)
        return fail(NO_MEMORY, "no memory for a tensor");
    window_walk(w, &(struct narrowing){whole, host}, narrow_one);
    enum status status = copy_to_device(b->stream, device, host, bytes);
    if (status == OK)
        status = stream_sync(b->stream);
    free(host);
    return status;
}

static enum status declare_kind(struct bench *b, struct slot_layout *layout, int layer)
{
    const struct layer_context *context = &b->context;
    struct layer *l = &b->layer;
    l->kind = model_layer_kind(context->model, layer);
    l->self = calloc(1, l->kind->bytes);
    if (l->self == NULL)
        return fail(NO_MEMORY, "no memory for a layer");
    if (l->kind->has_input)
        l->x =
            slot_layout_add(layout, KEEP_INPUT, context_local_tokens(context), context->model->hidden_size);
    l->kind->declare(context, layout, layer, l->x, l->self);
    return OK;
}

static enum status declare(struct bench *b, struct slot_layout *layout)
{
    const struct layer_context *context = &b->context;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        l->column = column_linear_declare(context, layout, params_weight(&b->params, 0, ROLE_QUERY),
                                          params_bias(&b->params, 0, ROLE_QUERY));
        break;
    case ROW:
        l->row = row_linear_declare(context, layout, params_weight(&b->params, 0, ROLE_MLP_DOWN),
                                    params_bias(&b->params, 0, ROLE_MLP_DOWN));
        break;
    case NORM:
        l->norm = norm_declare(context, layout, 0, ROLE_ATTENTION_NORM);
        break;
    case ATTENTION:
        l->attention = attention_declare(context, layout, 0);
        break;
    case MLP:
        l->mlp = mlp_declare(context, layout, 0);
        break;
    case BLOCK:
        return declare_kind(b, layout, 0);
    case EMBEDDING:
        return declare_kind(b, layout, LAYER_EMBEDDING);
    case HEAD:
        return declare_kind(b, layout, LAYERS);
    case WHOLE:
        TRY(stage_create(context, (struct stage_span){LAYER_EMBEDDING, LAYERS + 2}, &l->stage));
        *layout = l->stage.layout;
        break;
    case SUBJECTS:
        break;
    }
    return OK;
}

/* ---- setup ---- */

static enum status alloc(struct bench *b, size_t bytes, struct buffer *out)
{
    return buffer_alloc(b->device, PART_DATA, bytes, out);
}

/* The microbatch's arrays on the device; faults are injected here. */
static enum status write_batch(struct bench *b)
{
    struct batch_arrays n = b->trial->expected->numbers;
    for (int t = 0; t < T && b->trial->fault == OTHER_SAMPLES; t++)
        n.sample[t]++;
    if (b->trial->fault == OTHER_POSITIONS) {
        n.position[1] = 2;
        n.position[2] = 1;
    }
    TRY(alloc(b, sizeof n, &b->data));
    TRY(alloc(b, 2 * B * sizeof(double), &b->sums));
    TRY(copy_to_device(b->stream, b->data.data, &n, sizeof n));
    TRY(stream_sync(b->stream));
    const char *at = b->data.data;
    double *sums = b->sums.data;
    b->batch = (struct batch){
        .token = (const int32_t *)(at + offsetof(struct batch_arrays, token)),
        .label = (const int32_t *)(at + offsetof(struct batch_arrays, label)),
        .position = (const int32_t *)(at + offsetof(struct batch_arrays, position)),
        .document = b->trial->expected->family->documents
                        ? (const int32_t *)(at + offsetof(struct batch_arrays, document))
                        : NULL,
        .loss_mask = (const float *)(at + offsetof(struct batch_arrays, mask)),
        .sample = (const int64_t *)(at + offsetof(struct batch_arrays, sample)),
        .sample_offset = (const int32_t *)(at + offsetof(struct batch_arrays, place)),
        .sample_loss = tensor_1d(sums, F64, B),
        .sample_tokens = tensor_1d(sums + B, F64, B),
    };
    return OK;
}

/* The parameter whose values are written to this one. */
static int written_to(const struct bench *b, const struct param *param, int index)
{
    const bool swapped = b->trial->fault == SWAPPED_GATE && b->world->rank == 1;
    if (!swapped || (param->role != ROLE_MLP_GATE && param->role != ROLE_MLP_UP))
        return index;
    const enum param_role other = param->role == ROLE_MLP_GATE ? ROLE_MLP_UP : ROLE_MLP_GATE;
    return param->is_bias ? params_bias(&b->params, param->layer, other)
                          : params_weight(&b->params, param->layer, other);
}

/* The sum of the gradients of two branches is the only residual without a bias. */
static bool adds_branches(const struct op *op)
{
    return op->kind == OP_RESIDUAL_FORWARD && op->residual_forward.bias.data == NULL;
}

static enum status submit_faulty(struct stream *stream, const struct op *op)
{
    const struct faulty_ops *faulty = (const struct faulty_ops *)stream->device->ops;
    for (int i = adds_branches(op) ? faulty->times : 1; i > 0; i--)
        TRY(faulty->inner->submit(stream, op));
    return OK;
}

static void inject(struct bench *b)
{
    const enum fault fault = b->trial->fault;
    if (fault != BRANCH_LEFT_OUT && fault != BRANCH_ADDED_TWICE)
        return;
    b->faulty = (struct faulty_ops){
        .ops = *b->device->ops, .inner = b->device->ops, .times = fault == BRANCH_LEFT_OUT ? 0 : 2};
    b->faulty.ops.submit = submit_faulty;
    b->device->ops = &b->faulty.ops;
}

static enum status make_weights(struct bench *b)
{
    static const int layers[] = {LAYERS, 1, 0, LAYER_EMBEDDING};
    struct weights_config config = {.device = b->device,
                                    .params = &b->params,
                                    .coord = b->groups->coord,
                                    .layers = layers,
                                    .layer_count = LAYERS + 2,
                                    .groups = b->groups,
                                    .training = true};
    TRY(weights_create(&config, &b->weights));
    TRY(weights_initialize(&b->weights, b->stream, SEED));
    TRY(gradients_zero(b->weights.gradients, b->stream));
    for (int i = 0; i < b->weights.count; i++) {
        const struct held_param *held = &b->weights.list[i];
        struct window w = window_of_slice(held);
        TRY(bench_write(b, &w, b->trial->expected->reference.weight[written_to(b, held->param, held->index)],
                        held->weight.data));
    }
    return OK;
}

enum status bench_open(struct trial *trial, struct world *world, struct bench *b)
{
    const struct model_config *model = &trial->expected->family->model;
    *b = (struct bench){.trial = trial, .subject = trial->expected->subject, .world = world};
    struct degrees degrees = {.tp = world->size, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    struct mesh mesh;
    TRY(mesh_create(degrees, NULL, &mesh));
    TRY(params_declare(model, &degrees, trial->sequence_parallel, &b->params));
    TRY(groups_create(world, &mesh, params_kv_replicas(model, world->size), &b->groups));
    TRY(device_open(&(struct device_options){.name = trial->device, .threads = 1}, &b->device));
    inject(b);
    TRY(stream_create(b->device, "test", &b->stream));
    if (trial->comm_stream)
        TRY(stream_create(b->device, "comm", &b->comm_stream));
    TRY(make_weights(b));
    TRY(write_batch(b));
    b->options = (struct layer_options){.sequence_parallel = trial->sequence_parallel};
    b->context = (struct layer_context){.model = model,
                                        .groups = b->groups,
                                        .weights = &b->weights,
                                        .compute = b->stream,
                                        .comm_stream = b->comm_stream,
                                        .tokens = B * S,
                                        .sequences = B,
                                        .options = &b->options,
                                        .split_weight = !trial->fused,
                                        .seed = SEED};
    struct slot_layout layout = {0};
    TRY(declare(b, &layout));
    b->pass = (struct pass){.context = &b->context, .batch = &b->batch, .training = true};
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        TRY(alloc(b, layout.bytes[lifetime], &b->lifetime[lifetime]));
        b->pass.base[lifetime] = b->lifetime[lifetime].data;
    }
    struct buffer *all[] = {&b->x, &b->y, &b->dy, &b->dx};
    for (int i = 0; i < 4; i++)
        TRY(alloc(b, (size_t)(T * columns_of(model, FUSED)) * sizeof(float), all[i]));
    return OK;
}

void bench_close(struct bench *b)
{
    struct buffer *all[] = {&b->data, &b->sums, &b->x, &b->y, &b->dy, &b->dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        buffer_free(&b->lifetime[lifetime]);
    free(b->layer.self);
    stage_destroy(&b->layer.stage);
    weights_destroy(&b->weights);
    stream_destroy(b->comm_stream);
    stream_destroy(b->stream);
    groups_destroy(b->groups);
    device_close(b->device);
    params_free(&b->params);
}

/* ---- a common interface to the layers ---- */

enum status bench_forward(struct bench *b, struct tensor x, struct tensor *y)
{
    const struct pass *pass = &b->pass;
    struct layer *l = &b->layer;
    switch (b->subject) {
    case COLUMN:
        return column_linear_forward(&l->column, pass, x, *y, (struct epilogue){0});
    case ROW:
        return row_linear_forward(&l->row, pass, x, (struct tensor){0}, y);
    case NORM:
        return norm_forward(b->stream, norm_layer_forward(&l->norm, pass, x, *y));
    case ATTENTION:
        return attention_layer_forward(&l->attention, pass, x, y);
    case MLP:
        TRY(mlp_forward_features(&l->mlp, pass, x));
        return mlp_forward_out(&l->mlp, pass, (struct tensor){0}, y);
    case BLOCK:
    case HEAD:
        TRY(copy(b->stream, (struct copy){.in = x, .out = pass_tensor(pass, l->x)}));
        return l->kind->forward(l->self, pass, b->subject == HEAD ? (struct tensor){0} : *y);
    case EMBEDDING:
        return l->kind->forward(l->self, pass, *y);
    case WHOLE:
        return stage_forward(&l->stage, pass);
    case SUBJECTS:
        break;
    }
    return OK;
}

/* The gradient of a row-parallel layer's output is written to the buffer that the layer keeps. */
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
        return column_linear_backward_input(&l->column, pass, dy, (struct tensor){0}, dx);
    case ROW:
        TRY(enter(b, &l->row, dy));
        return row_linear_backward_input(&l->row, pass, *dx, (struct epilogue){0});
    case NORM:
        return norm_backward(b->stream,
                             norm_layer_backward_input(&l->norm, pass, dy, x, (struct tensor){0}, *dx));
    case ATTENTION:
        TRY(enter(b, &l->attention.proj, dy));
        return attention_layer_backward_input(&l->attention, pass, (struct tensor){0}, dx);
    case MLP:
        TRY(enter(b, &l->mlp.out, dy));
        return mlp_backward_input(&l->mlp, pass, dx);
    case BLOCK:
        TRY(copy(b->stream, (struct copy){.in = dy, .out = *dx}));
        return l->kind->backward_input(l->self, pass, *dx);
    case EMBEDDING:
        return l->kind->backward_input(l->self, pass, dy);
    case HEAD:
        return l->kind->backward_input(l->self, pass, *dx);
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
    struct event gathered;
    switch (b->subject) {
    case COLUMN:
        TRY(column_linear_gather(&l->column, pass, x, &gathered));
        return column_linear_backward_weight(&l->column, pass, x, gathered, dy);
    case ROW:
        return row_linear_backward_weight(&l->row, pass, x);
    case NORM:
        return norm_layer_backward_weight(&l->norm, pass);
    case ATTENTION:
        return attention_layer_backward_weight(&l->attention, pass, x);
    case MLP:
        return mlp_backward_weight(&l->mlp, pass, x);
    case BLOCK:
    case EMBEDDING:
    case HEAD:
        return l->kind->backward_weight(l->self, pass);
    case WHOLE:
        return stage_backward_weight(&l->stage, pass);
    case SUBJECTS:
        break;
    }
    return OK;
}
