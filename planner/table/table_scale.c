// SPDX-License-Identifier: Apache-2.0
#include "planner/table/table.h"

#include "planner/published/published.h"
#include "planner/recipe/planned_recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 3, HEADS = 8, UNIT = 64, MIN_LAYERS = 4, VOCABULARY = 4096 };

static void PRINTF_LIKE(2, 3) set(struct recipe_names *overrides, const char *format, ...)
{
    char word[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(word, sizeof word, format, arguments);
    va_end(arguments);
    overrides_set(&planner_keys, overrides, word);
}

static int64_t round_within(double value, int64_t low, int64_t high)
{
    const int64_t rounded = llround(value);
    return rounded < low ? low : rounded > high ? high : rounded;
}

/* The degree to double next: one that is still 1 although the recipe has more, else the one with the smallest
 * share of its value in the recipe; -1: none. */
static int next_axis(const int from[AXES], const int to[AXES])
{
    int best = -1;
    for (int i = 0; i < AXES; i++) {
        const bool is_new = to[i] == 1,
                   is_better = best < 0 || (is_new && to[best] > 1) ||
                               (is_new == (to[best] == 1) && from[i] * to[best] > from[best] * to[i]);
        if (2 * to[i] <= from[i] && is_better)
            best = i;
    }
    return best;
}

/* Chooses degrees that are powers of two, with a product of at most `ranks`. */
static void scale_degrees(const int from[AXES], int ranks, int out[AXES])
{
    for (int i = 0; i < AXES; i++)
        out[i] = 1;
    for (int product = 1; 2 * product <= ranks && next_axis(from, out) >= 0; product *= 2)
        out[next_axis(from, out)] *= 2;
}

static void scale_model(const struct model_config *m, int tp, int layers, struct recipe_names *out)
{
    const int64_t hidden = UNIT * round_within((double)m->hidden_size / 4096.0, 1, 8);
    const double ratio = (double)m->ffn_hidden_size / (double)m->hidden_size;
    const int64_t groups = m->num_query_groups == m->num_attention_heads ? HEADS : HEADS / 2;
    set(out, "model.num_layers=%d", layers);
    set(out, "model.hidden_size=%lld", (long long)hidden);
    set(out, "model.num_attention_heads=%d", HEADS);
    set(out, "model.num_query_groups=%lld", (long long)(groups > tp ? groups : HEADS));
    set(out, "model.kv_channels=%lld", (long long)(hidden / HEADS));
    set(out, "model.ffn_hidden_size=%lld",
        (long long)(UNIT * round_within(ratio * (double)hidden / UNIT, 1, 1 << 20)));
    set(out, "model.seq_length=%lld",
        (long long)(UNIT * round_within((double)m->seq_length / (16.0 * UNIT), 1, 4)));
    set(out, "model.vocab_size=%d", VOCABULARY);
}

static void scale_batch(const struct recipe *recipe, int pp, int dp, struct recipe_names *out)
{
    const int64_t micro = recipe->train.micro_batch_size < 2 ? 1 : 2;
    const double rounds =
        (double)recipe_microbatches(recipe) / (double)recipe->parallel.pipeline_parallel_size;
    set(out, "train.micro_batch_size=%lld", (long long)micro);
    set(out, "train.global_batch_size=%lld",
        (long long)(micro * dp * pp * round_within(rounds, pp > 1 ? 2 : 1, 4)));
}

static void scale_pipeline(const struct recipe *recipe, int pp, struct recipe_names *out)
{
    const struct recipe_pipeline *pipeline = &recipe->pipeline;
    const double limit = pipeline->search.memory_limit;
    set(out, "pipeline.layout=[]");
    set(out, "pipeline.num_layers_per_virtual_pipeline_stage=0");
    set(out, "pipeline.microbatch_group_size=0");
    set(out, "pipeline.virtual_stages=%d", pipeline->virtual_stages > 1 ? 2 : 1);
    if (limit > 0.0)
        set(out, "pipeline.auto_memory_limit=%lld",
            (long long)round_within(limit * pp / recipe->parallel.pipeline_parallel_size, 1, 1 << 20));
}

/* Resets the keys of the section `assume`: a run cannot follow assumptions about another program. */
static void drop_assumptions(const struct recipe *recipe, struct recipe_names *out)
{
    struct text assumed = {0};
    planned_assumed_text(recipe, &assumed);
    char *rest = assumed.chars;
    for (char *word = NULL; rest != NULL && (word = strsep(&rest, " ")) != NULL;) {
        struct text value = {0};
        word[strcspn(word, "=")] = 0;
        if (recipe_default_text(&planner_keys, word, &value))
            set(out, "%s=%s", word, text_chars(&value));
        text_free(&value);
    }
    text_free(&assumed);
}

void table_scale(const struct recipe *recipe, int ranks, struct recipe_names *overrides)
{
    const struct recipe_parallel *parallel = &recipe->parallel;
    const int from[AXES] = {parallel->tensor_parallel_size, parallel->pipeline_parallel_size,
                            parallel->data_parallel_size};
    int to[AXES];
    scale_degrees(from, ranks, to);
    const int stages = to[1] * (recipe->pipeline.virtual_stages > 1 ? 2 : 1);
    set(overrides, "parallel.tensor_parallel_size=%d", to[0]);
    set(overrides, "parallel.pipeline_parallel_size=%d", to[1]);
    set(overrides, "parallel.data_parallel_size=%d", to[2]);
    set(overrides, "cluster.nodes=0");
    set(overrides, "cluster.gpus_per_node=0");
    set(overrides, "precision.params_dtype=fp32");
    scale_model(&recipe->model, to[0], stages < MIN_LAYERS ? MIN_LAYERS : stages, overrides);
    scale_batch(recipe, to[1], to[2], overrides);
    scale_pipeline(recipe, to[1], overrides);
    drop_assumptions(recipe, overrides);
}
