// SPDX-License-Identifier: Apache-2.0
/* out = residual + dropout(x + bias), in one pass, and its backward pass. Each element is read before it is
 * written, by the same thread, so out may alias x or residual. */
#include "kernels/cuda/memory_bound/residual.h"

enum status cuda_residual_forward(struct cuda_queue *queue, const struct residual_forward *op)
{
    return with_type(op->x.dtype, [=](auto number) {
        return run_each_two_vectors(queue, add_residual_of<decltype(number)>(op), op->x.dim[0], op->x.dim[1]);
    });
}

enum status cuda_residual_backward(struct cuda_queue *queue, const struct residual_backward *op)
{
    if (residual_backward_is_done(op))
        return OK;
    return with_type(op->dx.dtype, [=](auto number) {
        using T = decltype(number);
        add_residual<T> f = {rows_of<T>(op->dout), {}, {}, rows_of<T>(op->dx), mask_of(&op->dropout)};
        return run_each_two_vectors(queue, f, op->dx.dim[0], op->dx.dim[1]);
    });
}
