// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "trainer/data/dataset.h"
#include "trainer/data/dataset_writer.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Three documents that Megatron-LM wrote as uint16, byte for byte: {5 6 7 50256} {1 50256}
 * {100 200 300 400 500 50256}. Its int32 files differ in the type code, the pointers and the ids. */
static const unsigned char megatron_idx[102] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,  8, 3, 0, 0, 0, 0, 0,
    0,   0,   4,   0,   0,   0,   0,   0, 0, 0, 4, 0, 0, 0, 2, 0, 0,  0, 6, 0, 0, 0,       //
    0,   0,   0,   0,   0,   0,   0,   0, 8, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, //
    0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0, 2,  0, 0, 0, 0, 0, 0, 0,
    3,   0,   0,   0,   0,   0,   0,   0};
static const unsigned char megatron_bin[24] = {5,   0, 6,   0, 7,    0, 0x50, 0xc4, 1,    0, 0x50, 0xc4,
                                               100, 0, 200, 0, 0x2c, 1, 0x90, 1,    0xf4, 1, 0x50, 0xc4};
static const int32_t expected_ids[12] = {5, 6, 7, 50256, 1, 50256, 100, 200, 300, 400, 500, 50256};
static const int64_t expected_starts[4] = {0, 4, 6, 12};

struct fixture {
    char folder[32];
    struct text prefix, bin, idx;
};

static struct fixture fixture_make(void)
{
    struct fixture f = {.folder = "/tmp/cuboid-data-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    text_add(&f.prefix, "%s/tiny", f.folder);
    text_add(&f.bin, "%s.bin", f.prefix.chars);
    text_add(&f.idx, "%s.idx", f.prefix.chars);
    return f;
}

static int files_in(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void fixture_free(struct fixture *f)
{
    unlink(f->bin.chars);
    unlink(f->idx.chars);
    cr_assert_eq(rmdir(f->folder), 0, "files remain in %s", f->folder);
    text_free(&f->prefix);
    text_free(&f->bin);
    text_free(&f->idx);
}

/* In place, without the cost of an atomic write: the fuzz tests write thousands. */
static void write_file(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

static void write_both(const struct fixture *f)
{
    write_file(f->bin.chars, megatron_bin, sizeof megatron_bin);
    write_file(f->idx.chars, megatron_idx, sizeof megatron_idx);
}

static struct dataset *open_both(const struct fixture *f)
{
    struct dataset *d = NULL;
    write_both(f);
    cr_assert_eq(dataset_open(f->prefix.chars, &d), OK, "%s", fail_text());
    return d;
}

/* Opens the dataset, and reads every id if it opens. A failure must name one of the two files. */
static enum status open_and_read(const struct fixture *f)
{
    struct dataset *d = NULL;
    enum status status = dataset_open(f->prefix.chars, &d);
    int64_t total = 0;
    for (int64_t i = 0; status == OK && i < dataset_documents(d); i++) {
        int64_t length = dataset_length(d, i);
        cr_assert(length >= 0 && length <= dataset_tokens(d));
        int32_t *ids = malloc((size_t)length * sizeof *ids + 1);
        status = dataset_read(d, i, 0, length, 50257, ids);
        total += length;
        free(ids);
    }
    if (status == OK)
        cr_assert_eq(total, dataset_tokens(d));
    else
        cr_assert(strstr(fail_text(), f->prefix.chars) != NULL, "\"%s\" names no file", fail_text());
    dataset_close(d);
    return status;
}

static void check_tiny(const char *prefix, const char *type)
{
    struct dataset *d = NULL;
    cr_assert_eq(dataset_open(prefix, &d), OK, "%s", fail_text());
    cr_assert_str_eq(dataset_type_name(d), type);
    cr_assert(dataset_documents(d) == 3 && dataset_sequences(d) == 3 && dataset_tokens(d) == 12);
    for (int64_t i = 0; i < 3; i++) {
        int32_t ids[12];
        int64_t length = expected_starts[i + 1] - expected_starts[i];
        cr_assert_eq(dataset_start(d, i), expected_starts[i]);
        cr_assert_eq(dataset_length(d, i), length);
        for (int64_t begin = 0; begin <= length; begin++) {
            cr_assert_eq(dataset_read(d, i, begin, length - begin, 50257, ids), OK);
            cr_assert_eq(memcmp(ids, expected_ids + expected_starts[i] + begin, (size_t)(length - begin) * 4),
                         0);
        }
    }
    dataset_close(d);
}

Test(dataset, reads_megatrons_files)
{
    struct fixture f = fixture_make();
    write_both(&f);
    check_tiny(f.prefix.chars, "uint16");
    check_tiny(f.bin.chars, "uint16"); // the name of either file is accepted
    check_tiny(f.idx.chars, "uint16");
    fixture_free(&f);
}

Test(dataset, reads_every_type_of_id)
{
    struct fixture f = fixture_make();
    const struct {
        int code;
        size_t bytes;
        const char *name;
    } types[] = {{1, 1, "uint8"}, {2, 1, "int8"},  {3, 2, "int16"},
                 {4, 4, "int32"}, {5, 8, "int64"}, {8, 2, "uint16"}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        unsigned char idx[102], bin[12 * 8] = {0};
        memcpy(idx, megatron_idx, sizeof idx);
        idx[17] = (unsigned char)types[t].code;
        idx[46 + 8] = (unsigned char)(4 * types[t].bytes);
        idx[46 + 16] = (unsigned char)(6 * types[t].bytes);
        for (size_t i = 0; i < 12; i++)
            bin[i * types[t].bytes] = (unsigned char)(i * 10);
        write_file(f.idx.chars, idx, sizeof idx);
        write_file(f.bin.chars, bin, 12 * types[t].bytes);
        struct dataset *d = NULL;
        int32_t ids[6];
        cr_assert_eq(dataset_open(f.prefix.chars, &d), OK, "%s", fail_text());
        cr_assert_str_eq(dataset_type_name(d), types[t].name);
        cr_assert_eq(dataset_read(d, 2, 0, 6, 111, ids), OK);
        for (int i = 0; i < 6; i++)
            cr_assert_eq(ids[i], (i + 6) * 10);
        dataset_close(d);

        // All ones is -1, or too large; in 64 bits, so is 2^32 + 5, whose low half is not.
        unsigned char *last = bin + 11 * types[t].bytes;
        memset(last, 0xFF, types[t].bytes);
        if (types[t].bytes == 8)
            memcpy(last, (const unsigned char[]){5, 0, 0, 0, 1, 0, 0, 0}, 8);
        write_file(f.bin.chars, bin, 12 * types[t].bytes);
        cr_assert_eq(dataset_open(f.prefix.chars, &d), OK, "%s", fail_text());
        cr_assert_eq(dataset_read(d, 2, 0, 6, 111, ids), BAD_DATA);
        cr_assert(strstr(fail_text(), "document 2, position 5") != NULL, "%s", fail_text());
        dataset_close(d);
    }
    fixture_free(&f);
}

/* The same documents as three sequences in two documents, with the modes of a multimodal set. */
Test(dataset, reads_documents_of_several_sequences)
{
    struct fixture f = fixture_make();
    unsigned char idx[97] = {0};
    memcpy(idx, megatron_idx, 70);
    idx[26] = 3;
    idx[70 + 8] = 2;  // documents are sequences 0 and 1, and 2
    idx[70 + 16] = 3; // then three bytes of modes
    write_file(f.idx.chars, idx, sizeof idx);
    write_file(f.bin.chars, megatron_bin, sizeof megatron_bin);
    struct dataset *d = NULL;
    cr_assert_eq(dataset_open(f.prefix.chars, &d), OK, "%s", fail_text());
    cr_assert(dataset_documents(d) == 2 && dataset_sequences(d) == 3);
    cr_assert(dataset_length(d, 0) == 6 && dataset_length(d, 1) == 6);
    int32_t ids[6];
    cr_assert_eq(dataset_read(d, 0, 0, 6, 50257, ids), OK);
    cr_assert_eq(memcmp(ids, expected_ids, sizeof ids), 0);
    dataset_close(d);
    fixture_free(&f);
}

Test(dataset, writes_megatrons_files)
{
    struct fixture f = fixture_make();
    const int64_t vocab_sizes[] = {50257, 65500};
    for (int v = 0; v < 2; v++) {
        struct dataset_writer *w = NULL;
        cr_assert_eq(dataset_writer_create(f.prefix.chars, vocab_sizes[v], &w), OK, "%s", fail_text());
        for (int i = 0; i < 3; i++) {
            int64_t middle = expected_starts[i] + 1; // in two parts
            cr_assert_eq(dataset_writer_add(w, expected_ids + expected_starts[i], 1), OK);
            cr_assert_eq(dataset_writer_add(w, expected_ids + middle, expected_starts[i + 1] - middle), OK);
            cr_assert_eq(dataset_writer_end_document(w), OK);
        }
        cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
        dataset_writer_destroy(w);
        check_tiny(f.prefix.chars, v == 0 ? "uint16" : "int32");
        if (v == 0) {
            struct text back = {0};
            cr_assert_eq(file_read(f.idx.chars, &back), OK);
            cr_assert(back.length == sizeof megatron_idx &&
                      memcmp(back.chars, megatron_idx, back.length) == 0);
            text_free(&back);
            cr_assert_eq(file_read(f.bin.chars, &back), OK);
            cr_assert(back.length == sizeof megatron_bin &&
                      memcmp(back.chars, megatron_bin, back.length) == 0);
            text_free(&back);
        }
    }
    fixture_free(&f);
}

Test(dataset, an_id_outside_the_vocabulary_is_named)
{
    struct fixture f = fixture_make();
    struct dataset *d = open_both(&f);
    int32_t ids[6];
    cr_assert_eq(dataset_read(d, 2, 1, 4, 501, ids), OK);
    cr_assert_eq(dataset_read(d, 2, 1, 4, 500, ids), BAD_DATA);
    cr_assert(strstr(fail_text(), "document 2, position 4: token id 500 ") != NULL, "%s", fail_text());
    dataset_close(d);
    fixture_free(&f);
}

Test(dataset, every_changed_byte_is_rejected_or_read)
{
    struct fixture f = fixture_make();
    write_both(&f);
    int refused = 0, read = 0;
    for (size_t at = 0; at < sizeof megatron_idx; at++)
        for (int change = 0; change < 10; change++) {
            unsigned char idx[sizeof megatron_idx];
            memcpy(idx, megatron_idx, sizeof idx);
            idx[at] = change < 8 ? (unsigned char)(idx[at] ^ 1 << change) : change == 8 ? 0x7F : 0xFF;
            if (idx[at] == megatron_idx[at])
                continue;
            write_file(f.idx.chars, idx, sizeof idx);
            enum status status = open_and_read(&f);
            cr_assert(status == OK || status == BAD_DATA, "byte %zu: %s", at, fail_text());
            // Everything before the boundaries is redundant, except for the sign of a type.
            cr_assert(status != OK || at == 17 || at >= 70, "byte %zu as %d was not detected", at, idx[at]);
            *(status == OK ? &read : &refused) += 1;
        }
    cr_assert(refused > 900 && read > 0, "%d refused, %d read", refused, read);
    fixture_free(&f);
}

Test(dataset, every_truncation_is_rejected)
{
    struct fixture f = fixture_make();
    for (size_t length = 0; length < sizeof megatron_idx; length++) {
        write_both(&f);
        write_file(f.idx.chars, megatron_idx, length);
        cr_assert_eq(open_and_read(&f), BAD_DATA, "index of %zu bytes", length);
    }
    for (size_t length = 0; length < sizeof megatron_bin; length++) {
        write_both(&f);
        write_file(f.bin.chars, megatron_bin, length);
        cr_assert_eq(open_and_read(&f), BAD_DATA, "%zu bytes of ids", length);
    }
    unlink(f.bin.chars);
    cr_assert_eq(open_and_read(&f), IO_ERROR);
    unlink(f.idx.chars);
    cr_assert_eq(open_and_read(&f), IO_ERROR);
    cr_assert(strstr(fail_text(), "No such file") != NULL, "%s", fail_text());
    fixture_free(&f);
}

/* Both files are truncated while they are open, as when another dataset is copied over them. */
Test(dataset, truncation_while_open_fails_the_read)
{
    struct fixture f = fixture_make();
    struct dataset *d = open_both(&f);
    int32_t ids[6];
    cr_assert_eq(truncate(f.bin.chars, 14), 0);
    cr_assert_eq(truncate(f.idx.chars, 0), 0);
    cr_assert_eq(dataset_read(d, 1, 0, 2, 50257, ids), OK);
    cr_assert_eq(dataset_read(d, 2, 0, 6, 50257, ids), IO_ERROR);
    cr_assert(strstr(fail_text(), f.bin.chars) != NULL && strstr(fail_text(), "byte 14") != NULL &&
                  strstr(fail_text(), "had 24 bytes") != NULL,
              "%s", fail_text());
    dataset_close(d);
    fixture_free(&f);
}

Test(dataset, random_bytes_are_rejected)
{
    struct fixture f = fixture_make();
    write_both(&f);
    unsigned seed = 1;
    for (int trial = 0; trial < 2000; trial++) {
        unsigned char idx[sizeof megatron_idx];
        memcpy(idx, megatron_idx, sizeof idx);
        for (int i = 0; i < 4; i++) {
            seed = seed * 1664525U + 1013904223U;
            idx[9 + (seed >> 8) % (sizeof idx - 9)] = (unsigned char)(seed >> 24);
        }
        write_file(f.idx.chars, idx, 40 + (seed >> 4) % 63);
        enum status status = open_and_read(&f);
        cr_assert(status == OK || status == BAD_DATA, "%s", fail_text());
    }
    fixture_free(&f);
}

/* A file size limit simulates the full disk: write() fails half-way, as it would there. */
Test(dataset_writer, a_full_disk_leaves_no_files)
{
    struct fixture f = fixture_make();
    signal(SIGXFSZ, SIG_IGN);
    const int64_t sizes[] = {100, 5000, 100000, 1000000};
    for (int s = 0; s < 4; s++) {
        struct rlimit limit;
        cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
        limit.rlim_cur = 3000;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        struct dataset_writer *w = NULL;
        int32_t ids[100] = {0};
        enum status status = dataset_writer_create(f.prefix.chars, 257, &w);
        for (int64_t i = 0; status == OK && i < sizes[s]; i++) {
            status = dataset_writer_add(w, ids, s == 0 ? 1 : 100);
            if (status == OK)
                status = dataset_writer_end_document(w);
        }
        if (status == OK)
            status = dataset_writer_finish(w);
        dataset_writer_destroy(w);
        limit.rlim_cur = limit.rlim_max;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        if (s == 0) { // 100 documents of one id: 200 bytes and an index of 2042
            cr_assert_eq(status, OK, "%s", fail_text());
            cr_assert_eq(files_in(f.folder), 2);
            unlink(f.bin.chars);
            unlink(f.idx.chars);
            continue;
        }
        cr_assert_eq(status, IO_ERROR);
        cr_assert(strstr(fail_text(), f.prefix.chars) != NULL, "%s", fail_text());
        cr_assert_eq(files_in(f.folder), 0);
    }
    fixture_free(&f);
}

Test(dataset_writer, rejections_leave_no_files)
{
    struct fixture f = fixture_make();
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create("", 257, &w), BAD_USAGE);
    cr_assert_eq(dataset_writer_create(f.bin.chars, 257, &w), OK);
    dataset_writer_destroy(w); // never finished

    cr_assert_eq(dataset_writer_create(f.prefix.chars, 257, &w), OK);
    cr_assert_eq(dataset_writer_end_document(w), OK);
    cr_assert_eq(dataset_writer_finish(w), BAD_DATA); // one document, without an id
    const int32_t wrong[2] = {256, 257};
    cr_assert_eq(dataset_writer_add(w, wrong, 2), BAD_ARGUMENT);
    dataset_writer_destroy(w);
    cr_assert_eq(files_in(f.folder), 0);

    cr_assert_eq(dataset_writer_create("/proc/nowhere/x", 257, &w), IO_ERROR);
    fixture_free(&f);
}
