// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Identity of a file: its inode if it exists, otherwise the inode of its directory and its name. */
struct file_identity {
    bool exists;
    struct stat info; // of the file or its directory
    const char *name; // after the last slash
};

static struct file_identity identity_of(const char *path)
{
    struct file_identity file = {.name = path};
    const char *slash = strrchr(path, '/');
    file.exists = stat(path, &file.info) == 0;
    if (file.exists)
        return file;
    struct text folder = {0};
    text_add_bytes(&folder, path, slash != NULL ? (size_t)(slash - path) + 1 : 0);
    file.name = slash != NULL ? slash + 1 : path;
    if (stat(slash != NULL ? text_chars(&folder) : ".", &file.info) != 0)
        file.info = (struct stat){0}; // no directory, so no such file
    text_free(&folder);
    return file;
}

static bool same_file(const struct file_identity *a, const struct file_identity *b)
{
    return a->exists == b->exists && a->info.st_dev == b->info.st_dev && a->info.st_ino == b->info.st_ino &&
           (a->exists || strcmp(a->name, b->name) == 0);
}

static bool is_standard(const struct output *o)
{
    return o->path != NULL && strcmp(o->path, "-") == 0;
}

bool outputs_print(const struct output *outputs, int count)
{
    for (int i = 0; i < count; i++)
        if (is_standard(&outputs[i]))
            return true;
    return false;
}

static enum status check_path(const struct output *o)
{
    if (o->path[0] == 0)
        return fail(BAD_USAGE, "%s: %s has an empty name; use a file name, or - for standard output",
                    o->command, o->option);
    const char *fault = file_path_problem(o->path);
    return fault == NULL ? OK : fail(BAD_USAGE, "%s: %s %s: %s", o->command, o->option, o->path, fault);
}

static enum status check_pair(const struct output *a, const struct output *b)
{
    if (is_standard(a) && is_standard(b))
        return fail(BAD_USAGE, "%s: %s - and %s - both write to standard output; use a file for one of them",
                    a->command, a->option, b->option);
    if (is_standard(a) || is_standard(b))
        return OK;
    struct file_identity x = identity_of(a->path), y = identity_of(b->path);
    return same_file(&x, &y) ? fail(BAD_USAGE,
                                    "%s: %s %s and %s %s are the same file; use two "
                                    "names",
                                    a->command, a->option, a->path, b->option, b->path)
                             : OK;
}

static enum status check_output(const struct output *o, const struct input *inputs, int input_count,
                                const char *printing)
{
    struct stat printed;
    if (is_standard(o) && printing != NULL)
        return fail(BAD_USAGE, "%s: %s and %s - both write to standard output; use %s FILE", o->command,
                    printing, o->option, o->option);
    if (is_standard(o))
        return OK;
    TRY(check_path(o));
    struct file_identity file = identity_of(o->path);
    for (int i = 0; i < input_count; i++) {
        struct file_identity input = identity_of(inputs[i].path != NULL ? inputs[i].path : "");
        if (file.exists && input.exists && same_file(&file, &input))
            return fail(BAD_USAGE, "%s: %s %s would overwrite the %s; use another name", o->command,
                        o->option, o->path, inputs[i].what);
    }
    if (file.exists && fstat(STDOUT_FILENO, &printed) == 0 && printed.st_dev == file.info.st_dev &&
        printed.st_ino == file.info.st_ino)
        return fail(BAD_USAGE, "%s: %s %s is standard output; use %s -", o->command, o->option, o->path,
                    o->option);
    return OK;
}

enum status outputs_check(const struct output *outputs, int count, const struct input *inputs,
                          int input_count, const char *printing)
{
    for (int i = 0; i < count; i++) {
        if (outputs[i].path == NULL)
            continue;
        TRY(check_output(&outputs[i], inputs, input_count, printing));
        for (int k = 0; k < i; k++)
            if (outputs[k].path != NULL)
                TRY(check_pair(&outputs[k], &outputs[i]));
    }
    return OK;
}

enum status output_refuse_existing(const struct output *output)
{
    if (output->path == NULL || is_standard(output) || !identity_of(output->path).exists)
        return OK;
    return fail(BAD_USAGE, "%s: %s %s exists; remove it, or name another file", output->command,
                output->option, output->path);
}

enum status output_write(const struct output *output, const struct text *content, bool report)
{
    if (is_standard(output)) {
        fwrite(content->chars, 1, content->length, stdout); // errors are checked once, at the end
        return OK;
    }
    TRY(file_write_atomic(output->path, content->chars, content->length));
    if (report)
        print_line(stdout, "%s: %zu bytes", output->path, content->length);
    return OK;
}
