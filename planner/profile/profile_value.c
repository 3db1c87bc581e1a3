// SPDX-License-Identifier: Apache-2.0
/* One value of a profile. The table of recipes parses and writes it (trainer/recipe/recipe_value.c). */
#include "planner/profile/profile_table.h"

#include "trainer/files/yaml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 200, SHOWN = 60 }; // characters of a text; of a value in a message

void profile_set_text(char **field, const char *text)
{
    char *copy = text_copy(text);
    free(*field);
    *field = copy;
}

/* The same row for a recipe. */
static struct recipe_row row_of(const struct profile_row *row)
{
    return (struct recipe_row){.key = row->key,
                               .fallback = row->fallback,
                               .low = row->low,
                               .high = row->type == ROW_TEXT ? TEXT_MAX : row->high,
                               .above = row->above,
                               .or_zero = row->or_zero,
                               .short_form = true,
                               .type = row->type};
}

void profile_value_expected(const struct profile_row *row, struct text *out)
{
    const struct recipe_row same = row_of(row);
    if (row->type == ROW_NAMES)
        text_add(out, "a list of keys of the section model");
    else
        recipe_value_expected(&same, out);
}

bool profile_in_range(const struct profile_row *row, double value)
{
    const struct recipe_row same = row_of(row);
    return row_in_range(&same, value);
}

const char *profile_number_fault(const struct node *node, double *out)
{
    if (node->kind != NODE_SCALAR)
        return node->kind == NODE_LIST ? "is a list" : "is a mapping";
    if (!node->plain)
        return "is a text; remove the quotes";
    if (*node->text == '\0')
        return "is empty";
    return number_parse(node->text, out) ? NULL : "is not a number";
}

/* Whether all names of a list are keys of the section `model`; adds the fault of the first that is not. */
static bool are_parameters(const struct profile_row *row, const struct node *node, struct text *why)
{
    for (size_t i = 0; node->kind == NODE_LIST && i < node->count; i++) {
        const struct node *name = node->child[i];
        const bool scalar = name->kind == NODE_SCALAR;
        if (scalar && profile_row_find("model", name->text) >= 0)
            continue;
        text_add(why, "%.*s%sis not a key of the section model; expected ", SHOWN, scalar ? name->text : "",
                 scalar ? " " : "");
        profile_value_expected(row, why);
        return false;
    }
    return true;
}

bool profile_value_set(struct cluster_profile *profile, const struct profile_row *row,
                       const struct node *node, struct text *why)
{
    const struct recipe_row same = row_of(row);
    void *field = profile_field(profile, row);
    bool automatic;
    if (row->type == ROW_TEXT && row->fallback != NULL && node->kind == NODE_SCALAR && !node->plain &&
        *node->text == '\0') {
        profile_set_text(field, "");
        return true;
    }
    return (row->type != ROW_NAMES || are_parameters(row, node, why)) &&
           row_set(&same, node, field, &automatic, why);
}

void profile_value_set_default(struct cluster_profile *profile, const struct profile_row *row)
{
    const struct recipe_row same = row_of(row);
    CHECK(row->fallback != NULL);
    if (row->type == ROW_TEXT)
        profile_set_text(profile_field(profile, row), row->fallback);
    else if (row->type == ROW_NAMES)
        profile_value_free(profile, row);
    else
        row_set_default(&same, profile_field(profile, row));
}

void profile_value_text(const struct cluster_profile *profile, const struct profile_row *row,
                        struct text *out)
{
    const struct recipe_row same = row_of(row);
    char *const *text = profile_field(profile, row);
    if (row->type == ROW_TEXT)
        yaml_add_string(out, *text != NULL ? *text : "", NULL);
    else
        row_text(&same, profile_field(profile, row), out);
}

void profile_value_free(struct cluster_profile *profile, const struct profile_row *row)
{
    const struct recipe_row same = row_of(row);
    row_free(&same, profile_field(profile, row));
}
