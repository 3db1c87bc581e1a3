// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/problems.h"

#include "trainer/files/yaml.h"

#include <stdlib.h>

static void problems_append(struct problems *problems, const char *raw, bool warning)
{
    struct problem *list = realloc(problems->list, (problems->count + 1) * sizeof *list);
    if (list == NULL)
        die(__FILE__, __LINE__, "problems", "out of memory for %zu problems", problems->count + 1);
    struct text line = {0};
    text_add_clean(&line, raw); // one line, whatever a file has put into it
    problems->list = list;
    problems->list[problems->count++] = (struct problem){text_copy(text_chars(&line)), warning};
    problems->errors += warning ? 0 : 1;
    text_free(&line);
}

static void problems_vadd(struct problems *problems, bool warning, const char *format, va_list args)
{
    char *line = NULL;
    if (vasprintf(&line, format, args) < 0)
        die(__FILE__, __LINE__, "problems", "out of memory for a message");
    problems_append(problems, line, warning);
    free(line);
}

void problems_add(struct problems *problems, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    problems_vadd(problems, false, format, args);
    va_end(args);
}

void problems_warn(struct problems *problems, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    problems_vadd(problems, true, format, args);
    va_end(args);
}

void problems_print(const struct problems *problems, FILE *to)
{
    for (size_t i = 0; i < problems->count; i++)
        print_line(to, "%s: %s", problems->list[i].warning ? "warning" : "error", problems->list[i].text);
}

void problems_free(struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        free(problems->list[i].text);
    free(problems->list);
    *problems = (struct problems){0};
}
