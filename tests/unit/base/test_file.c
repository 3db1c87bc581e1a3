// SPDX-License-Identifier: Apache-2.0
/* Temporary files and folders (base/file.h): links are never followed, files of others are never removed,
 * and content and names become durable in the right order. The order is recorded by this program's fsync()
 * and rename(), which replace the C library's. */
#include "base/file.h"

#include "base/progress_slot.h"
#include "tests/unit/checkpoint/checkpoint_by_hand.h"
#include "trainer/files/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- recorded calls ---- */

enum { CALLS_CHARS = 4096 };
struct calls {
    char text[CALLS_CHARS];
};
static struct calls *const calls = &(struct calls){""};

static void note(const char *what, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *temporary = strstr(name, ".cuboid-tmp-");
    // Not strlen(), which clang evaluates on the initial text.
    size_t length = strnlen(calls->text, CALLS_CHARS), most = sizeof calls->text - length;
    int chars = temporary != NULL ? (int)(temporary - name) : (int)strlen(name);
    snprintf(calls->text + length, most, "%s %.*s%s\n", what, chars, name, temporary != NULL ? "*" : "");
}

int fsync(int fd)
{
    char link[64], path[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    note("fsync", path);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    note("rename", to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* Fails for a file named "faulty". */
int fstat(int fd, struct stat *info)
{
    char link[64], path[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    const char *slash = strrchr(path, '/');
    if (slash != NULL && strcmp(slash, "/faulty") == 0) {
        errno = EIO;
        return -1;
    }
    return fstatat(fd, "", info, AT_EMPTY_PATH);
}

/* ---- files ---- */

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void expect_text(const char *path, const char *text)
{
    struct text back = {0};
    cr_assert_eq(file_read(path, &back), OK, "%s", fail_text());
    cr_expect_str_eq(back.chars, text, "%s", path);
    text_free(&back);
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

Test(file, reports_a_failing_fstat)
{
    char folder[32];
    struct text text = {0};
    dev_t device;
    ino_t inode;
    enter(folder);
    write_file("faulty", "tp: 2");
    cr_expect_eq(file_read("faulty", &text), IO_ERROR);
    cr_expect_str_eq(fail_text(), "faulty: Input/output error");
    const char *fault = yaml_file_read("faulty", &text, &device, &inode);
    cr_assert_not_null(fault);
    cr_expect_str_eq(fault, "Input/output error");
    text_free(&text);
    leave(folder);
}

/* ---- temporary files ---- */

Test(file, a_link_under_a_guessed_temporary_name_has_no_effect)
{
    char folder[32], guess[64];
    enter(folder);
    write_file("precious", "of another user");
    snprintf(guess, sizeof guess, "report.tmp.%ld", (long)getpid()); // predictable names
    cr_assert_eq(symlink("precious", guess), 0);
    cr_assert_eq(file_write_atomic("report", "hello", 5), OK);
    expect_text("report", "hello");
    expect_text("precious", "of another user");

    struct file_temporary first, second;
    cr_assert_eq(file_temporary_create("report", &first), OK);
    cr_assert_eq(file_temporary_create("report", &second), OK);
    cr_expect_str_neq(first.path.chars, second.path.chars);
    file_temporary_discard(&first);
    file_temporary_discard(&second);
    file_temporary_discard(&second);
    cr_expect(exists("report") && exists(guess));
    leave(folder);
}

/* How many of `bytes` of a file, from `offset` on, are in the page cache; in pages. */
static size_t cached_pages(int fd, int64_t offset, size_t bytes)
{
    const size_t pages = bytes / FILE_DIRECT_BYTES;
    unsigned char *in_core = calloc(pages, 1);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    size_t count = 0;
    cr_assert(in_core != NULL && map != MAP_FAILED && mincore(map, bytes, in_core) == 0);
    for (size_t i = 0; i < pages; i++)
        count += in_core[i] & 1;
    munmap(map, bytes);
    free(in_core);
    return count;
}

Test(file, whole_pages_bypass_the_page_cache)
{
    enum { BLOCK = 1 << 20, BLOCKS = 3, TAIL = 5000, BYTES = FILE_DIRECT_BYTES + BLOCKS * BLOCK + TAIL };
    char folder[32], *expected = malloc(BYTES), *block = aligned_alloc(FILE_DIRECT_BYTES, BLOCK);
    struct file_temporary file;
    struct text back = {0};
    enter(folder);
    cr_assert(expected != NULL && block != NULL);
    for (int i = 0; i < BYTES; i++)
        expected[i] = (char)(1 + i * 7 % 251);
    cr_assert_eq(file_temporary_create("data", &file), OK);
    for (int64_t i = 0, at = FILE_DIRECT_BYTES; i < BLOCKS; i++, at += BLOCK) {
        memcpy(block, expected + at, BLOCK);
        cr_assert(file_temporary_write(&file, block, BLOCK, at));
    }
    const bool direct = !file.refuses_direct; // tmpfs refuses
    cr_expect(!direct || cached_pages(file.fd, FILE_DIRECT_BYTES, BLOCKS * BLOCK) == 0);
    cr_assert(file_temporary_write(&file, expected + BYTES - TAIL, TAIL, BYTES - TAIL));
    cr_assert(file_temporary_write(&file, expected, 100, 0));
    cr_assert(file_temporary_write(&file, expected + 100, FILE_DIRECT_BYTES - 100, 100));
    cr_assert_eq(file_temporary_commit(&file, "data"), OK, "%s", fail_text());
    cr_assert_eq(file_read("data", &back), OK, "%s", fail_text());
    cr_expect(back.length == BYTES && memcmp(back.chars, expected, BYTES) == 0);
    text_free(&back);
    free(expected);
    free(block);
    leave(folder);
}

Test(file, a_large_file_is_progress_while_it_is_written_back)
{
    char folder[32];
    struct progress_writer *writer = calloc(1, sizeof *writer);
    struct progress_slot *slot = calloc(1, sizeof *slot);
    struct progress_head before, after;
    struct file_temporary file;
    enter(folder);
    cr_assert(writer != NULL && slot != NULL);
    cr_assert_eq(file_temporary_create("data", &file), OK);
    cr_assert_eq(ftruncate(file.fd, 200 << 20), 0); // three parts and a rest, without blocks on the disk
    progress_begin(writer, slot);
    cr_assert(progress_read_head(slot, &before));
    cr_assert_eq(file_temporary_commit(&file, "data"), OK, "%s", fail_text());
    cr_assert(progress_read_head(slot, &after));
    cr_expect_eq(after.count - before.count, 3);
    progress_end();
    free(writer);
    free(slot);
    leave(folder);
}

Test(file, only_temporaries_of_ended_processes_are_removed)
{
    static const char *const stay[] = {
        "report.cuboid-tmp-0123456789abcde",     "report.cuboid-tmp-0123456789abcdef0",
        "report.cuboid-tmp-0123456789ABCDEF",    "report.tmp.1234",
        "other.cuboid-tmp-0123456789abcdef",     "report",
        "my-report.cuboid-tmp-0123456789abcdef", "report.cuboid-tmp-0123456789abcdef.old",
    };
    char folder[32];
    enter(folder);
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        write_file(stay[i], "x");
    write_file("report.cuboid-tmp-0123456789abcdef", "half of a");
    cr_assert_eq(symlink("report", "report.cuboid-tmp-1123456789abcdef"), 0);
    cr_assert_eq(mkdir("report.cuboid-tmp-2123456789abcdef", 0700), 0);
    struct file_temporary living;
    cr_assert_eq(file_temporary_create("report", &living), OK);
    file_temporary_sweep("report");
    cr_expect_not(exists("report.cuboid-tmp-0123456789abcdef"));
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        cr_expect(exists(stay[i]), "%s", stay[i]);
    cr_expect(exists("report.cuboid-tmp-1123456789abcdef") && exists("report.cuboid-tmp-2123456789abcdef"));
    cr_expect(exists(living.path.chars));

    // The next write of the same file succeeds.
    write_file("report.cuboid-tmp-0123456789abcdef", "half of a");
    cr_assert_eq(file_write_atomic("report", "whole", 5), OK);
    cr_expect_not(exists("report.cuboid-tmp-0123456789abcdef"));
    expect_text("report", "whole");
    file_temporary_discard(&living);
    leave(folder);
}

Test(file, syncs_content_before_rename_and_directory_after)
{
    char folder[32];
    enter(folder);
    calls->text[0] = 0;
    cr_assert_eq(folder_make("a/b"), OK);
    cr_assert_eq(file_write_atomic("a/b/file", "hello", 5), OK);
    char expected[256];
    snprintf(expected, sizeof expected, "fsync %s\nfsync a\nfsync file*\nrename file\nfsync b\n",
             strrchr(folder, '/') + 1);
    cr_expect_str_eq(calls->text, expected);
    leave(folder);
}

/* The folder's content is durable before the rename, and the name before the save returns. */
Test(file, a_checkpoint_is_durable_before_its_name)
{
    char folder[32];
    enter(folder);
    save_one("s", 1);
    calls->text[0] = 0;
    save_one("s", 2);
    cr_expect_str_eq(calls->text, "fsync run.json*\nrename run.json\nfsync s\n"
                                  "fsync s\n" // step-00000002.partial
                                  "fsync rank-00000.safetensors*\nrename rank-00000.safetensors\n"
                                  "fsync step-00000002.partial\n"
                                  "fsync recipe.yaml*\nrename recipe.yaml\nfsync step-00000002.partial\n"
                                  "fsync manifest.json*\nrename manifest.json\nfsync step-00000002.partial\n"
                                  "fsync step-00000002.partial\nrename step-00000002\nfsync s\n"
                                  "fsync run.json*\nrename run.json\nfsync s\n");
    leave(folder);
}

/* ---- removing ---- */

static bool any_file(const char *name)
{
    return name[0] != 'k';
}

Test(file, does_not_follow_links_when_removing)
{
    char folder[32];
    enter(folder);
    cr_assert_eq(mkdir("precious", 0700), 0);
    write_file("precious/thesis", "x");
    cr_assert_eq(symlink("precious", "link"), 0);
    cr_assert_eq(symlink("nowhere", "dangling"), 0);
    cr_expect_eq(folder_remove("link", any_file), OK, "%s", fail_text());
    cr_expect_eq(folder_remove("dangling", any_file), OK, "%s", fail_text());
    cr_expect_not(exists("link"));
    cr_expect_not(exists("dangling"));
    expect_text("precious/thesis", "x");
    cr_expect_eq(folder_remove("none", any_file), OK);
    cr_expect_eq(folder_remove("precious/thesis", any_file), IO_ERROR);
    expect_text("precious/thesis", "x");

    // Links in a folder are removed as links.
    cr_assert_eq(mkdir("ours", 0700), 0);
    write_file("ours/a", "x");
    cr_assert_eq(symlink("../precious", "ours/b"), 0);
    cr_assert_eq(symlink("../precious/thesis", "ours/c"), 0);
    cr_expect_eq(folder_remove("ours", any_file), OK, "%s", fail_text());
    cr_expect_not(exists("ours"));
    expect_text("precious/thesis", "x");
    leave(folder);
}

Test(file, keeps_files_of_others)
{
    char folder[32];
    enter(folder);
    cr_assert_eq(mkdir("ours", 0700), 0);
    write_file("ours/a", "x");
    write_file("ours/keep", "x");
    cr_expect_eq(folder_remove("ours", any_file), IO_ERROR);
    cr_expect_str_eq(fail_text(), "ours: not removed: it also contains keep");
    cr_expect_not(exists("ours/a"));
    expect_text("ours/keep", "x");
    cr_assert_eq(rename("ours/keep", "keep"), 0);
    cr_assert_eq(mkdir("ours/folder", 0700), 0);
    cr_expect_eq(folder_remove("ours", any_file), IO_ERROR);
    cr_expect_str_eq(fail_text(), "ours: not removed: it also contains folder");
    leave(folder);
}
