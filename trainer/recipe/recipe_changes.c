// SPDX-License-Identifier: Apache-2.0
/* Differences between two recipes. In the mathematics: a layout, a bucket size or the number of steps does
 * not change what is computed. In the layout: the keys that a single rank does not need. Sections are
 * compared as a whole, so a new key is compared unless its row says otherwise. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <string.h>

static bool is_mathematics(const struct recipe_row *row)
{
    return row->mathematics || (recipe_row_section_kind(row) == SECTION_MATHEMATICS && !row->neutral);
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
        AUTO(text) before = {0}, after = {0};
        if (is_mathematics(row) && differs(then, now, row, &before, &after) &&
            !(recipe_key_is_unused(then, row->key) && recipe_key_is_unused(now, row->key)))
            problems_warn(problems, "%s: %s changed from %s to %s", what, row->key, text_chars(&before),
                          text_chars(&after));
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
        AUTO(text) one = {0}, other = {0};
        if (recipe_row_section_kind(&recipe_rows[i]) == SECTION_LAYOUT)
            differ = differs(a, b, &recipe_rows[i], &one, &other) || differ;
    }
    return differ;
}
