// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_weights.h"

#include "base/memory.h"
#include "trainer/files/inside.h"
#include "trainer/files/json_read.h"
#include "trainer/files/stop_signals.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
enum { MAX_INDEX_BYTES = 64 << 20, MAX_FILES = 10000 };

/* A link without its target, as in a cache from which files were removed. */
static bool is_lost_link(const char *folder, const char *name)
{
    struct stat info;
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", folder, name);
    return lstat(path.chars, &info) == 0 && stat(path.chars, &info) != 0;
}

/* ---- files ---- */

/* Returns the index of a file that is open; -1: none. */
static int file_named(const struct pretrained_weights *w, const char *name)
{
    for (int i = 0; i < w->file_count; i++)
        if (strcmp(w->names[i], name) == 0)
            return i;
    return -1;
}

static enum status open_file(struct pretrained_weights *w, const char *name)
{
    const size_t count = (size_t)w->file_count + 1;
    AUTO(text) path = {0};
    w->files = memory_resized(w->files, count, sizeof *w->files, "the files of a model");
    w->names = memory_resized(w->names, count, sizeof *w->names, "the files of a model");
    text_add(&path, "%s/%s", w->folder, name);
    TRY(inside_check(w->folder, name));
    TRY(safetensors_open(path.chars, &w->files[w->file_count]));
    w->names[w->file_count++] = text_copy(name);
    return OK;
}

/* ---- entries ---- */

static int by_name(const void *a, const void *b)
{
    const struct pretrained_entry *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static enum status list_entries(struct pretrained_weights *w)
{
    size_t count = 0;
    for (int i = 0; i < w->file_count; i++)
        count += (size_t)safetensors_count(w->files[i]);
    w->entries = memory_zeroed(count + 1, sizeof *w->entries, "the tensors of a model");
    for (int i = 0; i < w->file_count; i++)
        for (int t = 0; t < safetensors_count(w->files[i]); t++)
            w->entries[w->count++] =
                (struct pretrained_entry){.tensor = safetensors_at(w->files[i], t), .file = i};
    if (w->count > 0)
        qsort(w->entries, (size_t)w->count, sizeof *w->entries, by_name);
    for (int i = 1; i < w->count; i++)
        if (strcmp(w->entries[i - 1].tensor->name, w->entries[i].tensor->name) == 0)
            return fail(BAD_CHECKPOINT, "%s: tensor %s is in %s and in %s; remove one of the files",
                        w->folder, w->entries[i].tensor->name, w->names[w->entries[i - 1].file],
                        w->names[w->entries[i].file]);
    return OK;
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct pretrained_entry *)entry)->tensor->name);
}

struct pretrained_entry *pretrained_weights_find(const struct pretrained_weights *weights, const char *name)
{
    return weights->count == 0 ? NULL
                               : bsearch(name, weights->entries, (size_t)weights->count,
                                         sizeof *weights->entries, compare_name);
}

enum status pretrained_weights_read(const struct pretrained_weights *weights,
                                    const struct pretrained_entry *entry, void *out)
{
    enum { PIECE_BYTES = 32 << 20 };
    const int64_t bytes = entry->tensor->bytes;
    for (int64_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        TRY(stop_signals_check());
        TRY(safetensors_read(weights->files[entry->file], entry->tensor, at, (size_t)piece,
                             (char *)out + at));
    }
    return OK;
}

/* ---- the index ---- */

static enum status open_listed(struct pretrained_weights *w, const json_t *map)
{
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (name == NULL || name[0] == 0 || name[0] == '.' || strchr(name, '/') != NULL)
            return fail(BAD_CHECKPOINT,
                        "%s/%s: the file of tensor %s is \"%s\"; expected the name of a file in this folder",
                        w->folder, index_name, tensor, name != NULL ? name : "?");
        if (file_named(w, name) >= 0)
            continue;
        if (w->file_count == MAX_FILES)
            return fail(BAD_CHECKPOINT, "%s/%s: lists more than %d files", w->folder, index_name, MAX_FILES);
        if (!inside_exists(w->folder, name))
            return fail(BAD_CHECKPOINT, "%s: %s is missing, which %s lists for tensor %s", w->folder, name,
                        index_name, tensor);
        TRY(open_file(w, name));
    }
    return OK;
}

static enum status check_listed(const struct pretrained_weights *w, const json_t *map)
{
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const struct pretrained_entry *entry = pretrained_weights_find(w, name);
        if (entry == NULL || strcmp(w->names[entry->file], json_string_value(file)) != 0)
            return fail(BAD_CHECKPOINT, "%s/%s: has no tensor %s, which %s lists", w->folder,
                        json_string_value(file), name, index_name);
    }
    for (int i = 0; i < w->count; i++)
        if (json_object_get(map, w->entries[i].tensor->name) == NULL)
            return fail(BAD_CHECKPOINT, "%s/%s: has tensor %s, which %s does not list", w->folder,
                        w->names[w->entries[i].file], w->entries[i].tensor->name, index_name);
    return OK;
}

static enum status open_index(struct pretrained_weights *w)
{
    AUTO(text) path = {0}, text = {0};
    json_error_t error;
    json_t *root = NULL;
    text_add(&path, "%s/%s", w->folder, index_name);
    enum status status = inside_check(w->folder, index_name);
    if (status == OK)
        status = file_read_small(path.chars, MAX_INDEX_BYTES, &text);
    if (status == OK) {
        root = json_read(text_chars(&text), text.length, JSON_REJECT_DUPLICATES, &error);
        if (root == NULL)
            status = fail(BAD_CHECKPOINT, "%s:%d:%d: not valid JSON: %s", path.chars, error.line,
                          error.column, error.text);
    }
    const json_t *map = json_object_get(root, "weight_map");
    if (status == OK && json_object_size(map) == 0)
        status = fail(BAD_CHECKPOINT, "%s: has no weight_map from tensors to files", path.chars);
    if (status == OK)
        status = open_listed(w, map);
    if (status == OK)
        status = list_entries(w);
    if (status == OK)
        status = check_listed(w, map);
    json_decref(root);
    return status;
}

/* ---- the folder ---- */

enum status pretrained_weights_open(const char *folder, struct pretrained_weights *out)
{
    *out = (struct pretrained_weights){.folder = folder};
    if (inside_exists(folder, single_name)) {
        TRY(open_file(out, single_name));
        return list_entries(out);
    }
    if (inside_exists(folder, index_name))
        return open_index(out);
    if (is_lost_link(folder, single_name) || is_lost_link(folder, index_name))
        return fail(BAD_CHECKPOINT,
                    "%s/%s: is a link to a file that does not exist; download the model again", folder,
                    is_lost_link(folder, single_name) ? single_name : index_name);
    return fail(BAD_CHECKPOINT, "%s: has neither %s nor %s%s", folder, single_name, index_name,
                inside_exists(folder, "pytorch_model.bin") ||
                        inside_exists(folder, "pytorch_model.bin.index.json")
                    ? "; convert pytorch_model.bin with save_pretrained(..., safe_serialization=True)"
                    : "");
}

void pretrained_weights_close(struct pretrained_weights *weights)
{
    for (int i = 0; i < weights->file_count; i++) {
        safetensors_close(weights->files[i]);
        free(weights->names[i]);
    }
    free(weights->files);
    free(weights->names);
    free(weights->entries);
    *weights = (struct pretrained_weights){0};
}
