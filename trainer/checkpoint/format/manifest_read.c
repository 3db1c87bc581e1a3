// SPDX-License-Identifier: Apache-2.0
/* Reads a manifest file. Its checksum is verified first, so any other error was written by a program or by
 * hand; everything is still checked. */
#include "trainer/checkpoint/format/manifest_read.h"

#include "base/memory.h"
#include "trainer/files/checksum.h"
#include "trainer/files/json_read.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reader {
    const char *path;
    struct manifest *out;
};

static enum status lacks(const struct reader *r, const char *what)
{
    return fail(BAD_CHECKPOINT, "%s: %s is missing or has the wrong type", r->path, what);
}

static enum status take_count(const struct reader *r, const json_t *from, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(from, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return lacks(r, key);
    *out = json_integer_value(value);
    return OK;
}

/* Reads printable text shorter than `size`. */
static enum status take_text(const struct reader *r, const json_t *from, const char *key, char *out,
                             size_t size)
{
    const char *value = json_string_value(json_object_get(from, key));
    if (value == NULL || *value == 0 || strlen(value) >= size)
        return lacks(r, key);
    for (size_t i = 0; value[i] != 0; i++)
        if ((unsigned char)value[i] < ' ' || (unsigned char)value[i] >= 0x7F)
            return lacks(r, key);
    memcpy(out, value, strlen(value) + 1);
    return OK;
}

/* A name that needs no escapes in JSON or in a shell. */
static bool is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] == 0;
}

static enum status take_name(const struct reader *r, const json_t *from, const char *key, char *out,
                             size_t size)
{
    TRY(take_text(r, from, key, out, size));
    return is_name(out) ? OK : lacks(r, key);
}

static enum status take_checksum(const struct reader *r, const json_t *from, const char *key, uint64_t *out)
{
    char text[HEX_CHARS];
    TRY(take_text(r, from, key, text, sizeof text));
    return hex_parse(text, out) ? OK : lacks(r, key);
}

static enum status take_numbers(const struct reader *r, const json_t *from, const char *key, int ndim,
                                int64_t *out)
{
    const json_t *list = json_object_get(from, key);
    if (json_array_size(list) != (size_t)ndim)
        return lacks(r, key);
    for (int d = 0; d < ndim; d++) {
        const json_t *value = json_array_get(list, (size_t)d);
        if (!json_is_integer(value))
            return lacks(r, key);
        out[d] = json_integer_value(value);
    }
    return OK;
}

static enum status take_seed(const struct reader *r, const json_t *root)
{
    char text[32], *end = NULL;
    TRY(take_text(r, root, "seed", text, sizeof text));
    errno = 0;
    r->out->seed = strtoull(text, &end, 10);
    return errno == 0 && *end == 0 ? OK : lacks(r, "seed");
}

/* Missing: no step was skipped. */
static enum status take_skipped_steps(const struct reader *r, const json_t *root)
{
    struct manifest *m = r->out;
    if (json_object_get(root, "skipped_steps") != NULL)
        TRY(take_count(r, root, "skipped_steps", &m->skipped_steps));
    return m->skipped_steps <= m->identity.step ? OK : lacks(r, "skipped_steps");
}

static enum status take_model(const struct reader *r, const json_t *root)
{
    json_t *model = json_object_get(root, "model"), *value;
    const char *name;
    if (json_object_size(model) == 0)
        return lacks(r, "model");
    r->out->model = memory_zeroed(json_object_size(model) + 1, sizeof *r->out->model, "a manifest");
    json_object_foreach(model, name, value)
    {
        struct manifest_key *key = &r->out->model[r->out->model_count];
        if (strlen(name) >= sizeof key->name || !is_name(name))
            return lacks(r, "model");
        memcpy(key->name, name, strlen(name) + 1);
        TRY(take_text(r, model, name, key->value, sizeof key->value));
        r->out->model_count++;
    }
    return OK;
}

/* Accepts any axis name: axes of later versions are informational, too. */
static enum status take_layout(const struct reader *r, const json_t *root)
{
    json_t *layout = json_object_get(root, "layout"), *value;
    struct manifest *m = r->out;
    const char *name;
    if (json_object_size(layout) == 0)
        return lacks(r, "layout");
    json_object_foreach(layout, name, value)
    {
        int64_t degree = 0;
        struct manifest_axis *axis = &m->layout[m->axis_count];
        if (m->axis_count == MANIFEST_MAX_AXES || strlen(name) >= sizeof axis->name ||
            name[strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789")] != 0)
            return lacks(r, "an axis of layout");
        TRY(take_count(r, layout, name, &degree));
        if (degree < 1 || degree > 1 << 24)
            return lacks(r, name);
        memcpy(axis->name, name, strlen(name) + 1);
        axis->degree = (int)degree;
        m->axis_count++;
    }
    return take_name(r, root, "rank_order", m->rank_order, sizeof m->rank_order);
}

static enum status take_dtype(const struct reader *r, const json_t *tensor, struct shard *shard)
{
    char text[16];
    TRY(take_text(r, tensor, "dtype", text, sizeof text));
    return safetensors_dtype_parse(text, &shard->dtype) ? OK : lacks(r, "dtype");
}

/* Reads name, shape and dtype of a tensor. */
static enum status take_whole(const struct reader *r, const json_t *tensor, struct shard *shard)
{
    *shard = (struct shard){.dim = {1, 1}};
    TRY(take_name(r, tensor, "name", shard->name, sizeof shard->name));
    size_t ndim = json_array_size(json_object_get(tensor, "shape"));
    if (ndim < 1 || ndim > SHARD_MAX_DIMS)
        return lacks(r, "shape");
    TRY(take_numbers(r, tensor, "shape", (int)ndim, shard->dim));
    shard->slice = slice_whole((int)ndim, shard->dim);
    return shard_is_sound(shard) ? take_dtype(r, tensor, shard) : lacks(r, "shape");
}

static enum status take_entry(const struct reader *r, const json_t *entry, const char *checksum,
                              struct manifest_file *file)
{
    TRY(take_text(r, entry, "name", file->name, sizeof file->name));
    // A plain file name: files outside the folder are never opened.
    if (strchr(file->name, '/') != NULL || file->name[0] == '.')
        return lacks(r, "name of a file");
    TRY(take_count(r, entry, "bytes", &file->bytes));
    return take_checksum(r, entry, checksum, &file->checksum);
}

/* Reads the rank in the name of a file; -1 if it has another name. */
static int rank_in(const char *name)
{
    char expected[MANIFEST_FILE_CHARS];
    int rank = -1;
    if (sscanf(name, "rank-%9d", &rank) != 1 || rank < 0)
        return -1;
    manifest_file_name(rank, expected);
    return strcmp(name, expected) == 0 ? rank : -1;
}

static enum status take_file(const struct reader *r, const json_t *entry)
{
    struct manifest *m = r->out;
    struct manifest_file *file = &m->files[m->file_count];
    TRY(take_entry(r, entry, "header", file));
    file->rank = rank_in(file->name);
    if (file->rank < 0)
        return lacks(r, "name of a file");
    m->file_count++;
    return OK;
}

static enum status take_files(const struct reader *r, const json_t *root)
{
    const json_t *files = json_object_get(root, "files");
    const size_t count = json_array_size(files);
    if (count == 0 || count > 1 << 24)
        return lacks(r, "files");
    r->out->files = memory_zeroed(count, sizeof *r->out->files, "the files of a manifest");
    for (size_t i = 0; i < count; i++)
        TRY(take_file(r, json_array_get(files, i)));
    return OK;
}

static enum status take_ranks(const struct reader *r, const json_t *ranks, struct manifest_tensor *tensor)
{
    struct manifest *m = r->out;
    tensor->range = m->range_count;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *first = json_array_get(json_array_get(ranks, i), 0);
        const json_t *last = json_array_get(json_array_get(ranks, i), 1);
        if (!json_is_integer(first) || !json_is_integer(last) || json_integer_value(first) < 0 ||
            json_integer_value(last) < json_integer_value(first) || json_integer_value(last) > INT32_MAX)
            return lacks(r, "ranks");
        m->ranges[m->range_count++] =
            (struct rank_range){(int)json_integer_value(first), (int)json_integer_value(last)};
        tensor->range_count++;
    }
    return OK;
}

static enum status take_tensors(const struct reader *r, const json_t *root)
{
    const json_t *tensors = json_object_get(root, "tensors");
    struct manifest *m = r->out;
    size_t ranges = 0, count = json_array_size(tensors);
    if (count == 0 || count > INT32_MAX)
        return lacks(r, "tensors");
    for (size_t i = 0; i < count; i++)
        ranges += json_array_size(json_object_get(json_array_get(tensors, i), "ranks"));
    if (ranges > INT32_MAX)
        return lacks(r, "ranks");
    m->tensors = memory_zeroed(count, sizeof *m->tensors, "the tensors of a manifest");
    m->ranges = memory_zeroed(ranges + 1, sizeof *m->ranges, "the tensors of a manifest");
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(tensors, i);
        struct shard shard;
        TRY(take_whole(r, entry, &shard));
        struct manifest_tensor *tensor = &m->tensors[m->tensor_count++];
        *tensor = (struct manifest_tensor){.dtype = shard.dtype, .ndim = shard.slice.ndim};
        memcpy(tensor->name, shard.name, sizeof tensor->name);
        memcpy(tensor->dim, shard.dim, sizeof tensor->dim);
        TRY(take_ranks(r, json_object_get(entry, "ranks"), tensor));
    }
    return OK;
}

static enum status take_identity(const struct reader *r, const json_t *root)
{
    struct save_identity *identity = &r->out->identity;
    TRY(take_count(r, root, "step", &identity->step));
    if (identity->step > MANIFEST_MAX_STEPS)
        return fail(BAD_CHECKPOINT, "%s: step %lld is too large; the maximum is %lld", r->path,
                    (long long)identity->step, (long long)MANIFEST_MAX_STEPS);
    TRY(take_text(r, root, "run", identity->run, sizeof identity->run));
    TRY(take_text(r, root, "save", identity->save, sizeof identity->save));
    if (!is_hex(identity->run, RUN_CHARS - 1))
        return lacks(r, "run");
    return is_hex(identity->save, SAVE_CHARS - 1) ? OK : lacks(r, "save");
}

static enum status take_valid_loss(const struct reader *r, const json_t *root)
{
    const json_t *loss = json_object_get(root, "valid_loss");
    r->out->has_valid_loss = loss != NULL;
    r->out->valid_loss = json_number_value(loss);
    return loss == NULL || json_is_number(loss) ? OK : lacks(r, "valid_loss");
}

/* The record of the data is kept as text: its values are read by a run that resumes. */
static enum status take_data_order(const struct reader *r, const json_t *root)
{
    const json_t *order = json_object_get(root, "data_order");
    if (order == NULL)
        return OK;
    char *chars = json_is_object(order) ? json_dumps(order, JSON_COMPACT) : NULL;
    if (chars == NULL)
        return lacks(r, "data_order");
    text_add(&r->out->data_order, "%s", chars);
    free(chars);
    return OK;
}

static enum status take_all(const struct reader *r, const json_t *root)
{
    int64_t version = 0;
    const char *format = json_string_value(json_object_get(root, "format"));
    if (format == NULL || strcmp(format, "cuboid checkpoint") != 0)
        return fail(BAD_CHECKPOINT, "%s: not the manifest of a checkpoint", r->path);
    TRY(take_count(r, root, "version", &version));
    r->out->is_other_version = version != CHECKPOINT_VERSION;
    if (r->out->is_other_version)
        return fail(BAD_CHECKPOINT,
                    "%s: format version %lld, but this cuboid reads version %d: use %s cuboid", r->path,
                    (long long)version, CHECKPOINT_VERSION,
                    version > CHECKPOINT_VERSION ? "a newer" : "the older");
    r->out->in_memory = json_is_true(json_object_get(root, "in_memory"));
    TRY(take_identity(r, root));
    TRY(take_count(r, root, "consumed_samples", &r->out->consumed_samples));
    TRY(take_seed(r, root));
    TRY(take_skipped_steps(r, root));
    TRY(take_valid_loss(r, root));
    TRY(take_data_order(r, root));
    TRY(take_model(r, root));
    TRY(take_layout(r, root));
    TRY(take_entry(r, json_object_get(root, "recipe"), "xxh3", &r->out->recipe));
    TRY(take_files(r, root));
    TRY(take_tensors(r, root));
    return manifest_complete(r->out, r->path);
}

/* The last key is a checksum of the text before it. */
static enum status check_own_checksum(const char *path, const struct text *text)
{
    static const char key[] = "\"checksum\": \"", end[] = "\"}\n";
    const size_t tail = sizeof key - 1 + HEX_CHARS - 1 + sizeof end - 1;
    const char *at = text->length >= tail ? text->chars + text->length - tail : NULL;
    if (at == NULL || memcmp(at, key, sizeof key - 1) != 0 || strcmp(at + tail - (sizeof end - 1), end) != 0)
        return fail(BAD_CHECKPOINT, "%s: has no valid end: truncated, or edited by hand", path);
    char hex[HEX_CHARS] = {0};
    uint64_t sum;
    size_t length = (size_t)(at - text->chars);
    memcpy(hex, at + sizeof key - 1, HEX_CHARS - 1);
    return hex_parse(hex, &sum) && sum == checksum_of(text->chars, length)
               ? OK
               : fail(BAD_CHECKPOINT, "%s: its checksum does not match: corrupt, or edited by hand", path);
}

static enum status check_regular(const char *path, struct stat *info)
{
    if (stat(path, info) != 0)
        return fail(errno == EACCES ? IO_ERROR : BAD_CHECKPOINT, "%s: %s", path,
                    errno == ENOENT ? "missing: not a complete checkpoint" : strerror(errno));
    return S_ISREG(info->st_mode) ? OK : fail(BAD_CHECKPOINT, "%s: not a regular file", path);
}

static enum status check_size(const char *path, int64_t bytes)
{
    struct stat info;
    TRY(check_regular(path, &info));
    if (info.st_size != bytes)
        return fail(BAD_CHECKPOINT, "%s: %lld bytes, but the manifest has %lld", path,
                    (long long)info.st_size, (long long)bytes);
    return OK;
}

static enum status check_recipe(const struct manifest *m, const char *path)
{
    AUTO(text) recipe = {0};
    TRY(check_size(path, m->recipe.bytes));
    enum status status = file_read_small(path, (size_t)m->recipe.bytes, &recipe);
    if (status == OK && checksum_of(text_chars(&recipe), recipe.length) != m->recipe.checksum)
        status = fail(BAD_CHECKPOINT,
                      "%s: its checksum differs from the manifest: corrupt, or edited by hand", path);
    return status == IO_ERROR ? BAD_CHECKPOINT : status; // the reason is kept
}

/* In memory, files may be missing or damaged, since other nodes have copies: the loader finds out. */
static enum status check_files(const struct manifest *m, const char *folder)
{
    const int count = m->in_memory ? 0 : m->file_count;
    enum status status = OK;
    for (int i = -1; status == OK && i < count; i++) {
        AUTO(text) path = {0};
        const struct manifest_file *file = i < 0 ? &m->recipe : &m->files[i];
        text_add(&path, "%s/%s", folder, file->name);
        if (i >= 0)
            status = check_size(path.chars, file->bytes);
        else
            status = check_recipe(m, path.chars);
    }
    return status;
}

static enum status parse(const char *path, const struct text *text, struct manifest *out)
{
    json_error_t error;
    TRY(check_own_checksum(path, text));
    json_t *root = json_read(text->chars, text->length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return fail(BAD_CHECKPOINT, "%s, line %d: not JSON: corrupt", path, error.line);
    enum status status = take_all(&(struct reader){path, out}, root);
    json_decref(root);
    return status;
}

enum status manifest_read(const char *folder, struct manifest *out)
{
    AUTO(text) path = {0}, text = {0};
    *out = (struct manifest){0};
    text_add(&path, "%s/manifest.json", folder);
    struct stat info;
    enum status status = check_regular(path.chars, &info);
    if (status == OK && access(path.chars, R_OK) != 0 && errno == EACCES) // not damaged
        status = fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    else if (status == OK)
        status = file_read(path.chars, &text) == OK ? OK : BAD_CHECKPOINT; // with the same message
    if (status == OK)
        status = parse(path.chars, &text, out);
    if (status == OK)
        status = check_files(out, folder);
    const bool is_other_version = out->is_other_version;
    if (status != OK)
        manifest_free(out);
    out->is_other_version = is_other_version;
    return status;
}
