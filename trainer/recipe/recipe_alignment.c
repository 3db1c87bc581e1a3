// SPDX-License-Identifier: Apache-2.0
/* Warns of matrices whose leading dimension keeps a GPU's matrix multiplications off their fast path.
 *
 * Matrices are row-major, so a leading dimension is the length of a row on this rank. Tensor cores load 16
 * bytes at a time, which is 8 elements of two bytes: with rows of 50257 elements, GPT-2's vocabulary without
 * padding, cuBLASLt selects a slower kernel for all three matrix multiplications of the head.
 *
 * One warning for each such matrix, with the smallest value of its key that fixes it. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <string.h>

enum { ALIGNMENT = 8, WIDTHS = 6 };

/* A matrix, the length of its rows on one rank, and the key to change. */
struct width {
    const char *matrix, *key;
    int64_t elements;
};

static int64_t round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

static void widths_of(const struct model_config *m, int64_t tp, struct width out[WIDTHS])
{
    const int64_t heads = m->num_attention_heads / tp,
                  groups = m->num_query_groups > tp ? m->num_query_groups / tp : 1;
    const int64_t ffn = m->ffn_hidden_size / tp, gates = model_is_gated(m) ? 2 : 1;
    const int64_t vocabulary = round_up((m->vocab_size + tp - 1) / tp, m->make_vocab_size_divisible_by);
    const struct width widths[WIDTHS] = {
        {"the hidden states and the weights that they are multiplied by", "model.hidden_size",
         m->hidden_size},
        {"the output of attention.qkv", "model.kv_channels", (heads + 2 * groups) * m->kv_channels},
        {"attention.proj.weight and its input", "model.kv_channels", heads * m->kv_channels},
        {"the output of mlp.fc1", "model.ffn_hidden_size", gates * ffn},
        {"mlp.fc2.weight and its input", "model.ffn_hidden_size", ffn},
        {"the logits", "model.make_vocab_size_divisible_by", vocabulary},
    };
    memcpy(out, widths, sizeof widths);
}

static int64_t *field_of(struct model_config *m, const char *key)
{
    return strcmp(key, "model.hidden_size") == 0       ? &m->hidden_size
           : strcmp(key, "model.kv_channels") == 0     ? &m->kv_channels
           : strcmp(key, "model.ffn_hidden_size") == 0 ? &m->ffn_hidden_size
                                                       : &m->make_vocab_size_divisible_by;
}

static bool is_aligned(const struct model_config *m, int64_t tp, const char *key)
{
    struct width widths[WIDTHS];
    widths_of(m, tp, widths);
    for (int i = 0; i < WIDTHS; i++)
        if (strcmp(widths[i].key, key) == 0 && widths[i].elements % ALIGNMENT != 0)
            return false;
    return true;
}

/* The smallest value above the present one that is valid, and with which all matrices of the key are aligned.
 */
static int64_t nearest_fix(const struct recipe *recipe, const char *key)
{
    struct model_config m = recipe->model;
    const int64_t tp = recipe->parallel.tensor_parallel_size;
    int64_t *value = field_of(&m, key);
    do
        ++*value;
    while (!is_aligned(&m, tp, key) || m.ffn_hidden_size % tp != 0 ||
           (value == &m.hidden_size && m.hidden_size % m.num_attention_heads != 0));
    return *value;
}

void recipe_warn_alignment(const struct recipe *recipe, struct problems *problems)
{
    const char *device = recipe_gpu(recipe);
    struct width widths[WIDTHS];
    if (device == NULL)
        return;
    widths_of(&recipe->model, recipe->parallel.tensor_parallel_size, widths);
    for (int i = 0; i < WIDTHS; i++) {
        const struct width *w = &widths[i];
        if (w->elements % ALIGNMENT == 0)
            continue;
        AUTO(text) where = {0}, value = {0};
        recipe_origin_text(recipe, recipe_row_index(w->key), &where);
        recipe_key_text(recipe, w->key, &value);
        problems_warn(problems,
                      "%s: %s %s: %s: rows of %lld elements on each rank, not a multiple of %d, keep matrix "
                      "multiplications on %s off the tensor cores' fast path; use %s=%lld",
                      text_chars(&where), w->key, text_chars(&value), w->matrix, (long long)w->elements,
                      (int)ALIGNMENT, device, w->key, (long long)nearest_fix(recipe, w->key));
    }
}
