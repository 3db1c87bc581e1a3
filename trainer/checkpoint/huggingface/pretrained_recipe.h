// SPDX-License-Identifier: Apache-2.0
/* The model of a config.json as a recipe, and back. */
#pragma once

#include "trainer/checkpoint/huggingface/pretrained_config.h"

/* Appends the section `model` as YAML. */
void pretrained_config_yaml(const struct pretrained_config *config, struct text *out);

/* Appends the section `tokenizer` as YAML. type: "HuggingFaceTokenizer"; NULL: none. */
void pretrained_tokenizer_yaml(const char *type, const char *path, struct text *out);

/* Creates the recipe of such a model: everything that is not the model is a placeholder, or a default.
 * `path` of the config.json, for messages; type, tokenizer: the recipe's tokenizer and its file, or NULL. */
MUST_USE enum status pretrained_recipe(const struct pretrained_config *config, const char *path,
                                       const char *name, const char *type, const char *tokenizer,
                                       struct recipe **out);

/* Appends a message about such a recipe with the keys of config.json that its values come from:
 *
 *     m/config.json:1: model.norm_epsilon 0 is out of range
 *     m/config.json: rms_norm_eps 0 is out of range */
void pretrained_config_explain(const struct pretrained_config *config, const char *path, const char *message,
                               struct text *out);

/* The values of a config.json that are not part of the model. */
struct pretrained_details {
    const char *dtype; // "float32"
    const struct pretrained_ids *ids;
    const struct pretrained_architecture *preferred; // that of the import; NULL: none
    int64_t context; // its longest sequence, which training with shorter ones leaves as it is; 0: unknown
};

/* Finds the architecture that expresses the model of the recipe (or only `name`, unless NULL) and appends
 * its config.json. The context is the larger one of details and recipe, unless positions are learned.
 * BAD_RECIPE names the architecture that comes closest, and the first key that it cannot express. */
MUST_USE enum status pretrained_config_write(const struct recipe *recipe, const char *name,
                                             const struct pretrained_details *details,
                                             const struct pretrained_architecture **out_architecture,
                                             struct text *out);
