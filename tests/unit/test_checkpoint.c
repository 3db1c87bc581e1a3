// SPDX-License-Identifier: Apache-2.0
/* The manifest and the folder of checkpoints, with checkpoints of two tensors made by hand: what is complete
 * and what is not, what a save may remove and when, and manifests in which anything may be wrong. What ranks
 * do together is in tests/ranks/test_checkpoint.c. */
#include "trainer/checkpoint.h"

#include "tests/unit/recipe_case.h"
#include "trainer/checkpoint_folder.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/checksum.h"
#include "trainer/safetensors.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static void enter(char folder[32])
{
    snprintf(folder, 32, "/tmp/cuboid-saves-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void leave(const char *folder)
{
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* "step-00000001 step-00000002.partial" */
static const char *list(const char *save, struct text *out)
{
    struct dirent **names = NULL;
    int count = scandir(save, &names, NULL, alphasort);
    out->length = 0;
    text_add(out, "%s", "");
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.')
            text_add(out, "%s%s", out->length > 0 ? " " : "", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return out->chars;
}

/* ---- a checkpoint by hand ---- */

static void write_tensors(const char *path)
{
    const struct safetensors_tensor tensors[] = {
        {.name = "norm.weight", .dtype = SAFETENSORS_F32, .ndim = 1, .dim = {4}},
        {.name = "head.weight", .dtype = SAFETENSORS_F32, .ndim = 2, .dim = {2, 4}}};
    const struct safetensors_pair metadata[] = {{"norm.weight", "0 4 0000000000000001"},
                                                {"head.weight", "0,0 2,4 0000000000000002"}};
    float numbers[12] = {0};
    struct safetensors_writer *writer = NULL;
    cr_assert_eq(safetensors_create(path, tensors, 2, 128, &writer), OK, "%s", fail_text());
    cr_assert_eq(safetensors_append(writer, numbers, sizeof numbers), OK);
    cr_assert_eq(safetensors_finish(writer, metadata, 2), OK);
    safetensors_writer_destroy(writer);
}

static void write_manifest(const char *folder, int64_t step)
{
    struct loaded loaded = load(SMALL, NULL, 0);
    struct run run = {.recipe = loaded.recipe};
    struct worker worker = {.run = &run, .step = step};
    struct manifest manifest;
    struct text text = {0}, path = {0};
    cr_assert_eq(mesh_create((struct degrees){2, 1, 1, 1, 1}, NULL, &worker.mesh), OK);
    cr_assert_eq(manifest_begin(&worker, &manifest), OK);
    cr_assert_eq(manifest_add_file(&manifest, folder, "rank-00000.safetensors"), OK, "%s", fail_text());
    cr_assert_eq(manifest_complete(&manifest, folder), OK, "%s", fail_text());
    manifest_text(&manifest, &text);
    text_add(&path, "%s/manifest.json", folder);
    cr_assert_eq(file_write_atomic(path.chars, text.chars, text.length), OK);
    manifest_free(&manifest);
    text_free(&text);
    text_free(&path);
    loaded_free(&loaded);
}

/* As a save does it, up to before the name is given. */
static void begin(const char *save, int64_t step)
{
    struct text folder = {0}, path = {0};
    cr_assert_eq(folder_begin(save, step), OK, "%s", fail_text());
    folder_of_step(save, step, ".partial", &folder);
    text_add(&path, "%s/rank-00000.safetensors", folder.chars);
    write_tensors(path.chars);
    write_manifest(folder.chars, step);
    text_free(&folder);
    text_free(&path);
}

static void save_one(const char *save, int64_t step)
{
    begin(save, step);
    cr_assert_eq(folder_publish(save, step), OK, "%s", fail_text());
}

static void expect_found(const char *save, const char *expected)
{
    char *found = NULL;
    cr_assert_eq(checkpoint_find(save, &found), OK);
    if (expected == NULL)
        cr_expect_null(found, "found %s", found);
    else
        cr_expect_str_eq(found, expected);
    free(found);
}

static void silence(void)
{
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
}

/* ---- the folder ---- */

Test(checkpoint, the_newest_complete_one_is_found, .init = silence)
{
    char folder[32];
    enter(folder);
    expect_found("none", NULL);
    save_one("s", 9);
    expect_found("s", "s/step-00000009");
    save_one("s", 100);
    save_one("s", 123456789);
    expect_found("s", "s/step-123456789");

    // Each way of not being complete.
    cr_assert_eq(unlink("s/step-123456789/manifest.json"), 0);
    expect_found("s", "s/step-00000100");
    save_one("s", 200);
    cr_assert_eq(truncate("s/step-00000200/rank-00000.safetensors", 100), 0);
    expect_found("s", "s/step-00000100");
    save_one("s", 300);
    cr_assert_eq(unlink("s/step-00000300/rank-00000.safetensors"), 0);
    expect_found("s", "s/step-00000100");
    save_one("s", 400);
    cr_assert_eq(truncate("s/step-00000400/manifest.json", 50), 0);
    expect_found("s", "s/step-00000100");
    begin("s", 500);
    expect_found("s", "s/step-00000100");

    // Names that are nobody's.
    const char *const names[] = {"s/step-",          "s/step-1",        "s/step-00000600x",
                                 "s/step-000000700", "s/Step-00000800", "s/step-9999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_eq(rename("s/step-00000100", names[i]) || (expect_found("s", "s/step-00000009"), 0) ||
                         rename(names[i], "s/step-00000100"),
                     0);
    expect_found("s", "s/step-00000100");
    leave(folder);
}

Test(checkpoint, leftovers_go_and_strangers_stay, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    save_one("s", 1);
    begin("s", 2); // killed here
    cr_assert_eq(mkdir("s/step-00000003.old", 0777), 0);
    cr_assert_eq(mkdir("s/step-00000004.removed", 0777), 0);
    cr_assert_eq(mkdir("s/step-00000005.mine", 0777), 0);
    cr_assert_eq(mkdir("s/step-00000006.partial", 0777), 0);
    cr_assert_eq(mkdir("s/step-00000006.partial/mine", 0777), 0);
    cr_assert_eq(mkdir("s/notes", 0777), 0);
    begin("s", 7);
    cr_expect_str_eq(list("s", &names), "notes step-00000001 step-00000005.mine step-00000006.partial "
                                        "step-00000007.partial");
    folder_abandon("s", 7);
    cr_expect_str_eq(list("s", &names), "notes step-00000001 step-00000005.mine step-00000006.partial");
    text_free(&names);
    leave(folder);
}

Test(checkpoint, a_save_of_the_same_step_replaces_it)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    save_one("s", 1);
    cr_assert_eq(mkdir("s/step-00000002", 0777), 0); // not complete
    write_tensors("s/step-00000001/stale");
    save_one("s", 1);
    save_one("s", 2);
    cr_expect_str_eq(list("s", &names), "step-00000001 step-00000002");
    cr_expect_str_eq(list("s/step-00000001", &names), "manifest.json rank-00000.safetensors");
    expect_found("s", "s/step-00000002");
    text_free(&names);
    leave(folder);
}

Test(checkpoint, older_ones_are_removed_and_nothing_else, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    for (int64_t step = 1; step <= 6; step++)
        save_one("s", step);
    cr_assert_eq(unlink("s/step-00000005/manifest.json"), 0); // does not count, and is not ours to remove
    cr_assert_eq(mkdir("s/step-00000004.partial", 0777), 0);  // nor does this
    folder_prune("s", 4, 2); // 6 is of another run: newer than what was saved
    cr_expect_str_eq(list("s", &names),
                     "step-00000003 step-00000004 step-00000004.partial step-00000005 step-00000006");
    cr_assert_eq(rmdir("s/step-00000004.partial"), 0);
    folder_prune("s", 6, 1);
    cr_expect_str_eq(list("s", &names), "step-00000005 step-00000006");
    folder_prune("s", 6, 1);
    cr_expect_str_eq(list("s", &names), "step-00000005 step-00000006");
    text_free(&names);
    leave(folder);
}

Test(checkpoint, links_are_removed_and_what_they_point_to_stays, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    for (int64_t step = 1; step <= 3; step++)
        save_one("foreign", step);
    cr_assert_eq(mkdir("s", 0777) || mkdir("precious", 0777) || mkdir("precious/thesis", 0777), 0);
    write_tensors("precious/rank-00000.safetensors");
    cr_assert_eq(symlink("../foreign/step-00000001", "s/step-00000001"), 0);
    cr_assert_eq(symlink("../precious", "s/step-00000002.partial"), 0);
    cr_assert_eq(symlink("../precious", "s/step-00000003.partial"), 0);
    cr_assert_eq(symlink("../foreign/step-00000003", "s/step-00000003"), 0);
    save_one("s", 2);
    save_one("s", 3);
    folder_prune("s", 3, 1);
    expect_found("s", "s/step-00000003");
    cr_expect_str_eq(list("precious", &names), "rank-00000.safetensors thesis");
    cr_expect_str_eq(list("foreign", &names), "step-00000001 step-00000002 step-00000003");
    for (int64_t step = 1; step <= 3; step++) {
        struct text path = {0};
        folder_of_step("foreign", step, "", &path);
        cr_expect_str_eq(list(path.chars, &names), "manifest.json rank-00000.safetensors");
        text_free(&path);
    }
    text_free(&names);
    leave(folder);
}

Test(checkpoint, a_path_is_a_checkpoint_or_a_folder_of_them, .init = silence)
{
    char folder[32], *found = NULL;
    enter(folder);
    save_one("s", 1);
    save_one("s", 2);
    cr_assert_eq(checkpoint_resolve("s/step-00000001", &found), OK);
    cr_expect_str_eq(found, "s/step-00000001");
    free(found);
    cr_assert_eq(checkpoint_recipe_path("s", &found), OK);
    cr_expect_str_eq(found, "s/step-00000002/recipe.yaml");
    free(found);
    cr_expect_eq(checkpoint_resolve("t", &found), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(), "t: No such file or directory");
    cr_expect_eq(checkpoint_resolve("/", &found), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(),
                     "/: no checkpoint: it holds no manifest.json, and no complete step-... folder");
    leave(folder);
}

/* ---- the manifest ---- */

Test(checkpoint, a_manifest_reads_back)
{
    char folder[32];
    struct manifest m;
    int count;
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(manifest_read("s/step-00000012", &m), OK, "%s", fail_text());
    cr_expect(m.step == 12 && m.consumed_samples == 96 && m.seed == 1234);
    cr_expect(m.degrees.tp == 2 && m.degrees.pp == 1);
    cr_expect_str_eq(m.rank_order, "tp-cp-ep-dp-pp");
    cr_expect(m.file_count == 1 && m.piece_count == 2);
    const struct piece *piece = manifest_find(&m, "head.weight", &count);
    cr_assert(piece != NULL && count == 1);
    cr_expect(piece->ndim == 2 && piece->dim[1] == 4 && piece->count[0] == 2 && piece->checksum == 2);
    cr_expect_null(manifest_find(&m, "head", &count));
    cr_expect_eq(count, 0);
    struct text again = {0}, file = {0};
    manifest_text(&m, &again);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &file), OK);
    cr_expect_str_eq(again.chars, file.chars);
    text_free(&again);
    text_free(&file);
    manifest_free(&m);
    leave(folder);
}

Test(checkpoint, the_first_key_of_the_model_that_differs_is_named)
{
    char folder[32];
    struct manifest m;
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(manifest_read("s/step-00000012", &m), OK);
    static const char *const cases[][2] = {
        {"model.num_layers=5", "here: made with model.num_layers 4, and the recipe says 5"},
        {"model.num_query_groups=2", "here: made with model.num_query_groups 4, and the recipe says 2"},
        {"model.activation=swiglu", "here: made with model.ffn_hidden_size"},
        {"model.norm_epsilon=1e-6", "here: made with model.norm_epsilon"},
        {"model.seq_length=16", "here: made with model.seq_length 32, and the recipe says 16"},
        {"model.tie_word_embeddings=false",
         "here: made with model.tie_word_embeddings true, and the recipe says false"},
        {"model.hidden_dropout=0.5", NULL},
        {"model.init_method_std=0.5", NULL},
        {"model.make_vocab_size_divisible_by=64", NULL},
        {"seed=7", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loaded loaded = load(SMALL, (const char *const[]){cases[i][0], NULL}, 0);
        cr_assert_not_null(loaded.recipe, "%s", text_chars(&loaded.said));
        const char *said = cases[i][1];
        cr_expect_eq(manifest_check_model(&m, loaded.recipe, "here"), said == NULL ? OK : BAD_CHECKPOINT,
                     "%s", cases[i][0]);
        if (said != NULL)
            cr_expect_eq(strncmp(fail_text(), said, strlen(said)), 0, "%s", fail_text());
        loaded_free(&loaded);
    }
    manifest_free(&m);
    leave(folder);
}

/* The sample's manifest, changed, with or without a checksum that fits. */
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
    // In place: a file that is emptied first is flushed by some file systems when it is closed.
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

Test(checkpoint, a_manifest_may_have_a_loss_scale)
{
    static const struct {
        const char *words;
        enum status status;
    } cases[] = {
        {"\"skipped_steps\": 12, \"loss_scale\": {\"scale\": 0.25, \"good_steps\": 61, \"hysteresis\": 2},",
         OK},
        {"\"loss_scale\": {\"scale\": 4294967296, \"good_steps\": 0, \"hysteresis\": 0},", OK},
        {"\"skipped_steps\": 13,", BAD_CHECKPOINT}, // of 12
        {"\"skipped_steps\": -1,", BAD_CHECKPOINT},
        {"\"loss_scale\": 8,", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": 0, \"good_steps\": 0, \"hysteresis\": 0},", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": -8, \"good_steps\": 0, \"hysteresis\": 0},", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": 1e300, \"good_steps\": 0, \"hysteresis\": 0},", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": \"8\", \"good_steps\": 0, \"hysteresis\": 0},", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": 8, \"hysteresis\": 0},", BAD_CHECKPOINT},
        {"\"loss_scale\": {\"scale\": 8, \"good_steps\": 0, \"hysteresis\": -1},", BAD_CHECKPOINT},
    };
    char folder[32];
    enter(folder);
    save_one("s", 12);
    struct text good = {0};
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &good), OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text changed = {0}, model = {0};
        text_add(&changed, "%s", good.chars);
        text_add(&model, "%s\"model\": {", cases[i].words);
        text_replace(&changed, "\"model\": {", model.chars);
        cr_expect_eq(read_changed(&changed, true), cases[i].status, "%s", cases[i].words);
        text_free(&changed);
        text_free(&model);
    }
    text_free(&good);
    leave(folder);
}

Test(checkpoint, any_byte_of_a_manifest_may_be_wrong, .timeout = 100)
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
    // Steps, seeds, checksums and values of the model may be others; structure may not.
    cr_expect(accepted > 0 && accepted < tried / 2, "%d of %d", accepted, tried);
    for (; good.length > 33; good.length -= 1 + good.length % 3)
        cr_expect_eq(read_changed(&good, false) == OK, good.length == strlen(good.chars), "%zu", good.length);
    text_free(&good);
    leave(folder);
}

Test(checkpoint, a_manifest_that_was_written_wrong_is_refused_for_its_reason)
{
    static const char *const cases[][3] = {
        {"cuboid checkpoint", "a checkpoint", "not the manifest of a checkpoint"},
        {"\"version\": 1", "\"version\": 2", "version 2 of the format; only version 1 is known"},
        {"\"step\": 12", "\"step\": -12", "step is missing or of another kind"},
        {"\"seed\": \"1234\"", "\"seed\": 1234", "seed is missing or of another kind"},
        {"\"pp\": 1", "\"pp\": 0", "pp is missing or of another kind"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"../rank-00000.safetensor\"",
         "name of a file is missing"},
        {"\"name\": \"norm.weight\"", "\"name\": \"norm\\nweight\"", "name is missing or of another kind"},
        {"\"shape\": [4]", "\"shape\": [5]", "the pieces of norm.weight have 4 of its 5 elements"},
        {"\"shape\": [4]", "\"shape\": [4, 1, 1]", "shape is missing or of another kind"},
        {"\"begin\": [0]", "\"begin\": [9223372036854775807]", "a piece of norm.weight does not fit into it"},
        {"\"count\": [4]", "\"count\": []", "count is missing or of another kind"},
        {"\"name\": \"head.weight\"", "\"name\": \"norm.weight\"",
         "a piece of norm.weight does not fit into it"},
        {"\"bytes\": ", "\"bytes\": 1", "bytes, and the manifest says"},
    };
    char folder[32];
    struct text good = {0};
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(file_read("s/step-00000012/manifest.json", &good), OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text changed = {0};
        text_add(&changed, "%s", good.chars);
        text_replace(&changed, cases[i][0], cases[i][1]);
        cr_expect_neq(strcmp(changed.chars, good.chars), 0);
        cr_expect_eq(read_changed(&changed, true), BAD_CHECKPOINT, "%s", cases[i][1]);
        cr_expect_not_null(strstr(fail_text(), cases[i][2]), "%s\n said %s", cases[i][1], fail_text());
        text_free(&changed);
    }
    text_free(&good);
    leave(folder);
}
