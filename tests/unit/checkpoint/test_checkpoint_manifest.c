// SPDX-License-Identifier: Apache-2.0
/* The manifest, in which any field may be invalid. */
#include "trainer/checkpoint/format/manifest.h"

#include "tests/support/sanitized.h"
#include "tests/unit/checkpoint/checkpoint_by_hand.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/format/tiling.h"
#include "trainer/files/checksum.h"

#include <fcntl.h>
#include <time.h>

Test(checkpoint_manifest, a_manifest_reads_back)
{
    char folder[32];
    struct manifest m;
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(manifest_read("s/step-00000012", &m), OK, "%s", fail_text());
    cr_expect(m.identity.step == 12 && m.consumed_samples == 96 && m.seed == 1234);
    cr_expect(manifest_degree(&m, "tp") == 2 && manifest_degree(&m, "pp") == 1 && m.axis_count == 5);
    cr_expect_eq(manifest_degree(&m, "xp"), 0);
    cr_expect_str_eq(m.rank_order, "tp-cp-ep-dp-pp");
    cr_expect(m.file_count == 1 && m.files[0].rank == 0 && manifest_file_of(&m, 0) == 0);
    cr_expect_eq(manifest_file_of(&m, 1), -1);
    const struct manifest_tensor *tensor = manifest_tensor(&m, "head.weight");
    cr_assert_not_null(tensor);
    cr_expect(tensor->ndim == 2 && tensor->dim[0] == 2 && tensor->dim[1] == 4 && tensor->range_count == 1);
    cr_expect(m.ranges[tensor->range].first == 0 && m.ranges[tensor->range].last == 0);
    cr_expect_null(manifest_tensor(&m, "head"));
    struct text again = {0}, file = {0};
    manifest_text(&m, &again);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &file), OK);
    cr_expect_str_eq(again.chars, file.chars);
    text_free(&again);
    text_free(&file);
    manifest_free(&m);
    leave(folder);
}

Test(checkpoint_manifest, keys_of_the_model_that_differ_are_named)
{
    char folder[32];
    struct manifest m;
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(manifest_read("s/step-00000012", &m), OK);
    static const char *const cases[][2] = {
        {"model.num_layers=5", "here: trained with model.num_layers 4, but the recipe has 5"},
        {"model.num_query_groups=2", "here: trained with model.num_query_groups 4, but the recipe has 2"},
        {"model.activation=swiglu", "here: trained with model.ffn_hidden_size"},
        {"model.norm_epsilon=1e-6", "here: trained with model.norm_epsilon"},
        {"model.seq_length=16", "here: trained with model.seq_length 32, but the recipe has 16"},
        {"model.tie_word_embeddings=false",
         "here: trained with model.tie_word_embeddings true, but the recipe has false"},
        {"model.hidden_dropout=0.5", NULL},
        {"model.init_method_std=0.5", NULL},
        {"model.make_vocab_size_divisible_by=64", NULL},
        {"seed=7", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loaded loaded = load(SMALL, (const char *const[]){cases[i][0], NULL}, 0);
        cr_assert_not_null(loaded.recipe, "%s", text_chars(&loaded.messages));
        const char *expected = cases[i][1];
        cr_expect_eq(manifest_check_model(&m, loaded.recipe, "here", ", or else", false),
                     expected == NULL ? OK : WRONG_CHECKPOINT, "%s", cases[i][0]);
        if (expected != NULL)
            cr_expect_eq(strncmp(fail_text(), expected, strlen(expected)), 0, "%s", fail_text());
        loaded_free(&loaded);
    }
    struct loaded loaded =
        load(SMALL, (const char *const[]){"model.num_layers=5", "model.norm_epsilon=1e-6", NULL}, 0);
    cr_assert_not_null(loaded.recipe, "%s", text_chars(&loaded.messages));
    cr_expect_eq(manifest_check_model(&m, loaded.recipe, "here", ", or else", false), WRONG_CHECKPOINT);
    cr_expect_str_eq(fail_text(),
                     "here: trained with model.num_layers 4, model.norm_epsilon 1e-05, but the recipe has 5, "
                     "1e-06; set model.num_layers=4 model.norm_epsilon=1e-05, or else");
    cr_expect_eq(manifest_check_model(&m, loaded.recipe, "here", NULL, false), WRONG_CHECKPOINT);
    cr_expect_str_eq(strchr(fail_text(), ';'), "; restore recipe.yaml in this directory");
    loaded_free(&loaded);
    manifest_free(&m);
    leave(folder);
}

/* A key that a later version adds has a default that changes nothing. */
Test(checkpoint_manifest, missing_keys_have_their_defaults)
{
    static const struct {
        const char *lacks, *override, *expected;
        enum status status;
    } cases[] = {
        {"norm_epsilon", "seed=1", NULL, OK},
        {"norm_epsilon", "model.norm_epsilon=1e-6",
         "here: trained with model.norm_epsilon 1e-05, but the recipe has", WRONG_CHECKPOINT},
        {"num_layers", "seed=1", "here: its manifest has no model.num_layers", BAD_CHECKPOINT},
    };
    char folder[32];
    enter(folder);
    save_one("s", 12);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct manifest m;
        struct loaded loaded = load(SMALL, (const char *const[]){cases[i].override, NULL}, 0);
        cr_assert_eq(manifest_read("s/step-00000012", &m), OK);
        for (int key = 0; key < m.model_count; key++)
            if (strcmp(m.model[key].name, cases[i].lacks) == 0)
                m.model[key].name[0] = '?';
        cr_expect_eq(manifest_check_model(&m, loaded.recipe, "here", ", or else", false), cases[i].status,
                     "%s: %s", cases[i].override, fail_text());
        if (cases[i].expected != NULL)
            cr_expect_eq(strncmp(fail_text(), cases[i].expected, strlen(cases[i].expected)), 0, "%s",
                         fail_text());
        loaded_free(&loaded);
        manifest_free(&m);
    }
    leave(folder);
}

/* The sample manifest, modified, with or without a matching checksum. */
static enum status read_changed(const struct text *bytes, bool sign)
{
    static const char key[] = "\"checksum\": \"", path[] = "s/step-00000012/manifest.json";
    struct text changed = {0};
    struct manifest m;
    char hex[HEX_CHARS];
    size_t signed_bytes = bytes->length - (sizeof key - 1 + HEX_CHARS - 1 + 3);
    text_add_bytes(&changed, bytes->chars, sign ? signed_bytes : bytes->length);
    if (sign)
        text_add(&changed, "%s%s\"}\n", key, hex_text(checksum_of(changed.chars, changed.length), hex));
    // In place: some file systems flush a truncated file when it is closed, which is slow.
    int file = open(path, O_WRONLY | O_CREAT, 0666);
    cr_assert_eq(write(file, changed.chars, changed.length), (ssize_t)changed.length);
    cr_assert_eq(ftruncate(file, (off_t)changed.length), 0);
    close(file);
    enum status status = manifest_read("s/step-00000012", &m);
    if (status == OK)
        manifest_free(&m);
    else
        cr_assert(status == BAD_CHECKPOINT && strchr(fail_text(), '\n') == NULL, "%s", fail_text());
    text_free(&changed);
    return status;
}

Test(checkpoint_manifest, survives_any_corrupt_byte)
{
    char folder[32];
    struct text good = {0};
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &good), OK);
    int accepted = 0, tried = 0;
    for (size_t at = 0; at < good.length; at++) {
        const char byte = good.chars[at];
        const char others[] = {(char)(byte ^ 1), (char)(byte ^ 0x80), 0, '"', '}', ',', '9', '-', '/'};
        for (size_t i = 0; i < sizeof others; i++) {
            good.chars[at] = others[i];
            if (others[i] == byte)
                continue;
            if (i < 2)
                cr_expect_eq(read_changed(&good, false), BAD_CHECKPOINT, "byte %zu", at);
            accepted += at + 33 < good.length && read_changed(&good, true) == OK;
            tried++;
        }
        good.chars[at] = byte;
    }
    cr_expect_eq(read_changed(&good, true), OK, "%s", fail_text());
    // Other steps, seeds, checksums and model values are valid; another structure is not.
    cr_expect(accepted > 0 && accepted < tried / 2, "%d of %d", accepted, tried);
    for (; good.length > 33; good.length -= 1 + good.length % 3)
        cr_expect_eq(read_changed(&good, false) == OK, good.length == strlen(good.chars), "%zu", good.length);
    text_free(&good);
    leave(folder);
}

/* {old text, new text, the reason} */
static const char *const invalid[][3] = {
    {"cuboid checkpoint", "a checkpoint", "not the manifest of a checkpoint"},
    {"\"version\": 3", "\"version\": 4",
     "format version 4, but this cuboid reads version 3: use a newer cuboid"},
    {"\"version\": 3", "\"version\": 2",
     "format version 2, but this cuboid reads version 3: use the older cuboid"},
    {"\"step\": 12,", "\"step\": 12, \"skipped_steps\": 13,",
     "skipped_steps is missing or has the wrong type"},
    {"\"step\": 12,", "\"step\": 12, \"skipped_steps\": -1,",
     "skipped_steps is missing or has the wrong type"},
    {"\"step\": 12", "\"step\": 9223372036854775807",
     "step 9223372036854775807 is too large; the maximum is 1000000000000"},
    {"\"step\": 12", "\"step\": 92233720368547758070", "not JSON: corrupt"},
    {"\"run\": \"", "\"run\": \"x", "run is missing or has the wrong type"},
    {"\"save\": \"", "\"other\": \"", "save is missing or has the wrong type"},
    {"\"model\": {", "\"model\": {}, \"other\": {", "model is missing or has the wrong type"},
    {"\"layout\": {", "\"layout\": {}, \"other\": {", "layout is missing or has the wrong type"},
    {"\"tp\": 2", "\"t p\": 2", "an axis of layout is missing or has the wrong type"},
    {"\"xxh3\": \"", "\"xxh3\": \"x", "xxh3 is missing or has the wrong type"},
    {"recipe.yaml", "../s.yaml", "name of a file is missing"},
    {"recipe.yaml", "other.yaml", "other.yaml: missing: not a complete checkpoint"},
    {"\"dtype\": \"F32\"", "\"dtype\": \"F33\"", "dtype is missing or has the wrong type"},
    {"\"step\": 12", "\"step\": -12", "step is missing or has the wrong type"},
    {"\"seed\": \"1234\"", "\"seed\": 1234", "seed is missing or has the wrong type"},
    {"\"pp\": 1", "\"pp\": 0", "pp is missing or has the wrong type"},
    {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"../rank-00000.safetensor\"",
     "name of a file is missing"},
    {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"rank-0.safetensors\"", "name of a file is missing"},
    {"\"name\": \"norm.weight\"", "\"name\": \"norm\\nweight\"", "name is missing or has the wrong type"},
    {"\"name\": \"norm.weight\"", "\"name\": \"norm\\\"weight\"", "name is missing or has the wrong type"},
    {"\"num_layers\": ", "\"a\\\"\": \"1\", \"num_layers\": ", "model is missing or has the wrong type"},
    {"\"rank_order\": \"", "\"rank_order\": \"\\\"", "rank_order is missing or has the wrong type"},
    {"\"name\": \"norm.weight\"", "\"name\": \"head.weight\"", "head.weight is listed twice"},
    {"\"shape\": [4]", "\"shape\": [4, 1, 1]", "shape is missing or has the wrong type"},
    {"\"shape\": [4]", "\"shape\": [0]", "shape is missing or has the wrong type"},
    {"\"shape\": [4]", "\"shape\": [4294967296, 4294967296]", "shape is missing or has the wrong type"},
    {"\"shape\": [4]", "\"shape\": [4294967295, 2147483648]", "shape is missing or has the wrong type"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": []", "no rank wrote norm.weight"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": [[0]]", "ranks is missing or has the wrong type"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": [[1, 0]]", "ranks is missing or has the wrong type"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": [[0, 4294967296]]",
     "ranks is missing or has the wrong type"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": [[0, 1]]",
     "ranks 0 to 1 of norm.weight do not all have a file"},
    {"[4], \"ranks\": [[0, 0]]", "[4], \"ranks\": [[0, 0], [0, 0]]",
     "ranks 0 to 0 of norm.weight do not all have a file, or not in order"},
    {"\"bytes\": ", "\"bytes\": 1", "bytes, but the manifest has"},
};

Test(checkpoint_manifest, invalid_manifests_are_rejected_with_the_reason)
{
    char folder[32];
    struct text good = {0};
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &good), OK);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        struct text changed = {0};
        text_add(&changed, "%s", good.chars);
        text_replace(&changed, invalid[i][0], invalid[i][1]);
        cr_expect_neq(strcmp(changed.chars, good.chars), 0, "%s", invalid[i][0]);
        cr_expect_eq(read_changed(&changed, true), BAD_CHECKPOINT, "%s", invalid[i][1]);
        cr_expect_not_null(strstr(fail_text(), invalid[i][2]), "%s\n got %s", invalid[i][1], fail_text());
        text_free(&changed);
    }
    text_free(&good);
    leave(folder);
}

/* Another one is used only in place of a damaged one. */
Test(checkpoint_manifest, one_of_another_version_is_not_skipped)
{
    static const char *const cases[][2] = {
        {"\"version\": 4", "a newer"}, {"\"version\": 2", "the older"}, {"\"step\": 13", NULL}};
    char folder[32];
    struct text good = {0};
    enter(folder);
    save_one("s", 11);
    save_one("s", 12);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &good), OK);
    for (int i = 0; i < 3; i++) {
        struct text changed = {0}, skipped = {0}, refused = {0};
        int64_t step = -1;
        text_add(&changed, "%s", good.chars);
        text_replace(&changed, i < 2 ? "\"version\": 3" : "\"step\": 12", cases[i][0]);
        cr_expect_eq(read_changed(&changed, true), i < 2 ? BAD_CHECKPOINT : OK);
        cr_expect_eq(store_newest("s", INT64_MAX, &step, &skipped), i < 2 ? BAD_CHECKPOINT : OK);
        if (i < 2) {
            text_add(&refused,
                     "s/step-00000012/manifest.json: format version %s, but this cuboid reads version 3: use "
                     "%s cuboid, or move this checkpoint to another folder to use an older one",
                     strrchr(cases[i][0], ' ') + 1, cases[i][1]);
            cr_expect_str_eq(fail_text(), refused.chars);
        }
        cr_expect_eq(step, i < 2 ? -1 : 11);
        cr_expect_eq(skipped.length > 0, i == 2);
        text_free(&refused);
        text_free(&changed);
        text_free(&skipped);
    }
    text_free(&good);
    leave(folder);
}

/* ---- the header of a file ---- */

/* One invalid field in the metadata, of the same length as the valid one. */
Test(checkpoint_manifest, files_carry_their_identity)
{
    static const char *const cases[][3] = {
        {"\"cuboid.version\":\"3\"", "\"cuboid.version\":\"2\"",
         "metadata field cuboid.version is missing or invalid"},
        {"\"cuboid.version\"", "\"cuboid.Version\"", "metadata field cuboid.version is missing or invalid"},
        {"\"cuboid.run\":\"", "\"cuboid.run\":\"x", "metadata field cuboid.run is missing or invalid"},
        {"\"cuboid.save\":\"", "\"cuboid.save\":\"-", "metadata field cuboid.save is missing or invalid"},
        {"\"cuboid.step\":\"12\"", "\"cuboid.step\":\"-2\"",
         "metadata field cuboid.step is missing or invalid"},
        {"\"cuboid.step\":\"12\"", "\"cuboid.step\":\"1e\"",
         "metadata field cuboid.step is missing or invalid"},
        {"\"cuboid.xxh3\":\"", "\"cuboid.xxh3\":\"g", "metadata field cuboid.xxh3 is missing or invalid"},
        {"\"cuboid.xxh3\"", "\"cuboid.xxh4\"", "metadata field cuboid.xxh3 is missing or invalid"},
    };
    static const char path[] = "s/step-00000012/rank-00000.safetensors";
    char folder[32];
    struct text good = {0};
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(file_read(path, &good), OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct checkpoint_file *file = NULL;
        struct text changed = {0};
        text_add_bytes(&changed, good.chars, good.length);
        char *at = memmem(changed.chars, changed.length, cases[i][0], strlen(cases[i][0]));
        cr_assert_not_null(at);
        memcpy(at, cases[i][1], strlen(cases[i][1])); // over the rest of the file
        write_in("s/step-00000012", "rank-00000.safetensors", changed.chars, changed.length);
        cr_expect_eq(checkpoint_file_open(path, &file), BAD_CHECKPOINT, "%s", cases[i][1]);
        cr_expect(strncmp(fail_text(), path, strlen(path)) == 0 && strstr(fail_text(), cases[i][2]) != NULL,
                  "%s", fail_text());
        text_free(&changed);
    }
    // A corrupted byte of the data is detected when its block is read, whichever tensor is requested.
    struct checkpoint_file *file = NULL;
    float numbers[4];
    good.chars[good.length - 1] ^= 1;
    write_in("s/step-00000012", "rank-00000.safetensors", good.chars, good.length);
    cr_assert_eq(checkpoint_file_open(path, &file), OK, "%s", fail_text());
    const struct safetensors_tensor *first = safetensors_at(checkpoint_file_tensors(file), 0);
    cr_expect_eq(checkpoint_file_read(file, first, 0, sizeof numbers, numbers), BAD_CHECKPOINT);
    cr_expect_not_null(strstr(fail_text(), ": the checksum of MiB 0 of its data is "), "%s", fail_text());
    checkpoint_file_close(file);
    text_free(&good);
    leave(folder);
}

/* ---- shards that tile a tensor ---- */

static struct shard rectangle(int64_t row, int64_t column, int64_t rows, int64_t columns, int64_t size)
{
    return (struct shard){.name = "a",
                          .dim = {size, size},
                          .slice = {.ndim = 2, .begin = {row, column}, .count = {rows, columns}}};
}

/* Cuts a rectangle in two, and the parts again, until the list is full. */
static void cut(struct shard *list, int *count, int most, uint32_t *random)
{
    while (*count < most) {
        *random = *random * 1664525U + 1013904223U;
        struct shard *one = &list[*random % (uint32_t)*count], *other = &list[*count];
        int d = *random >> 20 & 1;
        if (one->slice.count[d] < 2)
            d = 1 - d;
        if (one->slice.count[d] < 2)
            return;
        int64_t at = 1 + (int64_t)(*random >> 24) % (one->slice.count[d] - 1);
        *other = *one;
        other->slice.begin[d] += at;
        other->slice.count[d] -= at;
        one->slice.count[d] = at;
        (*count)++;
    }
}

static bool tiles(const struct shard *list, int count, int64_t size)
{
    int over[12][12] = {{0}};
    for (int i = 0; i < count; i++)
        for (int64_t row = list[i].slice.begin[0]; row < list[i].slice.begin[0] + list[i].slice.count[0];
             row++)
            for (int64_t column = list[i].slice.begin[1];
                 column < list[i].slice.begin[1] + list[i].slice.count[1]; column++)
                over[row][column]++;
    bool good = true;
    for (int64_t i = 0; i < size * size; i++)
        good = good && over[i / size][i % size] == 1;
    return good;
}

/* The same by the sums of corners that ranks exchange. */
static bool covers(const struct shard *list, int count)
{
    struct cover sum = {0}, whole = {0};
    cover_add_whole(&whole, &list[0]);
    for (int i = 0; i < count; i++)
        cover_add(&sum, &list[i]);
    return cover_equal(&sum, &whole);
}

/* Checked against a count of each element: random tilings, and the same with one rectangle moved or
 * stretched. */
Test(checkpoint_manifest, shards_must_cover_a_tensor_exactly_once)
{
    uint32_t random = 3;
    int accepted = 0, refused = 0;
    for (int round = 0; round < sampled(20000); round++) {
        int64_t size = 1 + round % 12;
        struct shard list[20] = {rectangle(0, 0, size, size, size)};
        int count = 1;
        cut(list, &count, 1 + round % 20, &random);
        for (int changes = round % 3; changes > 0; changes--) {
            random = random * 1664525U + 1013904223U;
            struct shard *one = &list[random % (uint32_t)count];
            int d = random >> 16 & 1;
            int64_t *what = random >> 17 & 1 ? one->slice.begin : one->slice.count;
            what[d] += random >> 18 & 1 ? 1 : -1;
            if (one->slice.begin[d] < 0 || one->slice.count[d] < 1 ||
                one->slice.begin[d] + one->slice.count[d] > size)
                what[d] += random >> 18 & 1 ? -1 : 1;
        }
        bool good = tiles(list, count, size);
        cr_assert_eq(shards_tile(list, count, "here"), good ? OK : BAD_CHECKPOINT, "round %d", round);
        cr_assert_eq(covers(list, count), good, "round %d", round);
        accepted += good;
        refused += !good;
    }
    cr_expect(accepted > sampled(5000) && refused > sampled(5000), "%d, %d", accepted, refused);
}

/* In n log n: comparing all pairs would take minutes. In processor time, as the machine may be busy. */
Test(checkpoint_manifest, many_shards_are_checked_quickly)
{
    enum { MANY = 200000, LIMIT_S = 20 };
    const clock_t begin = clock();
    struct shard *list = calloc(MANY, sizeof *list);
    cr_assert_not_null(list);
    for (int i = 0; i < MANY; i++)
        list[i] = rectangle(0, i, MANY, 1, MANY);
    cr_expect_eq(shards_tile(list, MANY, "here"), OK, "%s", fail_text());
    list[MANY / 2].slice.begin[1]--;
    cr_expect_eq(shards_tile(list, MANY, "here"), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(), "here: two shards of a overlap");
    cr_expect((double)(clock() - begin) < (double)LIMIT_S * CLOCKS_PER_SEC);
    free(list);
}
