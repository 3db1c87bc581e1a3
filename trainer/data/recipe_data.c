// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/recipe_data.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

enum status recipe_create_tokenizer(const struct recipe *recipe, struct tokenizer **out)
{
    if (recipe->tokenizer.tokenizer_type == TOKENIZER_NONE)
        return fail(BAD_RECIPE, "tokenizer.tokenizer_type is none: there is no tokenizer to encode text; set "
                                "tokenizer.tokenizer_type to that of the model");
    struct tokenizer_config config = {
        .type = recipe_tokenizer_name(recipe),
        .vocab_file = recipe->tokenizer.vocab_file,
        .merge_file = recipe->tokenizer.merge_file,
        .tokenizer_model = recipe->tokenizer.tokenizer_model,
    };
    const enum status status = tokenizer_create(&config, out);
    if (status == IO_ERROR) // a file that is missing
        return fail(BAD_RECIPE, "tokenizer.%s: %s; restore the file, or use a copy of it: tokenizer.%s=PATH",
                    config.tokenizer_model != NULL ? "tokenizer_model" : "vocab_file and merge_file",
                    fail_text(), config.tokenizer_model != NULL ? "tokenizer_model" : "vocab_file");
    TRY(status);
    int64_t size = tokenizer_vocab_size(*out), allowed = recipe->model.vocab_size;
    const char *file = config.tokenizer_model != NULL ? config.tokenizer_model : config.vocab_file;
    if (file == NULL || size <= allowed)
        return OK;
    tokenizer_destroy(*out);
    *out = NULL;
    return fail(BAD_RECIPE,
                "model.vocab_size %lld is smaller than the vocabulary of %lld of tokenizer.%s %s; use "
                "model.vocab_size=%lld",
                (long long)allowed, (long long)size,
                file == config.vocab_file ? "vocab_file" : "tokenizer_model", file, (long long)size);
}

static struct data_source_config *source_list(const struct recipe_sources *from)
{
    struct data_source_config *list = memory_zeroed(from->count, sizeof *list, "data sources");
    for (size_t i = 0; i < from->count; i++)
        list[i] = (struct data_source_config){from->list[i].path, from->list[i].weight};
    return list;
}

/* The end-of-document id of the tokenizer; -1 if the recipe does not define one. */
static enum status end_of_document(const struct recipe *recipe, int32_t *out)
{
    *out = -1;
    if (recipe->tokenizer.tokenizer_type == TOKENIZER_NONE || !recipe_needs_tokenizer(recipe))
        return OK;
    struct tokenizer *tokenizer = NULL;
    TRY(recipe_create_tokenizer(recipe, &tokenizer));
    *out = tokenizer_end_of_document(tokenizer);
    tokenizer_destroy(tokenizer);
    return OK;
}

enum status recipe_open_data(const struct recipe *recipe, struct data **out)
{
    char split[3 * NUMBER_CHARS + 3], part[3][NUMBER_CHARS];
    snprintf(split, sizeof split, "%s,%s,%s", number_text(recipe->data.split[0], part[0]),
             number_text(recipe->data.split[1], part[1]), number_text(recipe->data.split[2], part[2]));
    struct data_config config = {
        .mock = recipe->data.mock_data,
        .train_count = recipe->data.mock_data ? 0 : (int)recipe->data.train.count,
        .valid_count = recipe->data.mock_data ? 0 : (int)recipe->data.valid.count,
        .split = recipe->data.mock_data || recipe->data.valid.count > 0 ? NULL : split,
        .seed = recipe->seed,
        .seq_length = recipe->model.seq_length,
        .vocab_size = recipe->model.vocab_size,
        .reset_position_ids = recipe->data.reset_position_ids,
        .reset_attention_mask = recipe->data.reset_attention_mask,
        .eod_mask_loss = recipe->data.eod_mask_loss,
        .loss_mask = recipe->data.loss_mask,
        .pack_documents = recipe->data.pack_documents,
        .truncate_documents = recipe->data.truncate_documents,
    };
    TRY(end_of_document(recipe, &config.end_of_document));
    AUTO_FREE struct data_source_config *train = source_list(&recipe->data.train);
    AUTO_FREE struct data_source_config *valid = source_list(&recipe->data.valid);
    config.train = train;
    config.valid = valid;
    TRY(data_open(&config, out));
    return recipe->train.eval_interval > 0 ? data_require(*out, DATA_VALID) : OK;
}
