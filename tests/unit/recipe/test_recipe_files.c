// SPDX-License-Identifier: Apache-2.0
/* The files of a recipe: the recipe itself, if it is not a regular file, and the files that it names. */
#include "base/text.h"
#include "planner/recipe/planned_recipe.h"
#include "tests/fixtures/bpe_fixture.h"
#include "tests/unit/recipe/recipe_case.h"
#include "trainer/data/recipe_data.h"
#include "trainer/engine/rank.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The pipe has no writer: a blocking open() or read() would never return. */
Test(recipe_files, a_pipe_without_a_writer_is_not_waited_for, .timeout = 20)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    char folder[] = "/tmp/cuboid-pipe-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/p.yaml", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(planned_recipe_load(path, NULL, 0, 0, &recipe, &problems), BAD_RECIPE);
    cr_assert_not_null(strstr(problems.list[0].text, "p.yaml: is a named pipe"), "%s", problems.list[0].text);
    problems_free(&problems);
    unlink(path);
    rmdir(folder);
}

/* <(COMMAND) of a shell. */
Test(recipe_files, a_pipe_of_a_shell_is_read)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    int ends[2];
    char path[32];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], SMALL, strlen(SMALL)), (ssize_t)strlen(SMALL));
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    cr_assert_eq(planned_recipe_load(path, NULL, 0, 0, &recipe, &problems), OK, "%s", fail_text());
    close(ends[0]);
    recipe_destroy(recipe);
    problems_free(&problems);
}

static int64_t vocab_size_with(const char *const *overrides, size_t count)
{
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    cr_assert_eq(planned_recipe_load_text("r.yaml", SMALL, overrides, count, &recipe, &problems), OK, "%s",
                 problems.count > 0 ? problems.list[0].text : "");
    const int64_t size = recipe->model.vocab_size;
    recipe_destroy(recipe);
    problems_free(&problems);
    return size;
}

/* From the tokenizer's files where there are any; a given size is not compared without a run. */
Test(recipe_files, the_size_of_the_vocabulary_is_the_tokenizers)
{
    char folder[] = "/tmp/cuboid-vocabulary-XXXXXX", path[64], vocab[96], merges[96];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/v.json", folder);
    snprintf(vocab, sizeof vocab, "tokenizer.vocab_file=%s", path);
    cr_assert_eq(file_write_atomic(path, fixture_vocab, strlen(fixture_vocab)), OK);
    snprintf(path, sizeof path, "%s/m.txt", folder);
    snprintf(merges, sizeof merges, "tokenizer.merge_file=%s", path);
    cr_assert_eq(file_write_atomic(path, fixture_merges, strlen(fixture_merges)), OK);
    struct tokenizer *bpe = NULL;
    const struct tokenizer_config config = {
        .type = "gpt2", .vocab_file = strchr(vocab, '=') + 1, .merge_file = strchr(merges, '=') + 1};
    cr_assert_eq(tokenizer_create(&config, &bpe), OK);
    const int64_t size = tokenizer_vocab_size(bpe);
    tokenizer_destroy(bpe);
    cr_assert_lt(size, 1000);

    const char *const gpt2[] = {"tokenizer.tokenizer_type=GPT2BPE", vocab, merges, "model.vocab_size=1234"};
    const char *const absent[] = {gpt2[0], "tokenizer.vocab_file=/no/v.json", merges};
    const char *const hf[] = {"tokenizer.tokenizer_type=HuggingFaceTokenizer",
                              "tokenizer.tokenizer_model=" SOURCE_ROOT
                              "/tests/fixtures/tokenizers/llama3.json",
                              "model.vocab_size=auto"};
    cr_assert_eq(vocab_size_with(gpt2, 1), 50257);
    cr_assert_eq(vocab_size_with(gpt2, 3), size);
    cr_assert_eq(vocab_size_with(gpt2, 4), 1234);
    cr_assert_eq(vocab_size_with(absent, 3), 50257);
    cr_assert_eq(vocab_size_with(hf, 2), 461);
    cr_assert_eq(vocab_size_with(hf, 3), 461);

    struct recipe *recipe = NULL;
    struct problems problems = {0};
    cr_assert_eq(file_write_atomic(path, "x", 1), OK); // merges that are none
    cr_assert_eq(planned_recipe_load_text("r.yaml", SMALL, gpt2, 3, &recipe, &problems), BAD_RECIPE);
    cr_assert(strstr(problems.list[0].text, "tokenizer.vocab_file and merge_file: ") != NULL &&
                  strstr(problems.list[0].text, path) != NULL,
              "%s", problems.list[0].text);
    problems_free(&problems);
    unlink(path);
    unlink(strchr(vocab, '=') + 1);
    rmdir(folder);
}

/* The size of a tokenizer is known when a run reads it. */
Test(recipe_files, a_vocabulary_larger_than_the_models_is_refused)
{
    static const char file[] = SOURCE_ROOT "/tests/fixtures/tokenizers/llama3.json";
    for (int size = 460; size <= 461; size++) {
        struct recipe *recipe = NULL;
        struct problems problems = {0};
        struct tokenizer *tokenizer = NULL;
        char vocab[32];
        snprintf(vocab, sizeof vocab, "model.vocab_size=%d", size);
        const char *const overrides[] = {
            "tokenizer.tokenizer_type=HuggingFaceTokenizer",
            "tokenizer.tokenizer_model=" SOURCE_ROOT "/tests/fixtures/tokenizers/llama3.json", vocab};
        cr_assert_eq(planned_recipe_load_text("r.yaml", SMALL, overrides, 3, &recipe, &problems), OK, "%s",
                     problems.count > 0 ? problems.list[0].text : "");
        cr_assert_eq(recipe_create_tokenizer(recipe, &tokenizer), size == 461 ? OK : BAD_RECIPE);
        if (size == 460) {
            cr_assert(strstr(fail_text(), "model.vocab_size 460 is smaller than the vocabulary of 461") !=
                              NULL &&
                          strstr(fail_text(), file) != NULL &&
                          strstr(fail_text(), "use model.vocab_size=461") != NULL,
                      "%s", fail_text());
            cr_assert_null(tokenizer);
        }
        tokenizer_destroy(tokenizer);
        recipe_destroy(recipe);
        problems_free(&problems);
    }
}

/* All missing files in one report, each with its key and location. */
Test(recipe_files, missing_files_are_reported_together)
{
    const char *const overrides[] = {
        "data.train=[/no/a, /no/b.bin]",       "data.valid=/no/v",
        "tokenizer.tokenizer_type=GPT2BPE",    "tokenizer.vocab_file=/no/vocab.json",
        "tokenizer.merge_file=/no/merges.txt", "checkpoint.load=/no/step-1",
        "pipeline.schedule_file=/no/s.csv"};
    const char *const expected[] = {"data.train: /no/a.idx",
                                    "data.train: /no/b.idx",
                                    "data.valid: /no/v.idx",
                                    "tokenizer.vocab_file: /no/vocab.json",
                                    "tokenizer.merge_file: /no/merges.txt",
                                    "checkpoint.load: /no/step-1",
                                    "pipeline.schedule_file: /no/s.csv"};
    char path[] = "/tmp/cuboid-recipe-XXXXXX";
    int file = mkstemp(path);
    cr_assert(file >= 0 && write(file, SMALL, strlen(SMALL)) == (ssize_t)strlen(SMALL));
    close(file);
    struct recipe *recipe = NULL;
    struct problems problems = {0};
    cr_assert_eq(
        recipe_load(
            &(struct recipe_input){.path = path, .overrides = overrides, .override_count = 7, .runs = true},
            &recipe, &problems),
        BAD_RECIPE);
    for (size_t e = 0; e < sizeof expected / sizeof *expected; e++) {
        int found = 0;
        for (size_t i = 0; i < problems.count; i++)
            found += strstr(problems.list[i].text, expected[e]) != NULL &&
                     strstr(problems.list[i].text, "No such file") != NULL &&
                     strncmp(problems.list[i].text, "command line: ", 14) == 0;
        cr_assert_eq(found, 1, "%s is named %d times", expected[e], found);
    }
    problems_free(&problems);
    unlink(path);
}
