// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny.h"

#include "base/philox.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/data/dataset_writer.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Settings of both families; warm-up is short, and clipping is active in the first steps. One thread: a
 * second one would mostly wait for ops as small as these; results do not depend on it. */
static const char common_format[] =
    "train: {micro_batch_size: 2, global_batch_size: 8, train_iters: %d, eval_interval: %d, eval_iters: 2}\n"
    "optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, lr_warmup_iters: 3, lr_decay_style: cosine, weight_decay: 0.1, "
    "clip_grad: 1.0}\n"
    "cluster: {threads_per_rank: 1}\n";

static const char *const model_text[] = {
    [TINY_GPT] =
        "name: tiny-gpt\n"
        "seed: 11\n"
        "model: {num_layers: 5, hidden_size: 24, num_attention_heads: 12, kv_channels: 4, "
        "ffn_hidden_size: 48,\n"
        "  seq_length: 12, position_embedding_type: learned_absolute, normalization: LayerNorm,\n"
        "  activation: gelu, add_bias_linear: true, tie_word_embeddings: true, init_method_std: 0.15,\n"
        "  make_vocab_size_divisible_by: 1}\n"
        "tokenizer: {tokenizer_type: byte}\n",
    [TINY_LLAMA] =
        "name: tiny-llama\n"
        "seed: 12\n"
        "model: {num_layers: 5, hidden_size: 24, num_attention_heads: 12, num_query_groups: 2, "
        "kv_channels: 4,\n"
        "  ffn_hidden_size: 36, seq_length: 12, position_embedding_type: rope, normalization: RMSNorm,\n"
        "  activation: swiglu, add_bias_linear: false, tie_word_embeddings: false, init_method_std: 0.15,\n"
        "  vocab_size: 37, make_vocab_size_divisible_by: 1}\n"
        "tokenizer: {tokenizer_type: none}\n",
};

static const char *const recipe_names[] = {[TINY_GPT] = "gpt.yaml", [TINY_LLAMA] = "llama.yaml"};
static const char *const data_names[] = {[TINY_GPT] = "bytes", [TINY_LLAMA] = "small"};

/* ---- the folder ---- */

/* 120 documents of 5 to 40 ids below `below`, small ids more frequent, each terminated by `end` unless it is
 * -1. Their loss mask selects about half of the ids. */
static enum status write_documents(const char *prefix, int32_t below, int32_t end)
{
    enum { DOCUMENTS = 120, LONGEST = 40 };
    struct philox generator = philox_named((uint64_t)below, "tiny.documents");
    struct dataset_writer *writer = NULL;
    enum status status = dataset_writer_create(prefix, end < 0 ? below : end + 1, &writer);
    if (status == OK)
        status = dataset_writer_with_mask(writer, "chatml");
    for (uint64_t d = 0; status == OK && d < DOCUMENTS; d++) {
        int32_t ids[LONGEST + 1];
        uint8_t counts[LONGEST + 1];
        uint32_t word[4];
        int count = 0;
        philox_words(generator, d, 0, word);
        int length = 5 + (int)(word[0] % (LONGEST - 5));
        for (; count < length; count++) {
            philox_words(generator, d, (uint64_t)count + 1, word);
            uint32_t range = word[1] % 4 == 0 ? (uint32_t)below : 12;
            ids[count] = (int32_t)(word[0] % range);
            counts[count] = word[2] % 2 == 0;
        }
        counts[count] = 1;
        if (end >= 0)
            ids[count++] = end;
        status = dataset_writer_add_masked(writer, ids, counts, count);
        if (status == OK)
            status = dataset_writer_end_document(writer);
    }
    if (status == OK)
        status = dataset_writer_finish(writer);
    dataset_writer_destroy(writer);
    return status;
}

static enum status write_recipe(const struct tiny *tiny, enum tiny_family family)
{
    struct text text = {0};
    char path[TINY_FOLDER_CHARS + 20];
    text_add(&text, "%s", model_text[family]);
    text_add(&text, common_format, TINY_STEPS, TINY_STEPS);
    text_add(&text, "data: {train: %s/%s, split: \"80, 20, 0\"}\nlogging: {run_dir: %s/run}\n", tiny->folder,
             data_names[family], tiny->folder);
    snprintf(path, sizeof path, "%s/%s", tiny->folder, recipe_names[family]);
    enum status status = file_write_atomic(path, text_chars(&text), text.length);
    text_free(&text);
    return status;
}

enum status tiny_create(struct tiny *out)
{
    const char *root = getenv("TMPDIR");
    snprintf(out->folder, sizeof out->folder, "%s/tiny-XXXXXX", root != NULL ? root : "/tmp");
    if (mkdtemp(out->folder) == NULL)
        return fail(IO_ERROR, "cannot make the folder %s", out->folder);
    char prefix[TINY_FOLDER_CHARS + 20];
    snprintf(prefix, sizeof prefix, "%s/%s", out->folder, data_names[TINY_GPT]);
    TRY(write_documents(prefix, 256, 256));
    snprintf(prefix, sizeof prefix, "%s/%s", out->folder, data_names[TINY_LLAMA]);
    TRY(write_documents(prefix, 37, -1));
    TRY(write_recipe(out, TINY_GPT));
    return write_recipe(out, TINY_LLAMA);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

void remove_tree(const char *folder)
{
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void tiny_destroy(struct tiny *tiny)
{
    if (tiny->folder[0] != 0)
        remove_tree(tiny->folder);
    tiny->folder[0] = 0;
}

/* ---- recipes ---- */

enum { MAX_OVERRIDES = 128, OVERRIDES_CHARS = 6000 };

struct overrides {
    const char *list[MAX_OVERRIDES];
    size_t count;
    char storage[OVERRIDES_CHARS];
    char path[TINY_FOLDER_CHARS + 40]; // replaces "data.train=bytes"
};

/* Splits at spaces. Dataset names become paths in the folder. */
static void split(struct overrides *o, const struct tiny *tiny, const char *common, const char *layout)
{
    int length = snprintf(o->storage, sizeof o->storage, "%s %s", common, layout);
    CHECK(length >= 0 && (size_t)length < sizeof o->storage);
    char *rest = NULL;
    for (char *word = strtok_r(o->storage, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        CHECK(o->count < MAX_OVERRIDES);
        static const char train[] = "data.train=";
        if (strncmp(word, train, sizeof train - 1) == 0) {
            snprintf(o->path, sizeof o->path, "%s%s/%s", train, tiny->folder, word + sizeof train - 1);
            word = o->path;
        }
        o->list[o->count++] = word;
    }
}

enum status tiny_recipe(const struct tiny *tiny, enum tiny_family family, const char *common,
                        const char *layout, int world, struct recipe **out)
{
    struct overrides overrides = {.count = 0};
    struct problems problems = {0};
    char path[TINY_FOLDER_CHARS + 20];
    split(&overrides, tiny, common, layout);
    snprintf(path, sizeof path, "%s/%s", tiny->folder, recipe_names[family]);
    enum status status = planned_recipe_load(path, overrides.list, overrides.count, world, out, &problems);
    struct text text = {0};
    for (size_t i = 0; i < problems.count; i++)
        text_add(&text, "%s%s", i > 0 ? "; " : "", problems.list[i].text);
    if (status != OK)
        status = fail(status, "%s %s: %s", common, layout, text_chars(&text));
    text_free(&text);
    problems_free(&problems);
    return status;
}
