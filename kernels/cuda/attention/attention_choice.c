// SPDX-License-Identifier: Apache-2.0
/* Choice of the attention implementation per call: our own kernels (attention_f32.cu), or cuDNN
 * (attention_cudnn.h).
 *
 *     own      our own
 *     cudnn    cuDNN wherever it supports the call; its availability is checked when the device opens
 *     auto     if nondeterminism is permitted, the faster of the two, timed at the first call of each shape;
 *              else our own, because a choice by timing is not reproducible
 *
 * Dropout, documents, windows, ALiBi, soft-capping and other calls that cuDNN does not support always run on
 * our own kernels. */
#include "kernels/cuda/attention/attention_cudnn.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WHY_CHARS = 300 };
enum { RUNS = 3 }; // timed runs of each, after a warm-up

struct verdict {
    struct cudnn_shape shape;
    bool cudnn;            // cuDNN is faster
    double own_s, cudnn_s; // seconds per call; 0: not timed
    char why[WHY_CHARS];   // why it was not timed
};

struct cuda_attention {
    enum attention_backend requested;
    bool nondeterministic, tried; // tried: to open cuDNN
    bool suited;                  // cuDNN could have run some call
    struct cudnn *cudnn;          // NULL: not available, or not needed yet
    char why[WHY_CHARS];          // why it is not available
    struct verdict *verdict;
    int verdicts, capacity;
};

/* One of the two ops. */
struct call {
    const struct attention_forward *forward;
    const struct attention_backward *backward;
    struct cudnn_shape shape;
};

enum status cuda_attention_open(const struct device_options *options, struct cuda_attention **out)
{
    struct cuda_attention *a = memory_zeroed(1, sizeof *a, "attention's choices");
    a->requested = options->kernels.attention;
    a->nondeterministic = options->nondeterministic;
    if (a->requested == ATTENTION_CUDNN && cudnn_open(!a->nondeterministic, NULL, &a->cudnn) != OK) {
        free(a);
        return fail(NOT_SUPPORTED, "model.attention_backend cudnn: %s; use model.attention_backend own",
                    fail_text());
    }
    *out = a;
    return OK;
}

void cuda_attention_close(struct cuda_attention *attention)
{
    if (attention == NULL)
        return;
    cudnn_close(attention->cudnn);
    free(attention->verdict);
    free(attention);
}

static enum status run(struct cuda_queue *queue, const struct call *call, bool cudnn)
{
    struct cudnn *c = queue->attention->cudnn;
    if (call->forward != NULL)
        return cudnn ? cudnn_attention_forward(c, queue, call->forward)
                     : cuda_own_attention_forward(queue, call->forward);
    return cudnn ? cudnn_attention_backward(c, queue, call->backward)
                 : cuda_own_attention_backward(queue, call->backward);
}

/* Seconds per call, mean of RUNS. They write only outputs of the call, and read none of them. */
static enum status time_runs(struct cuda_queue *queue, const struct call *call, bool cudnn, double *out)
{
    TRY(run(queue, call, cudnn));
    TRY(cuda_check(queue, cudaStreamSynchronize(queue->stream), "cudaStreamSynchronize"));
    double begin = clock_s();
    for (int i = 0; i < RUNS; i++)
        TRY(run(queue, call, cudnn));
    TRY(cuda_check(queue, cudaStreamSynchronize(queue->stream), "cudaStreamSynchronize"));
    *out = (clock_s() - begin) / RUNS;
    return OK;
}

static void keep(struct cuda_attention *a, struct verdict verdict)
{
    if (a->verdicts == a->capacity) {
        int capacity = 2 * a->capacity + 8;
        a->verdict = memory_resized(a->verdict, (size_t)capacity, sizeof *a->verdict, "attention's choices");
        a->capacity = capacity;
    }
    a->verdict[a->verdicts++] = verdict;
}

/* Times both. Shapes without a cuDNN engine run on our own kernels. */
static enum status is_cudnn_faster(struct cuda_queue *queue, const struct call *call, bool *out)
{
    struct cuda_attention *a = queue->attention;
    const struct cudnn_plan *plan;
    for (int i = 0; i < a->verdicts; i++) {
        if (memcmp(&a->verdict[i].shape, &call->shape, sizeof call->shape) == 0) {
            *out = a->verdict[i].cudnn;
            return OK;
        }
    }
    struct verdict verdict = {.shape = call->shape};
    if (cudnn_plan_of(a->cudnn, queue, &call->shape, &plan) == OK) {
        TRY(time_runs(queue, call, true, &verdict.cudnn_s));
        TRY(time_runs(queue, call, false, &verdict.own_s));
        verdict.cudnn = verdict.cudnn_s < verdict.own_s;
    } else {
        snprintf(verdict.why, sizeof verdict.why, "%.*s", WHY_CHARS - 1, fail_text());
    }
    keep(a, verdict);
    *out = verdict.cudnn;
    return OK;
}

static enum status attend(struct cuda_queue *queue, const struct call *call, bool suits)
{
    struct cuda_attention *a = queue->attention;
    bool cudnn = a->requested == ATTENTION_CUDNN && suits;
    a->suited = a->suited || suits;
    if (a->requested == ATTENTION_AUTO && a->nondeterministic && suits) {
        if (!a->tried && cudnn_open(false, NULL, &a->cudnn) != OK) {
            a->cudnn = NULL; // not available on this machine
            snprintf(a->why, sizeof a->why, "%.*s", WHY_CHARS - 1, fail_text());
        }
        a->tried = true;
        if (a->cudnn != NULL)
            TRY(is_cudnn_faster(queue, call, &cudnn));
    }
    return run(queue, call, cudnn);
}

enum status cuda_attention_forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    const struct call call = {.forward = op, .shape = cudnn_forward_shape(op)};
    return attend(queue, &call, attention_suits_cudnn(op));
}

enum status cuda_attention_backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    const struct call call = {.backward = op, .shape = cudnn_backward_shape(op)};
    return attend(queue, &call, attention_backward_suits_cudnn(op));
}

static void describe_verdict(const struct verdict *v, struct text *out)
{
    const struct cudnn_shape *s = &v->shape;
    text_add(out, "attention: %s, %s, batch %lld x %lld, %lld heads of %lld in %lld groups: ",
             s->backward ? "backward" : "forward", dtype_name((enum dtype)s->dtype), (long long)s->batch,
             (long long)s->sequence, (long long)s->heads, (long long)s->head_dim, (long long)s->groups);
    if (v->why[0] != '\0')
        text_add(out, "our own kernels; cuDNN has none: %s\n", v->why);
    else
        text_add(out, "%s (cuDNN's %.4g ms, our own %.4g ms)\n", v->cudnn ? "cuDNN's" : "our own kernels",
                 1e3 * v->cudnn_s, 1e3 * v->own_s);
}

void cuda_attention_choices(const struct cuda_attention *a, struct text *out)
{
    if (a->requested != ATTENTION_AUTO || !a->suited)
        return;
    if (!a->nondeterministic)
        text_add(out, "attention: our own kernels; deterministic true disables choice by timing\n");
    else if (a->cudnn == NULL)
        text_add(out, "attention: our own kernels; %s\n", a->why);
    for (int i = 0; i < a->verdicts; i++)
        describe_verdict(&a->verdict[i], out);
}
