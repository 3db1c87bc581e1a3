// SPDX-License-Identifier: Apache-2.0
/* Datasets, their records in checkpoints, tokenizers and text. */
#include "tests/fixtures/bpe_fixture.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/data/data_text.h"
#include "trainer/data/dataset.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/files/checksum.h"
#include "trainer/tokenizer/chat/chat.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { BIN_BYTES_SIZE = 2, BIN_MAX_BYTES = 4096, VOCAB_SIZE = 200 };

/* An index, after the size of a .bin file with ids that ascend. */
static void read_dataset(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    struct text bin = {0}, prefix = {0};
    struct dataset *dataset = NULL;
    for (uint64_t i = 0, count = fuzz_take(&rest, BIN_BYTES_SIZE) % (BIN_MAX_BYTES + 1); i < count; i++)
        text_add_bytes(&bin, &(const char){i % 2 == 0 ? (char)(i / 2 % 256) : 0}, 1);
    fuzz_write(&rest, "a.bin", text_chars(&bin), bin.length, &prefix);
    fuzz_write(&rest, "a.idx", rest.bytes, rest.size, NULL);
    if (dataset_open(prefix.chars, &dataset) == OK) {
        const int64_t documents = dataset_documents(dataset);
        fuzz_require(dataset_start(dataset, documents) == dataset_tokens(dataset),
                     "documents have all tokens");
        for (int64_t d = 0; d < documents && d < 64; d++) {
            int32_t ids[8];
            const int64_t length = dataset_length(dataset, d), count = length < 8 ? length : 8;
            if (dataset_read(dataset, d, length - count, count, VOCAB_SIZE, ids) == OK)
                for (int64_t i = 0; i < count; i++)
                    fuzz_require(ids[i] >= 0 && ids[i] < VOCAB_SIZE, "ids are in the vocabulary");
        }
    }
    dataset_close(dataset);
    text_free(&bin);
    text_free(&prefix);
}

/* ---- data.json ---- */

static void prepare_fingerprint(const char *folder)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    struct dataset_writer *writer = NULL;
    struct text prefix = {0};
    text_add(&prefix, "%s/data", folder);
    fuzz_require(dataset_writer_create(prefix.chars, VOCAB_SIZE, &writer) == OK &&
                     dataset_writer_add(writer, ids, sizeof ids / sizeof *ids) == OK &&
                     dataset_writer_end_document(writer) == OK && dataset_writer_finish(writer) == OK,
                 "a dataset is written");
    dataset_writer_destroy(writer);
    text_free(&prefix);
}

static void read_fingerprint(const struct fuzz_input *input)
{
    struct text prefix = {0}, changes = {0};
    text_add(&prefix, "%s/data", input->folder);
    const struct data_source_config source = {.path = prefix.chars, .weight = 1.0};
    const struct data_config config = {.train = &source,
                                       .train_count = 1,
                                       .seed = 1,
                                       .seq_length = 4,
                                       .vocab_size = VOCAB_SIZE,
                                       .end_of_document = -1};
    struct data *data = NULL;
    bool is_recorded;
    fuzz_write(input, "data.json", input->bytes, input->size, NULL);
    fuzz_require(data_open(&config, &data) == OK, "data are opened");
    if (data_fingerprint_compare(data, input->folder, NULL, &is_recorded, &changes) == OK)
        fuzz_require(is_recorded || changes.length > 0, "what cannot be compared has a reason");
    data_close(data);
    text_free(&prefix);
    text_free(&changes);
}

/* ---- tokenizers ---- */

static void prepare_vocabulary(const char *folder)
{
    fuzz_write(&(struct fuzz_input){.folder = folder}, "fixture.json", fixture_vocab, strlen(fixture_vocab),
               NULL);
}

/* (Not encoded: an encoder has a cache of 16 MiB.) */
static void decode(const struct tokenizer *tokenizer)
{
    const int32_t size = tokenizer_vocab_size(tokenizer), end = tokenizer_end_of_document(tokenizer);
    struct text decoded = {0};
    fuzz_require(end >= 0 && end < size, "the end of a document is a token");
    for (int32_t id = 0; id < size; id++)
        fuzz_require(tokenizer_decode(tokenizer, &id, 1, &decoded) == OK, "each token has bytes");
    text_free(&decoded);
}

/* merges.txt of a valid vocabulary; or, after a byte that is odd, vocab.json, a zero byte, merges.txt. */
static void read_vocabulary(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    struct text vocab = {0}, merges = {0};
    struct tokenizer *tokenizer = NULL;
    size_t length = 0;
    if ((fuzz_take(&rest, 1) & 1) != 0) {
        while (length < rest.size && rest.bytes[length] != 0)
            length++;
        fuzz_write(&rest, "vocab.json", rest.bytes, length, &vocab);
        length += length < rest.size;
    } else {
        text_add(&vocab, "%s/fixture.json", rest.folder);
    }
    fuzz_write(&rest, "merges.txt", rest.bytes + length, rest.size - length, &merges);
    const struct tokenizer_config config = {
        .type = "GPT2BPE", .vocab_file = vocab.chars, .merge_file = merges.chars};
    if (tokenizer_create(&config, &tokenizer) == OK)
        decode(tokenizer);
    tokenizer_destroy(tokenizer);
    text_free(&vocab);
    text_free(&merges);
}

static void read_tokenizer_json(const struct fuzz_input *input)
{
    struct text path = {0};
    struct tokenizer *tokenizer = NULL;
    fuzz_write(input, "tokenizer.json", input->bytes, input->size, &path);
    const struct tokenizer_config config = {.type = "HuggingFaceTokenizer", .tokenizer_model = path.chars};
    if (tokenizer_create(&config, &tokenizer) == OK)
        decode(tokenizer);
    tokenizer_destroy(tokenizer);
    text_free(&path);
}

/* ---- text ---- */

static enum status append(void *context, const char *bytes, int64_t length)
{
    uint64_t *sum = context;
    for (int64_t i = 0; i < length; i++)
        *sum = *sum * 31 + (unsigned char)bytes[i];
    return OK;
}

static enum status end_document(void *context)
{
    *(uint64_t *)context += 1;
    return OK;
}

static enum status progress(void *context, int64_t bytes)
{
    (void)context;
    fuzz_require(bytes >= 0, "progress is made");
    return OK;
}

static enum status add_line(void *context, const char *file, int64_t number, const char *bytes,
                            int64_t length)
{
    uint64_t *lines = context;
    (void)file;
    fuzz_require(number > 0 && length > 0, "lines count from 1, and are not blank");
    return append(lines, bytes, length);
}

/* Whether the input may contain xz or zstd, whose libraries allocate what a header says, up to 1 GiB. */
static bool has_large_window(const struct fuzz_input *input)
{
    return memmem(input->bytes, input->size,
                  "\xFD"
                  "7zXZ",
                  5) != NULL ||
           memmem(input->bytes, input->size, "\x28\xB5\x2F\xFD", 4) != NULL;
}

static void read_text(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    if (has_large_window(input))
        return;
    const int form = (int)fuzz_take(&rest, 1);
    uint64_t sum = 0;
    const struct text_options options = {.format = form % 2 == 0 ? TEXT_JSON_LINES : TEXT_PLAIN,
                                         .documents = (enum text_documents)(form / 2 % TEXT_DOCUMENTS_COUNT),
                                         .lines = 1 + form / 16,
                                         .json_key = "text"};
    const struct text_sink sink = {.append = append,
                                   .end_document = end_document,
                                   .progress = progress,
                                   .line = (form & 8) != 0 ? add_line : NULL,
                                   .context = &sum};
    struct text path = {0};
    fuzz_write(&rest, "a.txt", rest.bytes, rest.size, &path);
    const enum status status = text_read(path.chars, &options, &sink);
    fuzz_require(status == OK || status == BAD_DATA, "text is read, or is bad");
    text_free(&path);
}

/* ---- loss masks ---- */

static void prepare_mask(const char *folder)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    static const uint8_t counts[] = {0, 1, 0, 1, 1, 0, 0, 0, 1, 1};
    struct dataset_writer *writer = NULL;
    struct text prefix = {0};
    text_add(&prefix, "%s/masked", folder);
    fuzz_require(dataset_writer_create(prefix.chars, VOCAB_SIZE, &writer) == OK &&
                     dataset_writer_with_mask(writer, "chatml") == OK &&
                     dataset_writer_add_masked(writer, ids, counts, sizeof ids / sizeof *ids) == OK &&
                     dataset_writer_end_document(writer) == OK && dataset_writer_finish(writer) == OK,
                 "a dataset with a mask is written");
    dataset_writer_destroy(writer);
    text_free(&prefix);
}

/* A mask in place of the one of the dataset. After a byte that is odd, its last checksum is replaced by that
 * of the bits. */
static void read_mask(const struct fuzz_input *input)
{
    enum { CHECKSUM = 48, HEADER = 56 };
    struct fuzz_input rest = *input;
    struct text prefix = {0}, mask = {0};
    struct dataset *dataset = NULL;
    uint8_t counts[10];
    const bool repairs = (fuzz_take(&rest, 1) & 1) != 0;
    text_add_bytes(&mask, (const char *)rest.bytes, rest.size);
    if (repairs && mask.length >= HEADER) {
        const uint64_t sum = checksum_of(mask.chars + HEADER, mask.length - HEADER);
        memcpy(mask.chars + CHECKSUM, &sum, sizeof sum);
    }
    text_add(&prefix, "%s/masked", input->folder);
    fuzz_write(input, "masked.mask", text_chars(&mask), mask.length, NULL);
    fuzz_require(dataset_open(prefix.chars, &dataset) == OK, "the dataset is opened");
    if (dataset_open_mask(dataset) == OK)
        fuzz_require(dataset_read_mask(dataset, 0, 0, 10, counts) == OK, "a valid mask is read");
    dataset_close(dataset);
    text_free(&prefix);
    text_free(&mask);
}

/* ---- conversations ---- */

/* A template with the properties that the bits select, of those in the table and others; its special tokens
 * are bytes. */
static struct chat_template template_of(int bits, const struct tokenizer *tokenizer)
{
    struct chat_template chat;
    const struct chat_pieces special = {.list = {{.id = 1}}, .count = 1};
    const struct chat_pieces text = {.list = {{.id = -1, .text = " [a] ", .length = 5}, {.id = 2}},
                                     .count = 2};
    fuzz_require(chat_template_create("plain", tokenizer, &chat) == OK, "a template is compiled");
    chat.trims = (bits & 1) != 0;
    chat.adds_space = (bits & 2) != 0;
    for (int role = 0; role < CHAT_ROLES; role++)
        for (int place = 0; place < PLACE_COUNT; place++)
            if ((bits >> (2 + place) & 1) != 0)
                chat.places[role][place] = role == ROLE_USER ? text : special;
    chat.begin = (bits & 64) != 0 ? special : text;
    chat.after_system = (bits & 128) != 0 ? special : chat.after_system;
    return chat;
}

/* A line of JSON Lines after a byte that selects the template; with the tokenizer of bytes. */
static void read_chat(const struct fuzz_input *input)
{
    struct fuzz_input rest = *input;
    struct tokenizer *tokenizer = NULL;
    struct encoder *encoder = NULL;
    struct chat_tokens out = {0};
    int64_t counted = 0;
    const int bits = (int)fuzz_take(&rest, 1);
    fuzz_require(tokenizer_create(&(struct tokenizer_config){.type = "byte"}, &tokenizer) == OK &&
                     encoder_create(tokenizer, &encoder) == OK,
                 "there is a tokenizer");
    const struct chat_template chat = template_of(bits, tokenizer);
    const enum status status =
        chat_encode(&chat, encoder, (const char *)rest.bytes, (int64_t)rest.size, &out);
    fuzz_require(status == OK || status == BAD_DATA, "a line is encoded, or is bad");
    fuzz_require(status != OK || (int64_t)out.counts.length == out.ids.count, "each id is marked");
    for (int64_t i = 0; status == OK && i < out.ids.count; i++)
        counted += out.counts.chars[i];
    fuzz_require(status != OK || (counted > 0 && counted <= out.ids.count), "an answer counts in the loss");
    chat_tokens_free(&out);
    encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
}

const struct fuzz_reader fuzz_data_readers[] = {{"dataset", read_dataset, NULL},
                                                {"fingerprint", read_fingerprint, prepare_fingerprint},
                                                {"vocabulary", read_vocabulary, prepare_vocabulary},
                                                {"tokenizer_json", read_tokenizer_json, NULL},
                                                {"text", read_text, NULL},
                                                {"mask", read_mask, prepare_mask},
                                                {"chat", read_chat, NULL},
                                                {NULL, NULL, NULL}};
