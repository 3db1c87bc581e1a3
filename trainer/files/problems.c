// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/problems.h"

#include "base/memory.h"
#include "trainer/files/yaml.h"

#include <stdlib.h>

static void problems_append(struct problems *problems, const char *raw, bool warning)
{
    if ((problems->count & (problems->count - 1)) == 0) { // the capacity is a power of two
        const size_t capacity = problems->count > 0 ? 2 * problems->count : 1;
        problems->list =
            memory_resized(problems->list, capacity, sizeof *problems->list, "the problems of a recipe");
    }
    AUTO(text) line = {0};
    text_add_clean(&line, raw); // one line, whatever a file has put into it
    problems->list[problems->count++] = (struct problem){text_copy(text_chars(&line)), warning};
}

static void problems_vadd(struct problems *problems, bool warning, const char *format, va_list args)
{
    char *line = NULL;
    size_t *kind = warning ? &problems->warnings : &problems->errors;
    if (++*kind > PROBLEMS_MAX)
        return;
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

enum status problems_fail(const struct problems *problems, size_t before, enum status status,
                          const char *subject)
{
    const size_t errors = problems->errors - before;
    return fail(status, "%s: %zu problem%s", subject, errors, errors == 1 ? "" : "s");
}

void problems_print(const struct problems *problems, FILE *to)
{
    for (size_t i = 0; i < problems->count; i++)
        print_line(to, "%s: %s", problems->list[i].warning ? "warning" : "error", problems->list[i].text);
    if (problems->warnings > PROBLEMS_MAX)
        print_line(to, "warning: and %zu more", problems->warnings - PROBLEMS_MAX);
    if (problems->errors > PROBLEMS_MAX)
        print_line(to, "error: and %zu more", problems->errors - PROBLEMS_MAX);
}

enum status problems_report(struct problems *problems, enum status status)
{
    for (size_t i = 0; i < problems->count && problems->errors == 1 && status != OK; i++)
        if (!problems->list[i].warning) {
            status = fail(status, "%s", problems->list[i].text);
            free(problems->list[i].text);
            problems->list[i] = problems->list[--problems->count];
            break;
        }
    problems_print(problems, stderr);
    problems_free(problems);
    return status;
}

void problems_free(struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        free(problems->list[i].text);
    free(problems->list);
    *problems = (struct problems){0};
}
