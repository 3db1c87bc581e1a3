// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/options.h"

#include "planner/recipe/planned_recipe.h"
#include "trainer/recipe/recipe.h"

#include <string.h>

enum { MAX_OPTIONS = 32 };

/* Finds the option that an argument names, alone or before "="; *value points after the "=", or is NULL. */
static const struct option *find(const char *argument, const struct option *options, int count,
                                 const char **value)
{
    size_t length = strcspn(argument, "=");
    *value = argument[length] == '=' ? argument + length + 1 : NULL;
    for (int i = 0; i < count; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, argument, length) == 0)
            return &options[i];
    return NULL;
}

static enum status unknown(const char *command, const char *argument, const struct option *options, int count)
{
    const char *names[MAX_OPTIONS];
    struct text list = {0};
    size_t shown = 0;
    for (int i = 0; i < count; i++)
        if (options[i].type != OPTION_REST && options[i].type != OPTION_END) {
            text_add(&list, "%s%s", shown > 0 ? ", " : "", options[i].name);
            names[shown++] = options[i].name;
        }
    const char *near = nearest_name(argument, names, shown);
    char key[RECIPE_KEY_CHARS];
    if (recipe_key_of_option(&planner_keys, argument, key)) {
        text_free(&list);
        return fail(BAD_USAGE, "%s: %s is a recipe key, not an option; use %s=VALUE", command, argument, key);
    }
    enum status status = fail(BAD_USAGE, "%s: unknown option %s%s%s%s; valid options: %s", command, argument,
                              near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                              near != NULL ? "?)" : "", list.chars);
    text_free(&list);
    return status;
}

static enum status store(const char *command, const struct option *option, const char *value)
{
    int64_t integer = 0;
    double number = 0.0;
    if (option->type == OPTION_COUNT && value == NULL) {
        *(int64_t *)option->value = (int64_t)option->low;
        return OK;
    }
    switch (option->type) { // no default: a new type is a compile error here
    case OPTION_FLAG:
        *(bool *)option->value = true;
        return OK;
    case OPTION_CLEAR:
        *(bool *)option->value = false;
        return OK;
    case OPTION_TEXT:
        *(const char **)option->value = value;
        return OK;
    case OPTION_TEXTS: {
        struct option_texts *texts = option->value;
        if (texts->count == OPTION_MAX_TEXTS)
            return fail(BAD_USAGE, "%s: %s is given more than %d times", command, option->name,
                        OPTION_MAX_TEXTS);
        texts->list[texts->count++] = value;
        return OK;
    }
    case OPTION_REST:
    case OPTION_END:
        return OK;
    case OPTION_COUNT:
    case OPTION_INTEGER:
        if (!integer_parse(value, &integer))
            break;
        number = (double)integer;
        if (!(number >= option->low && number <= option->high))
            break;
        *(int64_t *)option->value = integer;
        return OK;
    case OPTION_REAL:
        if (!number_parse(value, &number) || !(number >= option->low && number <= option->high))
            break;
        *(double *)option->value = number;
        return OK;
    }
    char low[NUMBER_CHARS], high[NUMBER_CHARS];
    return fail(BAD_USAGE, "%s: %s %s is invalid; use %s from %s to %s", command, option->name, value,
                option->type != OPTION_REAL ? "an integer" : "a number", number_text(option->low, low),
                number_text(option->high, high));
}

static bool takes_value(const struct option *option)
{
    return option->type == OPTION_TEXT || option->type == OPTION_TEXTS || option->type == OPTION_INTEGER ||
           option->type == OPTION_REAL;
}

static bool is_integer(const char *argument)
{
    int64_t integer;
    return integer_parse(argument, &integer);
}

/* The index of the first option with this variable: "-o" and "--output" are one. */
static int variable_of(const struct option *option, const struct option *options)
{
    int i = 0;
    while (options[i].value != option->value)
        i++;
    return i;
}

enum status options_parse(int argc, char **argv, const struct option *options, int count, const char **rest,
                          int *rest_count)
{
    const char *given[MAX_OPTIONS] = {NULL}; // the value of each
    bool ended = false;
    *rest_count = 0;
    CHECK(count <= MAX_OPTIONS);
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        const struct option *option = ended ? NULL : find(argv[i], options, count, &value);
        if (ended || argv[i][0] != '-' || (option != NULL && option->type == OPTION_REST)) {
            rest[(*rest_count)++] = argv[i];
            continue;
        }
        if (option == NULL)
            return unknown(argv[0], argv[i], options, count);
        if (option->type == OPTION_COUNT && value == NULL && i + 1 < argc && is_integer(argv[i + 1]))
            value = argv[++i];
        bool flag = !takes_value(option);
        ended = option->type == OPTION_END;
        if (flag && value != NULL && option->type != OPTION_COUNT)
            return fail(BAD_USAGE, "%s: %s takes no value", argv[0], option->name);
        if (!flag && value == NULL && i + 1 == argc)
            return fail(BAD_USAGE, "%s: %s needs a value", argv[0], option->name);
        if (!flag && value == NULL)
            value = argv[++i];
        const char **before = &given[variable_of(option, options)];
        const char *shown = value == NULL && option->type == OPTION_COUNT ? "without a value" : value;
        if (*before != NULL && option->type != OPTION_TEXTS)
            return fail(BAD_USAGE, "%s: %s is given twice (%s and %s); remove one of them", argv[0],
                        option->name, *before, shown);
        *before = shown;
        TRY(store(argv[0], option, value));
    }
    return OK;
}
