// SPDX-License-Identifier: Apache-2.0
/* The algorithm cache file: entries are permanent, concurrent ranks agree, and corrupted bytes are
 * harmless. */
#include "kernels/cuda/matmul/algorithms.h"

#include "base/text.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A new folder, and the path of a file in it that does not exist yet. */
struct scratch {
    char folder[40], path[100];
};

static struct scratch make_scratch(void)
{
    struct scratch scratch = {.folder = "/tmp/algorithms-XXXXXX"};
    cr_assert_not_null(mkdtemp(scratch.folder));
    snprintf(scratch.path, sizeof scratch.path, "%s/file", scratch.folder);
    return scratch;
}

static void remove_scratch(const struct scratch *scratch)
{
    const char *const files[] = {"file",
                                 "file.lock",
                                 "a/b",
                                 "a/b.lock",
                                 "a",
                                 "cuboid/matmul-algorithms",
                                 "cuboid/matmul-algorithms.lock",
                                 "cuboid",
                                 ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s/%s", scratch->folder, files[i]);
        remove(name);
    }
}

static struct algorithms *open_file(const char *path)
{
    struct algorithms *a = NULL;
    cr_assert_eq(algorithms_open(path, &a), OK, "%s", fail_text());
    return a;
}

static struct algorithm numbered(uint64_t number)
{
    struct algorithm out;
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        out.word[i] = number * 0x9e3779b97f4a7c15U + (uint64_t)i;
    return out;
}

static bool is_kept(struct algorithms *a, const char *key, uint64_t number)
{
    struct algorithm got, want = numbered(number);
    bool found = false;
    cr_assert_eq(algorithms_find(a, key, &got, &found), OK, "%s", fail_text());
    return found && memcmp(&got, &want, sizeof got) == 0;
}

static bool is_absent(struct algorithms *a, const char *key)
{
    struct algorithm got;
    bool found = true;
    cr_assert_eq(algorithms_find(a, key, &got, &found), OK, "%s", fail_text());
    return !found;
}

static void keep(struct algorithms *a, const char *key, uint64_t number)
{
    struct algorithm algorithm = numbered(number);
    cr_assert_eq(algorithms_keep(a, key, &algorithm), OK, "%s", fail_text());
}

Test(algorithms, the_first_algorithm_is_kept)
{
    struct scratch scratch = make_scratch();
    struct algorithms *a = open_file(scratch.path), *b = open_file(scratch.path);
    cr_expect(is_absent(a, "one"));
    keep(a, "one", 1);
    keep(b, "two", 2); // b has not read the first entry, and must not lose it
    cr_expect(is_kept(a, "two", 2));
    struct algorithm mine = numbered(9), theirs = numbered(1);
    cr_assert_eq(algorithms_keep(b, "one", &mine), OK);
    cr_expect_eq(memcmp(&mine, &theirs, sizeof mine), 0, "b came second, and gets the entry of a");
    algorithms_close(a);
    algorithms_close(b);
    a = open_file(scratch.path);
    cr_expect(is_kept(a, "one", 1) && is_kept(a, "two", 2) && is_absent(a, "tw") && is_absent(a, ""));
    algorithms_close(a);
    remove_scratch(&scratch);
}

/* Truncated at every byte, and with every byte changed: each entry is intact or absent; only a file with
 * another first line is rejected. */
Test(algorithms, random_bytes_in_the_file)
{
    struct scratch scratch = make_scratch();
    struct algorithms *a = open_file(scratch.path);
    struct text whole = {0};
    keep(a, "NVIDIA H200 9.0 m 16", 1);
    keep(a, "NVIDIA H200 9.0 m 32", 2);
    algorithms_close(a);
    cr_assert_eq(file_read(scratch.path, &whole), OK);
    size_t head = strlen("cuboid matmul algorithms 1\n");
    int lost = 0;
    for (size_t i = 0; i < 2 * whole.length; i++) {
        bool cut = i < whole.length;
        size_t at = cut ? i : i - whole.length;
        char before = text_chars(&whole)[at];
        whole.chars[at] = cut ? before : (char)(before ^ (1 << (int)(at % 8)));
        FILE *file = fopen(scratch.path, "w");
        cr_assert_not_null(file);
        fwrite(whole.chars, 1, cut ? at : whole.length, file);
        fclose(file);
        whole.chars[at] = before;
        bool refused = at < head && !(cut && at == 0);
        enum status status = algorithms_open(scratch.path, &a);
        cr_assert_eq(status, refused ? BAD_DATA : OK, "byte %zu, %s: %s", at, cut ? "cut" : "changed",
                     fail_text());
        if (refused)
            continue;
        bool one = is_kept(a, "NVIDIA H200 9.0 m 16", 1), two = is_kept(a, "NVIDIA H200 9.0 m 32", 2);
        cr_assert(one || is_absent(a, "NVIDIA H200 9.0 m 16"));
        cr_assert(two || is_absent(a, "NVIDIA H200 9.0 m 32"));
        cr_assert(!cut || !two, "at least its line end is missing");
        cr_assert(cut || one || two || before == '\n', "a changed byte affects one line");
        lost += !one + !two;
        algorithms_close(a);
    }
    cr_expect_gt(lost, 300);
    text_free(&whole);
    remove_scratch(&scratch);
}

Test(algorithms, rejects_invalid_files)
{
    struct scratch scratch = make_scratch();
    struct algorithms *a = NULL;
    char path[120], text[300];
    struct text thesis = {0};
    snprintf(path, sizeof path, "%s/a", scratch.folder);
    mkdir(path, 0777);
    cr_assert_eq(algorithms_open(path, &a), IO_ERROR, "a folder is not a file");
    snprintf(path, sizeof path, "%s/a.lock", scratch.folder);
    remove(path);
    snprintf(path, sizeof path, "%s/a/b", scratch.folder);
    cr_assert_eq(file_write_atomic(path, "my thesis\n", 10), OK);
    cr_assert_eq(algorithms_open(path, &a), BAD_DATA);
    snprintf(
        text, sizeof text,
        "cluster.matmul_algorithms: %s is not a file of algorithms, and is left unchanged; use another path "
        "or none",
        path);
    cr_expect_str_eq(fail_text(), text);
    cr_assert_eq(file_read(path, &thesis), OK);
    cr_expect_str_eq(text_chars(&thesis), "my thesis\n");
    text_free(&thesis);
    snprintf(path, sizeof path, "%s/a/b/file", scratch.folder);
    cr_assert_eq(algorithms_open(path, &a), IO_ERROR, "below a file");
    cr_expect_not_null(strstr(fail_text(), "cluster.matmul_algorithms: cannot write "));
    remove_scratch(&scratch);
}

Test(algorithms, location_of_auto)
{
    struct scratch scratch = make_scratch();
    struct algorithms *a = NULL;
    char path[120];
    setenv("XDG_CACHE_HOME", scratch.folder, 1);
    cr_assert_eq(algorithms_open("auto", &a), OK, "%s", fail_text());
    keep(a, "one", 1);
    algorithms_close(a);
    snprintf(path, sizeof path, "%s/cuboid/matmul-algorithms", scratch.folder);
    a = open_file(path);
    cr_expect(is_kept(a, "one", 1));
    algorithms_close(a);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    cr_assert_eq(algorithms_open("auto", &a), BAD_ARGUMENT);
    remove_scratch(&scratch);
}

/* ---- concurrency ---- */

enum { THREADS = 6, KEYS = 12 };

struct rank {
    const char *path;
    uint64_t number;
    struct algorithm got[KEYS];
    enum status status;
};

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct algorithms *a = NULL;
    rank->status = algorithms_open(rank->path, &a);
    for (int i = 0; i < KEYS && rank->status == OK; i++) {
        char key[16];
        int k = rank->number % 2 == 0 ? i : KEYS - 1 - i;
        snprintf(key, sizeof key, "key %d", k);
        rank->got[k] = numbered(rank->number);
        rank->status = algorithms_keep(a, key, &rank->got[k]);
    }
    algorithms_close(a);
    return NULL;
}

Test(algorithms, ranks_agree)
{
    struct scratch scratch = make_scratch();
    struct rank rank[THREADS];
    pthread_t thread[THREADS];
    for (int r = 0; r < THREADS; r++) {
        rank[r] = (struct rank){.path = scratch.path, .number = (uint64_t)r + 1};
        cr_assert_eq(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < THREADS; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < THREADS; r++) {
        cr_assert_eq(rank[r].status, OK);
        cr_assert_eq(memcmp(rank[r].got, rank[0].got, sizeof rank[0].got), 0, "rank %d", r);
    }
    remove_scratch(&scratch);
}

/* The check before opening: the same errors, and it creates neither folders nor files. */
Test(algorithms, is_checked_before_the_run)
{
    struct scratch scratch = make_scratch();
    char other[100], below[120];
    snprintf(other, sizeof other, "%s/cuboid", scratch.folder);
    snprintf(below, sizeof below, "%s/file", other);
    cr_expect_eq(algorithms_check(scratch.path), OK, "%s", fail_text());
    setenv("XDG_CACHE_HOME", scratch.folder, 1);
    cr_expect_eq(algorithms_check("auto"), OK, "%s", fail_text());
    cr_expect_neq(access(scratch.path, F_OK), 0, "nothing was created");
    cr_expect_neq(access(other, F_OK), 0, "nothing was created");

    FILE *file = fopen(other, "w");
    cr_assert_not_null(file);
    fputs("another program's", file);
    fclose(file);
    cr_expect_eq(algorithms_check(other), BAD_DATA);
    cr_expect_not_null(strstr(fail_text(), "is not a file of algorithms, and is left unchanged"), "%s",
                       fail_text());
    cr_expect_eq(algorithms_check(below), IO_ERROR);
    cr_expect_not_null(strstr(fail_text(), "cluster.matmul_algorithms: cannot write "), "%s", fail_text());
    cr_expect_not_null(strstr(fail_text(), "Not a directory"), "%s", fail_text());
    cr_expect_eq(algorithms_check(scratch.folder), BAD_ARGUMENT);
    cr_expect_not_null(strstr(fail_text(), "is not a file; use another path or none"), "%s", fail_text());
    if (geteuid() != 0) { // root may do everything
        cr_assert_eq(chmod(scratch.folder, 0500), 0);
        cr_expect_eq(algorithms_check(scratch.path), IO_ERROR);
        cr_expect_not_null(strstr(fail_text(), "Permission denied"), "%s", fail_text());
        cr_assert_eq(chmod(scratch.folder, 0700), 0);
    }
    remove(other);
    remove_scratch(&scratch);
}

/* A path with a missing folder is a mistake, and the folder must not be created. */
Test(algorithms, creates_no_directory_for_a_mistyped_path)
{
    struct scratch scratch = make_scratch();
    struct algorithms *a = NULL;
    char missing[60], below[80], text[300];
    snprintf(missing, sizeof missing, "%s/a", scratch.folder);
    snprintf(below, sizeof below, "%s/file", missing);
    snprintf(text, sizeof text,
             "cluster.matmul_algorithms: cannot write %s (%s: No such file or directory); use another "
             "path or none",
             below, missing);
    cr_expect_eq(algorithms_check(below), IO_ERROR);
    cr_expect_str_eq(fail_text(), text);
    cr_expect_eq(algorithms_open(below, &a), IO_ERROR);
    cr_expect_neq(access(missing, F_OK), 0);
    remove_scratch(&scratch);
}

/* The number of entries used, and added. */
Test(algorithms, messages)
{
    struct scratch scratch = make_scratch();
    struct algorithm first = numbered(1), second = numbered(2), got;
    struct text messages = {0};
    char expected[400];
    bool found;
    struct algorithms *a = open_file(scratch.path);
    cr_assert_eq(algorithms_keep(a, "one", &first), OK);
    cr_assert_eq(algorithms_keep(a, "unused", &second), OK);
    algorithms_close(a);
    a = open_file(scratch.path);
    cr_assert_eq(algorithms_find(a, "one", &got, &found), OK);
    cr_assert_eq(algorithms_find(a, "two", &got, &found), OK);
    cr_assert_eq(algorithms_keep(a, "two", &second), OK);
    cr_assert_eq(algorithms_find(a, "two", &got, &found), OK);
    algorithms_report(a, &messages);
    snprintf(expected, sizeof expected,
             "matmul: 1 algorithms from %s, 1 timed and added to it\n  cached: one\n  timed: two\n",
             scratch.path);
    cr_expect_str_eq(text_chars(&messages), expected);
    text_free(&messages);
    algorithms_close(a);
    remove_scratch(&scratch);
}
