// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding. All heads of a token share its sines and cosines, so a task is a token: it
 * computes a table of D/2 angles on the stack, and rotates every head.
 *
 *     head:  [ x0 x1 ... | y0 y1 ... ]    rotate (x_i, y_i) by position * rope_frequency(i)
 *
 * Angles, sines and cosines are computed in double precision and rounded to fp32 once. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/position_embedding.h"

#include <math.h>

enum { TABLE_MAX = ROPE_HEAD_DIM_MAX / 2 }; // angles

struct rope_task {
    const struct rope *op;
    double *frequency; // [r/2], zero-padded to full vectors
    int64_t half;      // r/2
    double magnitude;
};

static void make_table(const struct rope_task *args, int64_t t, float *cosine, float *sine)
{
    double position = (double)args->op->position[t];
    for (int64_t i = 0; i < args->half; i += LANES_DOUBLE) {
        vecd angle, c, s;
        memcpy(&angle, args->frequency + i, sizeof angle);
        vecd_sincos(angle * position, &s, &c);
        for (int l = 0; l < LANES_DOUBLE; l++) {
            cosine[i + l] = (float)(c[l] * args->magnitude);
            sine[i + l] = (float)(s[l] * args->magnitude);
        }
    }
}

static void rotate(float *restrict x, const float *restrict cosine, const float *restrict sine, int64_t half)
{
    float *restrict y = x + half;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = y[i];
        x[i] = a * cosine[i] - b * sine[i];
        y[i] = b * cosine[i] + a * sine[i];
    }
}

static void rotate_interleaved(float *restrict x, const float *restrict cosine, const float *restrict sine,
                               int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

static void row_task(void *context, int64_t t)
{
    const struct rope_task *args = context;
    float cosine[TABLE_MAX], sine[TABLE_MAX];
    make_table(args, t, cosine, sine);
    for (int64_t i = 0; args->op->inverse && i < args->half; i++)
        sine[i] = -sine[i];
    struct tensor x = args->op->x;
    for (int64_t column = 0; column < x.dim[1]; column += args->op->head_dim) {
        struct segment head = {t, column, 2 * args->half};
        float buffer[ROPE_HEAD_DIM_MAX], *pairs = row_in(x, head, buffer);
        (args->op->interleaved ? rotate_interleaved : rotate)(pairs, cosine, sine, args->half);
        row_store(x, head, pairs);
    }
}

void cpu_rope(struct device *device, const struct rope *op)
{
    double frequency[TABLE_MAX] = {0};
    struct rope_task args = {op, frequency, rope_rotated(op) / 2, rope_magnitude(op->scaling)};
    for (int64_t i = 0; i < args.half; i++)
        frequency[i] = rope_frequency(op->scaling, op->base, rope_rotated(op), i);
    cpu_parallel(device, op->x.dim[0], row_task, &args);
}
