// SPDX-License-Identifier: Apache-2.0
/* The file format: written files read back, and any other file is rejected with a one-line error.
 *
 * A hand-made file is its header as text followed by the data: each error message has a header that
 * causes it. Then every byte of a small file is changed in many ways, and the file is truncated at every
 * length: it must be rejected, or be read to the end safely (the sanitizer builds run this too). */
#include "trainer/checkpoint/format/safetensors.h"

#include "trainer/checkpoint/format/safetensors_writer.h"
#include "trainer/files/checksum.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void enter(char folder[32])
{
    snprintf(folder, 32, "/tmp/cuboid-tensors-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static int files_here(bool remove)
{
    int count = 0;
    DIR *here = opendir(".");
    struct dirent *found;
    while ((found = readdir(here)) != NULL)
        if (found->d_name[0] != '.') {
            count++;
            if (remove)
                unlink(found->d_name);
        }
    closedir(here);
    return count;
}

static void leave(const char *folder)
{
    files_here(true);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0);
}

static void write_file(const char *path, const void *bytes, size_t length)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    cr_assert(file >= 0 && write(file, bytes, length) == (ssize_t)length);
    close(file);
}

/* A file with this header and `bytes` bytes of data. */
static void write_header(const char *path, const char *header, size_t bytes)
{
    struct text file = {0};
    uint64_t length = strlen(header);
    text_add_bytes(&file, (const char *)&length, sizeof length);
    text_add(&file, "%s", header);
    for (size_t i = 0; i < bytes; i++)
        text_add_bytes(&file, "\x3f", 1);
    write_file(path, file.chars, file.length);
    text_free(&file);
}

/* ---- written files read back ---- */

static const struct safetensors_tensor sample[] = {
    {.name = "norm.weight", .dtype = SAFETENSORS_F32, .ndim = 1, .dim = {5}},
    {.name = "nothing", .dtype = SAFETENSORS_F32, .ndim = 2, .dim = {0, 7}},
    {.name = "layers.0.mlp.fc1.weight", .dtype = SAFETENSORS_F32, .ndim = 2, .dim = {3, 4}},
    {.name = "scalar", .dtype = SAFETENSORS_F64, .ndim = 0},
    {.name = "odd", .dtype = SAFETENSORS_U8, .ndim = 3, .dim = {1, 3, 1}},
};
enum { SAMPLES = sizeof sample / sizeof *sample, SAMPLE_BYTES = 20 + 48 + 8 + 3 };

static void write_sample(const char *path)
{
    unsigned char numbers[SAMPLE_BYTES];
    for (int i = 0; i < SAMPLE_BYTES; i++)
        numbers[i] = (unsigned char)(7 * i + 1);
    const struct safetensors_pair metadata[] = {{"made by", "a \"test\"\n"}, {"second", ""}};
    struct safetensors_writer *writer = NULL;
    cr_assert_eq(safetensors_create(path, sample, SAMPLES, 64, &writer), OK, "%s", fail_text());
    cr_assert_eq(safetensors_append(writer, numbers, 21), OK); // cut anywhere
    cr_assert_neq(access(path, F_OK), 0);
    cr_assert_eq(safetensors_append(writer, numbers + 21, SAMPLE_BYTES - 21), OK);
    cr_assert_eq(safetensors_finish(writer, metadata, 2), OK, "%s", fail_text());
    safetensors_writer_destroy(writer);
}

Test(safetensors, files_round_trip)
{
    char folder[32];
    enter(folder);
    write_sample("a.safetensors");
    cr_assert_eq(files_here(false), 1);

    struct safetensors *file = NULL;
    cr_assert_eq(safetensors_open("a.safetensors", &file), OK, "%s", fail_text());
    cr_assert_eq(safetensors_count(file), SAMPLES);
    cr_assert_eq((safetensors_file_bytes(file) - SAMPLE_BYTES) % SAFETENSORS_ALIGN_BYTES, 0);
    cr_assert_str_eq(safetensors_metadata(file, "made by"), "a \"test\"\n");
    cr_assert_str_eq(safetensors_metadata(file, "second"), "");
    cr_assert_null(safetensors_metadata(file, "third"));
    cr_assert_null(safetensors_find(file, "norm"));
    int at = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const struct safetensors_tensor *tensor = safetensors_find(file, sample[i].name);
        unsigned char numbers[64];
        cr_assert_not_null(tensor);
        cr_assert_eq(tensor, safetensors_at(file, i));
        cr_assert_eq(tensor->dtype, sample[i].dtype);
        cr_assert_eq(tensor->ndim, sample[i].ndim);
        cr_assert_arr_eq(tensor->dim, sample[i].dim, sizeof sample[i].dim);
        cr_assert_eq(safetensors_read(file, tensor, 0, (size_t)tensor->bytes, numbers), OK);
        for (int b = 0; b < tensor->bytes; b++, at++)
            cr_assert_eq(numbers[b], (unsigned char)(7 * at + 1), "%s, byte %d", tensor->name, b);
    }
    cr_assert_eq(at, SAMPLE_BYTES);
    float middle[2];
    unsigned char expected[8];
    for (int i = 0; i < 8; i++)
        expected[i] = (unsigned char)(7 * (20 + 12 + i) + 1);
    cr_assert_eq(safetensors_read(file, safetensors_find(file, "layers.0.mlp.fc1.weight"), 12, 8, middle),
                 OK);
    cr_assert_arr_eq((unsigned char *)middle, expected, 8);
    safetensors_close(file);
    leave(folder);
}

Test(safetensors, header_order_may_differ_from_data_order)
{
    char folder[32];
    enter(folder);
    write_header("a",
                 "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}   ",
                 8);
    struct safetensors *file = NULL;
    cr_assert_eq(safetensors_open("a", &file), OK, "%s", fail_text());
    cr_assert_str_eq(safetensors_at(file, 0)->name, "a");
    cr_assert_str_eq(safetensors_at(file, 1)->name, "b");
    safetensors_close(file);
    leave(folder);
}

/* ---- rejected files ---- */

#define TENSOR(name, shape, from, to) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static const struct {
    const char *header;
    size_t numbers;
    const char *error;
} refused[] = {
    {"", 0, "byte 8: the header is not JSON: corrupt, or not a safetensors file"},
    {"{", 0, "byte 9: the header is not JSON"},
    {"[]", 0, "the header is not an object"},
    {"{} x", 0, "the header is not JSON"},
    {"{\"a\":1}", 0, "the entry of a is not an object"},
    {"{\"__metadata__\":3}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "a value of __metadata__ is not text"},
    {"{\"a b\":{}}", 0, "entry 1 of the header: a name is 1 to 255 printable characters"},
    {"{\"\":{}}", 0, "entry 1 of the header: a name is 1 to 255 printable characters"},
    {"{\"a\\n\":{}}", 0, "entry 1 of the header: a name is"},
    {"{\"a\\u0000\":{}}", 0, "the header is not JSON"},
    {"{\"a\":{}}", 0, "tensor a has no dtype"},
    {"{\"a\":{\"dtype\":\"F33\"}}", 0, "tensor a has the unknown dtype \"F33\"; known are F32, F64, F16, "},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor a needs a shape of at most 8 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}}", 0, "tensor a needs a shape of at most 8"},
    {"{" TENSOR("a", "[-1]", 0, 0) "}", 0, "dimension 0 of tensor a is not a size that fits"},
    {"{" TENSOR("a", "[1,2.0]", 0, 8) "}", 8, "dimension 1 of tensor a is not a size that fits"},
    {"{" TENSOR("a", "[4611686018427387904]", 0, 0) "}", 0,
     "dimension 0 of tensor a is not a size that fits"},
    {"{" TENSOR("a", "[4294967296,4294967296]", 0, 0) "}", 0, "dimension 1 of tensor a is not a size"},
    {"{" TENSOR("a", "[99999999999999999999]", 0, 0) "}", 0, "the header is not JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
     "tensor a needs data_offsets [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "tensor a needs data_offsets"},
    {"{" TENSOR("a", "[1]", -4, 0) "}", 4, "tensor a occupies bytes -4 to 0 of 4"},
    {"{" TENSOR("a", "[1]", 4, 0) "}", 4, "tensor a occupies bytes 4 to 0 of 4"},
    {"{" TENSOR("a", "[2]", 0, 8) "}", 7,
     "tensor a occupies bytes 0 to 8 of 7: the file is truncated or corrupt"},
    {"{" TENSOR("a", "[2]", 0, 4) "}", 4, "tensor a has 4 bytes, but its shape needs 8: corrupt"},
    {"{" TENSOR("a", "[1]", 0, 4) "," TENSOR("a", "[1]", 4, 8) "}", 8, "duplicate name in the header"},
    {"{" TENSOR("a", "[2]", 0, 8) "," TENSOR("b", "[2]", 4, 12) "}", 12,
     "tensor b begins at byte 4, but the previous one ended at 8: corrupt"},
    {"{" TENSOR("a", "[1]", 0, 4) "," TENSOR("b", "[1]", 8, 12) "}", 12,
     "tensor b begins at byte 8, but the previous one ended at 4: corrupt"},
    {"{" TENSOR("a", "[1]", 0, 4) "}", 5, "the tensors end at byte 4, but the file has 5 bytes: corrupt"},
    {"{}", 1, "the tensors end at byte 0, but the file has 1 bytes: corrupt"},
};

Test(safetensors, invalid_headers_are_rejected_with_the_reason)
{
    char folder[32];
    enter(folder);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct safetensors *file = NULL;
        write_header("a.st", refused[i].header, refused[i].numbers);
        cr_expect_eq(safetensors_open("a.st", &file), BAD_CHECKPOINT, "%s", refused[i].header);
        cr_expect_not_null(strstr(fail_text(), refused[i].error), "%s\n  got      %s\n  expected %s",
                           refused[i].header, fail_text(), refused[i].error);
        cr_expect_eq(strncmp(fail_text(), "a.st", 4), 0);
        cr_expect_null(strchr(fail_text(), '\n'));
    }
    leave(folder);
}

Test(safetensors, lengths_are_checked_against_the_file)
{
    char folder[32];
    enter(folder);
    const uint64_t lengths[] = {17, 1U << 20, 100000001, (uint64_t)1 << 40, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[24] = {0};
        struct safetensors *file = NULL;
        memcpy(bytes, &lengths[i], 8);
        write_file("a", bytes, sizeof bytes);
        cr_expect_eq(safetensors_open("a", &file), BAD_CHECKPOINT);
        cr_expect_not_null(strstr(fail_text(), "in a file of 24: truncated, corrupt"), "%s", fail_text());
    }
    leave(folder);
}

Test(safetensors, non_regular_files_are_named_errors)
{
    char folder[32];
    enter(folder);
    struct safetensors *file = NULL;
    cr_expect_eq(safetensors_open("none", &file), IO_ERROR);
    cr_expect_str_eq(fail_text(), "none: No such file or directory");
    cr_expect_eq(safetensors_open(".", &file), IO_ERROR);
    cr_expect_str_eq(fail_text(), ".: not a regular file");
    cr_assert_eq(mkfifo("pipe", 0600), 0);
    cr_expect_eq(safetensors_open("pipe", &file), IO_ERROR);
    cr_expect_str_eq(fail_text(), "pipe: not a regular file");
    leave(folder);
}

Test(safetensors, truncation_while_reading_is_an_error)
{
    char folder[32];
    enter(folder);
    struct safetensors *file = NULL;
    float numbers[5];
    write_sample("a");
    cr_assert_eq(safetensors_open("a", &file), OK);
    cr_assert_eq(truncate("a", safetensors_file_bytes(file) - SAMPLE_BYTES + 8), 0);
    cr_expect_eq(safetensors_read(file, safetensors_at(file, 0), 0, sizeof numbers, numbers), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(), "a: the file was truncated while it was read");
    safetensors_close(file);
    leave(folder);
}

/* Rejected, or read completely. Returns true if it opened. */
static bool open_and_read(const char *path)
{
    struct safetensors *file = NULL;
    enum status status = safetensors_open(path, &file);
    if (status != OK) {
        cr_assert(status == BAD_CHECKPOINT && strchr(fail_text(), '\n') == NULL);
        return false;
    }
    for (int i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_tensor *tensor = safetensors_at(file, i);
        unsigned char numbers[SAMPLE_BYTES];
        cr_assert(tensor->bytes <= SAMPLE_BYTES);
        cr_assert_eq(safetensors_read(file, tensor, 0, (size_t)tensor->bytes, numbers), OK);
    }
    safetensors_close(file);
    return true;
}

Test(safetensors, survives_corrupt_bytes_and_truncation)
{
    char folder[32];
    enter(folder);
    write_sample("good");
    struct text good = {0};
    cr_assert_eq(file_read("good", &good), OK);
    size_t header = good.length - SAMPLE_BYTES;
    long opened = 0, tried = 0;
    int file = open("changed", O_RDWR | O_CREAT, 0666);
    cr_assert_eq(write(file, good.chars, good.length), (ssize_t)good.length);
    for (size_t at = 0; at < header; at++) {
        const char others[] = {0, '"', '{', '}', '[', ',', ':', '0', '9', '-', ' ', 'a', (char)0xff};
        for (size_t i = 0; i < 8 + sizeof others; i++, tried++) {
            char byte = i < 8 ? (char)(good.chars[at] ^ (1 << i)) : others[i - 8];
            cr_assert_eq(pwrite(file, &byte, 1, (off_t)at), 1);
            opened += open_and_read("changed");
        }
        cr_assert_eq(pwrite(file, good.chars + at, 1, (off_t)at), 1);
    }
    cr_assert(open_and_read("changed"));
    // Names, metadata and padding may change and leave a valid file; most other bytes may not.
    cr_assert(opened > 0 && opened < tried, "%ld of %ld", opened, tried);
    for (size_t length = 0; length < good.length; length++) {
        cr_assert_eq(ftruncate(file, 0), 0);
        cr_assert_eq(pwrite(file, good.chars, length, 0), (ssize_t)length);
        cr_assert_not(open_and_read("changed"), "cut to %zu bytes", length);
    }
    close(file);
    text_free(&good);
    leave(folder);
}

/* ---- writes that fail ---- */

Test(safetensors, a_full_disk_leaves_no_files)
{
    char folder[32];
    enter(folder);
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 700; // within the header; within the data
    setrlimit(RLIMIT_FSIZE, &limit);
    const struct safetensors_tensor large = {.name = "a", .dtype = SAFETENSORS_F32, .ndim = 1, .dim = {200}};
    float numbers[200] = {0};
    struct safetensors_writer *writer = NULL;
    cr_assert_eq(safetensors_create("a.st", &large, 1, 0, &writer), OK);
    cr_expect_eq(safetensors_append(writer, numbers, sizeof numbers), IO_ERROR);
    cr_expect_str_eq(fail_text(), "a.st: File too large");
    safetensors_writer_destroy(writer);
    cr_expect_eq(files_here(false), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);

    cr_expect_eq(safetensors_create("no/a.st", &large, 1, 0, &writer), IO_ERROR);
    cr_expect_str_eq(fail_text(), "no/a.st: No such file or directory");

    // An existing file of this name is kept until the new one is complete.
    write_sample("a.st");
    cr_assert_eq(safetensors_create("a.st", &large, 1, 0, &writer), OK);
    cr_assert_eq(safetensors_append(writer, numbers, 100), OK);
    safetensors_writer_destroy(writer);
    cr_expect(open_and_read("a.st"));
    cr_expect_eq(files_here(false), 1);
    leave(folder);
}

/* ---- checksums ---- */

/* The output of `xxhsum -H3` for the same bytes: none, a few, more than one stripe, more than one block. */
Test(checksum, is_xxh3)
{
    unsigned char bytes[5000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31 % 251);
    cr_expect_eq(checksum_of("", 0), 0x2d06800538d394c2U);
    cr_expect_eq(checksum_of("cuboid", 6), 0x7918a3f665d30aeeU);
    cr_expect_eq(checksum_of(bytes, 200), 0xc06367d405bdc71dU);
    cr_expect_eq(checksum_of(bytes, sizeof bytes), 0xa092d73116291201U);
}
