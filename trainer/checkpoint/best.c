// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/best.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/run_record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char link_name[] = "best", new_name[] = "best.new";

static void path_in(const char *save, const char *name, struct text *out)
{
    text_add(out, "%s/%s", save, name);
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* A file of the user, or a directory, is kept. */
static enum status refuse_other(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && !S_ISLNK(info.st_mode)
               ? fail(IO_ERROR, "%s is not a link; rename it, so that checkpoint.keep_best can use the name",
                      path)
               : OK;
}

/* Replaces the link. */
static enum status set_link(const char *save, int64_t step)
{
    AUTO(text) path = {0}, new = {0}, target = {0};
    path_in(save, link_name, &path);
    path_in(save, new_name, &new);
    store_of_step(".", step, "", &target);
    enum status status = refuse_other(path.chars);
    if (status == OK)
        status = refuse_other(new.chars);
    if (status == OK)
        (void)!unlink(new.chars); // left by a run that was killed
    if (status == OK &&
        (symlink(target.chars + strlen("./"), new.chars) != 0 || rename(new.chars, path.chars) != 0))
        status = fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    if (status == OK)
        status = folder_sync(save);
    return status;
}

static bool is_better(const struct manifest *manifest, const struct best_checkpoint *best)
{
    // Of equal losses the earlier step; the newest is compared first.
    return manifest->has_valid_loss &&
           (best->step < 0 || manifest->valid_loss < best->loss ||
            (!(manifest->valid_loss > best->loss) && manifest->identity.step < best->step));
}

static void take(const struct manifest *manifest, struct best_checkpoint *out)
{
    *out = (struct best_checkpoint){.step = manifest->identity.step, .loss = manifest->valid_loss};
}

struct best_checkpoint best_read(const char *save)
{
    struct best_checkpoint best = {.step = -1};
    struct run_record record;
    struct manifest manifest = {0};
    AUTO(text) path = {0};
    path_in(save, link_name, &path);
    if (is_link(path.chars) && run_record_read(save, &record) == OK &&
        manifest_read(path.chars, &manifest) == OK && strcmp(manifest.identity.run, record.run) == 0 &&
        manifest.has_valid_loss)
        take(&manifest, &best);
    manifest_free(&manifest);
    return best;
}

enum status best_find(const char *save, struct best_checkpoint *out)
{
    struct best_checkpoint best = {.step = -1};
    struct run_record record;
    TRY(run_record_read(save, &record));
    for (int64_t step = 0, below = INT64_MAX; step >= 0; below = step) {
        struct manifest manifest;
        struct text skipped = {0}; // reported when the run resumes
        enum status status = store_newest_manifest(save, below, &step, &manifest, &skipped);
        if (status == OK && step >= 0 && strcmp(manifest.identity.run, record.run) == 0 &&
            is_better(&manifest, &best))
            take(&manifest, &best);
        manifest_free(&manifest);
        text_free(&skipped);
        TRY(status);
    }
    *out = best;
    if (best.step >= 0 && best_read(save).step != best.step)
        return set_link(save, best.step);
    best_remove_dangling(save);
    return OK;
}

enum status best_update(const char *save, const struct manifest *published, struct best_checkpoint *out)
{
    *out = best_read(save);
    // A step that is saved again may have another loss; then, and without a link, all are compared.
    if (out->step < 0 || out->step == published->identity.step)
        return best_find(save, out);
    if (!is_better(published, out))
        return OK;
    take(published, out);
    return set_link(save, out->step);
}

void best_remove_dangling(const char *save)
{
    AUTO(text) path = {0};
    struct stat info;
    path_in(save, link_name, &path);
    if (is_link(path.chars) && stat(path.chars, &info) != 0 && errno == ENOENT)
        (void)!unlink(path.chars);
}
