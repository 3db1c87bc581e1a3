// SPDX-License-Identifier: Apache-2.0
#include "trainer/data_part.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>

static struct philox order_named(uint64_t seed, const char *name, const char *what)
{
    struct text full = {0};
    text_add(&full, "%s.%s", name, what);
    struct philox generator = philox_named(seed, full.chars);
    text_free(&full);
    return generator;
}

void part_init(struct part *part, const struct dataset *dataset, int64_t first, int64_t documents,
               int64_t seq_length, uint64_t seed, const char *name)
{
    int64_t tokens = dataset_start(dataset, first + documents) - dataset_start(dataset, first);
    *part = (struct part){
        .dataset = dataset,
        .first = first,
        .documents = documents,
        .tokens = tokens,
        .seq_length = seq_length,
        .samples = tokens > 0 ? (tokens - 1) / seq_length : 0,
        .document_order = order_named(seed, name, "documents"),
        .sample_order = order_named(seed, name, "samples"),
    };
    CHECK(pthread_mutex_init(&part->lock, NULL) == 0);
}

void part_fini(struct part *part)
{
    if (part->dataset == NULL)
        return;
    for (int e = 0; e < PART_EPOCHS; e++)
        free(part->epochs[e].starts);
    pthread_mutex_destroy(&part->lock);
    *part = (struct part){0};
}

/* The document that stands at place `i` of an epoch. */
static int64_t document_at(const struct part *part, int64_t epoch, int64_t i)
{
    return part->first + philox_permute(part->document_order, (uint64_t)epoch, part->documents, i);
}

/* The places of an epoch, made now if neither of the two kept ones is it. The lock is held. */
static enum status find_epoch(struct part *part, int64_t epoch, const int64_t **starts)
{
    for (int e = 0; e < PART_EPOCHS; e++)
        if (part->epochs[e].starts != NULL && part->epochs[e].epoch == epoch) {
            part->last = e;
            *starts = part->epochs[e].starts;
            return OK;
        }
    struct part_epoch *slot = &part->epochs[1 - part->last];
    if (slot->starts == NULL)
        slot->starts = malloc((size_t)(part->documents + 1) * sizeof *slot->starts);
    if (slot->starts == NULL)
        return fail(NO_MEMORY, "%s: no memory for the order of %" PRId64 " documents",
                    dataset_prefix(part->dataset), part->documents);
    int64_t place = 0;
    for (int64_t i = 0; i < part->documents; i++) {
        slot->starts[i] = place;
        place += dataset_length(part->dataset, document_at(part, epoch, i));
    }
    slot->starts[part->documents] = place;
    CHECK(place == part->tokens);
    slot->epoch = epoch;
    part->last = (int)(slot - part->epochs);
    *starts = slot->starts;
    return OK;
}

/* The last of starts[0..documents) at or before `place`: the document that holds it, since documents
 * without tokens begin where the next one does. */
static int64_t find_place(const int64_t *starts, int64_t documents, int64_t place)
{
    int64_t low = 0, high = documents;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* tokens[count] from `place` on, across documents. */
static enum status read_run(const struct part *part, int64_t epoch, const int64_t *starts, int64_t place,
                            int64_t count, int64_t vocab_size, int32_t *tokens)
{
    for (int64_t i = find_place(starts, part->documents, place); count > 0; i++) {
        int64_t take = starts[i + 1] - place;
        if (take > count)
            take = count;
        TRY(dataset_read(part->dataset, document_at(part, epoch, i), place - starts[i], take, vocab_size,
                         tokens));
        tokens += take;
        place += take;
        count -= take;
    }
    return OK;
}

enum status part_sample(struct part *part, uint64_t i, int64_t vocab_size, int32_t *tokens)
{
    CHECK(part->samples > 0);
    int64_t epoch = (int64_t)(i / (uint64_t)part->samples), in_epoch = (int64_t)(i % (uint64_t)part->samples);
    int64_t k = philox_permute(part->sample_order, (uint64_t)epoch, part->samples, in_epoch);
    const int64_t *starts = NULL;
    CHECK(pthread_mutex_lock(&part->lock) == 0);
    enum status status = find_epoch(part, epoch, &starts);
    if (status == OK)
        status =
            read_run(part, epoch, starts, k * part->seq_length, part->seq_length + 1, vocab_size, tokens);
    CHECK(pthread_mutex_unlock(&part->lock) == 0);
    return status;
}
