// SPDX-License-Identifier: Apache-2.0
/* Replaces attention_choice.c in builds without cuDNN's header. */
#include "kernels/cuda/runtime/cuda.h"

enum status cuda_attention_open(const struct device_options *options, struct cuda_attention **out)
{
    *out = NULL;
    if (options->kernels.attention != ATTENTION_CUDNN)
        return OK;
    return fail(NOT_SUPPORTED, "model.attention_backend cudnn: this build was made without cudnn_graph.h; "
                               "use model.attention_backend own");
}

void cuda_attention_close(struct cuda_attention *attention)
{
    (void)attention;
}

void cuda_attention_choices(const struct cuda_attention *attention, struct text *out)
{
    (void)attention;
    (void)out;
}

enum status cuda_attention_forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    return cuda_own_attention_forward(queue, op);
}

enum status cuda_attention_backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    return cuda_own_attention_backward(queue, op);
}
