// SPDX-License-Identifier: Apache-2.0
/* Whole runs in bf16 with cuDNN's attention, on the cuda device whose GPU and cuDNN are the emulator's: near
 * those with our own kernels, the same bits on one rank and two, where a forward pass is made again. */
#include "tests/support/tiny.h"
#include "tests/support/trace.h"
#include "trainer/bound.h"

#include <math.h>
#include <stdio.h>

/* The emulator takes its time; heads of 8 columns, of which 6 share a group's keys. */
#define SMALL                                                                                              \
    " model.num_layers=2 model.kv_channels=8 precision.params_dtype=bf16 train.global_batch_size=4 "       \
    "train.micro_batch_size=2 train.train_iters=3 optimizer.lr_decay_iters=3 optimizer.lr_warmup_iters=1 " \
    "train.eval_interval=0 train.eval_iters=1 cluster.threads_per_rank=1 cluster.device=cuda "

static enum status run(const struct tiny *tiny, const char *layout, struct trace *out, double *bound)
{
    struct recipe *recipe = NULL;
    *out = (struct trace){.steps = 0};
    TRY(tiny_recipe(tiny, TINY_LLAMA, SMALL, layout, 0, &recipe));
    enum status status = trace_run(recipe, &(struct trace_options){.transport = "local"}, out);
    const double tokens = (double)(recipe->train.global_batch_size * recipe->model.seq_length);
    // Logits begin as sums of normalised inputs times the head's first weights.
    const double logit = sqrt((double)recipe->model.hidden_size) * recipe->model.init_method_std;
    *bound = bound_loss(&recipe->model, BF16, tokens, out->loss[0], logit);
    recipe_destroy(recipe);
    return status;
}

/* The first losses hang on one forward pass; later ones on all updates before, to which Adam gives the size
 * of the learning rate whatever the gradient's: they must stay near. */
static enum status check_near(const struct trace *own, const struct trace *cudnn, double bound)
{
    if (!(fabs(own->loss[0] - cudnn->loss[0]) <= bound))
        return fail(OUT_OF_BOUND, "first loss %.9g, and %.9g with cuDNN's attention: farther than %.3g",
                    own->loss[0], cudnn->loss[0], bound);
    for (int s = 1; s < own->steps; s++)
        if (!(fabs(own->loss[s] - cudnn->loss[s]) < 0.01 * own->loss[s]))
            return fail(OUT_OF_BOUND, "step %d: loss %.9g, and %.9g with cuDNN's attention", s + 1,
                        own->loss[s], cudnn->loss[s]);
    return OK;
}

static enum status check_runs(const struct tiny *tiny)
{
    struct trace own, cudnn, cut, faster;
    struct text why = {0};
    double bound;
    TRY(run(tiny, "model.attention_backend=own", &own, &bound));
    TRY(run(tiny, "model.attention_backend=cudnn", &cudnn, &bound));
    TRY(run(tiny, "model.attention_backend=cudnn pp=2 memory.recompute_granularity=full", &cut, &bound));
    TRY(run(tiny, "model.attention_backend=auto deterministic=false", &faster, &bound));
    TRY(check_near(&own, &cudnn, bound));
    TRY(check_near(&own, &faster, bound));
    enum status status = OK;
    if (trace_differs(&cudnn, &cut, &why))
        status = fail(OUT_OF_BOUND, "on one rank and two: %s", text_chars(&why));
    else if (!trace_differs(&own, &cudnn, &why))
        status = fail(OUT_OF_BOUND, "not a bit differs: was cuDNN's attention taken?");
    text_free(&why);
    return status;
}

int main(void)
{
    struct tiny tiny;
    MUST(tiny_create(&tiny));
    enum status status = check_runs(&tiny);
    tiny_destroy(&tiny);
    printf("%s\n", status == OK ? "ok" : fail_text());
    return status != OK;
}
