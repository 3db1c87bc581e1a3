// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/dataset.h"
#include "trainer/data/dataset_mask.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/files/checksum.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DOCUMENTS = 42, MOST = 100, HEADER = 56 };

struct fixture {
    char folder[32];
    struct text a, mask; // prefix, and the path of its mask
};

static int length_of(int document)
{
    return document * 37 % MOST;
}

static bool counts_at(int document, int i)
{
    return (document * 31 + i * i) % 3 == 0;
}

/* Writes the documents; ids begin with `first`, so that datasets differ in their ids only. `rotated`: all ids
 * are equal, and the documents are in another order, so that only the index differs. */
static void write_dataset(const char *prefix, int first, int rotated, bool masked)
{
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create(prefix, 1000, &w), OK, "%s", fail_text());
    if (masked)
        cr_assert_eq(dataset_writer_with_mask(w, "chatml"), OK, "%s", fail_text());
    for (int d = 0; d < DOCUMENTS; d++) {
        int document = (d + rotated) % DOCUMENTS;
        int32_t ids[MOST];
        uint8_t counts[MOST];
        for (int i = 0; i < length_of(document); i++) {
            ids[i] = rotated > 0 ? 5 : (first + i) % 1000;
            counts[i] = counts_at(document, i);
        }
        cr_assert_eq(masked ? dataset_writer_add_masked(w, ids, counts, length_of(document))
                            : dataset_writer_add(w, ids, length_of(document)),
                     OK);
        cr_assert_eq(dataset_writer_end_document(w), OK);
    }
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
}

static struct fixture fixture_make(void)
{
    struct fixture f = {.folder = "/tmp/cuboid-mask-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    text_add(&f.a, "%s/a", f.folder);
    text_add(&f.mask, "%s/a.mask", f.folder);
    write_dataset(f.a.chars, 7, 0, true);
    return f;
}

static void fixture_free(struct fixture *f)
{
    static const char *const endings[] = {"bin", "idx", "mask"};
    for (int e = 0; e < 3; e++) {
        struct text path = {0};
        text_add(&path, "%s.%s", f->a.chars, endings[e]);
        remove(path.chars);
        text_free(&path);
    }
    cr_assert_eq(rmdir(f->folder), 0);
    text_free(&f->a);
    text_free(&f->mask);
}

static enum status open_with_mask(const char *prefix, struct dataset **out)
{
    cr_assert_eq(dataset_open(prefix, out), OK, "%s", fail_text());
    return dataset_open_mask(*out);
}

Test(dataset_mask, what_is_written_is_read)
{
    struct fixture f = fixture_make();
    struct dataset *d = NULL;
    int64_t counted = 0;
    cr_assert_eq(open_with_mask(f.a.chars, &d), OK, "%s", fail_text());
    cr_assert(dataset_has_mask(d));
    for (int document = 0; document < DOCUMENTS; document++)
        for (int begin = 0; begin <= length_of(document); begin += 1 + document % 5) {
            uint8_t counts[MOST + 1];
            int count = length_of(document) - begin;
            memset(counts, 9, sizeof counts);
            cr_assert_eq(dataset_read_mask(d, document, begin, count, counts), OK, "%s", fail_text());
            for (int i = 0; i < count; i++) {
                cr_assert_eq(counts[i], counts_at(document, begin + i));
                counted += begin == 0 && counts[i];
            }
            cr_assert_eq(counts[count], 9);
        }
    cr_assert_eq(dataset_counted_tokens(d), counted);
    dataset_close(d);
    fixture_free(&f);
}

/* Without an open mask all tokens count. */
Test(dataset_mask, a_dataset_without_one_replaces_it)
{
    struct fixture f = fixture_make();
    struct dataset *d = NULL;
    uint8_t counts[3] = {0, 0, 0};
    write_dataset(f.a.chars, 7, 0, false);
    cr_assert_neq(access(f.mask.chars, F_OK), 0);
    cr_assert_eq(open_with_mask(f.a.chars, &d), IO_ERROR);
    cr_assert(strstr(fail_text(), "a.mask: No such file") != NULL && strstr(fail_text(), "prepare") != NULL);
    cr_assert_not(dataset_has_mask(d));
    cr_assert_eq(dataset_read_mask(d, 1, 0, 3, counts), OK);
    cr_assert(counts[0] == 1 && counts[1] == 1 && counts[2] == 1);
    dataset_close(d);
    fixture_free(&f);
}

static void expect_refused(const struct fixture *f, const char *words)
{
    struct dataset *d = NULL;
    cr_assert_eq(open_with_mask(f->a.chars, &d), BAD_DATA);
    cr_assert(strstr(fail_text(), "a.mask") != NULL && strstr(fail_text(), words) != NULL, "%s", fail_text());
    dataset_close(d);
}

/* The mask of another dataset: other ids, another index, another number of tokens. */
Test(dataset_mask, that_of_another_dataset_is_refused)
{
    struct fixture f = fixture_make();
    struct text own = {0}, other = {0};
    cr_assert_eq(file_read(f.mask.chars, &own), OK);
    write_dataset(f.a.chars, 8, 0, true);
    cr_assert_eq(file_write_atomic(f.mask.chars, own.chars, own.length), OK);
    expect_refused(&f, "byte 40: checksum");
    expect_refused(&f, "belongs to another dataset");

    write_dataset(f.a.chars, 0, 1, true);
    cr_assert_eq(file_read(f.mask.chars, &other), OK);
    write_dataset(f.a.chars, 0, 2, true); // the same ids, other documents
    cr_assert_eq(file_write_atomic(f.mask.chars, other.chars, other.length), OK);
    expect_refused(&f, "byte 32: checksum");

    own.chars[16]++;
    cr_assert_eq(file_write_atomic(f.mask.chars, own.chars, own.length), OK);
    expect_refused(&f, "but the dataset has");
    text_free(&own);
    text_free(&other);
    fixture_free(&f);
}

/* Each byte is changed, and the file is cut at each length. */
Test(dataset_mask, every_damage_is_found)
{
    struct fixture f = fixture_make();
    struct text file = {0};
    cr_assert_eq(file_read(f.mask.chars, &file), OK);
    for (size_t i = 0; i < file.length; i += i < 80 ? 1 : 11) {
        struct dataset *d = NULL;
        file.chars[i] ^= 4;
        cr_assert_eq(file_write_atomic(f.mask.chars, file.chars, file.length), OK);
        cr_assert_eq(open_with_mask(f.a.chars, &d), BAD_DATA, "byte %zu", i);
        dataset_close(d);
        file.chars[i] ^= 4;
    }
    for (size_t length = 0; length < file.length; length += length < 60 ? 7 : 50) {
        struct dataset *d = NULL;
        cr_assert_eq(file_write_atomic(f.mask.chars, file.chars, length), OK);
        cr_assert_eq(open_with_mask(f.a.chars, &d), BAD_DATA, "%zu bytes", length);
        dataset_close(d);
    }
    text_free(&file);
    fixture_free(&f);
}

/* A file whose checksum is right but whose content is not. */
Test(dataset_mask, counts_and_bits_agree)
{
    struct fixture f = fixture_make();
    struct text file = {0};
    cr_assert_eq(file_read(f.mask.chars, &file), OK);
    file.chars[24]++;
    cr_assert_eq(file_write_atomic(f.mask.chars, file.chars, file.length), OK);
    expect_refused(&f, "tokens count, but");
    file.chars[24]--;

    file.chars[file.length - 1] |= (char)0x80;
    uint64_t sum = checksum_of(file.chars + HEADER, file.length - HEADER);
    memcpy(file.chars + 48, &sum, sizeof sum);
    cr_assert_eq(file_write_atomic(f.mask.chars, file.chars, file.length), OK);
    expect_refused(&f, "bits after the last token");
    text_free(&file);
    fixture_free(&f);
}

/* The chat template is recorded; a file of version 1 has none. */
Test(dataset_mask, names_the_chat_template)
{
    enum { NAME_BYTES = 16 };
    struct fixture f = fixture_make();
    struct dataset *d = NULL;
    struct text file = {0}, old = {0};
    cr_assert_eq(open_with_mask(f.a.chars, &d), OK, "%s", fail_text());
    cr_expect_str_eq(dataset_chat_template(d), "chatml");
    dataset_close(d);
    cr_assert_eq(file_read(f.mask.chars, &file), OK);
    text_add_bytes(&old, file.chars, HEADER);
    text_add_bytes(&old, file.chars + HEADER + NAME_BYTES, file.length - HEADER - NAME_BYTES);
    uint64_t sum = checksum_of(old.chars + HEADER, old.length - HEADER);
    memcpy(old.chars + 48, &sum, sizeof sum);
    old.chars[8] = 1;
    cr_assert_eq(file_write_atomic(f.mask.chars, old.chars, old.length), OK);
    cr_assert_eq(open_with_mask(f.a.chars, &d), OK, "%s", fail_text());
    cr_expect_str_eq(dataset_chat_template(d), "");
    dataset_close(d);
    memset(file.chars + HEADER, 'a', NAME_BYTES);
    cr_assert_eq(file_write_atomic(f.mask.chars, file.chars, file.length), OK);
    expect_refused(&f, "byte 71: value 97 is not in the name of a chat template");
    text_free(&file);
    text_free(&old);
    fixture_free(&f);
}

/* More tokens than one read has bits. */
Test(dataset_mask, long_documents)
{
    enum { LENGTH = 100003 };
    struct fixture f = fixture_make();
    int32_t *ids = calloc(LENGTH, sizeof *ids);
    uint8_t *counts = calloc(LENGTH, 1), *read = calloc(LENGTH, 1);
    struct dataset_writer *w = NULL;
    struct dataset *d = NULL;
    for (int i = 0; i < LENGTH; i++)
        counts[i] = counts_at(3, i);
    cr_assert_eq(dataset_writer_create(f.a.chars, 10, &w), OK);
    cr_assert_eq(dataset_writer_with_mask(w, "chatml"), OK);
    cr_assert_eq(dataset_writer_add_masked(w, ids, counts, LENGTH), OK);
    cr_assert_eq(dataset_writer_end_document(w), OK);
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
    cr_assert_eq(open_with_mask(f.a.chars, &d), OK, "%s", fail_text());
    cr_assert_eq(dataset_read_mask(d, 0, 5, LENGTH - 5, read), OK);
    cr_assert_arr_eq(read, counts + 5, LENGTH - 5);
    dataset_close(d);
    free(ids);
    free(counts);
    free(read);
    fixture_free(&f);
}

/* A mask is no dataset: what cannot be opened. */
Test(dataset_mask, other_files)
{
    struct fixture f = fixture_make();
    struct dataset *d = NULL;
    cr_assert_eq(unlink(f.mask.chars), 0);
    cr_assert_eq(mkdir(f.mask.chars, 0777), 0);
    cr_assert_eq(open_with_mask(f.a.chars, &d), IO_ERROR);
    cr_assert(strstr(fail_text(), "not a regular file") != NULL, "%s", fail_text());
    dataset_close(d);
    fixture_free(&f);
}
