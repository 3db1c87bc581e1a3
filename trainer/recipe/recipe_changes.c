// SPDX-License-Identifier: Apache-2.0
/* Differences between two recipes. In the mathematics: a layout, a bucket size or the number of steps does
 * not change what is computed. In the layout: the keys that a single rank does not need. Sections are
 * compared as a whole, so a new key is compared unless it is listed here. */
#include "trainer/recipe/recipe_table.h"

#include <string.h>

static const char *const single_keys[] = {"seed", "tokenizer.tokenizer_type"};
/* Padding, the choice of a kernel, and keys that are read only when a run starts. */
static const char *const idle_keys[] = {"model.make_vocab_size_divisible_by", "model.attention_backend",
                                        "model.init_method_std", "data.strict"};
static const char *const decay_keys[] = {"optimizer.min_lr", "optimizer.lr_decay_iters"};
static const char *const wsd_keys[] = {"optimizer.lr_wsd_decay_style", "optimizer.lr_wsd_decay_iters"};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_one_of(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static bool is_mathematics(const struct recipe_row *row)
{
    if (recipe_row_section_kind(row) == SECTION_MATHEMATICS)
        return !is_one_of(row->key, idle_keys, COUNT(idle_keys));
    return is_one_of(row->key, single_keys, COUNT(single_keys));
}

/* False for keys of the learning rate that its style does not read, then as now. */
static bool is_read(const struct recipe_row *row, const struct recipe *then, const struct recipe *now)
{
    enum lr_decay a = then->optimizer.lr_decay_style, b = now->optimizer.lr_decay_style;
    if (is_one_of(row->key, decay_keys, COUNT(decay_keys)))
        return a != LR_CONSTANT || b != LR_CONSTANT;
    if (is_one_of(row->key, wsd_keys, COUNT(wsd_keys)))
        return a == LR_WSD || b == LR_WSD;
    return true;
}

/* Whether the values differ; `before` and `after` are empty on entry. */
static bool differs(const struct recipe *then, const struct recipe *now, const struct recipe_row *row,
                    struct text *before, struct text *after)
{
    recipe_value_text(then, row, before);
    recipe_value_text(now, row, after);
    return strcmp(text_chars(before), text_chars(after)) != 0;
}

void recipe_changes(const struct recipe *then, const struct recipe *now, const char *what,
                    struct problems *problems)
{
    for (int i = 0; i < recipe_row_count; i++) {
        const struct recipe_row *row = &recipe_rows[i];
        if (!is_mathematics(row) || !is_read(row, then, now))
            continue;
        struct text before = {0}, after = {0};
        if (differs(then, now, row, &before, &after))
            problems_warn(problems, "%s: %s changed from %s to %s", what, row->key, text_chars(&before),
                          text_chars(&after));
        text_free(&before);
        text_free(&after);
    }
}

bool recipe_one_rank_override(int index, struct text *out)
{
    for (int i = 0; i < recipe_row_count; i++) {
        const struct recipe_row *row = &recipe_rows[i];
        if ((recipe_row_section_kind(row) != SECTION_LAYOUT && row->one_rank == NULL) || index-- > 0)
            continue;
        text_add(out, "%s=%s", row->key, row->one_rank != NULL ? row->one_rank : row->fallback);
        return true;
    }
    return false;
}

bool recipe_layouts_differ(const struct recipe *a, const struct recipe *b)
{
    bool differ = false;
    for (int i = 0; i < recipe_row_count; i++) {
        struct text one = {0}, other = {0};
        if (recipe_row_section_kind(&recipe_rows[i]) == SECTION_LAYOUT)
            differ = differs(a, b, &recipe_rows[i], &one, &other) || differ;
        text_free(&one);
        text_free(&other);
    }
    return differ;
}
