// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint.h"

#include "trainer/checkpoint/format/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char fix_path[] = "use a checkpoint, a directory of checkpoints or a run directory";

static bool holds(const char *folder, const char *name)
{
    struct text path = {0};
    struct stat info;
    text_add(&path, "%s/%s", folder, name);
    const bool found = stat(path.chars, &info) == 0;
    text_free(&path);
    return found;
}

/* A name of a directory in which a save was interrupted, or whose manifest was removed. */
static bool is_step(const char *path)
{
    const char *last = strrchr(path, '/');
    return strncmp(last != NULL ? last + 1 : path, "step-", 5) == 0;
}

/* A run directory without checkpoints, and a model of Hugging Face, are named instead of a checkpoint. */
static enum status refuse_folder(const char *path)
{
    struct text fix = {0};
    if (is_step(path))
        return fail(BAD_CHECKPOINT,
                    "%s/manifest.json: missing: not a complete checkpoint; use the directory that contains "
                    "%s to find the newest complete one",
                    path, path);
    if (holds(path, "recipe.yaml"))
        text_add(&fix, "; use the directory of checkpoint.save in %s/recipe.yaml", path);
    else if (holds(path, "config.json"))
        text_add(&fix, "; use cuboid checkpoint import %s -o CKPT first", path);
    else
        text_add(&fix, "; %s", fix_path);
    enum status status = fail(BAD_CHECKPOINT,
                              "%s: not a checkpoint: contains neither manifest.json nor a complete step-... "
                              "directory%s",
                              path, text_chars(&fix));
    text_free(&fix);
    return status;
}

enum status checkpoint_resolve(const char *path, char **out)
{
    struct stat info;
    struct text folder = {0};
    char *found = NULL;
    if (path[0] == 0)
        return fail(BAD_CHECKPOINT, "\"\" is no checkpoint; %s", fix_path);
    if (stat(path, &info) != 0)
        return fail(BAD_CHECKPOINT, "%s: %s; %s", path, strerror(errno), fix_path);
    if (!S_ISDIR(info.st_mode))
        return fail(BAD_CHECKPOINT, "%s: not a directory; %s", path, fix_path);
    const bool itself = holds(path, "manifest.json");
    text_add(&folder, "%s%s", path, !itself && holds(path, "checkpoints") ? "/checkpoints" : "");
    enum status status = OK;
    if (itself)
        found = text_copy(path);
    else
        status = checkpoint_find(folder.chars, &found);
    if (status == OK && found == NULL)
        status = refuse_folder(folder.chars);
    else if (status == IO_ERROR)
        status = fail(status, "%s; %s", fail_text(), fix_path);
    text_free(&folder);
    if (status == OK)
        *out = found;
    return status;
}

enum status checkpoint_recipe_path(const char *path, char **out)
{
    char *folder = NULL;
    struct text recipe = {0};
    TRY(checkpoint_resolve(path, &folder));
    text_add(&recipe, "%s/recipe.yaml", folder);
    free(folder);
    *out = recipe.chars;
    return OK;
}

void checkpoint_add_resharded(const struct rank_state *state, const char *path, struct text *out)
{
    static const char *const folders[] = {"", "/step-%08lld", "/checkpoints/step-%08lld"};
    static const char *const axes[] = {"tp", "pp", "dp"};
    const struct recipe_parallel *p = &state->run->recipe->parallel;
    const int now[] = {p->tensor_parallel_size, p->pipeline_parallel_size, p->data_parallel_size};
    struct manifest manifest = {0};
    bool found = false, same = true;
    for (int i = 0; i < 3 && !found; i++) {
        struct text folder = {0};
        text_add(&folder, "%s", path);
        text_add(&folder, folders[i], (long long)state->step);
        found = holds(folder.chars, "manifest.json") && manifest_read(folder.chars, &manifest) == OK;
        text_free(&folder);
    }
    for (int i = 0; i < 3 && found; i++)
        same = same && manifest_degree(&manifest, axes[i]) == now[i];
    for (int i = 0; i < 3 && !same; i++)
        text_add(out, "%s%s %d", i == 0 ? ", resharded from " : ", ", axes[i],
                 manifest_degree(&manifest, axes[i]));
    manifest_free(&manifest);
}
