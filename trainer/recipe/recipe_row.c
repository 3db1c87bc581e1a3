// SPDX-License-Identifier: Apache-2.0
/* Finds rows of the recipe's table by key, alias, last word, or by the name of another program. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t recipe_row_section_length(const struct recipe_row *row)
{
    const char *dot = strchr(row->key, '.');
    return dot != NULL ? (size_t)(dot - row->key) : 0;
}

const char *recipe_row_name(const struct recipe_row *row)
{
    const char *dot = strchr(row->key, '.');
    return dot != NULL ? dot + 1 : row->key;
}

/* Walks both texts at once: sweeps look up keys for each layout. */
bool recipe_row_in_section(const struct recipe_row *row, const char *section)
{
    const char *key = row->key;
    while (*section != 0 && *section == *key)
        section++, key++;
    return *section == 0 && (key == row->key ? strchr(key, '.') == NULL : *key == '.');
}

enum section_kind recipe_row_section_kind(const struct recipe_row *row)
{
    int section = 0;
    while (section < recipe_section_count && !recipe_row_in_section(row, recipe_sections[section].name))
        section++;
    CHECK(section < recipe_section_count);
    return recipe_sections[section].kind;
}

int recipe_row_total(const struct recipe_addition *more)
{
    return recipe_row_count + (more != NULL ? more->row_count : 0);
}

const struct recipe_row *recipe_row_at(const struct recipe_addition *more, int row)
{
    return row < recipe_row_count ? &recipe_rows[row] : &more->rows[row - recipe_row_count];
}

int recipe_section_total(const struct recipe_addition *more)
{
    return recipe_section_count + (more != NULL ? 1 : 0);
}

const struct recipe_section *recipe_section_at(const struct recipe_addition *more, int section)
{
    return section < recipe_section_count ? &recipe_sections[section] : &more->section;
}

bool recipe_row_choice(const struct recipe_row *row, size_t index, struct choice *out)
{
    if (row->names != NULL)
        *out = (struct choice){.name = row->names(index)};
    else
        *out = row->choices != NULL ? row->choices[index] : (struct choice){0};
    return out->name != NULL;
}

bool recipe_row_has_choices(const struct recipe_row *row)
{
    return row->choices != NULL || row->names != NULL;
}

void recipe_row_choices_text(const struct recipe_row *row, struct text *out)
{
    const char *last = NULL;
    size_t shown = 0;
    struct choice c;
    for (size_t i = 0; recipe_row_choice(row, i, &c); i++)
        if (!c.alias) {
            if (last != NULL)
                text_add(out, "%s%s", shown++ > 0 ? ", " : "", last);
            last = c.name;
        }
    if (last != NULL)
        text_add(out, "%s%s", shown > 0 ? " or " : "", last);
}

/* Whether `word` is one of those in `list`, which are separated by spaces. */
static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL && *at != 0; at += strspn(at, " ")) {
        size_t here = strcspn(at, " ");
        if (here == length && strncmp(at, word, length) == 0)
            return true;
        at += here;
    }
    return false;
}

int recipe_row_find(const struct recipe_addition *more, const char *section, const char *name)
{
    for (int i = 0; i < recipe_row_total(more); i++)
        if (recipe_row_in_section(recipe_row_at(more, i), section) &&
            (strcmp(recipe_row_name(recipe_row_at(more, i)), name) == 0 ||
             list_has(recipe_row_at(more, i)->aliases, name)))
            return i;
    return -1;
}

/* The row of this name or alias, if it is in one section only; -1. Not of another program's keys. */
static int find_unique(const struct recipe_addition *more, const char *name)
{
    int found = -1;
    for (int s = 0; s < recipe_section_total(more); s++) {
        const bool assumed = recipe_section_at(more, s)->kind == SECTION_ADDED;
        const int row = assumed ? -1 : recipe_row_find(more, recipe_section_at(more, s)->name, name);
        if (strcmp(recipe_section_at(more, s)->name, name) == 0 || (row >= 0 && found >= 0))
            return -1;
        found = row >= 0 ? row : found;
    }
    return found;
}

int recipe_row_find_dotted(const struct recipe_addition *more, const char *key)
{
    const char *dot = strchr(key, '.');
    for (int s = 1; s < recipe_section_total(more) && dot == NULL; s++)
        if (recipe_section_at(more, s)->short_for != NULL &&
            strcmp(recipe_section_at(more, s)->name, key) == 0)
            return recipe_row_find(more, key, recipe_section_at(more, s)->short_for);
    if (dot == NULL) {
        const int row = recipe_row_find(more, "", key);
        return row >= 0 ? row : find_unique(more, key);
    }
    char section[32] = "";
    size_t length = (size_t)(dot - key);
    if (length == 0 || length >= sizeof section)
        return -1;
    memcpy(section, key, length);
    return recipe_row_find(more, section, dot + 1);
}

const char *recipe_key(const struct recipe_addition *more, const char *name)
{
    int row = recipe_row_find_dotted(more, name);
    return row >= 0 ? recipe_row_at(more, row)->key : NULL;
}

int recipe_row_find_any_section(const struct recipe_addition *more, const char *name)
{
    for (int s = 0; s < recipe_section_total(more); s++) {
        int row = recipe_row_find(more, recipe_section_at(more, s)->name, name);
        if (row >= 0)
            return row;
    }
    return -1;
}

int recipe_row_nearest(const struct recipe_addition *more, const char *name)
{
    const char *names[RECIPE_MAX_ROWS] = {NULL};
    for (int i = 0; i < recipe_row_total(more); i++)
        names[i] = recipe_row_name(recipe_row_at(more, i));
    const char *near = nearest_name(name, names, (size_t)recipe_row_total(more));
    for (int i = 0; i < recipe_row_total(more) && near != NULL; i++)
        if (names[i] == near)
            return i;
    return -1;
}

const char *recipe_key_near(const struct recipe_addition *more, const char *name)
{
    const char *dot = strrchr(name, '.');
    int row = recipe_row_find_any_section(more, dot != NULL ? dot + 1 : name);
    row = row < 0 ? recipe_row_nearest(more, dot != NULL ? dot + 1 : name) : row;
    return row >= 0 ? recipe_row_at(more, row)->key : NULL;
}

bool recipe_key_of_option(const struct recipe_addition *more, const char *argument,
                          char key[RECIPE_KEY_CHARS])
{
    const char *name = argument + strspn(argument, "-");
    snprintf(key, RECIPE_KEY_CHARS, "%.*s", (int)strcspn(name, "="), name);
    for (char *c = key; name != argument && *c != 0; c++)
        *c = *c == '-' ? '_' : *c;
    int row = recipe_row_find_dotted(more, key);
    if (row >= 0 && strcmp(key, recipe_row_name(recipe_row_at(more, row))) != 0)
        return true; // with its section, or short
    row = row < 0 ? recipe_row_find_any_section(more, key) : row;
    if (row >= 0)
        snprintf(key, RECIPE_KEY_CHARS, "%s", recipe_row_at(more, row)->key);
    return row >= 0;
}

const char *override_key(const struct recipe_addition *more, const char *override)
{
    char name[RECIPE_KEY_CHARS];
    const size_t length = strcspn(override, "=");
    if (length >= sizeof name)
        return NULL;
    memcpy(name, override, length);
    name[length] = 0;
    return recipe_key(more, name);
}

void overrides_set(const struct recipe_addition *more, struct recipe_names *overrides, const char *override)
{
    const char *key = override_key(more, override);
    for (size_t i = 0; i < overrides->count; i++)
        if (key != NULL && override_key(more, overrides->list[i]) == key) {
            free(overrides->list[i]);
            overrides->list[i] = text_copy(override);
            return;
        }
    overrides->list =
        memory_resized(overrides->list, overrides->count + 1, sizeof *overrides->list, "the overrides");
    overrides->list[overrides->count++] = text_copy(override);
}

const char *recipe_model_key(int index)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_row_in_section(&recipe_rows[i], "model") && index-- == 0)
            return recipe_rows[i].key;
    return NULL;
}

int recipe_row_index(const char *key)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_rows[i].key[0] == key[0] && strcmp(recipe_rows[i].key, key) == 0) // most begin otherwise
            return i;
    int row = recipe_row_find_dotted(NULL, key);
    CHECK(row >= 0);
    return row;
}
