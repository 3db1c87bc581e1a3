// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/data/cmd_data.h"

#include "base/memory.h"
#include "base/text.h"
#include "trainer/data/dataset.h"
#include "trainer/tokenizer/tokenizer_print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCANNED_TOKENS = 1 << 26, CHUNK = 1 << 16, SHOWN_IDS = 12, SHOWN_TEXT_IDS = 64, SHOWN_DOCUMENTS = 3 };

/* Finds the shortest and the longest document. */
static void print_lengths(const struct dataset *d)
{
    int64_t shortest = 0, longest = 0, empty = 0;
    for (int64_t i = 0; i < dataset_documents(d); i++) {
        int64_t length = dataset_length(d, i);
        shortest = length < dataset_length(d, shortest) ? i : shortest;
        longest = length > dataset_length(d, longest) ? i : longest;
        empty += length == 0;
    }
    printf("shortest   document %" PRId64 ", %" PRId64 " tokens", shortest, dataset_length(d, shortest));
    if (empty > 1)
        printf(" (and %" PRId64 " more without any)", empty - 1);
    printf("\nlongest    document %" PRId64 ", %" PRId64 " tokens\n", longest, dataset_length(d, longest));
    printf("average    %.1f tokens\n", (double)dataset_tokens(d) / (double)dataset_documents(d));
}

/* Finds the smallest and largest id of the first documents; `*largest` determines whether they can be
 * bytes. */
static enum status print_ids(const struct dataset *d, int32_t *largest)
{
    AUTO_FREE int32_t *ids = memory_zeroed(CHUNK, sizeof *ids, "ids");
    int32_t smallest = INT32_MAX;
    enum status status = OK;
    int64_t scanned = 0, document = 0;
    *largest = -1;
    for (; status == OK && document < dataset_documents(d) && scanned < SCANNED_TOKENS; document++) {
        int64_t length = dataset_length(d, document);
        for (int64_t at = 0; status == OK && at < length && scanned < SCANNED_TOKENS; at += CHUNK) {
            int64_t count = length - at < CHUNK ? length - at : CHUNK;
            status = dataset_read(d, document, at, count, INT32_MAX, ids);
            for (int64_t i = 0; status == OK && i < count; i++) {
                smallest = ids[i] < smallest ? ids[i] : smallest;
                *largest = ids[i] > *largest ? ids[i] : *largest;
            }
            scanned += count;
        }
    }
    if (status == OK && scanned > 0)
        printf("ids        %d to %d%s\n", smallest, *largest,
               scanned < dataset_tokens(d) ? " in the first 64 Mi tokens" : "");
    return status;
}

/* Prints ids as text on a line; `begins`: ids[0] is the first one of its document. */
static enum status print_text(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              bool begins, const char *label, const char *end)
{
    struct text text = {0};
    enum status status = begins ? tokenizer_decode(tokenizer, ids, count, &text)
                                : tokenizer_decode_more(tokenizer, ids, count, &text);
    if (status == OK) {
        printf("    %s\"", label);
        tokenizer_print(stdout, &text);
        puts(end);
    }
    text_free(&text);
    return status;
}

/* The first ids of a document as text: a line for each run of tokens that count in the loss, or do not. */
static enum status print_runs(const struct dataset *d, const struct tokenizer *tokenizer, int64_t document,
                              const int32_t *ids, int64_t count)
{
    uint8_t counts[SHOWN_TEXT_IDS];
    const char *rest = count < dataset_length(d, document) ? "\" ..." : "\"";
    TRY(dataset_read_mask(d, document, 0, count, counts));
    if (count == 0)
        return print_text(tokenizer, ids, 0, true, "", rest);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && counts[end] == counts[begin];)
            end++;
        const char *label = !dataset_has_mask(d) ? "" : counts[begin] != 0 ? "loss " : "     ";
        TRY(print_text(tokenizer, ids + begin, end - begin, begin == 0, label, end < count ? "\"" : rest));
    }
    return OK;
}

static enum status print_document(const struct dataset *d, int64_t document,
                                  const struct tokenizer *tokenizer)
{
    int32_t ids[SHOWN_TEXT_IDS];
    int64_t length = dataset_length(d, document), count = length < SHOWN_TEXT_IDS ? length : SHOWN_TEXT_IDS;
    TRY(dataset_read(d, document, 0, count, INT32_MAX, ids));
    printf("document %" PRId64 ", %" PRId64 " tokens:", document, length);
    for (int64_t i = 0; i < count && i < SHOWN_IDS; i++)
        printf(" %d", ids[i]);
    puts(length > SHOWN_IDS ? " ..." : "");
    return tokenizer == NULL ? OK : print_runs(d, tokenizer, document, ids, count);
}

/* A dataset may have a loss mask. */
static enum status open_mask(struct dataset *d)
{
    struct text path = {0};
    text_add(&path, "%s.mask", dataset_prefix(d));
    enum status status = access(path.chars, F_OK) == 0 ? dataset_open_mask(d) : OK;
    if (status == OK && dataset_has_mask(d))
        print_line(stdout, "loss       %" PRId64 " tokens (%.1f %%) count (%s)", dataset_counted_tokens(d),
                   100.0 * (double)dataset_counted_tokens(d) / (double)dataset_tokens(d), path.chars);
    text_free(&path);
    return status;
}

static enum status inspect(struct dataset *d, const struct data_options *o, int64_t shown)
{
    char size[NUMBER_CHARS];
    print_line(stdout, "%s.bin, %s.idx: a Megatron indexed dataset, version 1", dataset_prefix(d),
               dataset_prefix(d));
    printf("ids are    %s, %s of them\n", dataset_type_name(d), count_text((double)dataset_tokens(d), size));
    printf("tokens     %" PRId64 "\ndocuments  %" PRId64 "\n", dataset_tokens(d), dataset_documents(d));
    if (dataset_sequences(d) != dataset_documents(d))
        printf("sequences  %" PRId64 "\n", dataset_sequences(d));
    print_lengths(d);
    TRY(open_mask(d));
    int32_t largest = 0;
    TRY(print_ids(d, &largest));

    struct tokenizer *tokenizer = NULL;
    if (o->tokenizer != NULL || largest <= 256)
        TRY(data_options_tokenizer(o, &tokenizer));
    enum status status = OK;
    for (int64_t i = 0; status == OK && i < shown && i < dataset_documents(d); i++)
        status = print_document(d, i, tokenizer);
    tokenizer_destroy(tokenizer);
    return status;
}

enum status data_inspect(const struct data_options *options)
{
    int64_t shown = SHOWN_DOCUMENTS;
    if (options->input_count != 1)
        return fail(BAD_USAGE, "inspect: expected one PREFIX, not %d", options->input_count);
    if (options->documents != NULL && (!integer_parse(options->documents, &shown) || shown < 0))
        return fail(BAD_USAGE, "--documents %s is invalid; use a number of documents, 0 or more",
                    options->documents);
    struct dataset *dataset = NULL;
    enum status status = dataset_open(options->inputs[0], &dataset);
    if (status != OK)
        return status == IO_ERROR ? BAD_USAGE : status; // with the same message
    status = inspect(dataset, options, shown);
    dataset_close(dataset);
    return status;
}
