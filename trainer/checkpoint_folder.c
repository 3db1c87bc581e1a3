// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint_folder.h"

#include "base/file.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_manifest.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void folder_of_step(const char *save, int64_t step, const char *suffix, struct text *out)
{
    text_add(out, "%s/step-%08lld%s", save, (long long)step, suffix);
}

bool folder_speaks(void)
{
    struct launcher launcher;
    bool alone = launcher_find(&launcher) != OK || launcher.rank <= 0;
    return alone && who_am_i()->rank <= 0;
}

/* ---- listing ---- */

struct entry {
    int64_t step;
    char suffix[12]; // "" or one of `leftovers`
};

struct entries {
    struct entry *list; // newest step first
    size_t count;
};

static const char *const leftovers[] = {".partial", ".old", ".removed"};

static bool is_leftover(const char *suffix)
{
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++)
        if (strcmp(suffix, leftovers[i]) == 0)
            return true;
    return false;
}

/* "step-00000100.partial" -> 100 and ".partial"; false for any other name. */
static bool entry_parse(const char *name, struct entry *out)
{
    char digits[20] = {0};
    if (strncmp(name, "step-", 5) != 0)
        return false;
    size_t length = strspn(name + 5, "0123456789");
    const char *suffix = name + 5 + length;
    if (length < 8 || length > 18 || (length > 8 && name[5] == '0') || (*suffix != 0 && !is_leftover(suffix)))
        return false;
    memcpy(digits, name + 5, length);
    snprintf(out->suffix, sizeof out->suffix, "%s", suffix);
    return integer_parse(digits, &out->step);
}

static int newest_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return strcmp(x->suffix, y->suffix); // the one with the plain name first
}

/* A folder that is not there has no entries. */
static enum status entries_read(const char *save, struct entries *out)
{
    *out = (struct entries){0};
    DIR *folder = opendir(save);
    if (folder == NULL)
        return errno == ENOENT ? OK : fail(IO_ERROR, "%s: %s", save, strerror(errno));
    struct dirent *found;
    struct entry entry;
    enum status status = OK;
    for (errno = 0; status == OK && (found = readdir(folder)) != NULL; errno = 0) {
        if (!entry_parse(found->d_name, &entry))
            continue;
        struct entry *list = realloc(out->list, (out->count + 1) * sizeof *list);
        if (list == NULL) {
            status = fail(NO_MEMORY, "%s: no memory for its list", save);
            break;
        }
        out->list = list;
        list[out->count++] = entry;
    }
    if (status == OK && errno != 0)
        status = fail(IO_ERROR, "%s: %s", save, strerror(errno));
    closedir(folder);
    if (out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, newest_first);
    return status;
}

/* ---- removing ---- */

/* A checkpoint has files and no folders: one that has more in it stays, and its name says what it was. */
static bool any_name(const char *name)
{
    return *name != 0;
}

static enum status move(const char *from, const char *to)
{
    return rename(from, to) == 0 ? OK : fail(IO_ERROR, "%s: cannot become %s: %s", from, to, strerror(errno));
}

static void remove_leftovers(const char *save)
{
    struct entries entries;
    enum status status = entries_read(save, &entries);
    for (size_t i = 0; status == OK && i < entries.count; i++) {
        struct text path = {0};
        folder_of_step(save, entries.list[i].step, entries.list[i].suffix, &path);
        if (entries.list[i].suffix[0] != 0 && folder_remove(path.chars, any_name) != OK)
            fprintf(stderr, "warning: %s\n", fail_text());
        text_free(&path);
    }
    free(entries.list);
}

/* ---- one save ---- */

enum status folder_begin(const char *save, int64_t step)
{
    struct text partial = {0};
    TRY(folder_make(save));
    remove_leftovers(save);
    folder_of_step(save, step, ".partial", &partial);
    enum status status = mkdir(partial.chars, 0777) == 0
                             ? folder_sync(save)
                             : fail(IO_ERROR, "%s: %s", partial.chars, strerror(errno));
    text_free(&partial);
    return status;
}

enum status folder_publish(const char *save, int64_t step)
{
    struct text partial = {0}, final = {0}, old = {0};
    struct stat info;
    folder_of_step(save, step, ".partial", &partial);
    folder_of_step(save, step, "", &final);
    folder_of_step(save, step, ".old", &old);
    bool replaces = lstat(final.chars, &info) == 0;
    enum status status = folder_sync(partial.chars);
    if (status == OK && replaces)
        status = move(final.chars, old.chars);
    if (status == OK) {
        status = move(partial.chars, final.chars);
        if (status != OK && replaces)
            (void)rename(old.chars, final.chars);
    }
    if (status == OK)
        status = folder_sync(save);
    if (status == OK && replaces && folder_remove(old.chars, any_name) != OK)
        fprintf(stderr, "warning: %s\n", fail_text());
    text_free(&partial);
    text_free(&final);
    text_free(&old);
    return status;
}

void folder_abandon(const char *save, int64_t step)
{
    struct text partial = {0};
    folder_of_step(save, step, ".partial", &partial);
    if (folder_remove(partial.chars, any_name) != OK)
        fprintf(stderr, "warning: %s\n", fail_text());
    text_free(&partial);
}

static bool is_complete(const char *path)
{
    struct manifest manifest;
    bool complete = manifest_read(path, &manifest) == OK;
    manifest_free(&manifest);
    return complete;
}

static void remove_checkpoint(const char *save, int64_t step)
{
    struct text path = {0}, removed = {0};
    folder_of_step(save, step, "", &path);
    folder_of_step(save, step, ".removed", &removed);
    enum status status = move(path.chars, removed.chars);
    if (status == OK)
        status = folder_remove(removed.chars, any_name);
    if (status != OK)
        fprintf(stderr, "warning: %s\n", fail_text());
    text_free(&path);
    text_free(&removed);
}

void folder_prune(const char *save, int64_t step, int64_t keep)
{
    struct entries entries;
    if (entries_read(save, &entries) != OK)
        entries.count = 0;
    int64_t complete = 0;
    for (size_t i = 0; i < entries.count; i++) {
        const struct entry *entry = &entries.list[i];
        struct text path = {0};
        folder_of_step(save, entry->step, "", &path);
        if (entry->suffix[0] == 0 && entry->step <= step && is_complete(path.chars) && ++complete > keep)
            remove_checkpoint(save, entry->step);
        text_free(&path);
    }
    free(entries.list);
}

/* ---- finding ---- */

enum status folder_newest(const char *save, int64_t below, int64_t *step, struct text *skipped)
{
    struct entries entries;
    int64_t found = -1;
    enum status status = entries_read(save, &entries);
    for (size_t i = 0; status == OK && found < 0 && i < entries.count; i++) {
        struct text path = {0};
        const struct entry *entry = &entries.list[i];
        folder_of_step(save, entry->step, entry->suffix, &path);
        if (entry->step < below && entry->suffix[0] == 0 && is_complete(path.chars))
            found = entry->step;
        else if (entry->step < below && entry->suffix[0] == 0)
            text_add(skipped, "skipped: %s\n", fail_text());
        else if (entry->step < below && strcmp(entry->suffix, ".partial") == 0)
            text_add(skipped, "skipped: %s: its save was not finished\n", path.chars);
        text_free(&path);
    }
    free(entries.list);
    if (status == OK)
        *step = found;
    return status;
}

enum status checkpoint_find(const char *save_folder, char **out)
{
    struct text skipped = {0}, path = {0};
    int64_t step = -1;
    enum status status = folder_newest(save_folder, INT64_MAX, &step, &skipped);
    if (folder_speaks())
        fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    if (step >= 0)
        folder_of_step(save_folder, step, "", &path);
    if (status == OK)
        *out = path.chars;
    return status;
}

/* As .broken, or .broken-2 and so on where the same step has been broken before. */
static void set_aside(const char *save, int64_t step)
{
    enum { MOST = 100 };
    struct text path = {0}, broken = {0};
    struct stat info;
    folder_of_step(save, step, "", &path);
    folder_of_step(save, step, ".broken", &broken);
    for (int i = 2; i <= MOST && stat(broken.chars, &info) == 0; i++) {
        text_free(&broken);
        folder_of_step(save, step, ".broken-", &broken);
        text_add(&broken, "%d", i);
    }
    if (move(path.chars, broken.chars) == OK)
        fprintf(stderr, "warning: %s cannot be loaded; it is kept as %s\n", path.chars, broken.chars);
    else
        fprintf(stderr, "warning: %s\n", fail_text());
    text_free(&path);
    text_free(&broken);
}

void folder_set_aside(const char *save, int64_t step)
{
    struct entries entries;
    if (entries_read(save, &entries) != OK)
        entries.count = 0;
    for (size_t i = 0; i < entries.count && entries.list[i].step > step; i++)
        if (entries.list[i].suffix[0] == 0) // others are on their way in or out
            set_aside(save, entries.list[i].step);
    free(entries.list);
}

enum status checkpoint_resolve(const char *path, char **out)
{
    struct text manifest = {0};
    struct stat info;
    text_add(&manifest, "%s/manifest.json", path);
    bool itself = stat(manifest.chars, &info) == 0;
    text_free(&manifest);
    char *found = NULL;
    if (itself)
        found = strdup(path);
    else if (stat(path, &info) != 0)
        return fail(BAD_CHECKPOINT, "%s: %s", path, strerror(errno));
    else
        TRY(checkpoint_find(path, &found));
    if (found == NULL)
        return fail(BAD_CHECKPOINT,
                    "%s: no checkpoint: it holds no manifest.json, and no complete step-... folder", path);
    *out = found;
    return OK;
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
