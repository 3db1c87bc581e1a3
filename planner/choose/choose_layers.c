// SPDX-License-Identifier: Apache-2.0
#include "planner/choose/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FEWER = 3, MAX_LISTS = 2 * (MAX_FEWER + 1) * 2 };
static const double MIN_HEAD = 0.25; // in layers

/* The number of weights of the head, relative to a layer. */
static double head_layers(const struct recipe *recipe)
{
    const struct model_config *m = &recipe->model;
    const double heads = (double)((m->num_attention_heads * 2 + m->num_query_groups * 2) * m->kv_channels);
    const double layer =
        (double)m->hidden_size * (heads + (double)((model_is_gated(m) ? 3 : 2) * m->ffn_hidden_size));
    return (double)m->vocab_size * (double)m->hidden_size / layer;
}

/* Distributes the layers over the stages. The first and the last stage get less[0] and less[1] fewer than the
 * others; the remainder goes to the first (or last) stages between them. False: too few layers. */
static bool spread(int64_t layers, int stages, const int less[2], bool late, int64_t *out)
{
    const int64_t all = layers + less[0] + less[1];
    int64_t rest = all % stages;
    for (int i = 0; i < stages; i++)
        out[i] = all / stages;
    out[0] -= less[0];
    out[stages - 1] -= less[1];
    for (int i = 1; i < stages - 1 && rest > 0; i++, rest--)
        out[late ? stages - 1 - i : i]++;
    out[0] += rest; // at most one: the last stage has the head
    return out[0] >= 0 && out[stages - 1] >= 0;
}

static bool is_even(const struct recipe *recipe, const int64_t *list, int stages)
{
    for (int i = 0; i < stages; i++)
        if (list[i] != recipe_stage_layers(recipe, i))
            return false;
    return true;
}

static bool is_known(const int64_t *lists, int count, const int64_t *list, int stages)
{
    for (int i = 0; i < count; i++)
        if (memcmp(lists + (size_t)i * (size_t)stages, list, (size_t)stages * sizeof *list) == 0)
            return true;
    return false;
}

static void add_list(const int64_t *list, int stages, struct text *out)
{
    text_add(out, "%s[", out->length > 0 ? ", " : "");
    for (int i = 0; i < stages; i++)
        text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)list[i]);
    text_add(out, "]");
}

void choose_layers(const struct recipe *recipe, struct text *out)
{
    const int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    const double head = head_layers(recipe);
    const int most = head < MIN_HEAD ? 0 : (int)fmin(ceil(head), MAX_FEWER);
    int64_t *lists = calloc((size_t)MAX_LISTS * (size_t)stages, sizeof *lists);
    int count = 0;
    if (lists == NULL)
        die(__FILE__, __LINE__, "choose", "out of memory for the layers of %d stages", stages);
    if (stages < 2 || (most == 0 && recipe->model.num_layers % stages == 0))
        count = MAX_LISTS; // append none
    for (int i = 0; i < MAX_LISTS && count < MAX_LISTS; i++) {
        const int less[2] = {i / 2 % 2, i / 4};
        int64_t *list = lists + (size_t)count * (size_t)stages;
        if (less[1] > most || less[0] > most ||
            !spread(recipe->model.num_layers, stages, less, i % 2 == 1, list) ||
            is_even(recipe, list, stages) || is_known(lists, count, list, stages))
            continue;
        add_list(list, stages, out);
        count++;
    }
    free(lists);
}
