// SPDX-License-Identifier: Apache-2.0
/* The field of a row: its text, its default, and setting it as a whole or not at all. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

static int64_t integer_of(const struct recipe_row *row, const void *field)
{
    return row->type == ROW_INT ? *(const int *)field : *(const int64_t *)field;
}

void text_add_real(struct text *out, double value)
{
    char number[NUMBER_CHARS];
    text_add(out, "%s", number_text(value, number));
}

static void add_choice(struct text *out, const struct recipe_row *row, int value)
{
    for (const struct choice *c = row->choices; c->name != NULL; c++)
        if (c->value == value && !c->alias) {
            text_add(out, "%s", c->name);
            return;
        }
}

static void add_list(struct text *out, const struct recipe_row *row, const void *field)
{
    const struct layer_list *layers = field;
    const struct recipe_names *names = field;
    const struct recipe_sources *sources = field;
    const double *split = field;
    if (row->type == ROW_LAYERS && layers->single) {
        text_add(out, "%lld", (long long)layers->list[0]);
        return;
    }
    text_add(out, "[");
    for (size_t i = 0; row->type == ROW_LAYERS && i < layers->count; i++)
        text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)layers->list[i]);
    for (size_t i = 0; row->type == ROW_SPLIT && i < 3; i++) {
        text_add(out, "%s", i > 0 ? ", " : "");
        text_add_real(out, split[i]);
    }
    for (size_t i = 0; row->type == ROW_NAMES && i < names->count; i++) {
        text_add(out, "%s", i > 0 ? ", " : "");
        yaml_add_string(out, names->list[i], NULL);
    }
    for (size_t i = 0; row->type == ROW_SOURCES && i < sources->count; i++) {
        text_add(out, "%s{path: ", i > 0 ? ", " : "");
        yaml_add_string(out, sources->list[i].path, NULL);
        text_add(out, ", weight: ");
        text_add_real(out, sources->list[i].weight);
        text_add(out, "}");
    }
    text_add(out, "]");
}

static double number_of(const struct recipe_row *row, const void *field)
{
    return row->type == ROW_REAL ? *(const double *)field : (double)integer_of(row, field);
}

void row_text(const struct recipe_row *row, const void *field, struct text *out)
{
    char number[NUMBER_CHARS];
    switch (row->type) {
    case ROW_BASE:
    case ROW_TYPES:
        break;
    case ROW_BOOL:
        text_add(out, *(const bool *)field ? "true" : "false");
        break;
    case ROW_INT:
    case ROW_COUNT:
        if (row->short_form)
            text_add(out, "%s", number_text_short(number_of(row, field), number));
        else
            text_add(out, "%lld", (long long)integer_of(row, field));
        break;
    case ROW_REAL:
        if (row->short_form)
            text_add(out, "%s", number_text_short(number_of(row, field), number));
        else
            text_add_real(out, *(const double *)field);
        break;
    case ROW_TEXT:
        yaml_add_string(out, *(char *const *)field, row->derived != NULL ? "auto" : NULL);
        break;
    case ROW_WORD:
        text_add(out, "%s", *(char *const *)field);
        break;
    case ROW_CHOICE:
        add_choice(out, row, *(const int *)field);
        break;
    case ROW_LAYERS:
    case ROW_NAMES:
    case ROW_SOURCES:
    case ROW_SPLIT:
        add_list(out, row, field);
        break;
    }
}

/* ---- defaults ---- */

/* Memory for a field of any type. */
union value {
    bool flag;
    int integer;
    int64_t count;
    double real, split[3];
    char *text;
    struct layer_list layers;
    struct recipe_names names;
    struct recipe_sources sources;
};

static const size_t field_bytes[ROW_TYPES] = {
    [ROW_BOOL] = sizeof(bool),
    [ROW_INT] = sizeof(int),
    [ROW_COUNT] = sizeof(int64_t),
    [ROW_REAL] = sizeof(double),
    [ROW_TEXT] = sizeof(char *),
    [ROW_WORD] = sizeof(char *),
    [ROW_CHOICE] = sizeof(int),
    [ROW_LAYERS] = sizeof(struct layer_list),
    [ROW_NAMES] = sizeof(struct recipe_names),
    [ROW_SOURCES] = sizeof(struct recipe_sources),
    [ROW_SPLIT] = sizeof(double[3]),
};

/* The default as a node. */
static struct node *default_node(const struct recipe_row *row)
{
    if (row->fallback[0] != '[')
        return node_scalar(row->fallback);
    struct problems none = {0};
    struct node *node = yaml_parse(row->key, row->fallback, strlen(row->fallback), &none);
    CHECK(node != NULL && none.count == 0);
    return node;
}

void row_set_default(const struct recipe_row *row, void *field)
{
    AUTO(text) why = {0};
    struct node *node = default_node(row);
    row_free(row, field);
    if (!row_parse(row, node, field, &why))
        die(__FILE__, __LINE__, row->key, "the default of the table: %s", text_chars(&why));
    node_free(node);
}

/* Appends the default of a row; false if it has none. */
static bool add_default(const struct recipe_row *row, struct text *out)
{
    union value value = {0};
    if (row->fallback == NULL)
        return false;
    row_set_default(row, &value);
    row_text(row, &value, out);
    row_free(row, &value);
    return true;
}

static bool is_default(const struct recipe_row *row, const void *field)
{
    AUTO(text) here = {0}, there = {0};
    row_text(row, field, &here);
    bool same = add_default(row, &there) && strcmp(text_chars(&here), text_chars(&there)) == 0;
    return same;
}

bool row_set(const struct recipe_row *row, const struct node *node, void *field, bool *automatic,
             struct text *why)
{
    union value value = {0};
    *automatic = (row->derived != NULL || row->chosen) && node->kind == NODE_SCALAR && node->plain &&
                 strcmp(node->text, "auto") == 0;
    if (*automatic && row->chosen)
        row_set_default(row, field);
    if (*automatic || row->type == ROW_BASE)
        return true;
    const bool good = row_parse(row, node, &value, why);
    row_free(row, good ? field : &value);
    if (good)
        memcpy(field, &value, field_bytes[row->type]);
    return good;
}

/* ---- of a recipe ---- */

void *recipe_field(const struct recipe *recipe, const struct recipe_row *row)
{
    return (row->added ? (char *)recipe->added : (char *)recipe) + row->offset;
}

bool recipe_value_set(struct recipe *recipe, const struct recipe_row *row, const struct node *node,
                      bool *automatic, struct text *why)
{
    return row_set(row, node, recipe_field(recipe, row), automatic, why);
}

void recipe_value_set_default(struct recipe *recipe, const struct recipe_row *row)
{
    row_set_default(row, recipe_field(recipe, row));
}

void recipe_value_text(const struct recipe *recipe, const struct recipe_row *row, struct text *out)
{
    row_text(row, recipe_field(recipe, row), out);
}

void recipe_value_free(struct recipe *recipe, const struct recipe_row *row)
{
    row_free(row, recipe_field(recipe, row));
}

bool recipe_default_text(const struct recipe_addition *more, const char *key, struct text *out)
{
    const int row = recipe_row_find_dotted(more, key);
    CHECK(row >= 0);
    return add_default(recipe_row_at(more, row), out);
}

bool recipe_value_is_default(const struct recipe *recipe, const struct recipe_row *row)
{
    return is_default(row, recipe_field(recipe, row));
}

int64_t recipe_value_integer(const struct recipe *recipe, const struct recipe_row *row)
{
    return integer_of(row, recipe_field(recipe, row));
}

void recipe_value_set_integer(struct recipe *recipe, const struct recipe_row *row, int64_t value)
{
    void *field = recipe_field(recipe, row);
    if (row->type == ROW_INT)
        *(int *)field = (int)value;
    else
        *(int64_t *)field = value;
}
