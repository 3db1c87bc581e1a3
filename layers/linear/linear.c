// SPDX-License-Identifier: Apache-2.0
#include "layers/linear/linear.h"

#include "layers/linear/linear_overlap.h"

static const int64_t *global_shape(const struct layer_context *context, int param)
{
    return context->weights->params->list[param].dim;
}

struct column_linear column_linear_declare(const struct layer_context *context, struct slot_layout *layout,
                                           int weight, int bias)
{
    int64_t in = global_shape(context, weight)[1];
    struct column_linear layer = {.weight = weight, .bias = bias};
    layer.partial = slot_layout_add(layout, SCRATCH, context->tokens, in);
    if (context->options->sequence_parallel) {
        layer.gathered = slot_layout_add(layout, SCRATCH, context->tokens, in);
        layer.scattered = slot_layout_add(layout, SCRATCH, context_local_tokens(context), in);
    }
    layer.quantization = quantization_declare(context, layout, weight, 0);
    return layer;
}

struct row_linear row_linear_declare(const struct layer_context *context, struct slot_layout *layout,
                                     int weight, int bias)
{
    int64_t out = global_shape(context, weight)[0];
    struct row_linear layer = {.weight = weight, .bias = bias};
    layer.partial = slot_layout_add(layout, SCRATCH, context->tokens, out);
    layer.dy = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, context_local_tokens(context), out);
    if (context->options->sequence_parallel) {
        layer.scattered = slot_layout_add(layout, SCRATCH, context_local_tokens(context), out);
        if (context->comm_stream != NULL)
            layer.parts = slot_layout_add(layout, SCRATCH, context->tokens, out);
        layer.gathered = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, context->tokens, out);
    }
    layer.quantization = quantization_declare(context, layout, weight, 1);
    return layer;
}

/* *out = x of all tokens: gathered under sequence parallelism, else `local` itself. */
static enum status gather_tokens(const struct pass *pass, struct tensor local, struct region into,
                                 struct tensor *whole)
{
    const struct layer_context *context = pass->context;
    *whole = local;
    if (!context->options->sequence_parallel)
        return OK;
    *whole = pass_tensor(pass, into);
    return group_all_gather(context->groups->tp, context->compute, local, *whole);
}

/* Sums the ranks' partial results: of all tokens in place, or of the local tokens in `into`. */
static enum status reduce_tokens(const struct pass *pass, struct tensor partial, struct region into,
                                 struct tensor *sum)
{
    const struct layer_context *context = pass->context;
    *sum = partial;
    if (!context->options->sequence_parallel)
        return group_all_reduce(context->groups->tp, context->compute, partial, REDUCE_SUM);
    *sum = pass_tensor(pass, into);
    return group_reduce_scatter(context->groups->tp, context->compute, partial, *sum);
}

static struct tensor fused_or_none(const struct layer_context *context, int param, bool gradient)
{
    if (param < 0)
        return (struct tensor){0};
    return gradient ? weights_fused_gradient(context->weights, param)
                    : weights_fused_value(context->weights, param);
}

/* Multiplies in fp32 and rounds once to the output type. */
static enum status multiply_wide(const struct quantization *quantization, const struct pass *pass,
                                 struct gemm args)
{
    struct stream *compute = pass->context->compute;
    struct tensor narrow = args.c, bias = args.bias;
    args.c = tensor_2d(pass_tensor(pass, quantization->output).data, F32, narrow.dim[0], narrow.dim[1]);
    if (bias.data != NULL) {
        args.bias = tensor_1d(pass_tensor(pass, quantization->bias).data, F32, bias.dim[0]);
        TRY(cast(compute, (struct cast){.in = bias, .out = args.bias}));
    }
    TRY(gemm(compute, args));
    return cast(compute, (struct cast){.in = args.c, .out = narrow});
}

/* One of the layer's three matmuls, with quantized operands where configured. The epilogue sees unquantized
 * tensors. */
static enum status multiply(const struct quantization *quantization, const struct pass *pass,
                            enum matmul matmul, struct gemm args)
{
    struct operands operands = {args.a, args.b};
    TRY(quantize_operand(quantization, pass, matmul, &operands));
    if (operands.first.data == args.a.data && operands.second.data == args.b.data)
        return gemm(pass->context->compute, args);
    struct gemm alone = args;
    alone.epilogue = (struct epilogue){0};
    alone.a = operands.first;
    alone.b = operands.second;
    if (alone.a.dtype == F32 && alone.c.dtype != F32)
        TRY(multiply_wide(quantization, pass, alone));
    else
        TRY(gemm(pass->context->compute, alone));
    return gemm_epilogue(pass->context->compute, args);
}

/* Returns true if communication overlaps the matmul. A quantized matmul needs whole
 * operands for the scales. */
static bool overlaps_communication(const struct quantization *quantization, const struct pass *pass,
                                   enum matmul matmul)
{
    return pass->context->comm_stream != NULL && quantization->precision.format[matmul] == MATMUL_FORMAT_NONE;
}

/* Multiplies all tokens, of which a holds the local ones. */
static enum status gather_and_multiply(const struct quantization *quantization, const struct pass *pass,
                                       enum matmul matmul, struct region into, struct gemm args)
{
    if (overlaps_communication(quantization, pass, matmul)) {
        struct gemm alone = args;
        alone.epilogue = (struct epilogue){0};
        TRY(multiply_gathered(pass->context, args.a, pass_tensor(pass, into), alone));
        return gemm_epilogue(pass->context->compute, args);
    }
    TRY(gather_tokens(pass, args.a, into, &args.a));
    return multiply(quantization, pass, matmul, args);
}

/* Sums a matmul and `addend` ({0}: none) over ranks; this rank's partial result is in c. parts: buffer for
 * those of other ranks. */
static enum status multiply_and_reduce(const struct quantization *quantization, const struct pass *pass,
                                       enum matmul matmul, struct region parts, struct region into,
                                       struct gemm args, struct tensor addend, struct tensor *sum)
{
    if (!overlaps_communication(quantization, pass, matmul)) {
        TRY(multiply(quantization, pass, matmul, args));
        TRY(add_partial(pass->context, args.c, addend));
        return reduce_tokens(pass, args.c, into, sum);
    }
    *sum = pass_tensor(pass, into);
    return multiply_scattered(pass->context, args, addend, pass_tensor(pass, parts), *sum);
}

enum status column_linear_forward(const struct column_linear *layer, const struct pass *pass, struct tensor x,
                                  struct tensor y, struct epilogue epilogue)
{
    const struct layer_context *context = pass->context;
    return gather_and_multiply(&layer->quantization, pass, MATMUL_FORWARD, layer->gathered,
                               (struct gemm){
                                   .a = x,
                                   .b = weights_fused_value(context->weights, layer->weight),
                                   .transpose_b = true,
                                   .bias = fused_or_none(context, layer->bias, false),
                                   .c = y,
                                   .epilogue = epilogue,
                               });
}

/* Each rank has only its slice of the outputs, so it computes a partial dx. */
static struct gemm partial_input(const struct column_linear *layer, const struct pass *pass, struct tensor dy)
{
    return (struct gemm){.a = dy,
                         .b = weights_fused_value(pass->context->weights, layer->weight),
                         .c = pass_tensor(pass, layer->partial)};
}

enum status column_linear_backward_input(const struct column_linear *layer, const struct pass *pass,
                                         struct tensor dy, struct tensor addend, struct tensor *dx)
{
    return multiply_and_reduce(&layer->quantization, pass, MATMUL_GRAD_INPUT, layer->gathered,
                               layer->scattered, partial_input(layer, pass, dy), addend, dx);
}

enum status column_linear_backward_input_partial(const struct column_linear *layer, const struct pass *pass,
                                                 struct tensor dy, struct tensor *partial)
{
    const struct gemm args = partial_input(layer, pass, dy);
    *partial = args.c;
    return multiply(&layer->quantization, pass, MATMUL_GRAD_INPUT, args);
}

enum status column_linear_gather(const struct column_linear *layer, const struct pass *pass, struct tensor x,
                                 struct event *gathered)
{
    const struct layer_context *context = pass->context;
    struct tensor whole;
    *gathered = (struct event){0};
    if (context->comm_stream != NULL)
        return gather_overlapped(context, x, pass_tensor(pass, layer->gathered), gathered);
    return gather_tokens(pass, x, layer->gathered, &whole);
}

enum status column_linear_backward_weight(const struct column_linear *layer, const struct pass *pass,
                                          struct tensor x, struct event gathered, struct tensor dy)
{
    const struct layer_context *context = pass->context;
    struct tensor whole = context->options->sequence_parallel ? pass_tensor(pass, layer->gathered) : x;
    struct tensor gradient = weights_fused_gradient(context->weights, layer->weight);
    TRY(stream_wait(context->compute, gathered));
    return multiply(&layer->quantization, pass, MATMUL_GRAD_WEIGHT,
                    (struct gemm){.a = dy,
                                  .transpose_a = true,
                                  .b = whole,
                                  .c = gradient,
                                  .accumulate = true,
                                  .epilogue = {.bias_gradient = fused_or_none(context, layer->bias, true)}});
}

static struct gemm partial_output(const struct row_linear *layer, const struct pass *pass, struct tensor x)
{
    return (struct gemm){.a = x,
                         .b = weights_fused_value(pass->context->weights, layer->weight),
                         .transpose_b = true,
                         .c = pass_tensor(pass, layer->partial)};
}

enum status row_linear_forward(const struct row_linear *layer, const struct pass *pass, struct tensor x,
                               struct tensor addend, struct tensor *y)
{
    return multiply_and_reduce(&layer->quantization, pass, MATMUL_FORWARD, layer->parts, layer->scattered,
                               partial_output(layer, pass, x), addend, y);
}

enum status row_linear_forward_partial(const struct row_linear *layer, const struct pass *pass,
                                       struct tensor x, struct tensor *partial)
{
    const struct gemm args = partial_output(layer, pass, x);
    *partial = args.c;
    return multiply(&layer->quantization, pass, MATMUL_FORWARD, args);
}

enum status row_linear_backward_input(const struct row_linear *layer, const struct pass *pass,
                                      struct tensor dx, struct epilogue epilogue)
{
    struct tensor dy = pass_tensor(pass, layer->dy);
    struct tensor weight = weights_fused_value(pass->context->weights, layer->weight);
    return gather_and_multiply(&layer->quantization, pass, MATMUL_GRAD_INPUT, layer->gathered,
                               (struct gemm){.a = dy, .b = weight, .c = dx, .epilogue = epilogue});
}

enum status row_linear_backward_weight(const struct row_linear *layer, const struct pass *pass,
                                       struct tensor x)
{
    const struct layer_context *context = pass->context;
    struct tensor local = pass_tensor(pass, layer->dy);
    struct tensor whole = context->options->sequence_parallel ? pass_tensor(pass, layer->gathered) : local;
    struct tensor gradient = weights_fused_gradient(context->weights, layer->weight);
    // Of the local tokens only: the parameter descriptor marks this gradient as partial over tp.
    struct column_sum of_bias = {.in = local, .out = fused_or_none(context, layer->bias, true)};
    struct gemm args = {.a = whole, .transpose_a = true, .b = x, .c = gradient, .accumulate = true};
    if (!context->options->sequence_parallel)
        args.epilogue.bias_gradient = of_bias.out;
    TRY(multiply(&layer->quantization, pass, MATMUL_GRAD_WEIGHT, args));
    return context->options->sequence_parallel && layer->bias >= 0 ? column_sum(context->compute, of_bias)
                                                                   : OK;
}

struct tensor row_linear_bias(const struct row_linear *layer, const struct pass *pass)
{
    return fused_or_none(pass->context, layer->bias, false);
}
