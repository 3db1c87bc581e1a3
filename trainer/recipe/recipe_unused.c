// SPDX-License-Identifier: Apache-2.0
/* Warns about keys that have no effect given the other keys, each once, with the reason.
 *
 *     warning: R:9: optimizer.lr_wsd_decay_iters has no effect: optimizer.lr_decay_style is cosine, and only
 *     WSD uses it
 *
 * The condition of a key, the key that decides it, and the reason are in its row: UNUSED_IF() in keys/.
 * Caution: defaults, and values equal to the default, cause no warning. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <string.h>

static bool quantizes_to(const struct recipe *r, enum matmul_format format)
{
    for (int i = 0; i < MATMUL_COUNT; i++)
        if (r->layers.precision.format[i] == format)
            return true;
    return false;
}

/* A key that is unused. */
struct unused {
    const char *key;
    const char *because; // the key that decides it
    const char *wanted;  // the end of the message, after "and"
};

/* Fills the keys that are unused, one for each condition that holds; returns their number. */
static int find_unused(const struct recipe *r, struct unused found[RECIPE_MAX_ROWS])
{
    const struct device_traits *device = device_traits(r->cluster.device);
    const char *key = NULL;
    int count = 0;
#define ROW(key_, ...) key = key_;
#define UNUSED_IF(...) NOTE_IF(__VA_ARGS__)
#define NOTE_IF(condition, because, wanted)     \
    if ((condition) && count < RECIPE_MAX_ROWS) \
        found[count++] = (struct unused){key, because, wanted};
#include "trainer/recipe/keys/keys.h"
    return count;
}

bool recipe_key_is_unused(const struct recipe *recipe, const char *key)
{
    struct unused found[RECIPE_MAX_ROWS];
    for (int count = find_unused(recipe, found), i = 0; i < count; i++)
        if (strcmp(found[i].key, key) == 0)
            return true;
    return (strcmp(key, "parallel.zero_stage") == 0 && recipe->parallel.data_parallel_size == 1) ||
           (strcmp(key, "parallel.sequence_parallel") == 0 && recipe->parallel.tensor_parallel_size == 1);
}

/* True if the key was given, with a value other than the default; one without a default is not empty. */
static bool is_given(const struct recipe *recipe, int row)
{
    enum origin_kind kind = recipe->origin[row].kind;
    AUTO(text) value = {0};
    recipe_value_text(recipe, &recipe_rows[row], &value);
    const char *fallback = recipe_rows[row].fallback != NULL ? recipe_rows[row].fallback : "[]";
    return (kind == FROM_FILE || kind == FROM_COMMAND_LINE) && strcmp(text_chars(&value), fallback) != 0;
}

static void warn_unused(const struct recipe *recipe, const struct unused *unused, struct problems *problems)
{
    const int row = recipe_row_index(unused->key);
    if (!is_given(recipe, row))
        return;
    AUTO(text) where = {0}, value = {0};
    recipe_origin_text(recipe, row, &where);
    recipe_key_text(recipe, unused->because, &value);
    problems_warn(problems, "%s: %s has no effect: %s is %s, and %s", text_chars(&where), unused->key,
                  unused->because, text_chars(&value), unused->wanted);
}

/* ---- values without effect ---- */

static void warn_at(const struct recipe *recipe, const char *key, const char *what, struct problems *problems)
{
    AUTO(text) where = {0};
    recipe_origin_text(recipe, recipe_row_index(key), &where);
    problems_warn(problems, "%s: %s %s", text_chars(&where), key, what);
}

static void warn_too_many(const struct recipe *recipe, struct problems *problems)
{
    const struct recompute *recompute = &recipe->layers.recompute;
    int stages = recipe->parallel.pipeline_parallel_size * recipe->pipeline.virtual_stages;
    int64_t most = 0;
    for (int stage = 0; stage < stages; stage++) {
        int64_t layers = recipe_stage_layers(recipe, stage);
        most = layers > most ? layers : most;
    }
    if (recompute->granularity != RECOMPUTE_FULL || recompute->num_layers <= most)
        return;
    AUTO(text) what = {0};
    text_add(&what, "%lld is more than the %lld layers of any stage", (long long)recompute->num_layers,
             (long long)most);
    warn_at(recipe, "memory.recompute_num_layers", text_chars(&what), problems);
}

static void warn_of_modules(const struct recipe *recipe, struct problems *problems)
{
    const struct recipe_names *names = &recipe->memory.recompute_modules;
    if (recipe->layers.recompute.granularity != RECOMPUTE_SELECTIVE)
        return;
    if (names->count == 0)
        warn_at(recipe, "memory.recompute_modules", "is empty: nothing is recomputed; use [core_attn]",
                problems);
    for (size_t i = 0; i < names->count; i++)
        for (size_t k = i + 1; k < names->count; k++)
            if (strcmp(names->list[i], names->list[k]) == 0) {
                AUTO(text) what = {0};
                text_add(&what, "names %s twice; remove one", names->list[i]);
                warn_at(recipe, "memory.recompute_modules", text_chars(&what), problems);
                return;
            }
}

void recipe_warn_unused(const struct recipe *recipe, struct problems *problems)
{
    struct unused found[RECIPE_MAX_ROWS];
    for (int count = find_unused(recipe, found), i = 0; i < count; i++)
        warn_unused(recipe, &found[i], problems);
    warn_too_many(recipe, problems);
    warn_of_modules(recipe, problems);
}
