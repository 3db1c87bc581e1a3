// SPDX-License-Identifier: Apache-2.0
/* Whole runs in bf16 with library functions instead of our own kernels, on the emulated cuda device with
 * emulated libraries: cuDNN's attention, and cuBLASLt's fused epilogues. Results are close to those of our
 * own kernels, and bit-identical on one rank and two, with recomputation. */
#include "layers/model.h"
#include "tests/support/tiny.h"
#include "tests/support/trace.h"
#include "trainer/verify/bound.h"

#include <math.h>
#include <stdio.h>

/* The emulator is slow; heads have 8 columns, and in Llama 6 heads share a group's keys. */
#define SMALL                                                                                              \
    " model.num_layers=2 model.kv_channels=8 precision.params_dtype=bf16 train.global_batch_size=4 "       \
    "train.micro_batch_size=2 train.train_iters=3 optimizer.lr_decay_iters=3 optimizer.lr_warmup_iters=1 " \
    "train.eval_interval=0 train.eval_iters=1 cluster.threads_per_rank=1 cluster.device=cuda "
#define GELU_SMALL SMALL "model.activation=gelu_tanh model.attention_backend=own "

static const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};

static enum status run_of(const struct tiny *tiny, enum tiny_family family, const char *common,
                          const char *layout, struct trace *out, double *bound)
{
    struct recipe *recipe = NULL;
    *out = (struct trace){.steps = 0};
    TRY(tiny_recipe(tiny, family, common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &(struct trace_options){.transport = "local"}, out);
    const double tokens = (double)(recipe->train.global_batch_size * recipe->model.seq_length);
    // Logits begin as sums of normalized inputs times the head's initial weights.
    const double logit = sqrt((double)recipe->model.hidden_size) * recipe->model.init_method_std;
    struct params params;
    if (status == OK)
        status = params_declare(&recipe->model, &one_each, false, &params);
    if (status == OK) {
        *bound = bound_loss(&params, &recipe->model, bound_roundoff(BF16, false), tokens, out->loss[0], logit,
                            0.0);
        params_free(&params);
    }
    recipe_destroy(recipe);
    return status;
}

static enum status run(const struct tiny *tiny, const char *layout, struct trace *out, double *bound)
{
    return run_of(tiny, TINY_LLAMA, SMALL, layout, out, bound);
}

/* The first losses depend on one forward pass only; later ones on all earlier updates, to which Adam gives
 * the size of the learning rate whatever the gradient's: they must stay close. */
static enum status check_near(const struct trace *own, const struct trace *library, double bound)
{
    if (!(fabs(own->loss[0] - library->loss[0]) <= bound))
        return fail(OUT_OF_BOUND, "first loss %.9g, but %.9g with the library: the bound is %.3g",
                    own->loss[0], library->loss[0], bound);
    for (int s = 1; s < own->steps; s++)
        if (!(fabs(own->loss[s] - library->loss[s]) < 0.01 * own->loss[s]))
            return fail(OUT_OF_BOUND, "step %d: loss %.9g, but %.9g with the library", s + 1, own->loss[s],
                        library->loss[s]);
    return OK;
}

static enum status check_bits(const struct trace *a, const struct trace *b, bool same, const char *what)
{
    struct text why = {0};
    enum status status = OK;
    if (trace_differs(a, b, &why) == same)
        status =
            fail(OUT_OF_BOUND, "%s: %s", what, same ? text_chars(&why) : "bit-identical to our own kernels");
    text_free(&why);
    return status;
}

static enum status check_attention(const struct tiny *tiny)
{
    struct trace own, cudnn, cut, faster;
    double bound;
    TRY(run(tiny, "model.attention_backend=own", &own, &bound));
    TRY(run(tiny, "model.attention_backend=cudnn", &cudnn, &bound));
    TRY(run(tiny, "model.attention_backend=cudnn pp=2 memory.recompute_granularity=full", &cut, &bound));
    TRY(run(tiny, "model.attention_backend=auto deterministic=false", &faster, &bound));
    TRY(check_near(&own, &cudnn, bound));
    TRY(check_near(&own, &faster, bound));
    TRY(check_bits(&cudnn, &cut, true, "cuDNN's attention on one rank and two"));
    return check_bits(&own, &cudnn, false, "was cuDNN's attention used?");
}

/* Quantized operands, and an activation recomputed selectively, use our own kernels. */
static enum status check_epilogues(const struct tiny *tiny)
{
#define RUN(layout, out) TRY(run_of(tiny, TINY_GPT, GELU_SMALL, layout, out, &bound))
#define FUSED            "cluster.matmul_epilogues=fused "
#define MXFP8            "precision.matmul_format=mxfp8 "
#define RECOMPUTED       "memory.recompute_granularity=selective memory.recompute_modules=[activation] "
    struct trace separate, fused, cut, recomputed, mx, mx_fused;
    double bound;
    RUN("", &separate);
    RUN(FUSED, &fused);
    RUN(FUSED "pp=2 pipeline.schedule=zb-h1 memory.recompute_granularity=full", &cut);
    RUN(FUSED RECOMPUTED, &recomputed);
    RUN(MXFP8, &mx);
    RUN(MXFP8 FUSED, &mx_fused);
    TRY(check_near(&separate, &fused, bound));
    TRY(check_near(&separate, &recomputed, bound));
    TRY(check_bits(&fused, &cut, true, "epilogues on one rank and two"));
    TRY(check_bits(&separate, &fused, false, "were epilogues used?"));
    TRY(check_bits(&fused, &recomputed, false, "was the activation recomputed separately?"));
    if (separate.loss[0] != recomputed.loss[0])
        return fail(OUT_OF_BOUND, "a recomputed activation differs");
    return check_bits(&mx, &mx_fused, true, "epilogues of quantized matmuls");
}

int main(void)
{
    struct tiny tiny;
    MUST(tiny_create(&tiny));
    enum status status = check_attention(&tiny);
    if (status == OK)
        status = check_epilogues(&tiny);
    tiny_destroy(&tiny);
    printf("%s\n", status == OK ? "ok" : fail_text());
    return status != OK;
}
