// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint_data.h"

#include "trainer/data/data_fingerprint.h"
#include "trainer/data/data_resume.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <string.h>

/* The order of a checkpoint that does not record it: its recipe has read the same blend from the first sample
 * on. */
static void order_of_recipe(const struct recipe *recipe, struct data_order *out)
{
    const struct recipe_sources *list = &recipe->data.train;
    const int count = recipe->data.mock_data ? 0 : (int)list->count;
    struct data_segment *segment = data_order_add_segment(out, count);
    segment->seq_length = recipe->model.seq_length;
    segment->seed = recipe->seed;
    segment->pack_documents = recipe->data.pack_documents && !recipe->data.mock_data;
    segment->truncate_documents = recipe->data.truncate_documents;
    for (int i = 0; i < count; i++) {
        segment->parts[i].source = data_order_add_source(out, list->list[i].path, 0);
        segment->parts[i].weight = list->list[i].weight;
    }
}

/* Without a readable recipe, which a warning reports, the blend is assumed to be that of now. */
static enum status find_order(const struct rank_state *w, const struct checkpoint_source *source,
                              struct data_order *out)
{
    const struct text *record = &source->manifest.data_order;
    struct text path = {0};
    struct problems problems = {0};
    struct recipe *then = NULL;
    *out = (struct data_order){0};
    if (record->length > 0) {
        const enum status status = data_order_parse(record->chars, record->length, out);
        return status == OK ? OK : fail(BAD_CHECKPOINT, "%s: manifest.json: %s", source->folder, fail_text());
    }
    text_add(&path, "%s/recipe.yaml", source->folder);
    const bool is_read = recipe_load(path.chars, NULL, 0, 0, &then, &problems) == OK;
    order_of_recipe(is_read ? then : w->run->recipe, out);
    recipe_destroy(then);
    problems_free(&problems);
    text_free(&path);
    return OK;
}

enum status checkpoint_data_check(const struct rank_state *w, const struct checkpoint_source *source,
                                  struct text *order)
{
    struct data *data = w->run->data;
    const bool strict = w->run->recipe->data.strict;
    struct data_order then;
    if (data == NULL)
        return OK;
    TRY(find_order(w, source, &then));
    int *positions = calloc(w->run->recipe->data.train.count + 1, sizeof *positions);
    if (positions == NULL)
        die_of(NO_MEMORY, "no memory for the order of the data");
    enum status status =
        data_resume(data, &then, source->manifest.consumed_samples, strict, positions, order);
    if (status == OK)
        status = data_fingerprint_check(data, source->folder, positions, strict);
    free(positions);
    return status;
}

/* Replaces the text by that of rank 0, without memory of the device: the record is small. */
static enum status share(struct rank_state *w, struct text *order)
{
    int32_t length = (int32_t)order->length;
    TRY(rank_broadcast(w, &length, 1));
    const size_t count = ((size_t)length + sizeof length - 1) / sizeof length;
    int32_t *words = calloc(count + 1, sizeof *words);
    if (words == NULL)
        die_of(NO_MEMORY, "no memory for the order of the data");
    memcpy(words, text_chars(order), order->length);
    const enum status status = rank_broadcast(w, words, (int)count);
    if (w->world->rank != 0)
        text_add_bytes(order, (const char *)words, (size_t)length);
    free(words);
    return status;
}

enum status checkpoint_data_continue(struct rank_state *w, struct text *order)
{
    if (w->run->data == NULL)
        return OK;
    TRY(share(w, order));
    return rank_agree(w, data_set_order(w->run->data, order));
}
