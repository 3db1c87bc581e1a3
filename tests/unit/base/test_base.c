// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "base/normal.h"
#include "base/philox.h"
#include "base/quantile.h"
#include "base/status.h"
#include "base/text.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Known answers of Random123's kat_vectors for philox4x32 10. */
Test(philox, known_answers)
{
    uint32_t out[4];
    philox_words((struct philox){{0, 0}}, 0, 0, out);
    cr_assert(out[0] == 0x6627e8d5 && out[1] == 0xe169c58d && out[2] == 0xbc57ac4c && out[3] == 0x9b00dbd8);
    philox_words((struct philox){{0xffffffff, 0xffffffff}}, UINT64_MAX, UINT64_MAX, out);
    cr_assert(out[0] == 0x408f276d && out[1] == 0x41c83b0e && out[2] == 0xa20bc7c6 && out[3] == 0x6d5451fd);
    philox_words((struct philox){{0xa4093822, 0x299f31d0}}, 0x0370734413198a2eU, 0x85a308d3243f6a88U, out);
    cr_assert(out[0] == 0xd16cfe09 && out[1] == 0x94fdcceb && out[2] == 0x5001e420 && out[3] == 0x24126ea1);
}

Test(philox, a_slice_has_the_values_of_the_full_tensor)
{
    struct philox generator = philox_named(1234, "embedding.weight");
    float whole[101], part[40];
    philox_normal(generator, 7, 0, 101, whole);
    for (int begin = 0; begin <= 61; begin++) {
        philox_normal(generator, 7, begin, 40, part);
        cr_assert_eq(memcmp(part, whole + begin, sizeof part), 0);
    }
}

Test(philox, normals_have_the_moments_of_a_normal)
{
    enum { N = 100000 };
    float *x = malloc(N * sizeof *x);
    philox_normal(philox_named(1, "x"), 0, 0, N, x);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        sum += v;
        squares += v * v;
        fourth += v * v * v * v;
    }
    // Five standard errors: 1/sqrt(N), sqrt(2/N), sqrt(96/N).
    cr_assert_lt(fabs(sum / N), 5.0 / sqrt(N));
    cr_assert_lt(fabs(squares / N - 1.0), 5.0 * sqrt(2.0 / N));
    cr_assert_lt(fabs(fourth / N - 3.0), 5.0 * sqrt(96.0 / N));
    free(x);
}

Test(philox, permute_is_a_permutation)
{
    for (int64_t n = 1; n < 300; n++) {
        bool seen[300] = {false};
        for (int64_t i = 0; i < n; i++) {
            int64_t j = philox_permute(philox_named(3, "order"), 5, n, i);
            cr_assert(j >= 0 && j < n && !seen[j], "n %ld, %ld -> %ld", (long)n, (long)i, (long)j);
            seen[j] = true;
        }
    }
}

Test(philox, a_range_of_a_permutation_matches_its_points)
{
    const int64_t sizes[] = {1, 2, 3, 17, 64, 65, 1000, (int64_t)1 << 40};
    const int64_t counts[] = {0, 1, 31, 32, 33, 500};
    struct philox generator = philox_named(8, "run");
    int64_t out[501];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t n = sizes[s], count = counts[c] < n ? counts[c] : n, begin = n - count;
            out[count] = -7;
            philox_permute_run(generator, 9, n, begin, count, out);
            for (int64_t i = 0; i < count; i++)
                cr_assert_eq(out[i], philox_permute(generator, 9, n, begin + i), "n %ld, %ld", (long)n,
                             (long)(begin + i));
            cr_assert_eq(out[count], -7);
        }
}

Test(text, numbers_round_trip_bitwise)
{
    char out[NUMBER_CHARS];
    double values[] = {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345678.0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        cr_assert_eq(strtod(number_text(values[i], out), NULL), values[i]);
    cr_assert_str_eq(number_text(NAN, out), "nan");
}

Test(text, whole_numbers_have_no_exponent)
{
    char out[NUMBER_CHARS];
    cr_expect_str_eq(number_text(30.0, out), "30");
    cr_expect_str_eq(number_text(-9e15, out), "-9000000000000000");
    cr_expect_str_eq(number_text(1e18, out), "1000000000000000000");
    cr_expect_str_eq(number_text(-0.0, out), "-0");
    cr_expect_str_eq(number_text(1e-5, out), "1e-05");
    cr_expect_str_eq(number_text(1e300, out), "1e+300");
}

Test(text, parsing_requires_the_whole_string)
{
    double d;
    int64_t i;
    cr_assert(number_parse("1e-8", &d) && d == 1e-8);
    cr_assert(!number_parse("1e-8x", &d) && !number_parse("", &d) && !number_parse(" 1", &d) &&
              !number_parse("1e999", &d) && !number_parse("0x1p3", &d) && !number_parse("-0X1", &d));
    cr_assert(integer_parse("-12", &i) && i == -12);
    cr_assert(!integer_parse("1.5", &i) && !integer_parse("99999999999999999999", &i));
}

Test(status, fail_escapes_control_sequences)
{
    (void)fail(BAD_USAGE, "%s: \xC3\xA9", "a\x1b[31m\n\xC2\x9b\xFF\x7F\r");
    cr_assert_str_eq(fail_text(), "a\\x1b[31m\\x0a\\xc2\\x9b\\xff\\x7f\\x0d: \xC3\xA9");
    (void)fail(BAD_USAGE, "%s again", fail_text()); // its own previous message
    cr_assert_str_eq(fail_text(), "a\\x1b[31m\\x0a\\xc2\\x9b\\xff\\x7f\\x0d: \xC3\xA9 again");
    char many[5000];
    memset(many, '\x1b', sizeof many - 1);
    many[sizeof many - 1] = 0;
    (void)fail(BAD_USAGE, "%s", many);
    cr_assert(strlen(fail_text()) < 2048 && strlen(fail_text()) % 4 == 0);
}

/* What is wrong and what to do follow the name. */
Test(status, fail_keeps_the_end_of_a_long_message)
{
    char name[5000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    (void)fail(BAD_USAGE, "a: %s: too long; use b", name);
    const char *gap = strstr(fail_text(), "x ... x");
    cr_assert(strncmp(fail_text(), "a: xxx", 6) == 0 && gap != NULL, "%s", fail_text());
    cr_assert_not_null(strstr(gap, "xxx: too long; use b"), "%s", fail_text());
    (void)fail(BAD_USAGE, "c: %s", fail_text());
    cr_assert(strncmp(fail_text(), "c: a: xxx", 9) == 0 && strstr(fail_text(), "x: too long; use b") != NULL);
}

Test(text, nearest_name_suggests_the_intended_name)
{
    const char *const names[] = {"tensor_parallel_size", "pipeline_parallel_size", "seed"};
    cr_assert_str_eq(nearest_name("tensor_paralel_size", names, 3), "tensor_parallel_size");
    cr_assert_str_eq(nearest_name("sede", names, 3), "seed");
    cr_assert_null(nearest_name("zebra", names, 3));
    const char *const layers[] = {"num_layers"};
    cr_assert_null(nearest_name("num_experts", layers, 1));
    const char *const clusters[] = {"dgx-a100-40", "dgx-h100"};
    cr_assert_str_eq(nearest_name("dgx-a100", clusters, 2), "dgx-a100-40");
    cr_assert_str_eq(nearest_name("dgx-v100", clusters, 2), "dgx-h100");
}

Test(text, json_strings_are_escaped_and_repaired)
{
    struct text t = {0};
    text_add_json(&t, "a\"b\\\n\x01 \xC3\xA9 \xFF");
    cr_assert_str_eq(t.chars, "\"a\\\"b\\\\\\n\\u0001 \xC3\xA9 \xEF\xBF\xBD\"");
    text_free(&t);
    text_add_json(&t, "\x7F\xC2\x9B\xC2\xA0"); // DEL, and a control character of two bytes
    cr_assert_str_eq(t.chars, "\"\\u007f\\u009b\xC2\xA0\"");
    text_free(&t);
    text_add_json_bytes(&t, "a\0b\xC3\xA9", 4); // ends within a character
    cr_assert_str_eq(t.chars, "\"a\\u0000b\xEF\xBF\xBD\"");
    text_free(&t);
}

/* One-byte and two-byte control characters, truncated sequences, and characters invalid in XML. */
Test(text, printable_text_is_unchanged)
{
    static const char bytes[] =
        "a\033[1m\x7F\xC2\x9B\xC2\xA0\xC3\xA9\xEF\xBF\xBF\xF0\x9F\x8E\x89\n\0\xE2\x82";
    struct text t = {0};
    text_add_printable(&t, bytes, sizeof bytes - 1);
    cr_assert_str_eq(
        t.chars,
        "a\\x1b[1m\\x7f\\xc2\\x9b\xC2\xA0\xC3\xA9\\xef\\xbf\\xbf\xF0\x9F\x8E\x89\\x0a\\x00\\xe2\\x82");
    text_free(&t);
}

/* Endless files are rejected; a pipe without a writer does not block. */
Test(file, reads_only_small_regular_files)
{
    char folder[] = "/tmp/cuboid-test-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    struct text path = {0}, back = {0};
    cr_assert_eq(file_read_small("/dev/zero", 10, &back), IO_ERROR);
    cr_assert_str_eq(fail_text(), "/dev/zero: is a device; use a regular file");
    cr_assert_eq(file_read_small(folder, 10, &back), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), ": is a folder; use a regular file"));
    text_add(&path, "%s/file", folder);
    cr_assert_eq(mkfifo(path.chars, 0600), 0);
    cr_assert_eq(file_read_small(path.chars, 10, &back), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), ": is a pipe; use a regular file"));
    cr_assert_eq(file_read(path.chars, &back), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), ": is a pipe; use a regular file"));
    cr_assert_eq(unlink(path.chars), 0);
    cr_assert_eq(file_write_atomic(path.chars, "0123456789", 10), OK);
    cr_assert_eq(file_read_small(path.chars, 9, &back), IO_ERROR);
    cr_assert_not_null(strstr(fail_text(), ": has 10 bytes; the limit is 9"), "%s", fail_text());
    cr_assert_eq(file_read_small(path.chars, 10, &back), OK);
    cr_assert_str_eq(back.chars, "0123456789");
    text_free(&back);
    cr_assert_eq(file_read_small("/proc/self/status", 100, &back),
                 IO_ERROR); // its size is reported as 0 bytes
    cr_assert_eq(unlink(path.chars), 0);
    cr_assert_eq(rmdir(folder), 0);
    text_free(&path);
    text_free(&back);
}

/* A rename replaces whatever has the name by a plain file. */
Test(file, replaces_only_regular_files)
{
    static const char *const names[] = {"pipe", "link", "folder"};
    char folder[] = "/tmp/cuboid-test-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    cr_assert(mkfifo("pipe", 0600) == 0 && symlink("pipe", "link") == 0 && mkdir("folder", 0700) == 0);
    for (size_t i = 0; i < 3; i++) {
        struct stat before, after;
        cr_assert_eq(lstat(names[i], &before), 0);
        cr_assert_eq(file_write_atomic(names[i], "a", 1), IO_ERROR, "%s", names[i]);
        cr_assert_not_null(strstr(fail_text(), i == 1 ? "is a symbolic link" : "not a file; "), "%s",
                           fail_text());
        cr_assert(lstat(names[i], &after) == 0 && after.st_ino == before.st_ino, "%s", names[i]);
    }
    cr_assert_str_eq(file_path_problem("folder/none/new"), "there is no such folder");
    cr_assert_str_eq(file_path_problem("folder/"), "not a file; use the name of a new file");
    cr_assert_str_eq(file_path_problem("new/"), "there is no such folder");
    cr_assert_str_eq(file_path_problem(""), "there is no such folder");
    cr_assert_null(file_path_problem("folder/new"));
    cr_assert_null(file_path_problem("new"));
    cr_assert(unlink("pipe") == 0 && unlink("link") == 0 && rmdir("folder") == 0);
    cr_assert(chdir("/") == 0 && rmdir(folder) == 0);
}

/* It ends the program with status 1; no size overflows on the way. */
Test(memory, the_program_ends_without_memory, .exit_code = 1)
{
    (void)memory_zeroed(SIZE_MAX / 2, 4, "a test");
}

/* Checked before any computation; root has access to every folder, so another user is used. */
Test(file, reports_an_unwritable_directory)
{
    char folder[] = "/tmp/cuboid-test-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    cr_assert(chdir(folder) == 0 && chmod(".", 0555) == 0);
    pid_t child = fork();
    if (child == 0) {
        const char *fault = getuid() != 0 || setuid(65534) == 0 ? file_path_problem("new") : NULL;
        _exit(fault != NULL && strcmp(fault, "Permission denied") == 0 ? 0 : 1);
    }
    int ended = -1;
    cr_assert_eq(waitpid(child, &ended, 0), child);
    cr_assert_eq(ended, 0);
    cr_assert(chdir("/") == 0 && rmdir(folder) == 0);
}

Test(file, a_failed_atomic_write_leaves_no_files)
{
    cr_assert_eq(file_write_atomic("/nonexistent-folder/x", "a", 1), IO_ERROR);
    cr_assert(strstr(fail_text(), "/nonexistent-folder/x") != NULL);

    char folder[] = "/tmp/cuboid-test-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    struct text path = {0}, back = {0};
    text_add(&path, "%s/a/b", folder);
    cr_assert_eq(folder_make(path.chars), OK);
    text_add(&path, "/file");
    cr_assert_eq(file_write_atomic(path.chars, "hello", 5), OK);
    cr_assert_eq(file_read(path.chars, &back), OK);
    cr_assert_str_eq(back.chars, "hello");
    text_free(&path);
    text_free(&back);
}

/* Against the C library, in every quadrant and from the largest radius to zero. */
Test(normal, agrees_with_the_c_library)
{
    const double pi = 3.14159265358979323846;
    uint32_t edges[] = {0,          1,          2,          0x1fffffff, 0x20000000,
                        0x20000001, 0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000,
                        0xbfffffff, 0xc0000000, 0xe0000000, 0xfffffffe, 0xffffffff};
    enum { EDGES = sizeof edges / sizeof *edges, CASES = 20000 };
    for (int i = 0; i < CASES + EDGES * EDGES; i++) {
        uint32_t words[4] = {edges[i % EDGES], edges[i / EDGES % EDGES]};
        if (i >= EDGES * EDGES)
            philox_words(philox_named(5, "cases"), 0, (uint64_t)i, words);
        double radius = sqrt(-2.0 * log(((double)words[0] + 1.0) * 0x1p-32));
        double angle = 2.0 * pi * (double)words[1] * 0x1p-32, a, b;
        normal_pair(words[0], words[1], &a, &b);
        // The reference's own angle is rounded at up to 2 pi: a relative error of 4.5e-16.
        cr_assert_lt(fabs(a - radius * cos(angle)), 3e-15 * (1.0 + radius), "%08x %08x", words[0], words[1]);
        cr_assert_lt(fabs(b - radius * sin(angle)), 3e-15 * (1.0 + radius), "%08x %08x", words[0], words[1]);
    }
}

/* Any slice, whatever its length and offset within a block, has the normals of its elements' own words. */
Test(normal, does_not_depend_on_the_slice)
{
    enum { ELEMENTS = 8 * NORMAL_BLOCK + 9 };
    float whole[ELEMENTS], slice[ELEMENTS + 1];
    const struct philox generator = philox_named(7, "slices");
    for (int i = 0; i < ELEMENTS; i++) {
        uint32_t words[4];
        double pair[2];
        philox_words(generator, 3, (uint64_t)(i / 4), words);
        normal_pair(words[i % 4 / 2 * 2], words[i % 4 / 2 * 2 + 1], &pair[0], &pair[1]);
        whole[i] = (float)pair[i % 2];
    }
    for (int begin = 0; begin < 9; begin++)
        for (int count = 0; begin + count <= ELEMENTS; count++) {
            slice[count] = 42.0F;
            philox_normal(generator, 3, begin, count, slice);
            cr_assert_arr_eq(slice, whole + begin, (size_t)count * sizeof *slice, "%d + %d", begin, count);
            cr_assert_eq(slice[count], 42.0F, "%d + %d", begin, count);
        }
}

Test(quantile, quantiles_are_interpolated)
{
    double values[] = {4, 1, 3, 2, 10};
    cr_expect_eq(quantile(values, 5, 0.5), 3.0);
    cr_expect_float_eq(quantile(values, 5, 0.9), 7.6, 1e-12);
    cr_expect_eq(quantile(values, 5, 0.0), 1.0);
    cr_expect_eq(quantile(values, 5, 1.0), 10.0);
    cr_expect_eq(quantile(values, 1, 0.9), 1.0);
    cr_expect(isnan(quantile(values, 0, 0.5)));
}
