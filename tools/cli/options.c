// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/options.h"

#include "trainer/recipe/recipe.h"

#include <string.h>

enum { MOST_OPTIONS = 32 };

/* The option that an argument names, alone or before its "="; *value points behind that, or is NULL. */
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
    const char *names[MOST_OPTIONS];
    struct text list = {0};
    for (int i = 0; i < count; i++) {
        names[i] = options[i].name;
        text_add(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    const char *near = nearest_name(argument, names, (size_t)count), *bare = argument + strspn(argument, "-");
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(bare, "="), bare);
    if (recipe_key(key) != NULL) {
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
    switch (option->type) { // no default: a new type is a compile error here
    case OPTION_FLAG:
        *(bool *)option->value = true;
        return OK;
    case OPTION_TEXT:
        *(const char **)option->value = value;
        return OK;
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
                option->type == OPTION_INTEGER ? "an integer" : "a number", number_text(option->low, low),
                number_text(option->high, high));
}

enum status options_parse(int argc, char **argv, const struct option *options, int count, const char **rest,
                          int *rest_count)
{
    const char *given[MOST_OPTIONS] = {NULL}; // the value of each
    *rest_count = 0;
    CHECK(count <= MOST_OPTIONS);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            rest[(*rest_count)++] = argv[i];
            continue;
        }
        const char *value;
        const struct option *option = find(argv[i], options, count, &value);
        if (option == NULL)
            return unknown(argv[0], argv[i], options, count);
        bool flag = option->type == OPTION_FLAG;
        if (flag && value != NULL)
            return fail(BAD_USAGE, "%s: %s takes no value", argv[0], option->name);
        if (!flag && value == NULL && i + 1 == argc)
            return fail(BAD_USAGE, "%s: %s needs a value", argv[0], option->name);
        if (!flag && value == NULL)
            value = argv[++i];
        const char **before = &given[option - options];
        if (*before != NULL)
            return fail(BAD_USAGE, "%s: %s is given twice (%s and %s); remove one of them", argv[0],
                        option->name, *before, value);
        *before = value;
        TRY(store(argv[0], option, value));
    }
    return OK;
}
