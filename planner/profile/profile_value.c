// SPDX-License-Identifier: Apache-2.0
/* One value of a profile: YAML to field and field to YAML. */
#include "planner/profile/profile_table.h"

#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 200, SHOWN = 60 };       // characters of a text; of a value in a message
#define LARGEST_INTEGER 9007199254740992.0 // 2^53

void profile_set_text(char **field, const char *text)
{
    char *copy = text_copy(text);
    free(*field);
    *field = copy;
}

const char *profile_number_text(double value, char out[NUMBER_CHARS])
{
    number_text(value, out);
    for (int digits = 0; fabs(value) >= 1e6 && digits < 17; digits++) {
        char exponent[NUMBER_CHARS];
        double read = 0.0;
        snprintf(exponent, sizeof exponent, "%.*e", digits, value);
        char *plus = strchr(exponent, '+');
        if (!number_parse(exponent, &read) || read != value || plus == NULL)
            continue;
        size_t zeros = strspn(plus + 1, "0");
        memmove(plus, plus + 1 + zeros, strlen(plus + 1 + zeros) + 1); // 3.12e14, not 3.12e+14
        if (strlen(exponent) < strlen(out))
            snprintf(out, NUMBER_CHARS, "%s", exponent);
        break;
    }
    return out;
}

void profile_value_expected(const struct profile_row *row, struct text *out)
{
    char low[NUMBER_CHARS], high[NUMBER_CHARS];
    if (row->type == FIELD_TEXT)
        text_add(out, "a text of at most %d characters", TEXT_MAX);
    else if (row->type == FIELD_BOOL)
        text_add(out, "true or false");
    else if (row->type == FIELD_NAMES)
        text_add(out, "a list of keys of the section model");
    else
        text_add(out,
                 row->above     ? "%s above %s up to %s"
                 : row->or_zero ? "%s from %s to %s, or 0"
                                : "%s from %s to %s",
                 row->type == FIELD_REAL ? "a number" : "an integer", profile_number_text(row->low, low),
                 profile_number_text(row->high, high));
}

bool profile_in_range(const struct profile_row *row, double value)
{
    return ((row->above ? value > row->low : value >= row->low) && value <= row->high) ||
           (row->or_zero && value == 0.0);
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

/* "1.2 is out of range; expected ..." Always false. */
static bool refuse(const struct profile_row *row, const struct node *node, const char *fault,
                   struct text *why)
{
    bool shown = node->kind == NODE_SCALAR && *node->text != '\0';
    text_add(why, "%.*s%s%s; expected ", SHOWN, shown ? node->text : "", shown ? " " : "", fault);
    profile_value_expected(row, why);
    return false;
}

static bool set_number(struct cluster_profile *profile, const struct profile_row *row,
                       const struct node *node, struct text *why)
{
    double value = 0.0;
    const char *fault = profile_number_fault(node, &value);
    if (fault == NULL && !profile_in_range(row, value))
        fault = "is out of range";
    if (fault == NULL && row->type != FIELD_REAL && (value != floor(value) || value > LARGEST_INTEGER))
        fault = "is not an integer";
    if (fault != NULL)
        return refuse(row, node, fault, why);
    profile_set_number(profile, row, value);
    return true;
}

static bool set_text(char **field, const struct profile_row *row, const struct node *node, struct text *why)
{
    if (node->kind != NODE_SCALAR)
        return refuse(row, node, node->kind == NODE_LIST ? "is a list" : "is a mapping", why);
    const char *fault = *node->text == '\0' && (node->plain || row->fallback == NULL) ? "is empty"
                        : strlen(node->text) > TEXT_MAX                               ? "is too long"
                        : !text_is_printable(node->text) ? "has a character that cannot be printed"
                                                         : NULL;
    if (fault != NULL)
        return refuse(row, node, fault, why);
    profile_set_text(field, node->text);
    return true;
}

static bool set_bool(bool *field, const struct profile_row *row, const struct node *node, struct text *why)
{
    bool is_true = node->kind == NODE_SCALAR && node->plain && strcmp(node->text, "true") == 0;
    bool is_false = node->kind == NODE_SCALAR && node->plain && strcmp(node->text, "false") == 0;
    if (!is_true && !is_false)
        return refuse(row, node, "is neither", why);
    *field = is_true;
    return true;
}

static void free_names(struct profile_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct profile_names){0};
}

static bool is_parameter(const struct node *node)
{
    return node->kind == NODE_SCALAR && profile_row_find("model", node->text) >= 0;
}

static bool set_names(struct profile_names *field, const struct profile_row *row, const struct node *node,
                      struct text *why)
{
    if (node->kind != NODE_LIST)
        return refuse(row, node, "is not a list", why);
    for (size_t i = 0; i < node->count; i++)
        if (!is_parameter(node->child[i]))
            return refuse(row, node->child[i], "is not a key of the section model", why);
    free_names(field);
    field->list = calloc(node->count + 1, sizeof *field->list);
    if (field->list == NULL)
        die(__FILE__, __LINE__, row->key, "out of memory for %zu names", node->count);
    for (size_t i = 0; i < node->count; i++)
        field->list[field->count++] = text_copy(node->child[i]->text);
    return true;
}

bool profile_value_set(struct cluster_profile *profile, const struct profile_row *row,
                       const struct node *node, struct text *why)
{
    void *field = profile_field(profile, row);
    switch (row->type) {
    case FIELD_TEXT:
        return set_text(field, row, node, why);
    case FIELD_BOOL:
        return set_bool(field, row, node, why);
    case FIELD_NAMES:
        return set_names(field, row, node, why);
    case FIELD_INT:
    case FIELD_COUNT:
    case FIELD_REAL:
        break;
    }
    return set_number(profile, row, node, why);
}

void profile_value_set_default(struct cluster_profile *profile, const struct profile_row *row)
{
    double value = 0.0;
    CHECK(row->fallback != NULL);
    if (row->type == FIELD_TEXT)
        profile_set_text(profile_field(profile, row), row->fallback);
    else if (row->type == FIELD_BOOL)
        *(bool *)profile_field(profile, row) = strcmp(row->fallback, "true") == 0;
    else if (row->type == FIELD_NAMES)
        free_names(profile_field(profile, row));
    else {
        CHECK(number_parse(row->fallback, &value) && profile_in_range(row, value));
        profile_set_number(profile, row, value);
    }
}

void profile_value_text(const struct cluster_profile *profile, const struct profile_row *row,
                        struct text *out)
{
    const void *field = profile_field(profile, row);
    char number[NUMBER_CHARS];
    if (row->type == FIELD_TEXT) {
        const char *text = *(char *const *)field;
        yaml_add_string(out, text != NULL ? text : "", NULL);
    } else if (row->type == FIELD_BOOL)
        text_add(out, *(const bool *)field ? "true" : "false");
    else if (row->type == FIELD_NAMES) {
        const struct profile_names *names = field;
        text_add(out, "[");
        for (size_t i = 0; i < names->count; i++)
            text_add(out, "%s%s", i > 0 ? ", " : "", names->list[i]);
        text_add(out, "]");
    } else
        text_add(out, "%s", profile_number_text(profile_number(profile, row), number));
}

void profile_value_free(struct cluster_profile *profile, const struct profile_row *row)
{
    if (row->type == FIELD_TEXT) {
        free(*(char **)profile_field(profile, row));
        *(char **)profile_field(profile, row) = NULL;
    } else if (row->type == FIELD_NAMES)
        free_names(profile_field(profile, row));
}
