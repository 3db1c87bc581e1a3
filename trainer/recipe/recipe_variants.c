// SPDX-License-Identifier: Apache-2.0
#include "trainer/recipe/recipe_variants.h"

#include "base/memory.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>
#include <string.h>

struct recipe_variants {
    struct recipe_loader loader; // before anything is derived
    char *path;
    int world_size;
};

enum status recipe_variants_open(const struct recipe_addition *more, const char *path,
                                 const char *const *overrides, size_t override_count, int world_size,
                                 struct recipe_variants **out, struct problems *problems)
{
    const size_t before = problems->errors;
    struct recipe_variants *variants = memory_zeroed(1, sizeof *variants, "a recipe");
    *variants = (struct recipe_variants){.loader = {.recipe = recipe_create(more), .problems = problems},
                                         .path = text_copy(path),
                                         .world_size = world_size};
    recipe_read(&variants->loader, path, overrides, override_count);
    variants->loader.problems = NULL;
    variants->loader.quiet = true;
    if (variants->loader.complete && problems->errors == before) {
        *out = variants;
        return OK;
    }
    recipe_variants_close(variants);
    return problems_fail(problems, before, BAD_RECIPE, path);
}

int recipe_variants_open_keys(const struct recipe_variants *variants, const char *keys[RECIPE_MAX_CHOSEN])
{
    return recipe_open_keys(variants->loader.recipe, keys);
}

const struct recipe *recipe_variants_base(const struct recipe_variants *variants)
{
    return variants->loader.recipe;
}

void recipe_variants_close(struct recipe_variants *variants)
{
    if (variants == NULL)
        return;
    const struct recipe_addition *more = variants->loader.recipe->addition;
    recipe_destroy(variants->loader.recipe);
    recipe_loader_free(&variants->loader, more);
    free(variants->path);
    free(variants);
}

bool recipe_change_is_valid(const struct recipe_addition *more, const struct recipe_change *change,
                            struct text *why)
{
    const struct recipe_row *row = recipe_row_at(more, recipe_row_find_dotted(more, change->key));
    struct recipe *scratch = recipe_create(more);
    bool automatic = false;
    const bool good = recipe_value_set(scratch, row, change->value, &automatic, why);
    const bool is_open = good && ((automatic && row->chosen) || scratch->parallel.search == SEARCH_AUTO);
    if (is_open)
        text_add(why, "auto leaves the choice to a plan; list the values to compare");
    recipe_destroy(scratch);
    return good && !is_open;
}

/* ---- copies ---- */

static char *copy_or_null(const char *text)
{
    return text != NULL ? text_copy(text) : NULL;
}

static void copy_names(struct recipe_names *to, const struct recipe_names *from)
{
    *to = (struct recipe_names){memory_zeroed(from->count, sizeof *to->list, "a list of a recipe"),
                                from->count};
    for (size_t i = 0; i < from->count; i++)
        to->list[i] = text_copy(from->list[i]);
}

static void copy_sources(struct recipe_sources *to, const struct recipe_sources *from)
{
    *to = (struct recipe_sources){memory_zeroed(from->count, sizeof *to->list, "a list of a recipe"),
                                  from->count};
    for (size_t i = 0; i < from->count; i++)
        to->list[i] = (struct recipe_source){text_copy(from->list[i].path), from->list[i].weight};
}

/* Replaces a field of `to` by its own copy of that of `from`. */
static void copy_value(struct recipe *to, const struct recipe *from, const struct recipe_row *row)
{
    void *out = recipe_field(to, row);
    const void *in = recipe_field(from, row);
    switch (row->type) {
    case ROW_TEXT:
    case ROW_WORD:
        *(char **)out = copy_or_null(*(char *const *)in);
        break;
    case ROW_LAYERS: {
        const struct layer_list *list = in;
        struct layer_list copy = {memory_zeroed(list->count, sizeof *list->list, "a list of a recipe"),
                                  list->count, list->single};
        if (list->count > 0)
            memcpy(copy.list, list->list, list->count * sizeof *list->list);
        *(struct layer_list *)out = copy;
        break;
    }
    case ROW_NAMES:
        copy_names(out, in);
        break;
    case ROW_SOURCES:
        copy_sources(out, in);
        break;
    case ROW_BASE:
    case ROW_BOOL:
    case ROW_INT:
    case ROW_COUNT:
    case ROW_REAL:
    case ROW_CHOICE:
    case ROW_SPLIT:
    case ROW_TYPES:
        break; // values: copied with the struct
    }
}

static struct recipe *copy_recipe(const struct recipe *from)
{
    struct recipe *recipe = recipe_create(from->addition);
    void *added = recipe->added;
    *recipe = *from;
    recipe->files = (struct recipe_names){.list = NULL};
    recipe->added = added;
    if (added != NULL)
        memcpy(added, from->added, from->addition->size);
    for (int i = 0; i < recipe_row_total(from->addition); i++)
        copy_value(recipe, from, recipe_row_at(from->addition, i));
    return recipe;
}

/* ---- variants ---- */

static void set(struct recipe *recipe, const struct recipe_change *change)
{
    const int row = recipe_row_find_dotted(recipe->addition, change->key);
    const struct recipe_row *const setting = recipe_row_at(recipe->addition, row);
    struct text why = {0};
    bool automatic;
    CHECK(recipe_value_set(recipe, setting, change->value, &automatic, &why));
    if (automatic && !setting->chosen)
        recipe_value_free(recipe, setting);
    recipe->origin[row] = (struct recipe_origin){.kind = automatic ? FROM_DEFAULT : FROM_COMMAND_LINE};
}

/* Makes a copy with the changes and new derived values; the rules are not checked. */
static void make(struct recipe_variants *variants, const struct recipe_change *changes, size_t count,
                 struct problems *problems, struct recipe_loader *out)
{
    *out = variants->loader;
    out->recipe = copy_recipe(variants->loader.recipe);
    out->problems = problems;
    for (size_t i = 0; i < count; i++)
        set(out->recipe, &changes[i]);
    recipe_complete(out, variants->path, variants->world_size);
    variants->loader.kept = out->kept;
    variants->loader.vocabulary = out->vocabulary;
}

enum status recipe_variant(struct recipe_variants *variants, const struct recipe_change *changes,
                           size_t count, struct recipe **out, int *rule)
{
    AUTO(problems) problems = {0};
    struct recipe_loader loader;
    make(variants, changes, count, &problems, &loader);
    *rule = problems.errors == 0 ? recipe_first_violation(loader.recipe, variants->world_size) : -1;
    const bool good = problems.errors == 0 && *rule < 0;
    if (good) {
        recipe_derive_paths(loader.recipe, variants->path, &loader.in_files, &problems);
        recipe_finalize(&loader);
        *out = loader.recipe;
    } else
        recipe_destroy(loader.recipe);
    return good ? OK : BAD_RECIPE;
}

void recipe_variant_explain(struct recipe_variants *variants, const struct recipe_change *changes,
                            size_t count, struct problems *problems)
{
    struct recipe_loader loader;
    make(variants, changes, count, problems, &loader);
    recipe_check(loader.recipe, variants->world_size, loader.bad, problems);
    recipe_destroy(loader.recipe);
}
