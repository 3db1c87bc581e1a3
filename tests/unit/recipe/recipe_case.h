// SPDX-License-Identifier: Apache-2.0
/* A recipe from a string: written to a file and loaded; its messages in one text, with "R" for the file's
 * name. */
#pragma once

#include "planner/recipe/planned_recipe.h"
#include "trainer/recipe/recipe.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The required keys; the smallest valid recipe. */
#define MODEL     "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32}\n"
#define TRAIN     "train: {global_batch_size: 8, train_iters: 10}\n"
#define OPTIMIZER "optimizer: {lr: 1e-3}\n"
#define DATA      "data: {train: d}\n"
#define SMALL     MODEL TRAIN OPTIMIZER DATA

struct loaded {
    struct recipe *recipe; // NULL if it was rejected
    struct text messages;  // one line for each problem
    size_t errors;
};

/* Replaces all `from` in the text by `to`. */
static inline void text_replace(struct text *text, const char *from, const char *to)
{
    struct text out = {0};
    const char *at = text_chars(text), *next = NULL;
    while ((next = strstr(at, from)) != NULL) {
        text_add_bytes(&out, at, (size_t)(next - at));
        text_add(&out, "%s", to);
        at = next + strlen(from);
    }
    text_add(&out, "%s", at);
    text_free(text);
    *text = out;
}

/* overrides: ends with NULL, or is NULL. */
static inline struct loaded load_bytes(const char *yaml, size_t length, const char *const *overrides,
                                       int world)
{
    char path[] = "/tmp/cuboid-recipe-XXXXXX";
    int file = mkstemp(path);
    cr_assert(file >= 0 && write(file, yaml, length) == (ssize_t)length);
    close(file);
    size_t count = 0;
    while (overrides != NULL && overrides[count] != NULL)
        count++;

    struct loaded loaded = {0};
    struct problems problems = {0};
    enum status status = planned_recipe_load(path, overrides, count, world, &loaded.recipe, &problems);
    unlink(path);
    loaded.errors = problems.errors;
    for (size_t i = 0; i < problems.count; i++)
        text_add(&loaded.messages, "%s%s\n", problems.list[i].warning ? "warning: " : "",
                 problems.list[i].text);
    text_replace(&loaded.messages, path, "R");
    cr_assert_eq(status, problems.errors == 0 ? OK : BAD_RECIPE);
    cr_assert_eq(loaded.recipe != NULL, status == OK);
    problems_free(&problems);
    return loaded;
}

static inline struct loaded load(const char *yaml, const char *const *overrides, int world)
{
    return load_bytes(yaml, strlen(yaml), overrides, world);
}

static inline void loaded_free(struct loaded *loaded)
{
    recipe_destroy(loaded->recipe);
    text_free(&loaded->messages);
}

/* Expects exactly these messages for `yaml`. */
#define EXPECT_MESSAGES(yaml, ...) expect_messages(yaml, NULL, 0, __VA_ARGS__, __LINE__)
/* The same for the smallest recipe with one override. */
#define FOR_OVERRIDE(one, ...) \
    expect_messages(SMALL, (const char *const[]){one, NULL}, 0, __VA_ARGS__, __LINE__)

static inline void expect_messages(const char *yaml, const char *const *overrides, int world,
                                   const char *expected, int line)
{
    struct loaded loaded = load(yaml, overrides, world);
    cr_expect_str_eq(text_chars(&loaded.messages), expected, "line %d:\n  got      %s  expected %s", line,
                     text_chars(&loaded.messages), expected);
    loaded_free(&loaded);
}
