// SPDX-License-Identifier: Apache-2.0
/* Converts one value of a row from YAML to a field; recipe_field.c converts it back.
 *
 * An error is the rest of a sentence that begins with the key: `model.num_layers` `1.5 is not a whole
 * number; use 1 or 2`. A proposed value is inside the row's range; recipe_check.c checks it against other
 * keys. Caution: a value is stored only if it is valid as a whole: a list with one invalid entry leaves the
 * field unchanged. */
#include "trainer/recipe/recipe_table.h"

#include "base/memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 4096, SHOWN = 60 }; // characters of a text value; of a value in a message

/* ---- expected values ---- */

static const char *text_of(const struct recipe_row *row, double value, char out[NUMBER_CHARS])
{
    return row->short_form ? number_text_short(value, out) : number_text(value, out);
}

static void add_range(const struct recipe_row *row, const char *noun, struct text *out)
{
    char low[NUMBER_CHARS], high[NUMBER_CHARS];
    text_of(row, row->low, low);
    text_of(row, row->high, high);
    text_add(out,
             row->above            ? "%s above %s"
             : isfinite(row->high) ? "%s from %s"
                                   : "%s, %s or more",
             noun, low);
    if (isfinite(row->high))
        text_add(out, row->above ? " up to %s%s" : " to %s%s", row->below ? "below " : "", high);
    if (row->or_zero)
        text_add(out, ", or 0");
    if (row->derived != NULL)
        text_add(out, ", or auto");
}

/* The most characters of a text. */
static size_t most_chars(const struct recipe_row *row)
{
    return row->high > 0.0 ? (size_t)row->high : TEXT_MAX;
}

void recipe_value_expected(const struct recipe_row *row, struct text *out)
{
    switch (row->type) {
    case ROW_BOOL:
        text_add(out, "true or false");
        break;
    case ROW_INT:
    case ROW_COUNT:
    case ROW_REAL:
        add_range(row, row->type == ROW_REAL ? "a number" : "an integer", out);
        break;
    case ROW_BASE:
    case ROW_TEXT:
        if (row->high > 0.0)
            text_add(out, "a text of at most %zu characters", most_chars(row));
        else
            text_add(out, row->optional ? "text, or none" : "text");
        break;
    case ROW_WORD:
    case ROW_CHOICE:
        recipe_row_choices_text(row, out);
        break;
    case ROW_LAYERS:
        text_add(out, "%s",
                 row->single ? "an integer, or a list of integers, like [1, 1, 0]"
                             : "a list of integers, like [3, 3, 2]");
        break;
    case ROW_NAMES:
        text_add(out, "a list of names");
        if (row->choices != NULL) {
            text_add(out, ": ");
            recipe_row_choices_text(row, out);
        }
        break;
    case ROW_SOURCES:
        text_add(out, "a dataset's prefix, or a list of {path, weight}");
        break;
    case ROW_SPLIT:
        text_add(out, "one to three numbers, like 969, 30, 1");
        break;
    case ROW_TYPES:
        break;
    }
}

/* ---- text to field ---- */

static bool is_null(const struct node *node)
{
    return node->kind == NODE_SCALAR && node->plain &&
           (*node->text == 0 || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

static bool is_word(const struct node *node, const char *word)
{
    return node->kind == NODE_SCALAR && node->plain && strcmp(node->text, word) == 0;
}

/* "WHAT, not EXPECTED". Always false, for `return refuse(...)`. */
static bool refuse(const struct recipe_row *row, const struct node *node, struct text *why)
{
    if (node->kind != NODE_SCALAR)
        text_add(why, "is a %s; expected ", node->kind == NODE_LIST ? "list" : "mapping");
    else if (is_null(node))
        text_add(why, "is empty; expected ");
    else
        text_add(why, "\"%.*s\" is not ", SHOWN, node->text);
    recipe_value_expected(row, why);
    return false;
}

/* "entry 2: WHY", inside a list. Always false, and `inner` is empty again. */
static bool refuse_inside(const char *what, size_t index, struct text *inner, struct text *why)
{
    text_add(why, "%s %zu: %s", what, index + 1, text_chars(inner));
    text_free(inner);
    return false;
}

/* Suggests the bound that `value` exceeds, if it is a valid value, or else the row's example; but no bound of
 * a measured quantity. */
static bool refuse_range(const struct recipe_row *row, const struct node *node, double value,
                         const char *what, struct text *why)
{
    bool too_low = !(value > row->low);
    bool open = too_low ? row->above : row->below;
    text_add(why, "%.*s is %s; expected ", SHOWN, node->text, what);
    recipe_value_expected(row, why);
    if (!open && !row->short_form) {
        text_add(why, "; use ");
        text_add_real(why, too_low ? row->low : row->high);
    } else if (row->example != NULL || row->derived != NULL)
        text_add(why, "; use %s", row->example != NULL ? row->example : "auto");
    return false;
}

bool row_in_range(const struct recipe_row *row, double value)
{
    bool low = row->above ? value > row->low : value >= row->low;
    bool high = row->below ? value < row->high : value <= row->high;
    return (low && high) || (row->or_zero && value == 0.0); // false for NaN
}

static bool parse_real(const struct recipe_row *row, const struct node *node, double *out, struct text *why)
{
    double value = 0;
    if (node->kind != NODE_SCALAR || !number_parse(node->text, &value))
        return refuse(row, node, why);
    if (!node->plain) {
        text_add(why, "\"%.*s\" is text; remove the quotes", SHOWN, node->text);
        return false;
    }
    // Most numbers end in fp32. 1e-400 is 0 already, with a digit other than 0 before the exponent.
    if (fabs(value) < FLT_MIN && strcspn(node->text, "123456789") < strcspn(node->text, "eE"))
        return refuse_range(row, node, 0.0, "too small for fp32, which ends at 1.2e-38", why);
    if (!row_in_range(row, value))
        return refuse_range(row, node, value, "out of range", why);
    if (row->below && !((double)(float)value < row->high))
        return refuse_range(row, node, value, "out of range when rounded to fp32", why);
    *out = value;
    return true;
}

/* Suggests integers: "; use 1 or 2" for 1.5, "; use 1000" for 1e3, and the bound for values beyond it. */
static void add_whole_neighbours(const struct recipe_row *row, double value, struct text *why)
{
    double below = fmin(fmax(floor(value), row->low), row->high);
    double above = fmin(fmax(ceil(value), row->low), row->high);
    if (below < above)
        text_add(why, "; use %.0f or %.0f", below, above);
    else
        text_add(why, "; use %.0f", below);
}

/* "12"; of a row with exponents also "3.12e14". */
static bool read_integer(const struct recipe_row *row, const char *text, int64_t *out)
{
    const double largest = 9007199254740992.0; // 2^53
    double real = 0.0;
    if (integer_parse(text, out))
        return true;
    if (!row->short_form || !number_parse(text, &real) || real != floor(real) || fabs(real) > largest)
        return false;
    *out = (int64_t)real;
    return true;
}

static bool parse_integer(const struct recipe_row *row, const struct node *node, int64_t *out,
                          struct text *why)
{
    int64_t value = 0;
    double real = 0;
    if (node->kind != NODE_SCALAR || !read_integer(row, node->text, &value)) {
        refuse(row, node, why);
        if (node->kind == NODE_SCALAR && number_parse(node->text, &real))
            add_whole_neighbours(row, real, why);
        return false;
    }
    if (!node->plain) {
        text_add(why, "\"%.*s\" is text; remove the quotes", SHOWN, node->text);
        return false;
    }
    if (!row_in_range(row, (double)value))
        return refuse_range(row, node, (double)value, "out of range", why);
    *out = value;
    return true;
}

static bool parse_bool(const struct recipe_row *row, const struct node *node, bool *out, struct text *why)
{
    static const char *const words[] = {"false", "true", "False", "True", "FALSE", "TRUE"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(node, words[i])) {
            *out = i % 2 == 1;
            return true;
        }
    return refuse(row, node, why);
}

/* A text that is not empty and can be written back into a recipe. */
static bool parse_text(const struct recipe_row *row, const struct node *node, char **out, struct text *why)
{
    if (node->kind != NODE_SCALAR || is_null(node))
        return refuse(row, node, why);
    const char *wrong = *node->text == 0                       ? "is empty"
                        : strlen(node->text) > most_chars(row) ? "is too long"
                        : !text_is_printable(node->text)       ? "has a character that cannot be printed"
                                                               : NULL;
    if (wrong != NULL) {
        text_add(why, "%s; expected ", wrong);
        recipe_value_expected(row, why);
        return false;
    }
    *out = text_copy(node->text);
    return true;
}

static bool parse_choice(const struct recipe_row *row, const struct node *node, struct choice *out,
                         struct text *why)
{
    const char *names[32];
    size_t count = 0;
    struct choice c;
    for (size_t i = 0; recipe_row_choice(row, i, &c); i++) {
        if (node->kind == NODE_SCALAR && strcmp(node->text, c.name) == 0) {
            *out = c;
            return true;
        }
        if (count < sizeof names / sizeof *names)
            names[count++] = c.name;
    }
    refuse(row, node, why);
    const char *near = node->kind == NODE_SCALAR ? recipe_near_choice(node->text, names, count) : NULL;
    if (near != NULL)
        text_add(why, "; did you mean %s?", near);
    return false;
}

static bool parse_layers(const struct recipe_row *row, const struct node *node, struct layer_list *out,
                         struct text *why)
{
    const bool single = row->single && node->kind == NODE_SCALAR;
    int64_t integer;
    if (node->kind != NODE_LIST && (!single || !integer_parse(node->text, &integer)))
        return refuse(row, node, why);
    struct recipe_row entry = *row;
    entry.type = ROW_COUNT;
    entry.low = single ? 2.0 : entry.low; // every N-th layer
    const size_t count = single ? 1 : node->count;
    struct layer_list layers = {.list = memory_zeroed(count, sizeof *layers.list, "a list of a recipe"),
                                .count = count,
                                .single = single};
    struct text inner = {0};
    for (size_t i = 0; i < count; i++)
        if (!parse_integer(&entry, single ? node : node->child[i], &layers.list[i], &inner)) {
            free(layers.list);
            if (!single)
                return refuse_inside("entry", i, &inner, why);
            text_add(why, "%s", text_chars(&inner));
            text_free(&inner);
            return false;
        }
    *out = layers;
    return true;
}

static void free_names(struct recipe_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct recipe_names){0};
}

/* Parses one of a row's choices; any text if the row has no choices. */
static bool parse_name(const struct recipe_row *row, const struct node *node, char **out, struct text *why)
{
    if (row->choices == NULL)
        return parse_text(row, node, out, why);
    struct recipe_row entry = *row;
    entry.type = ROW_CHOICE;
    struct choice choice;
    if (!parse_choice(&entry, node, &choice, why))
        return false;
    const struct choice *own = row->choices;
    while (own->alias || own->value != choice.value)
        own++;
    *out = text_copy(own->name);
    return true;
}

static bool parse_names(const struct recipe_row *row, const struct node *node, struct recipe_names *out,
                        struct text *why)
{
    const bool one = node->kind == NODE_SCALAR && row->choices != NULL; // a name stands for a list of one
    if (node->kind != NODE_LIST && !one)
        return refuse(row, node, why);
    const size_t count = one ? 1 : node->count;
    struct recipe_names names = {.list = memory_zeroed(count, sizeof *names.list, "a list of a recipe"),
                                 .count = count};
    struct text inner = {0};
    for (size_t i = 0; i < count; i++)
        if (!parse_name(row, one ? node : node->child[i], &names.list[i], &inner)) {
            free_names(&names);
            return refuse_inside("entry", i, &inner, why);
        }
    *out = names;
    return true;
}

static void free_sources(struct recipe_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->list[i].path);
    free(sources->list);
    *sources = (struct recipe_sources){0};
}

/* The value of one key of a source; `why` begins with that key. */
static bool parse_source_value(const char *key, const struct node *value, struct recipe_source *out,
                               struct text *why)
{
    static const struct recipe_row path = {.key = "path", .type = ROW_TEXT};
    static const struct recipe_row weight = {
        .key = "weight", .type = ROW_REAL, .high = INFINITY, .above = true, .below = true, .example = "1"};
    AUTO(text) inner = {0};
    bool good = strcmp(key, "path") == 0 ? parse_text(&path, value, &out->path, &inner)
                                         : parse_real(&weight, value, &out->weight, &inner);
    if (!good)
        text_add(why, "%s %s", key, text_chars(&inner));
    return good;
}

/* One of `{path: P, weight: W}`: both keys in any order, weight 1 when left out. */
static bool parse_source_map(const struct node *node, struct recipe_source *out, struct text *why)
{
    static const char *const keys[] = {"path", "weight"};
    bool seen[2] = {false, false};
    for (size_t i = 0; i < node->count; i += 2) {
        const char *key = node->child[i]->text;
        int k = strcmp(key, "path") == 0 ? 0 : strcmp(key, "weight") == 0 ? 1 : 2;
        if (k == 2) {
            const char *near = nearest_name(key, keys, 2);
            text_add(why, "unknown key %.*s; %s%s%s", SHOWN, key,
                     near != NULL ? "did you mean " : "the keys are ",
                     near != NULL ? near : "path and weight", near != NULL ? "?" : "");
            return false;
        }
        if (seen[k]) {
            text_add(why, "%s is given twice; remove one of them", key);
            return false;
        }
        seen[k] = true;
        if (!parse_source_value(key, node->child[i + 1], out, why))
            return false;
    }
    if (!seen[0])
        text_add(why, "path is missing; use {path: data/quickstart}");
    return seen[0];
}

static bool parse_sources(const struct recipe_row *row, const struct node *node, struct recipe_sources *out,
                          struct text *why)
{
    bool one = node->kind != NODE_LIST;
    size_t count = one ? 1 : node->count, before = why->length;
    struct recipe_sources sources = {.list = memory_zeroed(count, sizeof *sources.list, "a list of a recipe"),
                                     .count = count};
    struct text inner = {0};
    for (size_t i = 0; i < count; i++) {
        const struct node *item = one ? node : node->child[i];
        struct recipe_source *source = &sources.list[i];
        source->weight = 1.0;
        bool good = item->kind == NODE_MAP ? parse_source_map(item, source, &inner)
                                           : parse_text(row, item, &source->path, &inner);
        if (!good && !one)
            text_add(why, "%ssource %zu: ", why->length > before ? "; " : "", i + 1);
        text_add(why, "%s", good ? "" : text_chars(&inner));
        text_free(&inner);
    }
    if (why->length == before)
        *out = sources;
    else
        free_sources(&sources);
    return why->length == before;
}

/* "969, 30, 1" as the list [969, 30, 1]. */
static struct node *list_of_words(const char *text)
{
    struct node *list = node_scalar("");
    char *scratch = text_copy(text), *rest = scratch;
    list->kind = NODE_LIST;
    list->child = memory_zeroed(strlen(text) + 1, sizeof(struct node *),
                                "a list of a recipe"); // a word for each comma, and one more
    for (char *word = strsep(&rest, ","); word != NULL; word = strsep(&rest, ",")) {
        word += strspn(word, " ");
        size_t length = strlen(word);
        while (length > 0 && word[length - 1] == ' ')
            word[--length] = 0;
        list->child[list->count++] = node_scalar(word);
    }
    free(scratch);
    return list;
}

static bool parse_shares(const struct recipe_row *row, const struct node *list, double out[3],
                         struct text *why)
{
    struct recipe_row entry = *row;
    entry.type = ROW_REAL;
    entry.derived = NULL; // that of the whole list
    double split[3] = {0};
    struct text inner = {0};
    if (list->count < 1 || list->count > 3) {
        text_add(why, "has %zu numbers; expected ", list->count);
        recipe_value_expected(row, why);
        return false;
    }
    for (size_t i = 0; i < list->count; i++)
        if (!parse_real(&entry, list->child[i], &split[i], &inner))
            return refuse_inside("entry", i, &inner, why);
    if (!(split[0] > 0)) {
        text_add(why, "has no training part: the first share is 0; use 969,30,1");
        return false;
    }
    memcpy(out, split, sizeof split);
    return true;
}

/* "969, 30, 1" or [969, 30, 1]; what is left out is 0, as Megatron-LM has it. */
static bool parse_split(const struct recipe_row *row, const struct node *node, double out[3],
                        struct text *why)
{
    if (node->kind == NODE_MAP || is_null(node))
        return refuse(row, node, why);
    if (node->kind == NODE_LIST)
        return parse_shares(row, node, out, why);
    struct node *list = list_of_words(node->text);
    bool good = parse_shares(row, list, out, why);
    node_free(list);
    return good;
}

bool row_parse(const struct recipe_row *row, const struct node *node, void *field, struct text *why)
{
    int64_t integer = 0;
    struct choice choice;
    bool list = row->type == ROW_LAYERS || row->type == ROW_NAMES || row->type == ROW_SOURCES;
    if ((row->optional || list) && (is_null(node) || is_word(node, "none")))
        return true;
    switch (row->type) {
    case ROW_BOOL:
        return parse_bool(row, node, field, why);
    case ROW_INT:
        if (!parse_integer(row, node, &integer, why))
            return false;
        *(int *)field = (int)integer;
        return true;
    case ROW_COUNT:
        return parse_integer(row, node, field, why);
    case ROW_REAL:
        return parse_real(row, node, field, why);
    case ROW_TEXT:
        return parse_text(row, node, field, why);
    case ROW_WORD:
        if (!parse_choice(row, node, &choice, why))
            return false;
        *(char **)field = text_copy(choice.name);
        return true;
    case ROW_CHOICE:
        if (!parse_choice(row, node, &choice, why))
            return false;
        *(int *)field = choice.value;
        return true;
    case ROW_LAYERS:
        return parse_layers(row, node, field, why);
    case ROW_NAMES:
        return parse_names(row, node, field, why);
    case ROW_SOURCES:
        return parse_sources(row, node, field, why);
    case ROW_SPLIT:
        return parse_split(row, node, field, why);
    case ROW_BASE:
    case ROW_TYPES:
        break;
    }
    return true;
}

void row_free(const struct recipe_row *row, void *field)
{
    if (row->type == ROW_TEXT || row->type == ROW_WORD) {
        free(*(char **)field);
        *(char **)field = NULL;
    } else if (row->type == ROW_LAYERS) {
        free(((struct layer_list *)field)->list);
        *(struct layer_list *)field = (struct layer_list){0};
    } else if (row->type == ROW_NAMES)
        free_names(field);
    else if (row->type == ROW_SOURCES)
        free_sources(field);
}
