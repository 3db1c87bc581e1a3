// SPDX-License-Identifier: Apache-2.0
/* The checkpoint folder, with checkpoints made by hand: which are complete, and which files a save may
 * remove and when. Collective saves and loads are tested in tests/ranks/training/test_checkpoint.c. */
#include "trainer/checkpoint/best.h"

#include "tests/unit/checkpoint/checkpoint_by_hand.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/checkpoint/store.h"

#include <fcntl.h>
#include <math.h>
#include <sys/wait.h>

static void expect_found(const char *save, const char *expected)
{
    char *found = NULL;
    cr_assert_eq(store_find(save, &found), OK);
    if (expected == NULL)
        cr_expect_null(found, "found %s", found);
    else
        cr_expect_str_eq(found, expected);
    free(found);
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

    // Each way of being incomplete.
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

    // Names that are not those of checkpoints.
    const char *const names[] = {"s/step-",          "s/step-1",        "s/step-00000600x",
                                 "s/step-000000700", "s/Step-00000800", "s/step-9999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_eq(rename("s/step-00000100", names[i]) || (expect_found("s", "s/step-00000009"), 0) ||
                         rename(names[i], "s/step-00000100"),
                     0);
    expect_found("s", "s/step-00000100");
    leave(folder);
}

Test(checkpoint, only_leftovers_of_this_run_are_removed, .init = silence)
{
    static const char *const theirs[] = {
        "s/step-00000001.old",  "s/step-00000001.removed",   "s/step-00000003.old",
        "s/step-00000004.mine", "s/step-00000005.partial-7", "s/step-00000006.partial",
    };
    static const char all[] =
        "run.json step-00000001 step-00000001.old step-00000001.removed step-00000003.old "
        "step-00000004.mine step-00000005.partial-7 step-00000006.partial";
    char folder[32];
    struct text names = {0};
    enter(folder);
    save_one("s", 1);
    begin("s", 2); // killed here
    // The user's copies, each of them a complete checkpoint of this run.
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
        struct save_ticket ticket = {.identity = {.step = 1}};
        struct run_record record;
        struct text path = {0};
        cr_assert_eq(run_record_read("s", &record), OK);
        memcpy(ticket.identity.run, record.run, sizeof record.run);
        cr_assert_eq(random_hex(ticket.identity.save, SAVE_CHARS - 1), OK);
        cr_assert_eq(mkdir(theirs[i], 0777), 0);
        text_add(&path, "%s/rank-00000.safetensors", theirs[i]);
        struct manifest_file file = write_tensors(path.chars, &ticket.identity);
        write_manifest(theirs[i], &ticket.identity, &file);
        text_free(&path);
    }
    cr_assert_eq(store_clean("s"), OK);
    cr_expect_str_eq(list("s", &names), all);
    struct save_ticket ticket = begin("s", 6); // whose default name is in use
    cr_expect_eq(ticket.attempt, 2);
    store_abandon("s", &ticket);
    cr_expect_str_eq(list("s", &names), all);
    save_and_keep("s", 6, 1);
    cr_expect_str_eq(list("s", &names), "run.json step-00000001.old step-00000001.removed step-00000003.old "
                                        "step-00000004.mine step-00000005.partial-7 step-00000006 "
                                        "step-00000006.partial");
    text_free(&names);
    leave(folder);
}

/* Killed while removing a checkpoint, at each file of it. */
Test(checkpoint, an_interrupted_removal_is_completed)
{
    static const char *const gone[] = {"manifest.json", "recipe.yaml", "rank-00000.safetensors"};
    char folder[32];
    struct text names = {0};
    for (size_t files = 0; files <= 3; files++) {
        enter(folder);
        save_one("s", 1);
        cr_assert_eq(run_record_set_unfinished("s", "step-00000001.removed"), OK);
        cr_assert_eq(rename("s/step-00000001", "s/step-00000001.removed"), 0);
        for (size_t i = 0; i < files; i++) {
            struct text path = {0};
            text_add(&path, "s/step-00000001.removed/%s", gone[i]);
            cr_assert_eq(unlink(path.chars), 0);
            text_free(&path);
        }
        write_in("s/step-00000001.removed", "manifest.json.cuboid-tmp-0123456789abcdef", "x", 1);
        save_one("s", 2);
        cr_expect_str_eq(list("s", &names), "run.json step-00000002");
        leave(folder);
    }
    text_free(&names);
}

/* Names similar to those that a save writes. */
Test(checkpoint, files_that_no_save_writes_are_kept, .init = silence)
{
    static const char *const names[] = {"manifest.json.cuboid-tmp-mine", "manifest.json.bak",
                                        "rank-00000.safetensors.cuboid-tmp-0123456789abcdef0",
                                        "rank-.safetensors.old", "data.jsonl"};
    char folder[32];
    struct text left = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enter(folder);
        save_one("s", 1);
        write_in("s/step-00000001", names[i], "x", 1);
        save_and_keep("s", 2, 1);
        cr_expect_str_eq(list("s", &left), "run.json step-00000001.removed step-00000002", "%s", names[i]);
        cr_expect_str_eq(list("s/step-00000001.removed", &left), names[i]);
        leave(folder);
    }
    text_free(&left);
}

Test(checkpoint, a_save_of_the_same_step_replaces_it, .init = silence)
{
    char folder[32];
    struct text names = {0};
    struct manifest first, second;
    enter(folder);
    save_one("s", 1);
    cr_assert_eq(manifest_read("s/step-00000001", &first), OK);
    cr_assert_eq(mkdir("s/step-00000002", 0777), 0); // incomplete, and so of unknown origin
    save_one("s", 1);
    save_one("s", 2);
    cr_expect_str_eq(list("s", &names), "run.json step-00000001 step-00000002 step-00000002.old");
    cr_expect_str_eq(list("s/step-00000001", &names), "manifest.json rank-00000.safetensors recipe.yaml");
    cr_assert_eq(manifest_read("s/step-00000001", &second), OK);
    cr_expect_str_eq(first.identity.run, second.identity.run);
    cr_expect_str_neq(first.identity.save, second.identity.save);
    expect_found("s", "s/step-00000002");
    manifest_free(&first);
    manifest_free(&second);
    text_free(&names);
    leave(folder);
}

Test(checkpoint, only_older_checkpoints_are_removed, .init = silence)
{
    char folder[32];
    struct text names = {0};
    enter(folder);
    for (int64_t step = 1; step <= 4; step++)
        save_one("s", step);
    save_one("foreign", 2);
    cr_assert_eq(rename("s/step-00000002", "s/step-00000012"), 0); // named by the user
    cr_assert_eq(rename("foreign/step-00000002", "s/step-00000002"), 0);
    cr_assert_eq(unlink("s/step-00000003/manifest.json"), 0); // does not count
    cr_assert_eq(mkdir("s/step-00000004.partial", 0777), 0);  // nor does this
    save_and_keep("s", 5, 1);
    cr_expect_str_eq(list("s", &names), "run.json step-00000002 step-00000003 step-00000004.partial "
                                        "step-00000005 step-00000012");
    save_and_keep("s", 4, 1); // step 5 is newer than the saved step, and is kept
    cr_expect_str_eq(list("s", &names), "run.json step-00000002 step-00000003 step-00000004 "
                                        "step-00000004.partial step-00000005 step-00000012");
    cr_assert_eq(rmdir("s/step-00000004.partial"), 0);
    text_free(&names);
    leave(folder);
}

/* Publishes a step with a validation loss; NAN: none. */
static struct manifest publish_with_loss(int64_t step, double loss, struct save_ticket *ticket)
{
    struct text folder = {0}, text = {0};
    struct manifest manifest;
    *ticket = begin("s", step);
    store_of_ticket("s", ticket, &folder);
    cr_assert_eq(manifest_read(folder.chars, &manifest), OK, "%s", fail_text());
    manifest.has_valid_loss = !isnan(loss);
    manifest.valid_loss = loss;
    manifest_text(&manifest, &text);
    write_in(folder.chars, "manifest.json", text.chars, text.length);
    cr_assert_eq(store_publish("s", ticket), OK, "%s", fail_text());
    text_free(&folder);
    text_free(&text);
    return manifest;
}

/* Saves a step; keeps the newest checkpoint and the best, which it returns. */
static int64_t save_and_keep_best(int64_t step, double loss, enum status expected)
{
    struct save_ticket ticket;
    struct best_checkpoint best;
    struct manifest manifest = publish_with_loss(step, loss, &ticket);
    cr_assert_eq(best_update("s", &manifest, &best), expected, "%s", fail_text());
    store_prune("s", &ticket, 1, 0, best.step);
    manifest_free(&manifest);
    return best.step;
}

/* The best is kept, whatever happens to the link; a step without a loss is never the best. */
Test(checkpoint, the_best_is_kept, .init = silence)
{
    static const double losses[] = {5.0, 4.0, NAN, 4.5, 4.0, 6.0};
    static const int64_t bests[] = {1, 2, 2, 2, 2, 2};
    char folder[32], target[32] = {0};
    struct text names = {0};
    struct best_checkpoint best;
    struct save_ticket ticket;
    enter(folder);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(save_and_keep_best(i + 1, losses[i], OK), bests[i], "step %d", i + 1);
    cr_expect_str_eq(list("s", &names), "best run.json step-00000002 step-00000006");
    cr_expect(readlink("s/best", target, sizeof target - 1) > 0 && strcmp(target, "step-00000002") == 0);
    cr_assert_eq(unlink("s/best"), 0);
    cr_expect_eq(save_and_keep_best(7, 5.5, OK), 2);
    cr_expect_str_eq(list("s", &names), "best run.json step-00000002 step-00000007");
    cr_assert_eq(truncate("s/step-00000002/manifest.json", 10), 0); // damaged: the next best counts
    cr_expect_eq(save_and_keep_best(8, 7.0, OK), 7);
    cr_expect_str_eq(list("s", &names), "best run.json step-00000002 step-00000007 step-00000008");
    // Killed before the link was renewed.
    struct manifest manifest = publish_with_loss(9, 1.0, &ticket);
    manifest_free(&manifest);
    cr_expect_eq(best_read("s").step, 7);
    cr_assert_eq(best_find("s", &best), OK);
    cr_expect(best.step == 9 && best_read("s").step == 9);
    // The same step again, with another loss.
    cr_expect_eq(save_and_keep_best(9, 8.0, OK), 7);
    // A user's folder of that name is kept, and so is the best checkpoint.
    cr_assert(unlink("s/best") == 0 && mkdir("s/best", 0777) == 0);
    cr_expect_eq(save_and_keep_best(10, 9.0, IO_ERROR), 7);
    cr_expect_str_eq(list("s", &names), "best run.json step-00000002 step-00000007 step-00000010");
    cr_assert(rmdir("s/best") == 0 && symlink("step-00000099", "s/best") == 0);
    best_remove_dangling("s");
    cr_expect_str_eq(list("s", &names), "run.json step-00000002 step-00000007 step-00000010");
    text_free(&names);
    leave(folder);
}

Test(checkpoint, links_are_removed_and_their_targets_kept, .init = silence)
{
    char folder[32];
    struct text names = {0};
    struct save_identity foreign = {.step = 1};
    enter(folder);
    for (int64_t step = 1; step <= 4; step++)
        save_one("foreign", step);
    save_one("s", 1);
    cr_assert_eq(mkdir("precious", 0777) || mkdir("precious/thesis", 0777) || mkdir("archive", 0777), 0);
    snprintf(foreign.run, sizeof foreign.run, "%032d", 0);
    snprintf(foreign.save, sizeof foreign.save, "%016d", 0);
    write_tensors("precious/rank-00000.safetensors", &foreign);
    // Moved away by the user, leaving a link.
    cr_assert_eq(rename("s/step-00000001", "archive/step-00000001"), 0);
    cr_assert_eq(symlink("../archive/step-00000001", "s/step-00000001"), 0);
    cr_assert_eq(symlink("../foreign/step-00000002", "s/step-00000002"), 0);
    cr_assert_eq(symlink("../precious", "s/step-00000003.partial"), 0);
    cr_assert_eq(symlink("../precious", "s/step-00000004.partial"), 0);
    cr_assert_eq(symlink("../foreign/step-00000004", "s/step-00000004"), 0);
    save_and_keep("s", 3, 1);
    save_and_keep("s", 4, 1);
    cr_expect_str_eq(list("s", &names), "run.json step-00000002 step-00000004");
    expect_found("s", "s/step-00000004");
    cr_expect_str_eq(list("precious", &names), "rank-00000.safetensors thesis");
    for (int64_t step = 1; step <= 4; step++) {
        struct text path = {0};
        store_of_step(step == 1 ? "archive" : "foreign", step, "", &path);
        cr_expect_str_eq(list(path.chars, &names), "manifest.json rank-00000.safetensors recipe.yaml");
        text_free(&path);
    }
    text_free(&names);
    leave(folder);
}

/* A run that resumes ignores checkpoints of other runs, and one with the name of another step. */
Test(checkpoint, checkpoints_of_other_runs_are_ignored, .init = silence)
{
    char folder[32];
    enter(folder);
    save_one("foreign", 7);
    save_one("s", 3);
    save_one("s", 4);
    cr_assert_eq(symlink("../foreign/step-00000007", "s/step-00000007"), 0);
    expect_found("s", "s/step-00000004");
    cr_assert_eq(rename("s/step-00000003", "s/step-00000009"), 0);
    expect_found("s", "s/step-00000004");
    // Moved to another disk by the user, leaving a link.
    cr_assert_eq(mkdir("archive", 0777) || rename("s/step-00000004", "archive/four") ||
                     symlink("../archive/four", "s/step-00000004"),
                 0);
    expect_found("s", "s/step-00000004");
    leave(folder);
}

/* Two processes that save the same step of the same run, each unaware of the other: the manifest has the
 * checksums of the files of its own save. */
Test(checkpoint, files_of_two_saves_are_not_mixed, .init = silence)
{
    char folder[32];
    struct manifest manifest;
    struct checkpoint_reader source;
    const struct shard *shards;
    int count;
    enter(folder);
    save_one("s", 12);
    cr_assert_eq(manifest_read("s/step-00000012", &manifest), OK);
    const struct save_identity identity = manifest.identity;
    manifest_free(&manifest);
    struct save_identity others[4] = {identity, identity, identity, identity};
    others[0].run[5] = others[0].run[5] == 'a' ? 'b' : 'a';
    others[1].save[5] = others[1].save[5] == 'a' ? 'b' : 'a';
    others[2].step++;
    const struct slice want = {.ndim = 1, .count = {4, 1}, .padded = {4, 1}};
    for (int i = 0; i < 4; i++) {
        (void)write_tensors("s/step-00000012/rank-00000.safetensors", &others[i]);
        cr_assert_eq(checkpoint_reader_open("s/step-00000012", 0, &source), OK, "%s", fail_text());
        // A load compares layouts, which ignores errors, before it reads.
        cr_expect_eq(checkpoint_reader_file_has(&source, 0, "norm.weight", &want), i == 3, "%d", i);
        enum status status = checkpoint_reader_find(&source, "norm.weight", &want, &shards, &count);
        cr_expect_eq(status, i < 3 ? BAD_CHECKPOINT : OK, "%d", i);
        if (i < 3)
            cr_expect_not_null(strstr(fail_text(), ", but the manifest is of step 12 of run "), "%s",
                               fail_text());
        checkpoint_reader_close(&source);
    }
    leave(folder);
}

/* run.json may hold anything. */
Test(checkpoint, a_damaged_record_is_replaced, .init = silence)
{
    static const char *const records[] = {
        "",
        "{}",
        "[",
        "{\"format\": \"cuboid run\", \"run\": \"00\", \"unfinished\": []}",
        "{\"format\": \"cuboid run\", \"run\": \"00000000000000000000000000000000\", \"unfinished\": "
        "[\"step-1/../../precious\"]}",
        "{\"format\": \"cuboid run\", \"run\": \"00000000000000000000000000000000\", \"unfinished\": "
        "[\"..\"]}",
        "{\"format\": \"cuboid run\", \"run\": \"00000000000000000000000000000000\", \"unfinished\": 3}",
    };
    char folder[32];
    struct text names = {0};
    struct run_record record;
    enter(folder);
    cr_assert_eq(mkdir("precious", 0777), 0);
    write_in("precious", "manifest.json", "x", 1);
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        cr_assert_eq(folder_make("s"), OK);
        write_in("s", "run.json", records[i], strlen(records[i]));
        save_one("s", 1);
        cr_assert_eq(run_record_read("s", &record), OK);
        cr_expect(is_hex(record.run, RUN_CHARS - 1) &&
                  record.run[0] + record.run[1] + record.run[2] != 3 * '0');
    }
    cr_expect_str_eq(list("precious", &names), "manifest.json");
    text_free(&names);
    leave(folder);
}

/* A checkpoint that this user may not read is not damaged: no older one is used in its place. */
Test(checkpoint, one_that_cannot_be_read_is_not_skipped, .init = silence)
{
    enum { NOBODY = 65534 };
    char folder[32], *found = NULL;
    int status = -1;
    enter(folder);
    save_one("s", 1);
    save_one("s", 2);
    cr_assert(chmod(".", 0755) == 0 && chmod("s/step-00000002/manifest.json", 0) == 0);
    const pid_t child = fork();
    if (child == 0) { // root may read everything
        if (geteuid() == 0 && setuid(NOBODY) != 0)
            _exit(0);
        const bool right = store_find("s", &found) == IO_ERROR &&
                           strcmp(fail_text(), "s/step-00000002/manifest.json: Permission denied") == 0;
        _exit(right ? 0 : 1);
    }
    cr_expect(waitpid(child, &status, 0) == child && status == 0);
    cr_assert_eq(chmod("s/step-00000002/manifest.json", 0644), 0);
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
    cr_expect_str_eq(fail_text(),
                     "t: No such file or directory; use a checkpoint, a directory of checkpoints or a run "
                     "directory");
    cr_expect_eq(checkpoint_resolve("s/step-00000001/manifest.json", &found), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(),
                     "s/step-00000001/manifest.json: not a directory; use a checkpoint, a directory of "
                     "checkpoints or a run directory");
    cr_expect_eq(checkpoint_resolve("/", &found), BAD_CHECKPOINT);
    cr_expect_str_eq(fail_text(),
                     "/: not a checkpoint: contains neither manifest.json nor a complete step-... "
                     "directory; use a checkpoint, a directory of checkpoints or a run directory");
    leave(folder);
}

/* ---- the file of a rank ---- */

enum { DATA_BYTES = 9 * CHECKPOINT_BLOCK_BYTES + 12, MAX_PIECES = 4 };

struct pieces { // the last takes the rest; from where in its memory each begins
    size_t bytes[MAX_PIECES], skipped;
};

/* Writes `data` in pieces, of which the first begins `skipped` bytes after the beginning of a page; reads the
 * file back, verified, into `back`. Returns the checksum of its header, with the checksums of all blocks. */
static uint64_t write_pieces(const unsigned char *data, const struct pieces *pieces, unsigned char *back)
{
    static const struct save_identity identity = {
        .run = "0123456789abcdef0123456789abcdef", .save = "0123456789abcdef", .step = 1};
    static const struct shard shard = {.name = "a",
                                       .dtype = SAFETENSORS_F32,
                                       .dim = {DATA_BYTES / 4, 1},
                                       .slice = {.ndim = 1, .count = {DATA_BYTES / 4, 1}}};
    struct checkpoint_writer *writer = NULL;
    struct checkpoint_file *file = NULL;
    unsigned char *memory = aligned_alloc(4096, 4096 + (DATA_BYTES + 4095) / 4096 * 4096);
    const unsigned char *at = memcpy(memory + pieces->skipped, data, DATA_BYTES);
    cr_assert_eq(checkpoint_writer_create("file", &identity, &shard, 1, &writer), OK, "%s", fail_text());
    for (size_t i = 0, done = 0; done < DATA_BYTES; i++) {
        const size_t take = i < MAX_PIECES && pieces->bytes[i] > 0 ? pieces->bytes[i] : DATA_BYTES - done;
        cr_assert_eq(checkpoint_writer_append(writer, at + done, take), OK, "%s", fail_text());
        done += take;
    }
    cr_assert_eq(checkpoint_writer_finish(writer), OK, "%s", fail_text());
    const uint64_t checksum = checkpoint_writer_checksum(writer);
    checkpoint_writer_destroy(writer);
    free(memory);
    cr_assert_eq(checkpoint_file_open("file", &file), OK, "%s", fail_text());
    cr_assert_eq(
        checkpoint_file_read(file, safetensors_find(checkpoint_file_tensors(file), "a"), 0, DATA_BYTES, back),
        OK, "%s", fail_text());
    checkpoint_file_close(file);
    return checksum;
}

Test(checkpoint_file, is_the_same_however_its_data_is_appended)
{
    enum { BLOCK = CHECKPOINT_BLOCK_BYTES };
    static const struct pieces cases[] = {
        {{100}, 0}, // each block through the buffer
        {{BLOCK}, 8}, {{BLOCK - 1, 1, 2 * BLOCK + 1}, 4},         {{0}, 0},
        {{0}, 64},    {{5 * BLOCK + 3, BLOCK - 3, 3 * BLOCK}, 0}, {{BLOCK, 4 * BLOCK, 4096, BLOCK - 4096}, 0},
    };
    char folder[32];
    unsigned char *data = malloc(DATA_BYTES), *back = calloc(1, DATA_BYTES);
    uint64_t first = 0;
    enter(folder);
    for (size_t i = 0; i < DATA_BYTES; i++)
        data[i] = (unsigned char)(i * 7 % 251 + i / 4096);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t checksum = write_pieces(data, &cases[i], back);
        first = i == 0 ? checksum : first;
        cr_expect_eq(checksum, first, "case %zu has other checksums", i);
        cr_expect_eq(memcmp(back, data, DATA_BYTES), 0, "case %zu has other data", i);
        memset(back, 0, DATA_BYTES);
    }
    free(data);
    free(back);
    leave(folder);
}
