// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_dir.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status check(const struct recipe *recipe)
{
    struct run_dir folder;
    enum status status = run_dir_check(recipe, &folder);
    run_dir_free(&folder);
    return status;
}

/* A recipe that writes into a fresh temporary folder. */
static struct recipe recipe_in(char folder[32])
{
    snprintf(folder, 32, "/tmp/cuboid-folder-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    struct recipe recipe = {0};
    recipe.logging.run_dir = folder;
    return recipe;
}

static void leave(const char *folder, const char *name)
{
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    cr_assert_eq(file_write_atomic(path.chars, "{}\n", 3), OK);
    text_free(&path);
}

Test(run_dir, has_one_run_at_a_time)
{
    char folder[32];
    struct recipe recipe = recipe_in(folder);
    int first = -1, second = -1;
    cr_assert_eq(run_dir_claim(&recipe, &first), OK);
    cr_assert_eq(run_dir_claim(&recipe, &second), BAD_RECIPE);
    char who[128];
    snprintf(who, sizeof who, "another run is writing in %s: pid %d on ", folder, (int)getpid());
    cr_assert_not_null(strstr(fail_text(), who), "%s", fail_text());
    cr_assert_eq(second, -1);
    struct stat info;
    cr_assert_eq(fstat(first, &info), 0);
    cr_expect_eq(info.st_mode & 007, 0, "others could lock it: mode %o", (unsigned)info.st_mode);
    close(first);
    cr_assert_eq(run_dir_claim(&recipe, &second), OK);
    close(second);
}

/* The owner is written into the lock, never into a file that a link of this name points to. */
Test(run_dir, a_link_is_not_used_as_a_lock)
{
    char folder[32];
    struct recipe recipe = recipe_in(folder);
    struct text lock = {0}, other = {0}, content = {0};
    int descriptor = -1;
    text_add(&lock, "%s/lock", folder);
    text_add(&other, "%s/precious", folder);
    leave(folder, "precious");
    cr_assert_eq(symlink(other.chars, lock.chars), 0);
    cr_expect_eq(run_dir_claim(&recipe, &descriptor), BAD_RECIPE);
    cr_expect_not_null(strstr(fail_text(), "/lock is a symbolic link; remove it"), "%s", fail_text());
    cr_assert_eq(file_read(other.chars, &content), OK);
    cr_expect_str_eq(content.chars, "{}\n");
    text_free(&lock);
    text_free(&other);
    text_free(&content);
}

/* The run has metrics but no checkpoint yet: it may restart from step 1, but only after it has ended. */
Test(run_dir, rejects_a_second_start_of_a_live_run)
{
    char folder[32], automatic[] = "auto";
    struct recipe recipe = recipe_in(folder);
    int first = -1, second = -1;
    recipe.checkpoint.save = folder;
    cr_assert_eq(run_dir_claim(&recipe, &first), OK);
    leave(folder, "metrics.jsonl");
    for (int turn = 0; turn < 2; turn++) {
        recipe.checkpoint.load = turn == 0 ? automatic : NULL;
        cr_assert_eq(run_dir_claim(&recipe, &second), BAD_RECIPE);
        cr_assert_not_null(strstr(fail_text(), "another run is writing in /tmp/cuboid-folder-"), "%s",
                           fail_text());
    }
    close(first);
    cr_assert_eq(check(&recipe), OK);
}

Test(run_dir, uncreatable_directories_name_their_key)
{
    char path[] = "/proc/cuboid";
    struct recipe recipe = {0};
    int fd = -1;
    recipe.logging.run_dir = path;
    cr_assert_eq(run_dir_claim(&recipe, &fd), BAD_RECIPE);
    cr_assert_str_eq(fail_text(),
                     "logging.run_dir: /proc/cuboid: No such file or directory; set logging.run_dir to "
                     "a directory that can be written");
}

Test(run_dir, a_run_without_checkpoints_restarts)
{
    char folder[32], automatic[] = "auto";
    struct recipe recipe = recipe_in(folder);
    recipe.checkpoint.load = automatic;
    recipe.checkpoint.save = folder;
    cr_assert_eq(check(&recipe), OK);
    leave(folder, "metrics.jsonl");
    cr_assert_eq(check(&recipe), OK);
    recipe.checkpoint.load = NULL;
    cr_assert_eq(check(&recipe), OK);
    recipe.checkpoint.load = folder;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_not_null(strstr(fail_text(),
                              ": not a checkpoint: contains neither manifest.json nor a complete step-... "
                              "directory; use auto, none or a checkpoint directory"));
    char checkpoint[48];
    snprintf(checkpoint, sizeof checkpoint, "%s/one", folder);
    cr_assert_eq(folder_make(checkpoint), OK);
    leave(checkpoint, "manifest.json"); // the folder itself is a checkpoint
    recipe.checkpoint.load = checkpoint;
    cr_assert_eq(check(&recipe), OK);
    recipe.checkpoint.save = checkpoint;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_not_null(
        strstr(fail_text(), "/one is a checkpoint, which a run must not change; set checkpoint.save"));
    recipe.logging.run_dir = checkpoint; // whose recipe.yaml a run would replace
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_not_null(
        strstr(fail_text(), "/one is a checkpoint, which a run must not change; set logging.run_dir"));
}

/* Before the first step, not at the first checkpoint. */
Test(run_dir, unusable_checkpoint_paths_name_their_key)
{
    char folder[32], path[64], automatic[] = "auto", nothing[] = "/nowhere";
    struct recipe recipe = recipe_in(folder);
    int fd = -1;
    leave(folder, "metrics.jsonl");
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    recipe.checkpoint.save = path;
    cr_assert_eq(run_dir_claim(&recipe, &fd), BAD_RECIPE);
    cr_assert(fd == -1 && strncmp(fail_text(), "checkpoint.save: /tmp/cuboid-folder-", 36) == 0, "%s",
              fail_text());
    recipe.checkpoint.load = automatic;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_eq(strncmp(fail_text(), "checkpoint.save: /tmp/cuboid-folder-", 36), 0, "%s", fail_text());
    cr_assert_not_null(
        strstr(fail_text(), "not a folder; set checkpoint.save to a directory that can be written"));
    recipe.logging.run_dir = path; // the folder of the checkpoints cannot be in it, but it is the cause
    char inside[80];
    snprintf(inside, sizeof inside, "%s/checkpoints", path);
    recipe.checkpoint.save = inside;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_eq(strncmp(fail_text(), "logging.run_dir: /tmp/cuboid-folder-", 36), 0, "%s", fail_text());
    recipe.logging.run_dir = folder;
    recipe.checkpoint.save = NULL;
    recipe.checkpoint.load = nothing;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_str_eq(fail_text(), "checkpoint.load: /nowhere: No such file or directory; use auto, none "
                                  "or a checkpoint directory");
    recipe.checkpoint.load = path;
    cr_assert_eq(check(&recipe), BAD_RECIPE);
    cr_assert_not_null(strstr(fail_text(), "metrics.jsonl: not a folder; use auto, none or"), "%s",
                       fail_text());
}
