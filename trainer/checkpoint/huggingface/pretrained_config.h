// SPDX-License-Identifier: Apache-2.0
/* config.json of a pretrained model, and the section `model` of a recipe. */
#pragma once

#include "trainer/checkpoint/huggingface/pretrained_ids.h"
#include "trainer/checkpoint/huggingface/pretrained_table.h"
#include "trainer/recipe/recipe.h"

enum { PRETRAINED_VALUE_CHARS = 64, PRETRAINED_MAX_VALUES = 64, PRETRAINED_LIST_CHARS = 512 };

/* A model as keys of the recipe's section `model`; keys that are not listed are derived by the recipe. */
struct pretrained_value {
    char key[PRETRAINED_VALUE_CHARS], value[PRETRAINED_LIST_CHARS]; // of the recipe
    const char *from;                                               // the key of config.json; a literal
};

struct pretrained_config {
    const struct pretrained_architecture *architecture;
    struct pretrained_value values[PRETRAINED_MAX_VALUES];
    int count;
};

/* Parses the text of a config.json; `path` is for messages. BAD_CHECKPOINT names the key, its value and a
 * value that can be expressed. `warnings` gets a line for each unknown key, which is ignored. */
MUST_USE enum status pretrained_config_parse(const char *path, const struct text *json,
                                             struct problems *warnings, struct pretrained_config *out);
