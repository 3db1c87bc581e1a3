// SPDX-License-Identifier: Apache-2.0
/* Files of pretrained models: config.json, and the index of safetensors files. */
#include "tests/fuzz/fuzz.h"
#include "trainer/checkpoint/huggingface/pretrained_config.h"
#include "trainer/checkpoint/huggingface/pretrained_recipe.h"
#include "trainer/checkpoint/huggingface/pretrained_weights.h"

#include <stdlib.h>
#include <string.h>

/* A model that was read can be exported by its own architecture, which reads back as the same recipe. */
static void write_again(const struct pretrained_config *config, const struct recipe *recipe)
{
    const struct pretrained_ids ids = {.bos = -1, .pad = -1};
    const struct pretrained_details details = {.dtype = "float32", .ids = &ids};
    const struct pretrained_architecture *architecture;
    struct text text = {0};
    const enum status status =
        pretrained_config_write(recipe, config->architecture->name, &details, &architecture, &text);
    fuzz_require(status == OK, "a model that was read is written");
    fuzz_require(architecture == config->architecture, "for its architecture");
    text_free(&text);
}

static void read_config(const struct fuzz_input *input)
{
    struct pretrained_config config;
    struct problems warnings = {0};
    struct recipe *recipe = NULL;
    struct text json = {0};
    text_add_bytes(&json, (const char *)input->bytes, input->size);
    if (pretrained_config_parse("config.json", &json, &warnings, &config) == OK &&
        pretrained_recipe(&config, "config.json", "fuzz", NULL, NULL, &recipe) == OK)
        write_again(&config, recipe);
    recipe_destroy(recipe);
    problems_free(&warnings);
    text_free(&json);
}

/* A file with one tensor, "a". */
static void prepare_index(const char *folder)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";
    const uint64_t length = sizeof header - 1;
    const struct fuzz_input input = {.folder = folder};
    struct text file = {0};
    text_add_bytes(&file, (const char *)&length, sizeof length);
    text_add_bytes(&file, header, length);
    text_add_bytes(&file, "\0\0\0\0", 4);
    fuzz_write(&input, "1.safetensors", file.chars, file.length, NULL);
    text_free(&file);
}

static void read_index(const struct fuzz_input *input)
{
    struct pretrained_weights weights;
    fuzz_write(input, "model.safetensors.index.json", input->bytes, input->size, NULL);
    if (pretrained_weights_open(input->folder, &weights) == OK)
        fuzz_require(weights.count == 1 && pretrained_weights_find(&weights, "a") != NULL,
                     "the one tensor is found");
    pretrained_weights_close(&weights);
}

const struct fuzz_reader fuzz_pretrained_readers[] = {{"pretrained_config", read_config, NULL},
                                                      {"pretrained_index", read_index, prepare_index},
                                                      {NULL, NULL, NULL}};
