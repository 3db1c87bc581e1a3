// SPDX-License-Identifier: Apache-2.0
/* Finds rows of the recipe's table by key, alias or short name. */
#include "trainer/recipe/recipe_table.h"

#include <stdio.h>
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

bool recipe_row_in_section(const struct recipe_row *row, const char *section)
{
    size_t length = recipe_row_section_length(row);
    return strlen(section) == length && strncmp(row->key, section, length) == 0;
}

enum section_kind recipe_row_section_kind(const struct recipe_row *row)
{
    int section = 0;
    while (section < recipe_section_count && !recipe_row_in_section(row, recipe_sections[section].name))
        section++;
    CHECK(section < recipe_section_count);
    return recipe_sections[section].kind;
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
        if (!c.alias && !c.unimplemented) {
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

int recipe_row_find(const char *section, const char *name)
{
    for (int i = 0; i < recipe_row_count; i++)
        if (recipe_row_in_section(&recipe_rows[i], section) &&
            (strcmp(recipe_row_name(&recipe_rows[i]), name) == 0 || list_has(recipe_rows[i].aliases, name)))
            return i;
    return -1;
}

int recipe_row_find_dotted(const char *key)
{
    static const char *const short_names[] = {"tp", "pp", "dp", "cp", "ep"};
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (strcmp(key, short_names[i]) == 0)
            return recipe_row_find("parallel", key);
    const char *dot = strchr(key, '.');
    for (int s = 1; s < recipe_section_count && dot == NULL; s++)
        if (recipe_sections[s].short_for != NULL && strcmp(recipe_sections[s].name, key) == 0)
            return recipe_row_find(key, recipe_sections[s].short_for);
    if (dot == NULL)
        return recipe_row_find("", key);
    char section[32] = "";
    size_t length = (size_t)(dot - key);
    if (length == 0 || length >= sizeof section)
        return -1;
    memcpy(section, key, length);
    return recipe_row_find(section, dot + 1);
}

const char *recipe_key(const char *name)
{
    int row = recipe_row_find_dotted(name);
    return row >= 0 ? recipe_rows[row].key : NULL;
}

int recipe_row_find_any_section(const char *name)
{
    for (int s = 0; s < recipe_section_count; s++) {
        int row = recipe_row_find(recipe_sections[s].name, name);
        if (row >= 0)
            return row;
    }
    return -1;
}

int recipe_row_nearest(const char *name)
{
    const char *names[RECIPE_MAX_ROWS] = {NULL};
    for (int i = 0; i < recipe_row_count; i++)
        names[i] = recipe_row_name(&recipe_rows[i]);
    const char *near = nearest_name(name, names, (size_t)recipe_row_count);
    for (int i = 0; i < recipe_row_count && near != NULL; i++)
        if (names[i] == near)
            return i;
    return -1;
}

const char *recipe_key_near(const char *name)
{
    const char *dot = strrchr(name, '.');
    int row = recipe_row_find_any_section(dot != NULL ? dot + 1 : name);
    row = row < 0 ? recipe_row_nearest(dot != NULL ? dot + 1 : name) : row;
    return row >= 0 ? recipe_rows[row].key : NULL;
}

bool recipe_key_of_option(const char *argument, char key[RECIPE_KEY_CHARS])
{
    const char *name = argument + strspn(argument, "-");
    snprintf(key, RECIPE_KEY_CHARS, "%.*s", (int)strcspn(name, "="), name);
    for (char *c = key; name != argument && *c != 0; c++)
        *c = *c == '-' ? '_' : *c;
    if (recipe_row_find_dotted(key) >= 0)
        return true;
    int row = recipe_row_find_any_section(key);
    if (row >= 0)
        snprintf(key, RECIPE_KEY_CHARS, "%s", recipe_rows[row].key);
    return row >= 0;
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
    int row = recipe_row_find_dotted(key);
    CHECK(row >= 0);
    return row;
}

/* ---- sections ---- */

const struct recipe_section recipe_sections[] = {
    {"", SECTION_RUN, "General keys.", NULL},
    {"model", SECTION_MATHEMATICS, "Model architecture. Hugging Face names are accepted too.", NULL},
    {"parallel", SECTION_LAYOUT, "Parallel layout. No key of this section changes what is computed.",
     .short_for = "search"},
    {"pipeline", SECTION_LAYOUT, "Pipeline schedule and assignment of layers to stages.", NULL},
    {"train", SECTION_RUN, "Batch sizes and steps.", NULL},
    {"optimizer", SECTION_MATHEMATICS, "AdamW and the learning rate schedule.", NULL},
    {"precision", SECTION_MATHEMATICS, "Data types and low-precision formats.", NULL},
    {"memory", SECTION_LAYOUT, "Activation recomputation and offloading.", NULL},
    {"data", SECTION_MATHEMATICS, "Datasets.", NULL},
    {"tokenizer", SECTION_RUN, "Tokenizer.", NULL},
    {"checkpoint", SECTION_RUN, "Saving and resuming.", NULL},
    {"logging", SECTION_RUN, "Logs and metrics.", NULL},
    {"profile", SECTION_RUN, "Timelines.", NULL},
    {"resilience", SECTION_RUN, "Fault handling.", NULL},
    {"cluster", SECTION_RUN, "Devices, transports and machines.", NULL},
    {"assume", SECTION_RUN,
     "What another program does differently, to plan published results. For `cuboid plan` only.",
     .short_for = "programs"},
};
const int recipe_section_count = sizeof recipe_sections / sizeof *recipe_sections;
_Static_assert(sizeof recipe_sections / sizeof *recipe_sections <= RECIPE_MAX_SECTIONS,
               "raise RECIPE_MAX_SECTIONS");
