// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_part.h"

#include "base/memory.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Documents per lookup: for a whole epoch, and at most for one sample. */
enum { RUN = 32 * DATA_PART_BLOCK, SAMPLE_RUN = 8 * DATA_PART_BLOCK };

static struct philox order_named(uint64_t seed, const char *name, const char *what)
{
    AUTO(text) full = {0};
    text_add(&full, "%s.%s", name, what);
    struct philox generator = philox_named(seed, full.chars);
    return generator;
}

void data_part_init(struct data_part *part, const struct dataset *dataset, int64_t first, int64_t documents,
                    int64_t seq_length, uint64_t seed, const char *name)
{
    int64_t tokens = dataset_start(dataset, first + documents) - dataset_start(dataset, first);
    *part = (struct data_part){
        .dataset = dataset,
        .first = first,
        .documents = documents,
        .tokens = tokens,
        .seq_length = seq_length,
        .samples = tokens > 0 ? (tokens - 1) / seq_length : 0,
        .longest = -1,
    };
    data_part_rename(part, seed, name);
    CHECK(pthread_mutex_init(&part->lock, NULL) == 0);
}

void data_part_rename(struct data_part *part, uint64_t seed, const char *name)
{
    part->document_order = order_named(seed, name, "documents");
    part->sample_order = order_named(seed, name, "samples");
}

void data_part_fini(struct data_part *part)
{
    if (part->dataset == NULL)
        return;
    for (int e = 0; e < DATA_PART_EPOCHS; e++)
        free(part->epochs[e].starts);
    data_pack_free(&part->pack);
    pthread_mutex_destroy(&part->lock);
    *part = (struct data_part){0};
}

/* The lengths of the documents, at most S, and what is cut from longer ones. */
static void find_lengths(struct data_part *part, int32_t *lengths)
{
    for (int64_t i = 0; i < part->documents; i++) {
        int64_t document = part->first + i, length = dataset_length(part->dataset, document);
        lengths[i] = (int32_t)(length < part->seq_length ? length : part->seq_length);
        if (length <= part->seq_length)
            continue;
        part->truncated++;
        part->cut_tokens += length - part->seq_length;
        if (part->longest < 0 || length > dataset_length(part->dataset, part->longest))
            part->longest = document;
    }
}

/* Counts the labels that the mask selects: not the first token of a document, which follows from no other. */
static enum status count_labels(struct data_part *part, const int32_t *lengths)
{
    AUTO_FREE uint8_t *counts = memory_zeroed((size_t)part->seq_length, 1, "the loss mask of a document");
    for (int64_t i = 0; i < part->documents; i++) {
        if (lengths[i] < 2)
            continue;
        TRY(dataset_read_mask(part->dataset, part->first + i, 1, lengths[i] - 1, counts));
        for (int64_t k = 0; k < lengths[i] - 1; k++)
            part->counted += counts[k];
    }
    return OK;
}

enum status data_part_pack(struct data_part *part)
{
    if (part->documents > INT32_MAX)
        return fail(BAD_RECIPE,
                    "%s: %" PRId64 " documents; data.pack_documents supports %d in a dataset; split it into "
                    "several sources, or use data.pack_documents=false",
                    dataset_prefix(part->dataset), part->documents, INT32_MAX);
    AUTO_FREE int32_t *lengths =
        memory_zeroed((size_t)part->documents + 1, sizeof *lengths, "the lengths of a dataset's documents");
    find_lengths(part, lengths);
    part->pack = data_pack_create(lengths, (int32_t)part->documents, (int32_t)part->seq_length);
    if (dataset_has_mask(part->dataset))
        TRY(count_labels(part, lengths));
    part->is_packed = true;
    part->samples = part->pack.count;
    return OK;
}

enum status data_part_find_counted(struct data_part *part)
{
    enum { CHUNK = 4096 };
    uint8_t counts[CHUNK];
    for (int64_t i = part->first; i < part->first + part->documents && part->counted == 0; i++)
        for (int64_t at = 0, many; at < dataset_length(part->dataset, i) && part->counted == 0; at += many) {
            many = dataset_length(part->dataset, i) - at;
            many = many < CHUNK ? many : CHUNK;
            TRY(dataset_read_mask(part->dataset, i, at, many, counts));
            part->counted = memchr(counts, 1, (size_t)many) != NULL ? 1 : 0;
        }
    return OK;
}

/* Looks up the documents at `count` positions of an epoch, fewer at its end; returns their number. */
static int64_t documents_at(const struct data_part *part, int64_t epoch, int64_t begin, int64_t count,
                            int64_t *out)
{
    int64_t left = part->documents - begin;
    count = count < left ? count : left;
    philox_permute_run(part->document_order, (uint64_t)epoch, part->documents, begin, count, out);
    for (int64_t i = 0; i < count; i++)
        out[i] += part->first;
    return count;
}

static int64_t block_count(const struct data_part *part)
{
    return (part->documents + DATA_PART_BLOCK - 1) / DATA_PART_BLOCK;
}

/* Returns the offsets of an epoch, computed now unless it is one of the two stored epochs. Called with the
 * lock held. */
static const int64_t *find_epoch(struct data_part *part, int64_t epoch)
{
    for (int e = 0; e < DATA_PART_EPOCHS; e++)
        if (part->epochs[e].starts != NULL && part->epochs[e].epoch == epoch) {
            part->last = e;
            return part->epochs[e].starts;
        }
    struct data_part_epoch *slot = &part->epochs[1 - part->last];
    int64_t blocks = block_count(part);
    if (slot->starts == NULL)
        slot->starts =
            memory_zeroed((size_t)blocks + 1, sizeof *slot->starts, "the order of a dataset's documents");
    int64_t offset = 0, documents[RUN];
    for (int64_t begin = 0; begin < part->documents; begin += RUN) {
        int64_t count = documents_at(part, epoch, begin, RUN, documents);
        for (int64_t i = 0; i < count; i++) {
            if (i % DATA_PART_BLOCK == 0)
                slot->starts[(begin + i) / DATA_PART_BLOCK] = offset;
            offset += dataset_length(part->dataset, documents[i]);
        }
    }
    slot->starts[blocks] = offset;
    CHECK(offset == part->tokens);
    slot->epoch = epoch;
    part->last = (int)(slot - part->epochs);
    return slot->starts;
}

/* The last of starts[0..blocks) not after `offset`: the block that contains it, since a block without tokens
 * begins at the start of the next one. */
static int64_t find_block(const int64_t *starts, int64_t blocks, int64_t offset)
{
    int64_t low = 0, high = blocks;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Number of documents to look up at once for `count` tokens: a multiple of the block size that is nearly
 * always sufficient, since computing the permutation for many documents is cheaper per document. */
static int64_t documents_for(const struct data_part *part, int64_t count)
{
    double about = 0.75 * DATA_PART_BLOCK + (double)count * (double)part->documents / (double)part->tokens;
    int64_t blocks =
        about < SAMPLE_RUN ? (int64_t)(about / DATA_PART_BLOCK) + 1 : SAMPLE_RUN / DATA_PART_BLOCK;
    return blocks * DATA_PART_BLOCK;
}

/* Reads tokens[count] of a document from `begin` on, and their marks. */
static enum status read_document(const struct data_part *part, int64_t document, int64_t begin, int64_t count,
                                 int64_t vocab_size, int32_t *tokens, uint8_t *marks)
{
    _Static_assert(MARK_COUNTS == 1, "a mark of dataset_read_mask()");
    TRY(dataset_read(part->dataset, document, begin, count, vocab_size, tokens));
    return dataset_read_mask(part->dataset, document, begin, count, marks);
}

/* Reads tokens[count], starting at token `offset` of the epoch, across documents. */
static enum status read_run(const struct data_part *part, int64_t epoch, const int64_t *starts,
                            int64_t offset, int64_t count, int64_t vocab_size, int32_t *tokens,
                            uint8_t *marks)
{
    const int64_t block = find_block(starts, block_count(part), offset);
    int64_t begin = starts[block], documents[SAMPLE_RUN];
    for (int64_t at = block * DATA_PART_BLOCK, many; count > 0; at += many) {
        many = documents_at(part, epoch, at, documents_for(part, count), documents);
        for (int64_t i = 0; i < many && count > 0; i++) {
            int64_t length = dataset_length(part->dataset, documents[i]), take = begin + length - offset;
            take = take < count ? take : count;
            if (take > 0) {
                TRY(read_document(part, documents[i], offset - begin, take, vocab_size, tokens, marks));
                tokens += take;
                marks += take;
                offset += take;
                count -= take;
            }
            begin += length;
        }
    }
    return OK;
}

/* Reads the k-th pack. The first token of a document is no label: it follows from no other. */
static enum status read_pack(const struct data_part *part, int64_t k, int64_t vocab_size, int32_t *tokens,
                             uint8_t *marks)
{
    const struct data_pack *pack = &part->pack;
    int64_t at = 0, left;
    for (int64_t i = pack->starts[k]; i < pack->starts[k + 1]; i++) {
        int64_t document = part->first + pack->documents[i], length = dataset_length(part->dataset, document);
        length = length < part->seq_length ? length : part->seq_length;
        TRY(read_document(part, document, 0, length, vocab_size, tokens + at, marks + at));
        marks[at] = MARK_BEGINS;
        at += length;
    }
    left = part->seq_length + 1 - at;
    memset(tokens + at, 0, (size_t)left * sizeof *tokens);
    memset(marks + at, 0, (size_t)left);
    marks[at] = MARK_BEGINS;
    return OK;
}

enum status data_part_sample(struct data_part *part, uint64_t i, int64_t vocab_size, int32_t *tokens,
                             uint8_t *marks)
{
    CHECK(part->samples > 0);
    int64_t epoch = (int64_t)(i / (uint64_t)part->samples), in_epoch = (int64_t)(i % (uint64_t)part->samples);
    int64_t k = philox_permute(part->sample_order, (uint64_t)epoch, part->samples, in_epoch);
    if (part->is_packed)
        return read_pack(part, k, vocab_size, tokens, marks);
    CHECK(pthread_mutex_lock(&part->lock) == 0);
    const enum status status = read_run(part, epoch, find_epoch(part, epoch), k * part->seq_length,
                                        part->seq_length + 1, vocab_size, tokens, marks);
    CHECK(pthread_mutex_unlock(&part->lock) == 0);
    return status;
}
