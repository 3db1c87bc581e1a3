// SPDX-License-Identifier: Apache-2.0
/* Options of a command: tools/cli/options.h. */
#include "tools/cli/options.h"

#include "tests/unit/commands/words.h"

#include <criterion/criterion.h>

struct values {
    int64_t n;
    double x;
    const char *name;
    bool flag;
    const char *rest[WORDS];
    int rest_count;
};

static enum status parse(const char *text, struct values *out)
{
    const struct option options[] = {
        {"-n", OPTION_INTEGER, &out->n, -5, 10},
        {"--x", OPTION_REAL, &out->x, 0, 1},
        {"--name", OPTION_TEXT, &out->name, 0, 0},
        {"--flag", OPTION_FLAG, &out->flag, 0, 0},
    };
    struct line line;
    *out = (struct values){.n = 7, .x = 0.25};
    split_line(text, &line);
    enum status status = options_parse(line.count, line.words, options, 4, out->rest, &out->rest_count);
    // The words do not outlive this function, so values that point to them are checked here.
    if (status == OK && out->name != NULL)
        cr_assert_str_eq(out->name, "-dashed=value");
    for (int i = 0; status == OK && i < out->rest_count; i++)
        cr_assert_eq(out->rest[i][0], (char)('a' + i));
    return status;
}

Test(options, are_read_in_any_order)
{
    struct values v;
    cr_assert_eq(parse("c a=1 -n -3 b --x=1 --flag --name -dashed=value c", &v), OK, "%s", fail_text());
    cr_assert_eq(v.n, -3);
    cr_assert_eq(v.x, 1.0);
    cr_assert(v.flag);
    cr_assert_eq(v.rest_count, 3);
    cr_assert_eq(parse("c", &v), OK);
    cr_assert(v.n == 7 && v.x == 0.25 && v.name == NULL && !v.flag && v.rest_count == 0);
}

Test(options, errors_name_valid_values)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"c -n 11", "c: -n 11 is invalid; use an integer from -5 to 10"},
        {"c -n 1.5", "c: -n 1.5 is invalid; use an integer from -5 to 10"},
        {"c --x nan", "c: --x nan is invalid; use a number from 0 to 1"},
        {"c --x=", "c: --x  is invalid; use a number from 0 to 1"},
        {"c --name", "c: --name needs a value"},
        {"c --flag=yes", "c: --flag takes no value"},
        {"c -n 3 --flag --flag -n=4", "c: -n is given twice (3 and 4); remove one of them"},
        {"c --flog", "c: unknown option --flog (did you mean --flag?); valid options: -n, --x, --name, "
                     "--flag"},
        {"c -", "c: unknown option - (did you mean -n?); valid options: -n, --x, --name, --flag"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        cr_expect_eq(parse(cases[i].text, &v), BAD_USAGE);
        cr_expect_str_eq(fail_text(), cases[i].expected);
    }
}

/* A number is taken where one follows; anything else is not its value. */
Test(options, optional_count)
{
    static const struct {
        const char *text;
        int64_t count;
        int rest;
    } cases[] = {{"c a", -1, 1},      {"c --run", 0, 0},       {"c --run 3 a", 3, 1},   {"c --run=3 a", 3, 1},
                 {"c --run a", 0, 1}, {"c a --run b=4", 0, 2}, {"c --run --flag", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t count = -1;
        bool flag = false;
        int rest_count = 0;
        const char *rest[8];
        const struct option options[] = {{"--run", OPTION_COUNT, &count, 0, 5},
                                         {"--flag", OPTION_FLAG, &flag, 0, 0}};
        struct line line;
        split_line(cases[i].text, &line);
        cr_assert_eq(options_parse(line.count, line.words, options, 2, rest, &rest_count), OK, "%s",
                     fail_text());
        cr_assert(count == cases[i].count && rest_count == cases[i].rest, "%s", cases[i].text);
    }
    int64_t count = -1;
    int rest_count = 0;
    const char *rest[8];
    const struct option options[] = {{"--run", OPTION_COUNT, &count, 0, 5}};
    static const char *const wrong[][2] = {
        {"c --run 6", "c: --run 6 is invalid; use an integer from 0 to 5"},
        {"c --run -1", "c: --run -1 is invalid; use an integer from 0 to 5"},
        {"c --run=", "c: --run  is invalid; use an integer from 0 to 5"},
        {"c --run --run=2", "c: --run is given twice (without a value and 2); remove one of them"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct line line;
        split_line(wrong[i][0], &line);
        cr_expect_eq(options_parse(line.count, line.words, options, 1, rest, &rest_count), BAD_USAGE);
        cr_expect_str_eq(fail_text(), wrong[i][1]);
    }
}

Test(options, aliases_and_double_dash)
{
    const char *name = NULL, *rest[8];
    bool flag = true;
    int count = 0;
    const struct option options[] = {
        {"--output", OPTION_TEXT, &name, 0, 0}, {"-o", OPTION_TEXT, &name, 0, 0},
        {"--flag", OPTION_FLAG, &flag, 0, 0},   {"--no-flag", OPTION_CLEAR, &flag, 0, 0},
        {"-", OPTION_REST, NULL, 0, 0},         {"--", OPTION_END, NULL, 0, 0},
    };
    struct line line;
    split_line("c - -o x --no-flag -- --flag -o", &line);
    cr_assert_eq(options_parse(line.count, line.words, options, 6, rest, &count), OK, "%s", fail_text());
    cr_assert(count == 3 && !flag);
    cr_assert_str_eq(name, "x");
    cr_assert_str_eq(rest[0], "-");
    cr_assert_str_eq(rest[1], "--flag");
    split_line("c -o x --output y", &line);
    cr_assert_eq(options_parse(line.count, line.words, options, 6, rest, &count), BAD_USAGE);
    cr_assert_str_eq(fail_text(), "c: --output is given twice (x and y); remove one of them");
    split_line("c --train-iters=5", &line);
    cr_assert_eq(options_parse(line.count, line.words, options, 6, rest, &count), BAD_USAGE);
    cr_assert_str_eq(fail_text(),
                     "c: --train-iters=5 is a recipe key, not an option; use train.train_iters=VALUE");
    split_line("c --outptu=5", &line);
    cr_assert_eq(options_parse(line.count, line.words, options, 6, rest, &count), BAD_USAGE);
    cr_assert_str_eq(fail_text(),
                     "c: unknown option --outptu=5 (did you mean --output?); valid options: --output, "
                     "-o, --flag, --no-flag");
}
