// SPDX-License-Identifier: Apache-2.0
/* Reports what a comparison cannot show, because the recipe never does it or does it without effect. */
#include "trainer/verify/verify.h"

static int64_t microbatches_of(const struct recipe *r)
{
    return r->train.global_batch_size / r->train.micro_batch_size / r->parallel.data_parallel_size;
}

/* Prints the parts of a step that this recipe lacks, on one line. */
static void print_absent(const struct recipe *r, FILE *to)
{
    const struct {
        bool absent;
        const char *what;
    } parts[] = {
        {r->parallel.data_parallel_size == 1, "reduction over data-parallel ranks (dp=1)"},
        {microbatches_of(r) == 1, "accumulation over microbatches (a rank has one)"},
        {r->model.hidden_dropout <= 0.0 && r->model.attention_dropout <= 0.0, "dropout (both are 0)"},
        {!r->data.reset_attention_mask, "masks between documents (data.reset_attention_mask=false)"},
        {!r->data.reset_position_ids, "positions of documents (data.reset_position_ids=false)"},
        {r->optimizer.weight_decay <= 0.0, "weight decay (optimizer.weight_decay=0)"},
        {r->optimizer.clip_grad <= 0.0, "clipping (optimizer.clip_grad=0)"},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].absent)
            fprintf(to, "%s%s",
                    count++ > 0 ? ", " : "not checked, because this recipe does not use it: ", parts[i].what);
    if (count > 0)
        fputc('\n', to);
}

void verify_print_hints(const struct recipe *layout, const struct recipe *one_rank, int steps, FILE *to)
{
    int64_t batch = layout->train.micro_batch_size;
    int tp = layout->parallel.tensor_parallel_size;
    if (recipe_world_size(layout) == 1 && !recipe_layouts_differ(layout, one_rank)) {
        fputs("hint: this layout is one rank, compared with itself; set tp, pp or dp\n", to);
        return;
    }
    if (layout->layers.sequence_parallel && batch % tp == 0)
        fprintf(to,
                "hint: train.micro_batch_size=%lld is a multiple of tp=%d, so with sequence_parallel each "
                "rank has "
                "whole\n"
                "      samples, and a wrong index of a token in its sample stays hidden; set "
                "train.micro_batch_size=1\n",
                (long long)batch, tp);
    if (steps == 1)
        fputs("hint: the first step begins with zero biases and moments, which hide faults; use --steps 2 or "
              "more\n",
              to);
    print_absent(layout, to);
}
