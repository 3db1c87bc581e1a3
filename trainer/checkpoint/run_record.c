// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/run_record.h"

#include "base/file.h"
#include "base/memory.h"
#include "trainer/files/json_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_BYTES = 1 << 16 };

static bool take_name(const json_t *value, char out[RUN_RECORD_NAME_CHARS])
{
    const char *name = json_string_value(value);
    if (name == NULL || strlen(name) >= RUN_RECORD_NAME_CHARS || strncmp(name, "step-", 5) != 0 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != strlen(name))
        return false;
    snprintf(out, RUN_RECORD_NAME_CHARS, "%s", name);
    return true;
}

static bool take_names(const json_t *list, struct run_record *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (out->count == RUN_RECORD_MAX_FOLDERS ||
            !take_name(json_array_get(list, i), out->unfinished[out->count++]))
            return false;
    return json_is_array(list);
}

static bool parse(const struct text *text, struct run_record *out)
{
    json_t *root = json_read(text_chars(text), text->length, JSON_REJECT_DUPLICATES, NULL);
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *run = json_string_value(json_object_get(root, "run"));
    const json_t *replaced = json_object_get(root, "replaced");
    bool good = format != NULL && strcmp(format, "cuboid run") == 0 && run != NULL &&
                is_hex(run, RUN_CHARS - 1) && take_names(json_object_get(root, "unfinished"), out) &&
                (replaced == NULL || take_name(replaced, out->replaced));
    if (good)
        memcpy(out->run, run, RUN_CHARS);
    else
        *out = (struct run_record){.count = 0};
    json_decref(root);
    return good;
}

enum status run_record_read(const char *save, struct run_record *out)
{
    AUTO(text) path = {0}, text = {0};
    struct stat info;
    enum status status = OK;
    *out = (struct run_record){.count = 0};
    text_add(&path, "%s/run.json", save);
    if (lstat(path.chars, &info) == 0)
        status = file_read_small(path.chars, MAX_BYTES, &text);
    else if (errno != ENOENT)
        status = fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    if (status == OK && text.length > 0 && !parse(&text, out))
        print_line(stderr,
                   "warning: %s is not a valid run record; it is replaced, and existing "
                   "checkpoints are kept",
                   path.chars);
    return status;
}

enum status run_record_write(const char *save, const struct run_record *record)
{
    AUTO(text) path = {0}, text = {0};
    text_add(&path, "%s/run.json", save);
    text_add(&text, "{\"format\": \"cuboid run\", \"version\": 1, \"run\": \"%s\", \"unfinished\": [",
             record->run);
    for (int i = 0; i < record->count; i++)
        text_add(&text, "%s\"%s\"", i > 0 ? ", " : "", record->unfinished[i]);
    text_add(&text, "]");
    if (record->replaced[0] != 0)
        text_add(&text, ", \"replaced\": \"%s\"", record->replaced);
    text_add(&text, "}\n");
    return file_write_atomic(path.chars, text.chars, text.length);
}

enum status run_record_set_unfinished(const char *save, const char *name)
{
    struct run_record record;
    TRY(run_record_read(save, &record));
    if (record.run[0] == 0 && name == NULL) // removed with its folder: no identity is made up
        return OK;
    if (record.run[0] == 0)
        TRY(random_hex(record.run, RUN_CHARS - 1));
    record.count = name != NULL;
    if (name != NULL)
        snprintf(record.unfinished[0], RUN_RECORD_NAME_CHARS, "%s", name);
    return run_record_write(save, &record);
}

enum status run_record_set_replaced(const char *save, const char *name)
{
    struct run_record record;
    TRY(run_record_read(save, &record));
    snprintf(record.replaced, sizeof record.replaced, "%s", name);
    return run_record_write(save, &record);
}

enum status random_hex(char *out, size_t digits)
{
    CHECK(digits % (HEX_CHARS - 1) == 0);
    for (size_t at = 0; at < digits; at += HEX_CHARS - 1) {
        uint64_t token;
        char hex[HEX_CHARS];
        TRY(random_token(&token));
        memcpy(out + at, hex_text(token, hex), HEX_CHARS);
    }
    return OK;
}
