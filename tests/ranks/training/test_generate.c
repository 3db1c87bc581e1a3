// SPDX-License-Identifier: Apache-2.0
/* A tiny model overfits one short text on four ranks; from its checkpoint one rank generates the text byte
 * for byte, past the end of the context window and up to the end-of-document token, with a two-byte
 * tokenizer vocabulary too. An early checkpoint must generate other text, or the test would
 * not detect that nothing was loaded. */
#include "planner/recipe/planned_recipe.h"
#include "tests/support/sanitized.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/dataset_writer.h"
#include "trainer/generate/generate.h"
#include "trainer/run/train.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 72 bytes and the end-of-document token: 73 has no common factor with the window of 48, so in training
 * every byte of the poem occurs at every position of the window. Any eight bytes determine the next one. */
static const char poem[] = "Of shoes and ships and sealing wax, caf\xC3\xA9s, a lobster, five kings: told.";
enum { POEM = sizeof poem - 1, COPIES = 60, PROMPT = 12, EARLY_STEP = 20 };

static const char *const families[] = {
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 128, seq_length: 48,\n"
    "  position_embedding_type: rope, normalization: RMSNorm, activation: swiglu, add_bias_linear: false,\n"
    "  tie_word_embeddings: false, num_query_groups: 2}\n"
    "parallel: {tensor_parallel_size: 2, pipeline_parallel_size: 2, sequence_parallel: true}\n",
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 128, seq_length: 48}\n"
    "parallel: {data_parallel_size: 2, tensor_parallel_size: 2}\n",
};

static const char rest_of_recipe[] =
    "seed: 3\n"
    "train: {micro_batch_size: 2, global_batch_size: 8, train_iters: 300, eval_interval: 0}\n"
    "optimizer: {lr: 5.0e-3, min_lr: 2.0e-4, lr_warmup_iters: 5, weight_decay: 0.0, adam_beta2: 0.95}\n"
    "tokenizer: {tokenizer_type: byte}\n"
    "checkpoint: {save_interval: 20, keep_last: 0}\n"
    "logging: {log_interval: 100}\n";

struct fixture {
    char folder[64], recipe[128], data[128], run[128];
    int failures;
};

static void expect(struct fixture *fixture, bool holds, const char *what)
{
    if (!holds)
        printf("FAILED  %s\n", what);
    fixture->failures += !holds;
}

static void expect_ok(struct fixture *fixture, enum status status, const char *what)
{
    if (status != OK)
        printf("FAILED  %s: %s\n", what, fail_text());
    fixture->failures += status != OK;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

/* ---- data and recipe ---- */

static enum status write_data(const struct fixture *fixture)
{
    int32_t ids[POEM + 1];
    struct dataset_writer *writer = NULL;
    for (int i = 0; i < POEM; i++)
        ids[i] = (unsigned char)poem[i];
    ids[POEM] = 256;
    TRY(dataset_writer_create(fixture->data, 257, &writer));
    enum status status = OK;
    for (int copy = 0; status == OK && copy < COPIES; copy++) {
        status = dataset_writer_add(writer, ids, POEM + 1);
        if (status == OK)
            status = dataset_writer_end_document(writer);
    }
    if (status == OK)
        status = dataset_writer_finish(writer);
    dataset_writer_destroy(writer);
    return status;
}

static enum status write_recipe(const struct fixture *fixture, const char *family)
{
    struct text text = {0};
    text_add(&text, "%s%sdata: {train: %s, split: \"1, 0, 0\"}\n", family, rest_of_recipe, fixture->data);
    enum status status = file_write_atomic(fixture->recipe, text_chars(&text), text.length);
    text_free(&text);
    return status;
}

static enum status load(const struct fixture *fixture, const char *const *overrides, size_t count,
                        struct recipe **out)
{
    struct problems problems = {0};
    char run[200];
    const char *all[8] = {run};
    snprintf(run, sizeof run, "logging.run_dir=%s", fixture->run);
    for (size_t i = 0; i < count; i++)
        all[i + 1] = overrides[i];
    enum status status = planned_recipe_load(fixture->recipe, all, count + 1, 0, out, &problems);
    problems_print(&problems, stdout);
    problems_free(&problems);
    return status;
}

static enum status train_family(const struct fixture *fixture)
{
    static const char *const short_run[] = {"train.train_iters=20"};
    struct recipe *recipe = NULL;
    TRY(load(fixture, short_run, UNDER_SANITIZER ? 1 : 0, &recipe));
    enum status status = train(recipe, NULL, recipe_world_size(recipe));
    recipe_destroy(recipe);
    return status;
}

/* ---- generation ---- */

struct prompt_case {
    int64_t step, tokens;
    const char *prompt;
    const char *device;
    bool no_stop;
};

static enum status generate_text(struct fixture *fixture, const struct prompt_case *c,
                                 struct generated *result, struct text *out)
{
    const char *const one_rank[] = {
        "tp=1", "pp=1", "dp=1", "parallel.sequence_parallel=false", "train.micro_batch_size=1", c->device};
    struct recipe *recipe = NULL;
    char *memory = NULL, checkpoint[200];
    size_t size = 0;
    TRY(load(fixture, one_rank, sizeof one_rank / sizeof *one_rank, &recipe));
    snprintf(checkpoint, sizeof checkpoint, "%s/step-%08d", recipe->checkpoint.save, (int)c->step);
    const struct generate_prompt prompt = {c->prompt, (int64_t)strlen(c->prompt)};
    struct generate_result run = {0};
    struct generate_options options = {
        .recipe = recipe,
        .size = 1,
        .checkpoint = checkpoint,
        .prompts = &prompt,
        .count = 1,
        .tokens = c->tokens,
        .sampling = {.temperature = 0.0, .top_p = 1.0},
        .no_stop = c->no_stop,
        .to = open_memstream(&memory, &size),
    };
    enum status status = options.to != NULL ? generate(&options, result, &run) : fail(NO_MEMORY, "no stream");
    if (options.to != NULL)
        fclose(options.to);
    expect(fixture, status != OK || run.step == c->step, "reports the step");
    text_add_bytes(out, memory, size);
    free(memory);
    recipe_destroy(recipe);
    return status;
}

/* The poem from its first bytes to its end. The window is 48 tokens; 60 are generated. */
static void generates_the_poem(struct fixture *fixture, const char *device)
{
    struct generated result = {0};
    struct text generated = {0};
    char prompt[PROMPT + 1] = {0};
    memcpy(prompt, poem, PROMPT);
    const struct prompt_case c = {.step = 300, .tokens = 300, .prompt = prompt, .device = device};
    expect_ok(fixture, generate_text(fixture, &c, &result, &generated), "generates");
    expect(fixture, strcmp(text_chars(&generated), poem) == 0, "generates the poem");
    expect(fixture, result.stopped && result.tokens == POEM - PROMPT + 1, "stops at its end");
    expect(fixture, result.prompt_tokens == PROMPT, "reports the length of the prompt");
    if (fixture->failures > 0)
        printf("generated \"%s\"\n", text_chars(&generated));
    text_free(&generated);
}

/* After its end the poem is generated from its beginning; so it is without a prompt. */
static void restarts_after_the_end(struct fixture *fixture)
{
    struct generated result = {0};
    struct text generated = {0};
    const struct prompt_case from_end = {.step = 300,
                                         .tokens = 30,
                                         .prompt = "five kings: told.",
                                         .device = "cluster.device=cpu",
                                         .no_stop = true};
    const struct prompt_case no_prompt = {
        .step = 300, .tokens = 20, .prompt = "", .device = "cluster.device=cpu"};
    expect_ok(fixture, generate_text(fixture, &from_end, &result, &generated), "generates past the end");
    expect(fixture, !result.stopped && result.tokens == 30, "does not stop early");
    expect(fixture, strncmp(text_chars(&generated) + strlen(from_end.prompt), poem, 29) == 0,
           "continues with its beginning");
    text_free(&generated);
    expect_ok(fixture, generate_text(fixture, &no_prompt, &result, &generated), "generates without a prompt");
    expect(fixture, result.prompt_tokens == 0 && strncmp(text_chars(&generated), poem, 20) == 0,
           "starts at the beginning of the poem");
    text_free(&generated);
}

/* After the first steps the model has not learned the poem: output equal to the poem would not come from the
 * checkpoint. */
static void early_checkpoint_differs(struct fixture *fixture)
{
    struct generated result = {0};
    struct text generated = {0};
    const struct prompt_case c = {
        .step = EARLY_STEP, .tokens = 40, .prompt = "Of shoes and", .device = "cluster.device=cpu"};
    expect_ok(fixture, generate_text(fixture, &c, &result, &generated), "generates early");
    expect(fixture, strncmp(text_chars(&generated), poem, 40) != 0,
           "an early checkpoint generates other text");
    text_free(&generated);
}

static void rejects_invalid_requests(struct fixture *fixture)
{
    struct generated result = {0};
    struct text generated = {0};
    const struct prompt_case cases[] = {
        {.step = 300,
         .tokens = 3,
         .prompt = "0123456789012345678901234567890123456789012345678",
         .device = "seed=3"},
        {.step = 299, .tokens = 3, .prompt = "Of", .device = "seed=3"},
        {.step = 300, .tokens = 3, .prompt = "Of", .device = "cluster.device=dry"},
        {.step = 300, .tokens = 3, .prompt = "Of", .device = "model.hidden_size=32"},
    };
    static const char *const why[] = {
        "the prompt has 49 tokens, but the model has model.seq_length 48", "step-00000299",
        "cluster.device dry computes nothing and cannot generate text; use cluster.device=cpu",
        "model.hidden_size 64, model.kv_channels 16, but the recipe has 32, 8; set model.hidden_size=64 "};
    const enum status expected[] = {BAD_USAGE, BAD_CHECKPOINT, BAD_RECIPE, WRONG_CHECKPOINT};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status status = generate_text(fixture, &cases[i], &result, &generated);
        expect(fixture, status == expected[i] && strstr(fail_text(), why[i]) != NULL, why[i]);
        expect(fixture, generated.length == 0, "a rejected prompt prints nothing");
        text_free(&generated);
    }
}

/* Under a sanitizer: after 20 steps the text has no expected value, so only its length is checked. */
static void generates_requested_tokens(struct fixture *fixture, const char *device)
{
    struct generated result = {0};
    struct text generated = {0};
    const struct prompt_case c = {
        .step = 20, .tokens = 60, .prompt = "Of shoes", .device = device, .no_stop = true};
    expect_ok(fixture, generate_text(fixture, &c, &result, &generated), "generates");
    expect(fixture, result.tokens == 60, "generates the requested number of tokens");
    text_free(&generated);
}

static void one_family(struct fixture *fixture, int family)
{
    snprintf(fixture->run, sizeof fixture->run, "%s/run-%d", fixture->folder, family);
    expect_ok(fixture, write_recipe(fixture, families[family]), "writes a recipe");
    expect_ok(fixture, train_family(fixture), "trains");
    if (fixture->failures > 0)
        return;
    if (UNDER_SANITIZER) {
        generates_requested_tokens(fixture, "cluster.device=cpu");
        generates_requested_tokens(fixture, "cluster.device=strict");
        generates_requested_tokens(fixture, "precision.params_dtype=bf16");
        return;
    }
    generates_the_poem(fixture, "cluster.device=cpu");
    generates_the_poem(fixture, "cluster.device=strict");
    generates_the_poem(fixture, "precision.params_dtype=bf16");
    generates_the_poem(fixture, "precision.params_dtype=fp16");
    restarts_after_the_end(fixture);
    early_checkpoint_differs(fixture);
    rejects_invalid_requests(fixture);
}

int main(void)
{
    struct fixture fixture = {.folder = "/tmp/cuboid-generate-XXXXXX"};
    if (mkdtemp(fixture.folder) == NULL) {
        printf("cannot make a folder\n");
        return 1;
    }
    snprintf(fixture.recipe, sizeof fixture.recipe, "%s/recipe.yaml", fixture.folder);
    snprintf(fixture.data, sizeof fixture.data, "%s/data", fixture.folder);
    expect_ok(&fixture, write_data(&fixture), "writes data");
    for (int family = 0; family < (UNDER_TSAN ? 1 : 2); family++)
        one_family(&fixture, family);
    nftw(fixture.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    printf("%s\n", fixture.failures == 0 ? "ok" : "FAILED");
    return fixture.failures != 0;
}
