// SPDX-License-Identifier: Apache-2.0
/* What two recipes say differently about the mathematics. Where it runs is left out: a layout, a bucket size
 * or the number of steps changes nothing of what is computed. Sections count as a whole, so that a new key of
 * theirs is compared until somebody says here why it need not be. */
#include "trainer/recipe/recipe_table.h"

#include <string.h>

static const char *const sections[] = {"model", "optimizer", "data", "precision"};
static const char *const single_keys[] = {"seed", "tokenizer.tokenizer_type"};
/* Padding, the choice of a kernel, and what only a beginning looks at. */
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
    for (size_t i = 0; i < COUNT(sections); i++)
        if (row_in_section(row, sections[i]))
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

void recipe_changes(const struct recipe *then, const struct recipe *now, const char *what,
                    struct problems *problems)
{
    for (int i = 0; i < RECIPE_ROWS; i++) {
        const struct recipe_row *row = &recipe_rows[i];
        if (!is_mathematics(row) || !is_read(row, then, now))
            continue;
        struct text before = {0}, after = {0};
        value_text(then, row, &before);
        value_text(now, row, &after);
        if (strcmp(text_chars(&before), text_chars(&after)) != 0)
            problems_warn(problems, "%s: %s changed from %s to %s", what, row->key, text_chars(&before),
                          text_chars(&after));
        text_free(&before);
        text_free(&after);
    }
}
