// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/utf8_printer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define NOT_TEXT "\xEF\xBF\xBD"

/* The output when the bytes come `chunk` at a time. Incomplete sequences are never printed. */
static char *print_in_chunks(const char *bytes, size_t length, size_t chunk)
{
    char *memory = NULL;
    size_t size = 0;
    struct utf8_printer printer = {.to = open_memstream(&memory, &size)};
    for (size_t at = 0; at < length; at += chunk) {
        size_t now = length - at < chunk ? length - at : chunk;
        cr_assert_eq(utf8_print(&printer, bytes + at, now), OK);
        for (const char *c = memory; *c != 0; c += utf8_length(c))
            cr_assert_neq(utf8_length(c), 0, "half a character after %zu bytes", at + now);
    }
    cr_assert_eq(utf8_print_end(&printer), OK);
    fclose(printer.to);
    return memory;
}

static void expect_printed(const char *bytes, const char *expected)
{
    for (size_t chunk = 1; chunk <= 6; chunk++) {
        char *printed = print_in_chunks(bytes, strlen(bytes), chunk);
        cr_expect_str_eq(printed, expected, "in chunks of %zu: \"%s\" and not \"%s\"", chunk, printed,
                         expected);
        free(printed);
    }
}

Test(utf8_printer, prints_whole_characters)
{
    expect_printed("plain text\n", "plain text\n");
    expect_printed("caf\xC3\xA9, \xE2\x82\xAC 5, \xF0\x9F\x98\x80!",
                   "caf\xC3\xA9, \xE2\x82\xAC 5, \xF0\x9F\x98\x80!");
}

Test(utf8_printer, replaces_invalid_utf8)
{
    expect_printed("a\xFF"
                   "b",
                   "a" NOT_TEXT "b");
    expect_printed("\xC3(", NOT_TEXT "(");
    expect_printed("\xC3", NOT_TEXT);
    expect_printed("\xE2\x82", NOT_TEXT NOT_TEXT);
    expect_printed("\xC0\xAF", NOT_TEXT NOT_TEXT);                                // overlong
    expect_printed("\xED\xA0\x80", NOT_TEXT NOT_TEXT NOT_TEXT);                   // a surrogate
    expect_printed("\xF4\x90\x80\x80x", NOT_TEXT NOT_TEXT NOT_TEXT NOT_TEXT "x"); // beyond U+10FFFF
    expect_printed("\xE2\xE2\x82\xAC", NOT_TEXT "\xE2\x82\xAC");
}

Test(utf8_printer, escapes_terminal_sequences)
{
    expect_printed("\x1B[31mred\x07\x7F\r\n\tx", NOT_TEXT "[31mred" NOT_TEXT NOT_TEXT NOT_TEXT "\n\tx");
    expect_printed("\xC2\x9B"
                   "2J\xC2\xA0",
                   NOT_TEXT "2J\xC2\xA0");
    char *printed = print_in_chunks("a\0b", 3, 1);
    cr_expect_str_eq(printed, "a" NOT_TEXT "b");
    free(printed);
}

Test(utf8_printer, waits_for_the_rest_of_a_character)
{
    char *memory = NULL;
    size_t size = 0;
    struct utf8_printer printer = {.to = open_memstream(&memory, &size)};
    cr_assert_eq(utf8_print(&printer, "caf\xC3", 4), OK);
    cr_expect_str_eq(memory, "caf");
    cr_assert_eq(utf8_print(&printer, "\xA9", 1), OK);
    cr_expect_str_eq(memory, "caf\xC3\xA9");
    cr_assert_eq(utf8_print_end(&printer), OK);
    cr_expect_str_eq(memory, "caf\xC3\xA9");
    fclose(printer.to);
    free(memory);
}

Test(utf8_printer, raw_bytes_are_unchanged)
{
    static const char bytes[] = "\x1B[31m\xFF\0\xC3";
    char *memory = NULL;
    size_t size = 0;
    struct utf8_printer printer = {.to = open_memstream(&memory, &size), .raw = true};
    for (size_t i = 0; i < sizeof bytes - 1; i++) {
        cr_assert_eq(utf8_print(&printer, bytes + i, 1), OK);
        cr_assert_eq(size, i + 1);
    }
    cr_assert_eq(utf8_print_end(&printer), OK);
    cr_expect(size == sizeof bytes - 1 && memcmp(memory, bytes, size) == 0);
    fclose(printer.to);
    free(memory);
}

Test(utf8_printer, reports_a_full_disk)
{
    struct utf8_printer printer = {.to = fopen("/dev/full", "w")};
    cr_assert_not_null(printer.to);
    cr_assert_eq(utf8_print(&printer, "text", 4), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), "No space left on device"));
    text_free(&printer.pending);
    fclose(printer.to);
}
