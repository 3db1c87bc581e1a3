// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_dir.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/lock_owner.h"
#include "trainer/checkpoint/store.h"

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

/* For a path in which a run cannot write. */
static enum status refuse_path(const char *key, const char *path, const char *why)
{
    return fail(BAD_RECIPE, "%s: %s: %s; set %s to a directory that can be written", key, path, why, key);
}

/* A folder that does not exist will be created. */
static enum status check_folder(const char *key, const char *folder)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return errno == ENOENT ? OK : refuse_path(key, folder, strerror(errno));
    return S_ISDIR(info.st_mode) ? OK : refuse_path(key, folder, "not a folder");
}

static enum status make_folder(const char *key, const char *folder)
{
    TRY(check_folder(key, folder));
    if (folder_make(folder) != OK)
        return fail(BAD_RECIPE, "%s: %s; set %s to a directory that can be written", key, fail_text(), key);
    return access(folder, W_OK | X_OK) == 0 ? OK : refuse_path(key, folder, strerror(errno));
}

/* For a folder that cannot be listed. Other failures have their own fix. */
static enum status name_key(enum status status, const char *key, const char *fix)
{
    if (status == IO_ERROR)
        return fail(BAD_RECIPE, "%s: %s; %s", key, fail_text(), fix);
    return status == OK ? OK : fail(BAD_RECIPE, "%s: %s", key, fail_text());
}

static bool holds(const char *folder, const char *name)
{
    struct stat info;
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", folder, name);
    const bool found = stat(path.chars, &info) == 0;
    return found;
}

/* Returns whether `load` is a checkpoint or contains a complete one. */
static enum status has_checkpoint(const char *load, bool *found)
{
    int64_t step = -1;
    AUTO(text) skipped = {0};
    enum status status = OK;
    *found = holds(load, "manifest.json");
    if (!*found)
        status = store_newest(load, INT64_MAX, &step, &skipped);
    *found = *found || step >= 0;
    if (!*found && is_job_rank_zero()) // otherwise checkpoint_load() reports it
        fputs(text_chars(&skipped), stderr);
    return name_key(status, "checkpoint.load", "use auto, none or a checkpoint directory that can be read");
}

/* `load` has no checkpoint itself; in a run directory they are one level deeper. */
static enum status refuse_empty(const char *load)
{
    bool found = false;
    AUTO(text) inside = {0}, fix = {0};
    int length = (int)strlen(load);
    while (length > 0 && load[length - 1] == '/')
        length--;
    text_add(&inside, "%.*s/checkpoints", length, load);
    enum status status = holds(load, "checkpoints") ? has_checkpoint(inside.chars, &found) : OK;
    text_add(&fix, "use %s", found ? inside.chars : "auto, none or a checkpoint directory");
    if (!found && holds(load, "config.json")) // a model of Hugging Face
        text_add(&fix, ": cuboid checkpoint import %s -o CKPT makes one", load);
    if (status == OK)
        status = fail(BAD_RECIPE,
                      "checkpoint.load: %s: not a checkpoint: contains neither manifest.json nor a "
                      "complete step-... directory; %s",
                      load, fix.chars);
    return status;
}

/* What to set instead of a checkpoint.ckpt_step that is not in checkpoint.load. */
static void fix_step(const char *load, struct text *out)
{
    int64_t newest = -1;
    AUTO(text) skipped = {0};
    if (holds(load, "manifest.json"))
        text_add(out,
                 "%s is a single checkpoint; remove checkpoint.ckpt_step, or set checkpoint.load to the "
                 "directory that contains %s",
                 load, load);
    else if (store_newest(load, INT64_MAX, &newest, &skipped) == OK && newest >= 0)
        text_add(out, "use the newest one, checkpoint.ckpt_step=%lld", (long long)newest);
    else if (holds(load, "checkpoints"))
        text_add(out, "use checkpoint.load=%s/checkpoints", load);
    else
        text_add(out, "%s contains no complete checkpoint; set checkpoint.load to a directory of checkpoints",
                 load);
}

/* checkpoint.ckpt_step must be among those in checkpoint.load. */
static enum status check_step(const char *load, int64_t step)
{
    struct stat info;
    AUTO(text) path = {0}, fix = {0};
    text_add(&path, "%s/step-%08lld", load, (long long)step);
    enum status status = OK;
    if (stat(path.chars, &info) != 0) {
        const char *why = strerror(errno);
        fix_step(load, &fix);
        status = fail(BAD_RECIPE, "checkpoint.ckpt_step %lld: %s: %s; %s", (long long)step, path.chars, why,
                      text_chars(&fix));
    }
    return status;
}

/* A named checkpoint must exist; its completeness is checked on loading. */
static enum status check_named(const char *load, int64_t step)
{
    bool found = false;
    struct stat info;
    const char *why = stat(load, &info) != 0  ? strerror(errno)
                      : S_ISDIR(info.st_mode) ? NULL
                                              : "not a folder";
    if (why == NULL && step > 0)
        return check_step(load, step);
    if (why == NULL)
        TRY(has_checkpoint(load, &found));
    if (why == NULL)
        return found ? OK : refuse_empty(load);
    return fail(BAD_RECIPE, "checkpoint.load: %s: %s; use auto, none or a checkpoint directory", load, why);
}

static enum status in_use_error(const char *folder)
{
    AUTO(text) path = {0}, who = {0};
    struct lock_owner owner;
    text_add(&path, "%s/lock", folder);
    if (lock_owner_read(path.chars, &owner) == OK && owner.token[0] != 0) {
        text_add(&who, ": ");
        lock_owner_describe(&owner, &who);
    }
    enum status status = fail(BAD_RECIPE,
                              "logging.run_dir: another run is writing in %s%s; wait for it, or use another "
                              "directory, such as logging.run_dir=%s-2",
                              folder, text_chars(&who), folder);
    return status;
}

/* Writes the owner into the lock file. It is used only in messages: a full disk is no error. */
static void write_owner(int fd)
{
    struct lock_owner self;
    AUTO(text) text = {0};
    if (lock_owner_self(&self) == OK) {
        lock_owner_text(&self, &text);
        if (ftruncate(fd, 0) == 0)
            (void)!pwrite(fd, text_chars(&text), text.length, 0);
    }
}

/* Uses a shared lock, so that processes that check at the same time do not mistake each other for that
 * run. */
static bool is_active(const char *folder)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/lock", folder);
    int fd = open(path.chars, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool yes = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return yes;
}

/* Refuses if the run's default folder holds checkpoints but `save` is another folder or none. */
static enum status refuse_other_save(const struct recipe *recipe)
{
    int64_t step = -1;
    AUTO(text) usual = {0}, skipped = {0};
    text_add(&usual, "%s/checkpoints", recipe->logging.run_dir);
    enum status status = name_key(store_newest(usual.chars, INT64_MAX, &step, &skipped), "logging.run_dir",
                                  "make it readable, or set logging.run_dir to another directory");
    if (status == OK && step >= 0)
        status =
            fail(BAD_RECIPE,
                 "logging.run_dir: %s holds an earlier run with a checkpoint of step %lld in "
                 "%s, and checkpoint.save is %s; use checkpoint.save=auto to resume it, or "
                 "another directory, such as logging.run_dir=%s-2",
                 recipe->logging.run_dir, (long long)step, usual.chars,
                 recipe->checkpoint.save != NULL ? recipe->checkpoint.save : "none", recipe->logging.run_dir);
    return status;
}

/* Decides from the files whether an earlier run is resumed or restarted. */
static enum status check_earlier(const struct recipe *recipe, int64_t newest)
{
    const char *folder = recipe->logging.run_dir;
    if (!holds(folder, "metrics.jsonl"))
        return OK;
    if (recipe->checkpoint.load == NULL && newest >= 0)
        return fail(BAD_RECIPE,
                    "logging.run_dir: %s holds an earlier run, saved up to step %lld, and "
                    "checkpoint.load=none starts from scratch; use checkpoint.load=auto to resume "
                    "it, or another directory, such as logging.run_dir=%s-2",
                    folder, (long long)newest, folder);
    return newest < 0 && (recipe->checkpoint.load == NULL || is_auto(recipe)) ? refuse_other_save(recipe)
                                                                              : OK;
}

/* The newest complete checkpoint in checkpoint.save. */
static enum status find_newest(const struct recipe *recipe, int64_t *step)
{
    AUTO(text) skipped = {0};
    *step = -1;
    if (recipe->checkpoint.save == NULL)
        return OK;
    enum status status =
        store_newest(recipe->checkpoint.save, INT64_MAX, step, &skipped); // loading reports it
    return name_key(status, "checkpoint.save",
                    "make it readable, or set checkpoint.save to another directory");
}

/* The step of the checkpoint in checkpoint.load; -1 if it cannot be read, which loading reports. */
static int64_t step_of(const struct recipe *recipe)
{
    const char *load = recipe->checkpoint.load;
    AUTO(manifest) manifest = {0};
    AUTO(text) folder = {0}, skipped = {0};
    int64_t step = -1;
    if (recipe->checkpoint.ckpt_step > 0)
        return recipe->checkpoint.ckpt_step;
    text_add(&folder, "%s%s", load, holds(load, "checkpoints") ? "/checkpoints" : "");
    if (!holds(load, "manifest.json"))
        (void)!store_newest(folder.chars, INT64_MAX, &step, &skipped);
    else if (manifest_read(load, &manifest) == OK)
        step = manifest.identity.step;
    return step;
}

/* The files of a run would overwrite those of a checkpoint, or be mistaken for them. */
static enum status refuse_checkpoint(const char *key, const char *folder)
{
    return holds(folder, "manifest.json")
               ? fail(BAD_RECIPE,
                      "%s: %s is a checkpoint, which a run must not change; set %s to another directory", key,
                      folder, key)
               : OK;
}

/* The folders in which the run writes. */
static enum status check_own(const struct recipe *recipe)
{
    const char *folder = recipe->logging.run_dir, *save = recipe->checkpoint.save;
    TRY(check_folder("logging.run_dir", folder));
    TRY(refuse_checkpoint("logging.run_dir", folder));
    if (save == NULL)
        return OK;
    TRY(check_folder("checkpoint.save", save));
    return refuse_checkpoint("checkpoint.save", save);
}

enum status run_dir_check(const struct recipe *recipe, struct run_dir *out)
{
    const char *folder = recipe->logging.run_dir, *load = recipe->checkpoint.load;
    bool named = load != NULL && !is_auto(recipe);
    *out = (struct run_dir){.newest = -1, .named = -1};
    TRY(check_own(recipe));
    enum status status = find_newest(recipe, &out->newest);
    bool finetunes = recipe->checkpoint.finetune; // steps of the run and of `load` are unrelated
    const int64_t step = named ? step_of(recipe) : -1;
    if (!finetunes)
        out->named = step;
    out->continues = load != NULL && out->newest > out->named;
    if (status == OK && named && !out->continues)
        status = check_named(load, recipe->checkpoint.ckpt_step);
    if (status == OK)
        status = check_earlier(recipe, out->newest);
    if (status == OK && out->continues)
        text_add(&out->from, "saved step %lld in %s", (long long)out->newest, recipe->checkpoint.save);
    else if (status == OK && named)
        text_add(&out->from, "saved step %lld in %s", (long long)step, load);
    // Before its first checkpoint, an active run looks like one that has ended.
    return status != OK && is_active(folder) ? in_use_error(folder) : status;
}

void run_dir_free(struct run_dir *folder)
{
    text_free(&folder->from);
}

/* Without locks, the lease of checkpoint.save (store_lock.h) still excludes a second run. */
static enum status lock_folder(const struct recipe *recipe, const char *path, int fd)
{
    const char *save = recipe->checkpoint.save;
    const enum file_lock lock = file_lock(fd);
    if (lock == FILE_IN_USE)
        return in_use_error(recipe->logging.run_dir);
    if (lock == FILE_WITHOUT_LOCKS)
        print_line(
            stderr,
            "warning: logging.run_dir: %s cannot be locked (%s): its file system has no locks; a second "
            "run in this directory is %s%s",
            path, strerror(errno), save != NULL ? "noticed only if it saves to " : "not noticed",
            save != NULL ? save : ", since checkpoint.save is none");
    write_owner(fd);
    return OK;
}

enum status run_dir_claim(const struct recipe *recipe, int *descriptor)
{
    const char *folder = recipe->logging.run_dir;
    TRY(make_folder("logging.run_dir", folder));
    AUTO(text) path = {0};
    text_add(&path, "%s/lock", folder);
    // Not for others: who can open a file can lock it.
    int fd = open(path.chars, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0660);
    enum status status = OK;
    if (fd < 0 && errno == ELOOP)
        status = fail(BAD_RECIPE, "logging.run_dir: %s is a symbolic link; remove it", path.chars);
    else if (fd < 0)
        status = refuse_path("logging.run_dir", path.chars, strerror(errno));
    else
        status = lock_folder(recipe, path.chars, fd);
    if (status == OK && recipe->checkpoint.save != NULL)
        status = make_folder("checkpoint.save", recipe->checkpoint.save);
    if (status == OK)
        *descriptor = fd;
    else if (fd >= 0)
        close(fd);
    return status;
}

enum status run_dir_explain(enum status status, const char *path)
{
    struct stat info;
    if (status != IO_ERROR)
        return status;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return fail(
            status,
            "logging.run_dir: %s: not a regular file; remove it, or set logging.run_dir to another directory",
            path);
    return fail(status, "logging.run_dir: %s; set logging.run_dir to a directory that can be written",
                fail_text());
}

static enum status write_text(const struct recipe *recipe, const char *name, const struct text *text)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", recipe->logging.run_dir, name);
    enum status status =
        run_dir_explain(file_write_atomic(path.chars, text->chars, text->length), path.chars);
    return status;
}

enum status run_dir_write_recipe(const struct recipe *recipe)
{
    AUTO(text) resolved = {0};
    recipe_resolved_text(recipe, &resolved);
    return write_text(recipe, "recipe.yaml", &resolved);
}

enum status run_dir_write_choices(const struct recipe *recipe, const struct text *choices)
{
    return write_text(recipe, "choices.txt", choices);
}
