// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_folder.h"

#include "trainer/checkpoint_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_auto(const struct recipe *recipe)
{
    return recipe->checkpoint.load != NULL && strcmp(recipe->checkpoint.load, "auto") == 0;
}

/* The reason that was said last, with the key that it is about in front. */
static enum status about(const char *key)
{
    struct text why = {0};
    text_add(&why, "%s", fail_text());
    enum status status = fail(BAD_RECIPE, "%s: %s", key, why.chars);
    text_free(&why);
    return status;
}

static enum status make(const char *key, const char *folder)
{
    if (folder_make(folder) != OK)
        return about(key);
    return access(folder, W_OK | X_OK) == 0
               ? OK
               : fail(BAD_RECIPE, "%s: %s: cannot be written: %s", key, folder, strerror(errno));
}

/* Whether `load` is a checkpoint, or has a complete one in it. */
static enum status find_in(const char *load, bool *found)
{
    int64_t step = -1;
    struct stat info;
    struct text manifest = {0}, skipped = {0};
    text_add(&manifest, "%s/manifest.json", load);
    enum status status = OK;
    *found = stat(manifest.chars, &info) == 0;
    if (!*found)
        status = folder_newest(load, INT64_MAX, &step, &skipped);
    *found = *found || step >= 0;
    if (!*found && folder_speaks()) // who loads says it then
        fputs(text_chars(&skipped), stderr);
    text_free(&manifest);
    text_free(&skipped);
    return status == OK ? OK : about("checkpoint.load");
}

/* None in `load` itself; in the folder of a run they lie one deeper. */
static enum status refuse_empty(const char *load)
{
    bool found = false;
    struct stat info;
    struct text inside = {0};
    text_add(&inside, "%s/checkpoints", load);
    enum status status = stat(inside.chars, &info) == 0 ? find_in(inside.chars, &found) : OK;
    if (status == OK)
        status = fail(
            BAD_RECIPE,
            "checkpoint.load: %s: no checkpoint: it holds no manifest.json, and no complete step-... folder; "
            "%s works",
            load, found ? inside.chars : "auto, none, or a folder that holds a checkpoint");
    text_free(&inside);
    return status;
}

/* A checkpoint that is named must be there; whether it is whole is seen when it is loaded. */
static enum status check_named(const char *load)
{
    bool found = false;
    struct stat info;
    const char *why = stat(load, &info) != 0  ? strerror(errno)
                      : S_ISDIR(info.st_mode) ? NULL
                                              : "not a folder";
    if (why == NULL)
        TRY(find_in(load, &found));
    if (why == NULL)
        return found ? OK : refuse_empty(load);
    return fail(BAD_RECIPE, "checkpoint.load: %s: %s; auto, none, or a folder that holds a checkpoint works",
                load, why);
}

static enum status taken(const char *folder)
{
    return fail(BAD_RECIPE,
                "logging.run_dir: another run is writing in %s; wait for it, or choose another folder: "
                "logging.run_dir=%s-2",
                folder, folder);
}

/* Shared, so that processes that look at the same time do not take each other for that run. */
static bool is_taken(const char *folder)
{
    struct text path = {0};
    text_add(&path, "%s/lock", folder);
    int fd = open(path.chars, O_RDONLY | O_CLOEXEC);
    text_free(&path);
    bool yes = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return yes;
}

/* Whether an earlier run is continued, as far as the files say. */
static enum status check_earlier(const struct recipe *recipe)
{
    const char *folder = recipe->logging.run_dir;
    struct text path = {0};
    struct stat info;
    text_add(&path, "%s/metrics.jsonl", folder);
    bool used = stat(path.chars, &info) == 0;
    text_free(&path);
    if (!used)
        return OK;
    if (recipe->checkpoint.load == NULL)
        return fail(BAD_RECIPE,
                    "logging.run_dir: %s holds an earlier run, and checkpoint.load=none starts afresh; "
                    "choose another "
                    "folder: logging.run_dir=%s-2",
                    folder, folder);
    if (!is_auto(recipe))
        return OK; // goes on from a checkpoint that it names
    int64_t step = -1;
    struct text skipped = {0};
    enum status status = OK;
    if (recipe->checkpoint.save != NULL)
        status = folder_newest(recipe->checkpoint.save, INT64_MAX, &step, &skipped);
    if (step < 0 && folder_speaks()) // who continues says it then
        fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    if (status == IO_ERROR)
        return about("checkpoint.save");
    TRY(status);
    return step >= 0
               ? OK
               : fail(BAD_RECIPE,
                      "logging.run_dir: %s holds an earlier run, and no complete checkpoint in %s to "
                      "continue it "
                      "from; choose another folder: logging.run_dir=%s-2",
                      folder, recipe->checkpoint.save != NULL ? recipe->checkpoint.save : "(none is saved)",
                      folder);
}

enum status run_folder_check(const struct recipe *recipe)
{
    const char *folder = recipe->logging.run_dir;
    if (recipe->checkpoint.load != NULL && !is_auto(recipe))
        TRY(check_named(recipe->checkpoint.load));
    enum status status = check_earlier(recipe);
    // Before its first checkpoint a run that is alive looks like one that has ended, which may be removed.
    return status != OK && is_taken(folder) ? taken(folder) : status;
}

enum status run_folder_claim(const struct recipe *recipe, int *descriptor)
{
    const char *folder = recipe->logging.run_dir;
    TRY(make("logging.run_dir", folder));
    struct text path = {0};
    text_add(&path, "%s/lock", folder);
    int fd = open(path.chars, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    enum status status = OK;
    if (fd < 0)
        status = fail(BAD_RECIPE, "logging.run_dir: %s: %s", path.chars, strerror(errno));
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        status = taken(folder);
    text_free(&path);
    if (status == OK && recipe->checkpoint.save != NULL)
        status = make("checkpoint.save", recipe->checkpoint.save);
    if (status == OK)
        *descriptor = fd;
    else if (fd >= 0)
        close(fd);
    return status;
}

enum status run_folder_write_recipe(const struct recipe *recipe)
{
    struct text path = {0}, resolved = {0};
    text_add(&path, "%s/recipe.yaml", recipe->logging.run_dir);
    recipe_resolved_text(recipe, &resolved);
    enum status status = file_write_atomic(path.chars, resolved.chars, resolved.length);
    text_free(&path);
    text_free(&resolved);
    return status;
}

enum status run_folder_write_choices(const struct recipe *recipe, const struct text *choices)
{
    struct text path = {0};
    text_add(&path, "%s/choices.txt", recipe->logging.run_dir);
    enum status status = file_write_atomic(path.chars, choices->chars, choices->length);
    text_free(&path);
    return status;
}
