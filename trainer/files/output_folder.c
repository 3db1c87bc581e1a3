// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/output_folder.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/files/disk_space.h"
#include "trainer/files/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char elsewhere[] = "; use -o and a name in a folder that can be written";

enum status output_folder_check(const char *path)
{
    struct stat info;
    if (path[0] == 0)
        return fail(BAD_USAGE, "-o \"\": the name is empty; use the name of a folder that does not exist");
    if (!text_is_printable(path)) // the recipe contains it
        return fail(BAD_USAGE, "-o %s: has a character that cannot be printed; use another name", path);
    if (path[strlen(path) - 1] == '/')
        return fail(BAD_USAGE, "-o %s: ends with a slash; use the name of a folder, without a / at its end",
                    path);
    if (lstat(path, &info) == 0)
        return fail(BAD_USAGE, "-o %s: exists; use the name of a folder that does not exist", path);
    return OK;
}

static enum status make_parents(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return OK;
    AUTO(text) parents = {0};
    text_add_bytes(&parents, path, (size_t)(slash - path));
    enum status status = folder_make(parents.chars);
    return status == OK
               ? OK
               : fail(BAD_USAGE, "-o %s: cannot create its parent: %s%s", path, fail_text(), elsewhere);
}

enum status output_folder_begin(const char *path, struct output_folder *out)
{
    *out = (struct output_folder){.path = path};
    TRY(output_folder_check(path));
    TRY(make_parents(path));
    struct text partial = {0};
    text_add(&partial, "%s.partial", path);
    enum status status = OK;
    stop_signals_hold(&out->held);
    out->holds_signals = true;
    if (mkdir(partial.chars, 0777) != 0)
        status = fail(errno == ENOSPC || errno == EDQUOT ? IO_ERROR : BAD_USAGE,
                      "-o %s: cannot create %s: %s%s", path, partial.chars, strerror(errno),
                      errno == EEXIST ? "; remove it, if no other program is writing there" : elsewhere);
    if (status == OK)
        out->partial = partial;
    else
        text_free(&partial);
    return status;
}

enum status output_folder_finish(struct output_folder *output)
{
    struct stat info;
    TRY(folder_sync(output->partial.chars));
    TRY(stop_signals_check());
    if (lstat(output->path, &info) == 0)
        return fail(BAD_USAGE, "-o %s: was created by another program", output->path);
    if (rename(output->partial.chars, output->path) != 0)
        return fail(IO_ERROR, "%s: cannot be renamed to %s: %s", output->partial.chars, output->path,
                    strerror(errno));
    text_free(&output->partial);
    return folder_sync_parent(output->path);
}

static bool every_file(const char *name)
{
    (void)name;
    return true;
}

void output_folder_free(struct output_folder *output)
{
    if (output->partial.length > 0) {
        // The message of the failure is kept: the removal's own one matters less.
        AUTO(text) why = {0};
        text_add(&why, "%s", fail_text());
        if (folder_remove(output->partial.chars, every_file) != OK)
            print_line(stderr, "warning: %s", fail_text());
        (void)!fail(IO_ERROR, "%s", text_chars(&why));
    }
    text_free(&output->partial);
    if (output->holds_signals)
        stop_signals_release(&output->held);
    output->holds_signals = false;
}

enum status output_folder_write(const struct output_folder *output, const char *name, const struct text *text)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", output->partial.chars, name);
    return file_write_atomic(path.chars, text_chars(text), text->length);
}

enum status output_folder_explain(enum status status, const char *path, int64_t needed)
{
    AUTO(text) why = {0};
    if (status != IO_ERROR)
        return status;
    text_add(&why, "%s", fail_text());
    if (disk_space_text(path, needed, "use -o and", &why))
        status = fail(status, "%s", why.chars);
    return status;
}
