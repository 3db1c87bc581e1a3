// SPDX-License-Identifier: Apache-2.0
/* Loss masks and packed documents. */
#include "base/text.h"
#include "trainer/data/data.h"
#include "trainer/data/data_part.h"
#include "trainer/data/dataset_writer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    char folder[32], prefix[40];
    struct data_source_config source;
    struct data_config config;
};

/* Writes documents whose ids are the given digits; '!' after a digit: this token counts in the loss. */
static void write_masked(const char *prefix, const char *const *documents, int count)
{
    struct dataset_writer *w = NULL;
    cr_assert_eq(dataset_writer_create(prefix, 10, &w), OK);
    cr_assert_eq(dataset_writer_with_mask(w, "chatml"), OK);
    for (int d = 0; d < count; d++) {
        for (const char *c = documents[d]; *c != 0; c++) {
            const int32_t id = *c - '0';
            const uint8_t counts = c[1] == '!';
            cr_assert_eq(dataset_writer_add_masked(w, &id, &counts, 1), OK);
            c += counts;
        }
        cr_assert_eq(dataset_writer_end_document(w), OK);
    }
    cr_assert_eq(dataset_writer_finish(w), OK, "%s", fail_text());
    dataset_writer_destroy(w);
}

static void fixture_make(struct fixture *f, const char *const *documents, int count, int64_t seq_length)
{
    snprintf(f->folder, sizeof f->folder, "/tmp/cuboid-masked-XXXXXX");
    cr_assert_not_null(mkdtemp(f->folder));
    snprintf(f->prefix, sizeof f->prefix, "%s/a", f->folder);
    write_masked(f->prefix, documents, count);
    f->source = (struct data_source_config){f->prefix, 1.0};
    f->config = (struct data_config){.train = &f->source,
                                     .train_count = 1,
                                     .split = "100,0,0",
                                     .seed = 1234,
                                     .seq_length = seq_length,
                                     .vocab_size = 10,
                                     .end_of_document = 9,
                                     .loss_mask = true};
}

static void fixture_free(struct fixture *f)
{
    static const char *const endings[] = {"bin", "idx", "mask"};
    for (int e = 0; e < 3; e++) {
        char path[48];
        snprintf(path, sizeof path, "%s.%s", f->prefix, endings[e]);
        unlink(path);
    }
    cr_assert_eq(rmdir(f->folder), 0);
}

static struct data *open_data(const struct fixture *f)
{
    struct data *data = NULL;
    cr_assert_eq(data_open(&f->config, &data), OK, "%s", fail_text());
    return data;
}

/* Packs of S 8 by hand: [document 1] and [document 0, document 2, padding]. 9, the end of a document, ends
 * none. */
Test(data_documents, packed_documents_and_loss_masks_by_hand)
{
    static const char *const documents[] = {"1239!4!", "15678!76!", "3!4!"};
    static const int32_t tokens[2][8] = {{1, 5, 6, 7, 8, 7, 6, 0}, {1, 2, 3, 9, 4, 3, 4, 0}};
    static const int32_t labels[2][8] = {{5, 6, 7, 8, 7, 6, 0, 0}, {2, 3, 9, 4, 3, 4, 0, 0}};
    static const int32_t positions[2][8] = {{0, 1, 2, 3, 4, 5, 6, 0}, {0, 1, 2, 3, 4, 0, 1, 0}};
    static const int32_t owners[2][8] = {{0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 1, 1, 2}};
    static const float masks[2][8] = {{0, 0, 0, 1, 0, 1, 0, 0}, {0, 0, 1, 1, 0, 1, 0, 0}};
    struct fixture f;
    fixture_make(&f, documents, 3, 8);
    f.config.pack_documents = true;
    f.config.reset_position_ids = f.config.reset_attention_mask = true;
    struct data *data = open_data(&f);
    struct batch_tokens batch;
    struct text description = {0}, warning = {0};
    batch = batch_create(1, 8);
    cr_assert_eq(data_epoch_samples(data, DATA_TRAIN), 2);
    int seen[2] = {0, 0};
    for (uint64_t step = 0; step < 8; step++) {
        cr_assert_eq(data_batch(data, DATA_TRAIN, &(struct batch_coord){step, 1, 1, 1, 0, 0, 0}, &batch), OK);
        int k = batch.tokens[1] == 5 ? 0 : 1;
        seen[k]++;
        cr_assert_arr_eq(batch.tokens, tokens[k], sizeof tokens[k]);
        cr_assert_arr_eq(batch.labels, labels[k], sizeof labels[k]);
        cr_assert_arr_eq(batch.positions, positions[k], sizeof positions[k]);
        cr_assert_arr_eq(batch.documents, owners[k], sizeof owners[k]);
        cr_assert_arr_eq(batch.loss_mask, masks[k], sizeof masks[k]);
    }
    cr_assert(seen[0] == 4 && seen[1] == 4);
    data_describe(data, &(struct data_use){.samples = 10, .steps = 5, .batch = 2}, &description, &warning);
    cr_assert(strstr(description.chars,
                     "; 5 steps of 2 read 5 epochs; 35.7 % of the packed tokens count in the loss; "
                     "samples are 87.5 % full\n") != NULL,
              "%s", description.chars);
    cr_assert(strstr(warning.chars, "train.train_iters 5 makes 5 epochs of ") != NULL &&
                  strstr(warning.chars, "use more text, or train.train_iters=4") != NULL,
              "%s", warning.chars);
    text_free(&description);
    text_free(&warning);
    data_close(data);
    batch_free(&batch);
    fixture_free(&f);
}

/* Without packing the mask selects labels, too, and end-of-document ids separate documents. */
Test(data_documents, loss_masks_of_a_stream_of_documents)
{
    static const char *const documents[] = {"12!39!4!5"};
    struct fixture f;
    fixture_make(&f, documents, 1, 5);
    struct batch_tokens batch;
    batch = batch_create(1, 5);
    for (int masks_ends = 0; masks_ends < 2; masks_ends++) {
        const float mask[5] = {1, 0, 1, masks_ends ? 0 : 1, 0}; // the labels 2 and 9, and 4 after an end
        f.config.eod_mask_loss = masks_ends;
        struct data *data = open_data(&f);
        cr_assert_eq(data_batch(data, DATA_TRAIN, &(struct batch_coord){0, 1, 1, 1, 0, 0, 0}, &batch), OK);
        cr_assert_arr_eq(batch.loss_mask, mask, sizeof mask);
        data_close(data);
    }
    batch_free(&batch);
    fixture_free(&f);
}

Test(data_documents, long_documents_are_refused_or_cut)
{
    static const char *const documents[] = {"12!3!4!5!6!", "12!", "7654321!", "12"};
    struct fixture f;
    fixture_make(&f, documents, 4, 4);
    struct data *data = NULL;
    int32_t tokens[5];
    uint8_t marks[5];
    f.config.pack_documents = true;
    cr_assert_eq(data_open(&f.config, &data), BAD_RECIPE);
    cr_assert(
        strstr(fail_text(),
               ": 2 of 4 documents are longer than model.seq_length 4, the longest, document 2, has 7 "
               "tokens; use model.seq_length=7, or data.truncate_documents=true, which drops 5 tokens") !=
            NULL,
        "%s", fail_text());
    f.config.truncate_documents = true;
    data = open_data(&f);
    cr_assert_eq(data_epoch_samples(data, DATA_TRAIN), 3);
    for (uint64_t i = 0; i < 3; i++) {
        cr_assert_eq(data_sample(data, DATA_TRAIN, i, tokens, marks), OK);
        cr_assert_eq(tokens[4], 0);
        cr_assert_eq(marks[0], MARK_BEGINS);
        if (tokens[2] == 3)
            cr_assert(tokens[3] == 4 && marks[3] == MARK_COUNTS && marks[4] == MARK_BEGINS);
    }
    data_close(data);
    f.config.seq_length = 7;
    f.config.truncate_documents = false;
    data_close(open_data(&f));
    fixture_free(&f);
}

/* Truncation removes the answers: the share is of the remaining tokens, and a share of 0 is an error. The
 * first token of a document is no label, and empty documents have none. */
Test(data_documents, packs_in_which_no_token_counts_are_refused)
{
    static const char *const documents[] = {"1!234!5!", "", "1!2345678!", ""};
    struct fixture f;
    fixture_make(&f, documents, 4, 4);
    struct data *data = NULL;
    struct text description = {0}, warning = {0};
    f.config.pack_documents = f.config.truncate_documents = true;
    data = open_data(&f);
    data_describe(data, &(struct data_use){.samples = 1, .steps = 1, .batch = 1}, &description, &warning);
    cr_assert_not_null(strstr(description.chars, "; 12.5 % of the packed tokens count in the loss"), "%s",
                       description.chars);
    cr_assert_eq(warning.length, 0);
    text_free(&description);
    data_close(data);
    data = NULL;
    f.config.seq_length = 3;
    cr_assert_eq(data_open(&f.config, &data), BAD_RECIPE);
    cr_assert_not_null(strstr(fail_text(), "no token for train counts in the loss, because "
                                           "data.truncate_documents cuts every answer at model.seq_length 3; "
                                           "use a larger model.seq_length; 8 cuts none"),
                       "%s", fail_text());
    fixture_free(&f);
}

/* Packed or not. */
Test(data_documents, a_mask_that_selects_nothing_is_refused)
{
    static const char *const documents[] = {"1!23", "45"};
    struct fixture f;
    fixture_make(&f, documents, 2, 4);
    struct data *data = NULL;
    f.config.pack_documents = true;
    cr_assert_eq(data_open(&f.config, &data), BAD_RECIPE);
    cr_assert_not_null(strstr(fail_text(), "the loss mask selects none of the tokens for train"), "%s",
                       fail_text());
    f.config.pack_documents = false; // a first token may be the label of the previous document's last
    data_close(open_data(&f));
    fixture_free(&f);

    static const char *const unmarked[] = {"123", "", "45678"};
    fixture_make(&f, unmarked, 3, 4);
    cr_assert_eq(data_open(&f.config, &data), BAD_RECIPE);
    cr_assert_not_null(strstr(fail_text(), "the loss mask selects none of the tokens for train"), "%s",
                       fail_text());
    fixture_free(&f);
}
