// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/store.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/format/manifest_read.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/checkpoint/run_record.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char partial_suffix[] = ".partial", replaced_suffix[] = ".replaced";
enum { MAX_NAMES = 1000 };

void store_of_step(const char *save, int64_t step, const char *suffix, struct text *out)
{
    text_add(out, "%s/step-%08lld%s", save, (long long)step, suffix);
}

void store_of_ticket(const char *save, const struct save_ticket *ticket, struct text *out)
{
    store_of_step(save, ticket->identity.step, partial_suffix, out);
    if (ticket->attempt > 1)
        text_add(out, "-%d", ticket->attempt);
}

bool is_job_rank_zero(void)
{
    struct launcher launcher;
    bool alone = launcher_find(&launcher) != OK || launcher.rank <= 0;
    return alone && rank_context()->rank <= 0;
}

/* ---- listing ---- */

struct entry {
    int64_t step;
    char suffix[24]; // "" or ".partial", ".partial-2" ..., ".replaced" ...
};

struct entries {
    struct entry *list; // newest step first
    size_t count;
};

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* "step-00000100.partial" -> 100 and ".partial"; false for any other name. */
static bool entry_parse(const char *name, struct entry *out)
{
    char digits[20] = {0};
    if (strncmp(name, "step-", 5) != 0)
        return false;
    size_t length = strspn(name + 5, "0123456789");
    const char *suffix = name + 5 + length;
    if (length < 8 || length > 18 || (length > 8 && name[5] == '0') ||
        (*suffix != 0 && !begins_with(suffix, partial_suffix) && !begins_with(suffix, replaced_suffix)) ||
        strlen(suffix) >= sizeof out->suffix)
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
    return strcmp(x->suffix, y->suffix); // the complete checkpoint first
}

/* A missing folder has no entries. */
static enum status entries_read(const char *save, struct entries *out)
{
    *out = (struct entries){0};
    DIR *folder = opendir(save);
    if (folder == NULL)
        return errno == ENOENT ? OK : fail(IO_ERROR, "%s: %s", save, strerror(errno));
    struct dirent *found;
    struct entry entry;
    enum status status = OK;
    for (errno = 0; (found = readdir(folder)) != NULL; errno = 0) {
        if (!entry_parse(found->d_name, &entry))
            continue;
        out->list = memory_resized(out->list, out->count + 1, sizeof *out->list, "a list of checkpoints");
        out->list[out->count++] = entry;
    }
    if (errno != 0)
        status = fail(IO_ERROR, "%s: %s", save, strerror(errno));
    closedir(folder);
    if (out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, newest_first);
    return status;
}

/* ---- names ---- */

static enum status move(const char *from, const char *to)
{
    return rename(from, to) == 0
               ? OK
               : fail(IO_ERROR, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

/* step-00000100.old, or .old-2 and so on: the first unused name. */
static void free_name(const char *save, int64_t step, const char *suffix, struct text *out)
{
    struct stat info;
    store_of_step(save, step, suffix, out);
    size_t length = out->length;
    for (int i = 2; i <= MAX_NAMES && lstat(out->chars, &info) == 0; i++) {
        out->length = length;
        text_add(out, "-%d", i);
    }
}

static const char *name_in(const char *save, const struct text *path)
{
    return path->chars + strlen(save) + 1;
}

static void path_of(const char *save, const char *name, struct text *out)
{
    text_add(out, "%s/%s", save, name);
}

/* ---- removing ---- */

/* Files created by a save, under their final or temporary names. */
static bool is_part(const char *name)
{
    static const char *const fixed[] = {"manifest.json", "recipe.yaml", "data.json"};
    static const char rank[] = "rank-", ending[] = ".safetensors";
    const size_t length = file_temporary_base_length(name);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (length == strlen(fixed[i]) && strncmp(name, fixed[i], length) == 0)
            return true;
    if (model_files_has_name(name, length))
        return true;
    if (strncmp(name, rank, sizeof rank - 1) != 0)
        return false;
    size_t digits = sizeof rank - 1 + strspn(name + sizeof rank - 1, "0123456789");
    return length == digits + sizeof ending - 1 && strncmp(name + digits, ending, sizeof ending - 1) == 0;
}

static void remove_or_warn(const char *path)
{
    if (folder_remove(path, is_part) != OK)
        print_line(stderr, "warning: %s", fail_text());
}

/* True for a complete checkpoint of this run and this step. */
static bool is_own(const char *path, const char *run, int64_t step)
{
    struct manifest manifest;
    bool own = manifest_read(path, &manifest) == OK && strcmp(manifest.identity.run, run) == 0 &&
               manifest.identity.step == step;
    manifest_free(&manifest);
    return own;
}

/* Completes an interrupted replacement. The replaced checkpoint is removed only if the step has another
 * complete one; otherwise it is renamed back. */
static enum status settle_replaced(const char *save, const struct run_record *record)
{
    AUTO(text) replaced = {0}, final = {0};
    struct stat info;
    struct entry entry;
    enum status status = OK;
    path_of(save, record->replaced, &replaced);
    if (entry_parse(record->replaced, &entry) && begins_with(entry.suffix, replaced_suffix) &&
        lstat(replaced.chars, &info) == 0) {
        store_of_step(save, entry.step, "", &final);
        if (is_own(final.chars, record->run, entry.step))
            remove_or_warn(replaced.chars);
        else
            status = move(replaced.chars, final.chars);
        if (status == OK)
            status = folder_sync(save);
    }
    return status;
}

enum status store_clean(const char *save)
{
    struct run_record record;
    TRY(run_record_read(save, &record));
    TRY(settle_replaced(save, &record));
    for (int i = 0; i < record.count; i++) {
        AUTO(text) path = {0};
        path_of(save, record.unfinished[i], &path);
        remove_or_warn(path.chars);
    }
    if (record.count == 0 && record.replaced[0] == 0)
        return OK;
    record.count = 0;
    record.replaced[0] = 0;
    return run_record_write(save, &record);
}

/* ---- one save ---- */

/* Removes a symbolic link of that name. Another folder is not this run's, and is kept. */
static enum status choose_partial(const char *save, struct save_ticket *out, struct text *path)
{
    struct stat info;
    store_of_ticket(save, out, path);
    if (lstat(path->chars, &info) == 0 && S_ISLNK(info.st_mode))
        TRY(folder_remove(path->chars, is_part));
    for (out->attempt = 1; out->attempt < MAX_NAMES && lstat(path->chars, &info) == 0;) {
        out->attempt++;
        text_free(path);
        store_of_ticket(save, out, path);
    }
    return OK;
}

static enum status make_partial(const char *save, struct save_ticket *out)
{
    AUTO(text) partial = {0};
    enum status status = choose_partial(save, out, &partial);
    if (status == OK)
        status = run_record_set_unfinished(save, name_in(save, &partial));
    if (status == OK && mkdir(partial.chars, 0777) != 0)
        status = fail(IO_ERROR, "%s: %s", partial.chars, strerror(errno));
    if (status == OK)
        status = folder_sync(save);
    return status;
}

enum status store_begin(const char *save, int64_t step, struct save_ticket *out)
{
    struct run_record record;
    *out = (struct save_ticket){.identity = {.step = step}};
    TRY(folder_make(save));
    TRY(store_clean(save));
    TRY(make_partial(save, out));
    TRY(run_record_read(save, &record));
    memcpy(out->identity.run, record.run, sizeof record.run);
    return random_hex(out->identity.save, SAVE_CHARS - 1);
}

/* Without RENAME_EXCHANGE: two renames, recorded before the first. Between them the replaced checkpoint is
 * found through its record, and store_clean() renames it back. */
static enum status replace(const char *save, const struct save_ticket *ticket, const char *partial,
                           const char *final)
{
    AUTO(text) replaced = {0};
    free_name(save, ticket->identity.step, replaced_suffix, &replaced);
    enum status status = run_record_set_replaced(save, name_in(save, &replaced));
    if (status == OK)
        status = move(final, replaced.chars);
    bool moved = status == OK;
    if (moved)
        status = move(partial, final);
    if (moved && status != OK)
        (void)rename(replaced.chars, final); // if this fails too, store_clean() retries
    return status;
}

static enum status keep_as_old(const char *save, const struct save_ticket *ticket, const char *final)
{
    AUTO(text) old = {0};
    free_name(save, ticket->identity.step, ".old", &old);
    enum status status = move(final, old.chars);
    if (status == OK)
        print_line(stderr, "warning: %s was not a complete checkpoint of this run; it is kept as %s", final,
                   old.chars);
    return status;
}

/* Renames the new checkpoint to its final name. A symbolic link of that name is removed. This run's own
 * checkpoint is replaced, and is then recorded as unfinished or replaced. Anything else is kept under
 * another name. */
static enum status take_name(const char *save, const struct save_ticket *ticket, const char *partial,
                             const char *final, bool *replaced)
{
    struct stat info;
    *replaced = false;
    if (lstat(final, &info) != 0)
        return move(partial, final);
    if (S_ISLNK(info.st_mode))
        TRY(folder_remove(final, is_part));
    else if (!is_own(final, ticket->identity.run, ticket->identity.step))
        TRY(keep_as_old(save, ticket, final));
    else
        *replaced = true;
    if (!*replaced)
        return move(partial, final);
    return renameat2(AT_FDCWD, partial, AT_FDCWD, final, RENAME_EXCHANGE) == 0
               ? OK
               : replace(save, ticket, partial, final);
}

enum status store_publish(const char *save, const struct save_ticket *ticket)
{
    AUTO(text) partial = {0}, final = {0};
    bool replaced = false;
    store_of_ticket(save, ticket, &partial);
    store_of_step(save, ticket->identity.step, "", &final);
    TRY(folder_sync(partial.chars));
    enum status status = take_name(save, ticket, partial.chars, final.chars, &replaced);
    if (status == OK)
        status = folder_sync(save);
    if (status == OK && replaced && store_clean(save) != OK)
        print_line(stderr, "warning: %s", fail_text());
    return status;
}

enum status store_abandon(const char *save, const struct save_ticket *ticket)
{
    AUTO(text) partial = {0};
    if (ticket->attempt == 0)
        return OK;
    store_of_ticket(save, ticket, &partial);
    TRY(folder_remove(partial.chars, is_part));
    return run_record_set_unfinished(save, NULL);
}

static enum status remove_checkpoint(const char *save, int64_t step)
{
    AUTO(text) path = {0}, removed = {0};
    struct stat info;
    store_of_step(save, step, "", &path);
    free_name(save, step, ".removed", &removed);
    bool is_link = lstat(path.chars, &info) == 0 && S_ISLNK(info.st_mode);
    enum status status = is_link ? OK : run_record_set_unfinished(save, name_in(save, &removed));
    if (status == OK && !is_link)
        status = move(path.chars, removed.chars);
    return status == OK ? folder_remove(is_link ? path.chars : removed.chars, is_part) : status;
}

void store_prune(const char *save, const struct save_ticket *ticket, int64_t keep, int64_t retain,
                 int64_t best)
{
    struct entries entries;
    const struct save_identity *identity = &ticket->identity;
    int64_t complete = 0;
    if (keep == 0 || entries_read(save, &entries) != OK)
        entries = (struct entries){0};
    for (size_t i = 0; i < entries.count; i++) {
        const struct entry *entry = &entries.list[i];
        AUTO(text) path = {0};
        store_of_step(save, entry->step, "", &path);
        bool retained = retain > 0 && entry->step % retain == 0;
        if (entry->suffix[0] == 0 && entry->step <= identity->step && !retained &&
            is_own(path.chars, identity->run, entry->step) && ++complete > keep && entry->step != best &&
            remove_checkpoint(save, entry->step) != OK)
            print_line(stderr, "warning: %s", fail_text());
    }
    free(entries.list);
    if (run_record_set_unfinished(save, NULL) != OK)
        print_line(stderr, "warning: %s", fail_text());
}

enum status store_keep_only(const char *save, const char *run, int64_t step)
{
    struct entries entries;
    enum status status = entries_read(save, &entries);
    for (size_t i = 0; status == OK && i < entries.count; i++) {
        AUTO(text) path = {0};
        store_of_step(save, entries.list[i].step, "", &path);
        if (entries.list[i].suffix[0] == 0 && entries.list[i].step != step &&
            is_own(path.chars, run, entries.list[i].step))
            status = remove_checkpoint(save, entries.list[i].step);
    }
    free(entries.list);
    return status == OK ? run_record_set_unfinished(save, NULL) : status;
}

/* ---- finding ---- */

/* A symbolic link is valid if it leads to a checkpoint of this run, for example one moved to another
 * disk. */
static enum status check_link(const char *save, const char *path, const struct manifest *manifest)
{
    struct run_record record;
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
        return OK;
    TRY(run_record_read(save, &record));
    bool own = record.run[0] != 0 && strcmp(record.run, manifest->identity.run) == 0;
    return own ? OK
               : fail(BAD_CHECKPOINT,
                      "%s: a symbolic link to something other than a checkpoint of this run; to "
                      "start from it use checkpoint.load=%s",
                      path, path);
}

/* Checks that the entry of this step is a complete checkpoint of it. */
static enum status check_complete(const char *save, const char *path, int64_t step, struct manifest *out)
{
    enum status status = manifest_read(path, out);
    if (status == OK && out->identity.step != step)
        status = fail(BAD_CHECKPOINT, "%s: contains step %lld, which is not the step in its name; rename it",
                      path, (long long)out->identity.step);
    if (status == OK)
        status = check_link(save, path, out);
    const bool is_other_version = out->is_other_version;
    if (status != OK)
        manifest_free(out);
    out->is_other_version = is_other_version;
    return status;
}

/* Whether the run's record lists this name; a user's folder with such a suffix is not a checkpoint of the
 * run. */
static bool is_replaced(const char *save, const char *name)
{
    struct run_record record;
    return run_record_read(save, &record) == OK && strcmp(name, record.replaced) == 0;
}

/* A checkpoint of another format version is not damaged: an older one must not be used in its place. */
static enum status refuse_other_version(void)
{
    return fail(BAD_CHECKPOINT, "%s, or move this checkpoint to another folder to use an older one",
                fail_text());
}

/* store_newest_manifest() that also returns the path. */
static enum status find_newest(const char *save, int64_t below, int64_t *step, struct text *where,
                               struct manifest *manifest, struct text *skipped)
{
    struct entries entries;
    int64_t found = -1;
    *manifest = (struct manifest){0};
    enum status status = entries_read(save, &entries);
    for (size_t i = 0; status == OK && found < 0 && i < entries.count; i++) {
        const struct entry *entry = &entries.list[i];
        where->length = 0;
        store_of_step(save, entry->step, entry->suffix, where);
        bool partial = begins_with(entry->suffix, partial_suffix);
        if (entry->step >= below ||
            (!partial && entry->suffix[0] != 0 && !is_replaced(save, name_in(save, where))))
            continue;
        if (partial) {
            text_add(skipped, "skipped: ");
            text_add_printable(skipped, where->chars, where->length);
            text_add(skipped, ": its save was not finished\n");
            continue;
        }
        const enum status complete = check_complete(save, where->chars, entry->step, manifest);
        if (complete == OK)
            found = entry->step;
        else if (manifest->is_other_version)
            status = refuse_other_version();
        else if (complete == IO_ERROR) // not damaged: an older one must not be used in its place
            status = complete;
        else
            text_add(skipped, "skipped: %s\n", fail_text());
    }
    free(entries.list);
    if (status == OK)
        *step = found;
    return status;
}

enum status store_newest_manifest(const char *save, int64_t below, int64_t *step, struct manifest *manifest,
                                  struct text *skipped)
{
    AUTO(text) where = {0};
    return find_newest(save, below, step, &where, manifest, skipped);
}

enum status store_newest(const char *save, int64_t below, int64_t *step, struct text *skipped)
{
    struct manifest manifest;
    enum status status = store_newest_manifest(save, below, step, &manifest, skipped);
    manifest_free(&manifest);
    return status;
}

bool store_has_manifest(const char *save)
{
    struct entries entries;
    bool found = false;
    if (entries_read(save, &entries) != OK)
        entries = (struct entries){0};
    for (size_t i = 0; i < entries.count && !found; i++) {
        AUTO(text) path = {0};
        struct stat info;
        store_of_step(save, entries.list[i].step, entries.list[i].suffix, &path);
        text_add(&path, "/manifest.json");
        found = entries.list[i].suffix[0] == 0 && (lstat(path.chars, &info) == 0 || errno != ENOENT);
    }
    free(entries.list);
    return found;
}

enum status store_find(const char *save_folder, char **out)
{
    struct text skipped = {0}, path = {0};
    struct manifest manifest;
    int64_t step = -1;
    enum status status = find_newest(save_folder, INT64_MAX, &step, &path, &manifest, &skipped);
    manifest_free(&manifest);
    if (is_job_rank_zero())
        fputs(text_chars(&skipped), stderr);
    text_free(&skipped);
    if (step < 0)
        text_free(&path);
    if (status == OK)
        *out = path.chars;
    return status;
}

/* Renames to .broken, or .broken-2 and so on if the same step was broken before. */
static void set_aside(const char *save, int64_t step)
{
    AUTO(text) path = {0}, broken = {0};
    store_of_step(save, step, "", &path);
    free_name(save, step, ".broken", &broken);
    if (move(path.chars, broken.chars) == OK)
        print_line(stderr, "warning: %s cannot be loaded; it is kept as %s", path.chars, broken.chars);
    else
        print_line(stderr, "warning: %s", fail_text());
}

void store_set_aside(const char *save, int64_t step)
{
    struct entries entries;
    if (entries_read(save, &entries) != OK)
        entries.count = 0;
    for (size_t i = 0; i < entries.count && entries.list[i].step > step; i++)
        if (entries.list[i].suffix[0] == 0) // the others are being written or removed
            set_aside(save, entries.list[i].step);
    free(entries.list);
}
