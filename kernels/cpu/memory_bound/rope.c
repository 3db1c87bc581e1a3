// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding. All heads of a token share its sines and cosines, so a task is a token: it
 * computes a table of D/2 angles on the stack, and rotates every head.
 *
 *     head:  [ x0 x1 ... | y0 y1 ... ]    rotate (x_i, y_i) by position * base^(-2i/D)
 *
 * Angles, sines and cosines are computed in double precision and rounded to fp32 once. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

enum { TABLE_MAX = ROPE_HEAD_DIM_MAX / 2 }; // angles

struct job {
    const struct rope *op;
    double *frequency; // [D/2], zero-padded to full vectors
    int64_t half;
};

static void make_table(const struct job *job, int64_t t, float *cosine, float *sine)
{
    double position = (double)job->op->position[t];
    for (int64_t i = 0; i < job->half; i += LANES_DOUBLE) {
        vecd angle, c, s;
        memcpy(&angle, job->frequency + i, sizeof angle);
        vecd_sincos(angle * position, &s, &c);
        for (int l = 0; l < LANES_DOUBLE; l++) {
            cosine[i + l] = (float)c[l];
            sine[i + l] = (float)s[l];
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

static void row_task(void *context, int64_t t)
{
    const struct job *job = context;
    float cosine[TABLE_MAX], sine[TABLE_MAX];
    make_table(job, t, cosine, sine);
    for (int64_t i = 0; job->op->inverse && i < job->half; i++)
        sine[i] = -sine[i];
    struct tensor x = job->op->x;
    for (int64_t column = 0; column < x.dim[1]; column += job->op->head_dim) {
        struct segment head = {t, column, job->op->head_dim};
        float buffer[ROPE_HEAD_DIM_MAX], *pairs = row_in(x, head, buffer);
        rotate(pairs, cosine, sine, job->half);
        row_store(x, head, pairs);
    }
}

void cpu_rope(struct device *device, const struct rope *op)
{
    double frequency[TABLE_MAX] = {0};
    struct job job = {op, frequency, op->head_dim / 2};
    for (int64_t i = 0; i < job.half; i++)
        frequency[i] = pow(op->base, -2.0 * (double)i / (double)op->head_dim);
    cpu_parallel(device, op->x.dim[0], row_task, &job);
}
