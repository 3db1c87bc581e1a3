// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_fingerprint.h"
#include "trainer/data/dataset.h"
#include "trainer/data/dataset_blocks.h"
#include "trainer/data/dataset_writer.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    char folder[32];
    struct text prefix, bin, record;
    int masked; // every masked-th token counts in the loss; 0: no loss mask
};

static void write_dataset(const struct fixture *f, int documents, int length, int32_t id)
{
    struct dataset_writer *w = NULL;
    int32_t *ids = calloc((size_t)length, sizeof *ids);
    for (int i = 0; i < length; i++)
        ids[i] = id + i % 100;
    uint8_t *counts = calloc((size_t)length, sizeof *counts);
    for (int i = 0; f->masked > 0 && i < length; i += f->masked)
        counts[i] = 1;
    cr_assert_eq(dataset_writer_create(f->prefix.chars, 257, &w), OK, "%s", fail_text());
    cr_assert(f->masked == 0 || dataset_writer_with_mask(w, "chatml") == OK);
    for (int i = 0; i < documents; i++) {
        cr_assert_eq(f->masked > 0 ? dataset_writer_add_masked(w, ids, counts, length)
                                   : dataset_writer_add(w, ids, length),
                     OK);
        cr_assert_eq(dataset_writer_end_document(w), OK);
    }
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
    free(counts);
    free(ids);
}

static struct fixture fixture_make(void)
{
    struct fixture f = {.folder = "/tmp/cuboid-print-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    text_add(&f.prefix, "%s/set", f.folder);
    text_add(&f.bin, "%s.bin", f.prefix.chars);
    text_add(&f.record, "%s/data.json", f.folder);
    return f;
}

static struct data *open_data(const struct fixture *f)
{
    struct data *data = NULL;
    struct data_source_config source = {f->prefix.chars, 1.0};
    struct data_config config = {.train = &source,
                                 .train_count = 1,
                                 .split = "100,0,0",
                                 .seq_length = 8,
                                 .vocab_size = 257,
                                 .end_of_document = -1,
                                 .loss_mask = f->masked > 0};
    cr_assert_eq(data_open(&config, &data), OK, "%s", fail_text());
    return data;
}

static void record(const struct fixture *f)
{
    const struct text *text = NULL;
    struct data *data = open_data(f);
    cr_assert_eq(data_fingerprint(data, &text), OK);
    cr_assert_eq(file_write_atomic(f->record.chars, text->chars, text->length), OK);
    data_close(data);
}

/* The reported difference; the caller frees the text. */
static struct text changes_of(const struct fixture *f, bool *is_recorded)
{
    struct text changes = {0};
    struct data *data = open_data(f);
    cr_assert_eq(data_fingerprint_compare(data, f->folder, NULL, is_recorded, &changes), OK, "%s",
                 fail_text());
    cr_assert_eq(data_fingerprint_check(data, f->folder, NULL, true), changes.length > 0 ? BAD_DATA : OK);
    cr_assert(changes.length == 0 || strstr(fail_text(), "data.strict") != NULL, "%s", fail_text());
    cr_assert(changes.length == 0 || (strstr(fail_text(), "the data changed") != NULL) == *is_recorded, "%s",
              fail_text());
    data_close(data);
    return changes;
}

static void expect_changes(const struct fixture *f, const char *expected)
{
    bool is_recorded;
    struct text changes = changes_of(f, &is_recorded);
    cr_assert(is_recorded, "%s", text_chars(&changes));
    cr_assert(strstr(text_chars(&changes), expected) != NULL && (*expected != 0 || changes.length == 0),
              "\"%s\" lacks \"%s\"", text_chars(&changes), expected);
    text_free(&changes);
}

static void expect_no_record(const struct fixture *f, const char *why)
{
    bool is_recorded;
    struct text changes = changes_of(f, &is_recorded);
    cr_assert(!is_recorded && strstr(text_chars(&changes), why) != NULL, "%s", text_chars(&changes));
    text_free(&changes);
}

/* Changes one byte of the file in place: name, size and index stay the same. */
static void change_byte(const char *path, off_t at)
{
    char byte;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    cr_assert(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

static void fixture_free(struct fixture *f)
{
    struct text idx = {0}, mask = {0};
    text_add(&idx, "%s.idx", f->prefix.chars);
    text_add(&mask, "%s.mask", f->prefix.chars);
    unlink(idx.chars);
    unlink(mask.chars);
    text_free(&mask);
    unlink(f->bin.chars);
    unlink(f->record.chars);
    cr_assert_eq(rmdir(f->folder), 0, "files remain in %s", f->folder);
    text_free(&idx);
    text_free(&f->prefix);
    text_free(&f->bin);
    text_free(&f->record);
}

Test(data_fingerprint, covers_every_byte_of_a_small_dataset)
{
    struct fixture f = fixture_make();
    write_dataset(&f, 3, 20, 0);
    record(&f);
    expect_changes(&f, "");
    for (off_t at = 0; at < 3 * 20 * 2; at++) {
        change_byte(f.bin.chars, at & ~(off_t)1);
        expect_changes(&f, "token ids differ in 1 of 1 sampled blocks, first in the one at byte 0");
        change_byte(f.bin.chars, at & ~(off_t)1);
    }
    expect_changes(&f, "");
    fixture_free(&f);
}

Test(data_fingerprint, a_replaced_dataset_is_described)
{
    struct fixture f = fixture_make();
    write_dataset(&f, 3, 20, 0);
    record(&f);
    write_dataset(&f, 4, 20, 0);
    expect_changes(&f, "documents changed from 3 to 4");
    expect_changes(&f, "data.train source 1 (");
    write_dataset(&f, 3, 21, 0);
    expect_changes(&f, "tokens changed from 60 to 63");
    write_dataset(&f, 3, 20, 0);
    expect_changes(&f, "");
    fixture_free(&f);
}

/* Without a record nothing can be compared: a warning, or an error with data.strict. Neither says that the
 * data changed. */
/* The same tokens, of which others count. A mask that is added or removed is a change of data.loss_mask. */
Test(data_fingerprint, another_loss_mask_is_a_change)
{
    struct fixture f = fixture_make();
    f.masked = 3;
    write_dataset(&f, 3, 20, 0);
    record(&f);
    expect_changes(&f, "");
    f.masked = 4;
    write_dataset(&f, 3, 20, 0);
    expect_changes(&f, "the loss mask differs");
    f.masked = 0;
    write_dataset(&f, 3, 20, 0);
    expect_changes(&f, "");
    fixture_free(&f);
}

Test(data_fingerprint, a_missing_or_damaged_record_is_reported_as_such)
{
    struct fixture f = fixture_make();
    write_dataset(&f, 3, 20, 0);
    expect_no_record(&f, "No such file");
    record(&f);
    cr_assert_eq(file_write_atomic(f.record.chars, "{\"format\": 1", 12), OK);
    expect_no_record(&f, "not a dataset record of version 1");
    fixture_free(&f);
}

/* 40 MiB: blocks are sampled, including the first and the last, and a change in any sampled block is
 * detected. */
Test(data_fingerprint, a_large_dataset_is_sampled)
{
    enum { DOCUMENTS = 20, LENGTH = 1 << 20 };
    struct fixture f = fixture_make();
    write_dataset(&f, DOCUMENTS, LENGTH, 0);
    record(&f);
    const off_t size = (off_t)DOCUMENTS * LENGTH * 2, places[] = {0, size - 2};
    struct text file = {0};
    cr_assert_eq(file_read(f.record.chars, &file), OK);
    int blocks = 0;
    for (const char *at = file.chars; (at = strstr(at, "\"at\"")) != NULL; at++)
        blocks++;
    text_free(&file);
    cr_assert_eq(blocks, DATASET_BLOCKS);
    for (int i = 0; i < 2; i++) {
        change_byte(f.bin.chars, places[i]);
        expect_changes(&f, "token ids differ in 1 of 64 sampled blocks");
        change_byte(f.bin.chars, places[i]);
    }
    fixture_free(&f);
}
