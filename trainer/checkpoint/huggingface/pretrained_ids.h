// SPDX-License-Identifier: Apache-2.0
/* The token ids that begin, end and pad a text: of config.json, where transformers keeps one of each, and
 * generation_config.json, where several may end a text. */
#pragma once

#include "trainer/checkpoint/huggingface/model_files.h"

#include <stdint.h>

enum { PRETRAINED_MAX_ENDS = 32 };

struct pretrained_ids {
    int32_t bos, pad; // -1: none
    int32_t ends[PRETRAINED_MAX_ENDS];
    int end_count;
};

/* Of the ends, those of generation_config.json if it has any; of the others, those of config.json.
 * BAD_CHECKPOINT for a value that is no id. */
MUST_USE enum status pretrained_ids_read(const struct model_files *files, struct pretrained_ids *out);

/* Adds an end before or after the others, unless it is one or -1. */
void pretrained_ids_add_end(struct pretrained_ids *ids, int32_t id, bool first);

/* Appends the value of eos_token_id: null, an id or a list. */
void pretrained_ids_ends_text(const struct pretrained_ids *ids, struct text *out);

/* Appends generation_config.json with these ids, and all else of the model's own one; unchanged if it has
 * them. Nothing if there is neither. */
MUST_USE enum status pretrained_ids_generation_config(const struct model_files *files,
                                                      const struct pretrained_ids *ids, struct text *out);
