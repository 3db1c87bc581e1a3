// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu.h"

#include <math.h>

static double sum_in_order(struct tensor t)
{
    const double *x = t.data;
    double sum = 0.0;
    for (int64_t i = 0; i < t.dim[0]; i++)
        sum += x[i];
    return sum;
}

void cpu_clip(struct device *device, const struct clip *op)
{
    (void)device;
    double tokens = sum_in_order(op->tokens), count = tokens > 0.0 ? tokens : 1.0;
    double scale = op->loss_scale != NULL ? (double)*op->loss_scale : 1.0;
    double norm = sqrt(sum_in_order(op->squares)) / count / scale;
    double coefficient = op->limit > 0.0 ? op->limit / (norm + 1e-6) : 1.0;
    bool skips = op->loss_scale != NULL && !isfinite(norm);
    double *result = op->result.data;
    result[0] = sum_in_order(op->loss) / count;
    result[1] = norm;
    result[2] = tokens;
    result[3] = scale;
    op->hyper->gradient_scale =
        skips ? 0.0F : (float)((coefficient < 1.0 ? coefficient : 1.0) / count / scale);
    op->hyper->skip = skips ? 1.0F : 0.0F;
}
