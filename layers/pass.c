// SPDX-License-Identifier: Apache-2.0
#include "layers/pass.h"

static enum lifetime lifetime_of(const struct slot_layout *layout, unsigned module, enum lifetime lifetime)
{
    if ((layout->recomputed & (module | RECOMPUTE_LAYER)) == 0)
        return lifetime;
    return lifetime == KEEP_UNTIL_BACKWARD_INPUT    ? RECOMPUTE
           : lifetime == KEEP_UNTIL_BACKWARD_WEIGHT ? layout->until_weight
                                                    : lifetime;
}

static struct region add_region(struct slot_layout *layout, enum recompute_module module,
                                enum lifetime lifetime, enum dtype dtype, int64_t rows, int64_t columns)
{
    lifetime = lifetime_of(layout, module, lifetime);
    struct region region = {lifetime, layout->bytes[lifetime], rows, columns, dtype};
    size_t bytes = (size_t)(rows * columns) * dtype_bytes(dtype);
    layout->bytes[lifetime] += (bytes + 63) / 64 * 64;
    return region;
}

struct region slot_layout_add(struct slot_layout *layout, enum lifetime lifetime, int64_t rows,
                              int64_t columns)
{
    return slot_layout_add_of(layout, RECOMPUTE_LAYER, lifetime, rows, columns);
}

struct region slot_layout_add_of(struct slot_layout *layout, enum recompute_module module,
                                 enum lifetime lifetime, int64_t rows, int64_t columns)
{
    return add_region(layout, module, lifetime, layout->working, rows, columns);
}

struct region slot_layout_add_f32(struct slot_layout *layout, enum recompute_module module,
                                  enum lifetime lifetime, int64_t rows, int64_t columns)
{
    return add_region(layout, module, lifetime, F32, rows, columns);
}

int64_t context_local_tokens(const struct layer_context *context)
{
    return context->options->sequence_parallel ? context->tokens / context->groups->tp->size
                                               : context->tokens;
}

int64_t context_local_begin(const struct layer_context *context)
{
    return context->options->sequence_parallel ? context_local_tokens(context) * context->groups->tp->rank
                                               : 0;
}

struct tensor pass_tensor(const struct pass *pass, struct region region)
{
    return tensor_2d(pass->base[region.lifetime] + region.offset, region.dtype, region.rows, region.columns);
}

struct dropout pass_hidden_dropout(const struct pass *pass, struct philox site)
{
    const struct layer_context *context = pass->context;
    if (!pass->training || !(context->model->hidden_dropout > 0.0))
        return (struct dropout){0};
    return (struct dropout){
        .probability = (float)context->model->hidden_dropout,
        .generator = site,
        .sample = pass->batch->sample + context_local_begin(context),
        .sample_offset = pass->batch->sample_offset + context_local_begin(context),
        .columns = context->model->hidden_size,
    };
}
