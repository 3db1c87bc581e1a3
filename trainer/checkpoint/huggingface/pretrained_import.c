// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_import.h"

#include "base/memory.h"
#include "kernels/numbers/narrow.h"
#include "layers/model.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/huggingface/model_files.h"
#include "trainer/checkpoint/huggingface/pretrained_config.h"
#include "trainer/checkpoint/huggingface/pretrained_recipe.h"
#include "trainer/checkpoint/huggingface/pretrained_tensors.h"
#include "trainer/checkpoint/huggingface/pretrained_tokenizer.h"
#include "trainer/checkpoint/huggingface/pretrained_weights.h"
#include "trainer/checkpoint/run_record.h"
#include "trainer/files/inside.h"
#include "trainer/files/output_folder.h"
#include "trainer/files/yaml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char head_name[] = "lm_head.weight"; // of every architecture

enum { HEAD_PIECE = 1 << 20 }; // elements that are compared at once

struct import {
    const char *folder, *out;
    enum pretrained_head head;
    struct pretrained_config config;
    struct pretrained_tokenizer found;  // of the folder
    struct text config_path, tokenizer; // tokenizer: its path when the checkpoint is complete; empty: none
    struct recipe *recipe;
    struct params params;
    struct pretrained_weights weights;
    struct pretrained_tensors tensors;
    struct model_files files;
    struct output_folder output;
    enum safetensors_dtype dtype; // of the values in the checkpoint
    struct shard *shards;         // of the parts of all tensors, in this order
    int shard_count;
    struct save_identity identity;
    struct manifest manifest;
    char *whole, *band; // the largest tensor; rows of a part in its type ...
    float *wide;        // ... and in fp32
};

/* ---- the model ---- */

/* Applies the choice of the caller to tie_word_embeddings. */
static enum status choose_head(struct import *m)
{
    struct pretrained_value *tied = m->config.values;
    const struct pretrained_value *end = tied + m->config.count;
    while (tied < end && strcmp(tied->key, "tie_word_embeddings") != 0)
        tied++;
    CHECK(tied < end); // every architecture has this key
    if (strcmp(tied->value, "true") != 0)
        return fail(BAD_USAGE,
                    "checkpoint import: %s has tie_word_embeddings %s, so there is nothing to choose; remove "
                    "--untie or --tie",
                    m->config_path.chars, tied->value);
    if (m->head == PRETRAINED_HEAD_UNTIED)
        snprintf(tied->value, sizeof tied->value, "false");
    return OK;
}

static enum status read_config(struct import *m, struct problems *warnings)
{
    enum { MAX_BYTES = 16 << 20 };
    AUTO(text) json = {0};
    text_add(&m->config_path, "%s/config.json", m->folder);
    TRY(inside_check(m->folder, "config.json"));
    enum status status = file_read_small(m->config_path.chars, MAX_BYTES, &json);
    if (status == OK)
        status = pretrained_config_parse(m->config_path.chars, &json, warnings, &m->config);
    return status == OK && m->head != PRETRAINED_HEAD_REFUSED ? choose_head(m) : status;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Every layer has a tensor: no list of parameters is made for more layers than that. */
static enum status check_layers(const struct import *m)
{
    if (m->recipe->model.num_layers <= m->weights.count)
        return OK;
    return fail(BAD_CHECKPOINT, "%s: %lld layers, but the folder has only %d tensors", m->config_path.chars,
                (long long)m->recipe->model.num_layers, m->weights.count);
}

/* ---- tensors ---- */

/* Files of the base model have no prefix. */
static bool has_prefix(const struct import *m)
{
    const char *prefix = m->config.architecture->prefix;
    for (int i = 0; i < m->weights.count; i++)
        if (strncmp(m->weights.entries[i].tensor->name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

static const char *shape_text(int ndim, const int64_t *dim, char out[64])
{
    size_t length = (size_t)snprintf(out, 64, "[");
    for (int d = 0; d < ndim && length < 60; d++)
        length += (size_t)snprintf(out + length, 64 - length, "%s%lld", d > 0 ? ", " : "", (long long)dim[d]);
    snprintf(out + (length < 62 ? length : 62), 2, "]");
    return out;
}

static bool is_float(enum safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_F32 || dtype == SAFETENSORS_BF16 || dtype == SAFETENSORS_F16;
}

static enum status check_tensor(struct import *m, const struct pretrained_tensor *tensor)
{
    char expected[64], found[64];
    struct pretrained_entry *entry = pretrained_weights_find(&m->weights, tensor->name);
    if (entry == NULL)
        return fail(BAD_CHECKPOINT, "%s: tensor %s is missing, which %s needs", m->folder, tensor->name,
                    m->head == PRETRAINED_HEAD_UNTIED && strcmp(tensor->name, head_name) == 0
                        ? "--untie"
                        : m->config_path.chars);
    const struct safetensors_tensor *is = entry->tensor;
    bool same = is->ndim == tensor->ndim;
    for (int d = 0; same && d < tensor->ndim; d++)
        same = is->dim[d] == tensor->dim[d];
    if (!same)
        return fail(BAD_CHECKPOINT, "%s/%s: tensor %s has shape %s, but config.json needs %s", m->folder,
                    m->weights.names[entry->file], tensor->name, shape_text(is->ndim, is->dim, found),
                    shape_text(tensor->ndim, tensor->dim, expected));
    if (!is_float(is->dtype))
        return fail(BAD_CHECKPOINT, "%s/%s: tensor %s has dtype %s; Cuboid supports F32, BF16 and F16",
                    m->folder, m->weights.names[entry->file], tensor->name,
                    safetensors_dtype_name(is->dtype));
    if (is->dtype != SAFETENSORS_BF16)
        m->dtype = SAFETENSORS_F32;
    entry->used = true;
    return OK;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* Constants, and a tied head, are not imported. */
static bool is_ignored(const struct import *m, const char *name)
{
    for (const char *const *end = m->config.architecture->ignored_tensors; *end != NULL; end++)
        if (ends_with(name, *end))
            return true;
    return m->recipe->model.tie_word_embeddings && strcmp(name, head_name) == 0;
}

static enum status check_tensors(struct import *m)
{
    m->dtype = SAFETENSORS_BF16;
    for (int i = 0; i < m->tensors.count; i++)
        TRY(check_tensor(m, &m->tensors.list[i]));
    for (int i = 0; i < m->weights.count; i++) {
        const struct pretrained_entry *entry = &m->weights.entries[i];
        if (!entry->used && !is_ignored(m, entry->tensor->name))
            return fail(BAD_CHECKPOINT, "%s/%s: tensor %s is not part of the %s that config.json describes",
                        m->folder, m->weights.names[entry->file], entry->tensor->name,
                        m->config.architecture->name);
    }
    return OK;
}

static enum status open_model(struct import *m)
{
    const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .etp = 1, .dp = 1, .pp = 1};
    TRY(pretrained_weights_open(m->folder, &m->weights));
    TRY(check_layers(m));
    TRY(params_declare(&m->recipe->model, &one_each, false, &m->params));
    TRY(pretrained_tensors_create(m->config.architecture, &m->params, m->recipe->model.kv_channels,
                                  has_prefix(m), &m->tensors));
    return check_tensors(m);
}

/* ---- the head ---- */

/* The tensor of the embedding, which a tied head shares. */
static const struct pretrained_entry *embedding_entry(const struct import *m)
{
    const int embedding = params_find(&m->params, "embedding.weight");
    for (int i = 0; i < m->tensors.count; i++)
        if (m->tensors.list[i].part[0] == embedding)
            return pretrained_weights_find(&m->weights, m->tensors.list[i].name);
    return NULL;
}

/* Reads elements [first, first + count) as fp32. `raw`: memory for them in their type. */
static enum status read_wide(const struct import *m, const struct pretrained_entry *entry, int64_t first,
                             int64_t count, char *raw, float *wide)
{
    const enum safetensors_dtype dtype = entry->tensor->dtype;
    const size_t each = safetensors_dtype_bytes(dtype);
    const bool is_wide = dtype == SAFETENSORS_F32;
    TRY(stop_signals_check());
    TRY(safetensors_read(m->weights.files[entry->file], entry->tensor, first * (int64_t)each,
                         (size_t)count * each, is_wide ? (char *)wide : raw));
    if (!is_wide)
        widen_floats(dtype == SAFETENSORS_BF16 ? BF16 : F16, raw, wide, count);
    return OK;
}

static enum status refuse_head(const struct import *m, const struct pretrained_entry *head,
                               const struct pretrained_entry *embedding, int64_t element,
                               const float values[2])
{
    return fail(BAD_CHECKPOINT,
                "%s/%s: element %lld of %s is %g, but %g in %s, although config.json has tie_word_embeddings "
                "true; use --untie to import this head, as transformers 5 does, or --tie to drop it, as "
                "transformers 4 does",
                m->folder, m->weights.names[head->file], (long long)element, head_name, (double)values[0],
                (double)values[1], embedding->tensor->name);
}

/* Compares the two in pieces: a head that is a copy is not imported, and another one only by choice. */
static enum status compare_head(const struct import *m, const struct pretrained_entry *head,
                                const struct pretrained_entry *embedding, float *wide[2])
{
    const int64_t count =
        embedding->tensor->bytes / (int64_t)safetensors_dtype_bytes(embedding->tensor->dtype);
    for (int64_t at = 0, piece; at < count; at += piece) {
        piece = count - at < HEAD_PIECE ? count - at : HEAD_PIECE;
        TRY(read_wide(m, head, at, piece, m->band, wide[0]));
        TRY(read_wide(m, embedding, at, piece, m->band, wide[1]));
        for (int64_t i = 0; i < piece; i++) {
            const float values[2] = {wide[0][i], wide[1][i]};
            if (!(values[0] == values[1] || (isnan(values[0]) && isnan(values[1]))))
                return refuse_head(m, head, embedding, at + i, values);
        }
    }
    return OK;
}

static enum status check_head(const struct import *m)
{
    const struct pretrained_entry *head = pretrained_weights_find(&m->weights, head_name),
                                  *embedding = embedding_entry(m);
    if (head == NULL || head->used || m->head == PRETRAINED_HEAD_TIED)
        return OK;
    char expected[64], found[64];
    const struct safetensors_tensor *is = head->tensor, *as = embedding->tensor;
    if (is->ndim != as->ndim || is->dim[0] != as->dim[0] || is->dim[1] != as->dim[1] || !is_float(is->dtype))
        return fail(BAD_CHECKPOINT, "%s/%s: tied %s is %s of type %s, but %s has shape %s", m->folder,
                    m->weights.names[head->file], head_name, shape_text(is->ndim, is->dim, found),
                    safetensors_dtype_name(is->dtype), as->name, shape_text(as->ndim, as->dim, expected));
    AUTO_FREE float *wide = memory_zeroed(2 * HEAD_PIECE, sizeof *wide, "a part of the head");
    return compare_head(m, head, embedding, (float *[]){wide, wide + HEAD_PIECE});
}

/* ---- writing ---- */

static void list_shards(struct import *m)
{
    m->shards = memory_zeroed((size_t)m->params.count + 1, sizeof *m->shards, "the shards of a model");
    for (int i = 0; i < m->tensors.count; i++)
        for (int part = 0; part < m->tensors.list[i].part_count; part++) {
            const struct param *param = &m->params.list[m->tensors.list[i].part[part]];
            struct shard *shard = &m->shards[m->shard_count++];
            *shard = (struct shard){.dtype = m->dtype, .slice = slice_whole(param->ndim, param->dim)};
            state_name(STATE_VALUE, param->name, shard->name);
            memcpy(shard->dim, param->dim, sizeof shard->dim);
        }
}

static int64_t band_rows(int64_t columns)
{
    const int64_t rows = PRETRAINED_BAND_BYTES / (columns * (int64_t)sizeof(float));
    return rows > 0 ? rows : 1;
}

static enum status allocate(struct import *m)
{
    size_t whole = 1, band = PRETRAINED_BAND_BYTES;
    for (int i = 0; i < m->tensors.count; i++) {
        const struct safetensors_tensor *tensor =
            pretrained_weights_find(&m->weights, m->tensors.list[i].name)->tensor;
        whole = (size_t)tensor->bytes > whole ? (size_t)tensor->bytes : whole;
    }
    for (int i = 0; i < m->shard_count; i++) {
        const size_t row = (size_t)m->shards[i].dim[1] * sizeof(float);
        band = row > band ? row : band;
    }
    m->whole = malloc(whole);
    m->band = malloc(band);
    m->wide = malloc(band);
    return m->whole != NULL && m->band != NULL && m->wide != NULL
               ? OK
               : fail(NO_MEMORY, "no memory for a tensor of %zu bytes", whole);
}

static enum status write_part(struct import *m, const struct pretrained_tensor *tensor,
                              enum safetensors_dtype from, int part, struct checkpoint_writer *writer)
{
    const struct param *param = &m->params.list[tensor->part[part]];
    const int64_t columns = param->ndim > 1 ? param->dim[1] : 1, rows = band_rows(columns);
    for (int64_t row = 0, count; row < param->dim[0]; row += count) {
        count = param->dim[0] - row < rows ? param->dim[0] - row : rows;
        TRY(stop_signals_check());
        pretrained_copy_rows(&m->tensors, tensor, part, row, count, safetensors_dtype_bytes(from),
                             PRETRAINED_FROM_WHOLE, m->whole, m->band);
        const int64_t elements = count * columns;
        if (from == m->dtype) {
            TRY(checkpoint_writer_append(writer, m->band, (size_t)elements * safetensors_dtype_bytes(from)));
            continue;
        }
        widen_floats(from == SAFETENSORS_BF16 ? BF16 : F16, m->band, m->wide, elements);
        TRY(checkpoint_writer_append(writer, m->wide, (size_t)elements * sizeof *m->wide));
    }
    return OK;
}

/* Checks the values of a tensor, in m->whole. */
static enum status check_finite(const struct import *m, const struct pretrained_entry *entry)
{
    const struct safetensors_tensor *tensor = entry->tensor;
    const size_t each = safetensors_dtype_bytes(tensor->dtype), count = (size_t)tensor->bytes / each;
    const uint32_t exponent = tensor->dtype == SAFETENSORS_F32    ? 0x7f800000U
                              : tensor->dtype == SAFETENSORS_BF16 ? 0x7f80U
                                                                  : 0x7c00U;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0; // little endian
        memcpy(&bits, m->whole + i * each, each);
        if ((bits & exponent) == exponent)
            return fail(
                BAD_CHECKPOINT,
                "%s/%s: element %zu of tensor %s is %s, so every result of the model would be; export "
                "or download the model again",
                m->folder, m->weights.names[entry->file], i, tensor->name,
                (bits & ((exponent & -exponent) - 1U)) != 0 ? "NaN" : "infinite");
    }
    return OK;
}

static enum status write_tensors(struct import *m, struct checkpoint_writer *writer)
{
    for (int i = 0; i < m->tensors.count; i++) {
        const struct pretrained_tensor *tensor = &m->tensors.list[i];
        const struct pretrained_entry *entry = pretrained_weights_find(&m->weights, tensor->name);
        TRY(pretrained_weights_read(&m->weights, entry, m->whole));
        TRY(check_finite(m, entry));
        for (int part = 0; part < tensor->part_count; part++)
            TRY(write_part(m, tensor, entry->tensor->dtype, part, writer));
    }
    return checkpoint_writer_finish(writer);
}

/* One file, of rank 0, with all values. */
static enum status write_values(struct import *m)
{
    struct text path = {0};
    struct checkpoint_writer *writer = NULL;
    char name[MANIFEST_FILE_CHARS];
    manifest_file_name(0, name);
    text_add(&path, "%s/%s", m->output.partial.chars, name);
    enum status status =
        checkpoint_writer_create(path.chars, &m->identity, m->shards, m->shard_count, &writer);
    if (status == OK)
        status = write_tensors(m, writer);
    if (status == OK)
        manifest_add_file(&m->manifest, 0, checkpoint_writer_bytes(writer),
                          checkpoint_writer_checksum(writer));
    checkpoint_writer_destroy(writer);
    text_free(&path);
    for (int i = 0; status == OK && i < m->shard_count; i++) {
        manifest_add_tensor(&m->manifest, &m->shards[i]);
        manifest_add_rank(&m->manifest, 0);
    }
    return status;
}

static void model_yaml(const struct import *m, struct text *out)
{
    text_add(out, "# The model of ");
    text_add_clean(out, m->folder);
    text_add(out, ", for a recipe with base: and this file.\n");
    pretrained_config_yaml(&m->config, out);
    pretrained_tokenizer_yaml(m->found.type, m->tokenizer.chars, out);
}

static enum status write_texts(struct import *m, const struct text *yaml)
{
    AUTO(text) recipe = {0}, manifest = {0};
    recipe_resolved_text(m->recipe, &recipe);
    manifest_set_recipe(&m->manifest, "recipe.yaml", &recipe);
    TRY(output_folder_write(&m->output, "recipe.yaml", &recipe));
    TRY(output_folder_write(&m->output, "model.yaml", yaml));
    TRY(manifest_complete(&m->manifest, m->out));
    manifest_text(&m->manifest, &manifest);
    return output_folder_write(&m->output, "manifest.json", &manifest);
}

static enum status create_recipe(struct import *m)
{
    const char *type = m->tokenizer.length > 0 ? m->found.type : NULL;
    recipe_destroy(m->recipe);
    m->recipe = NULL;
    enum status status = pretrained_recipe(&m->config, m->config_path.chars, base_name(m->out), type,
                                           m->tokenizer.chars, &m->recipe);
    if (status == BAD_CHECKPOINT) {
        AUTO(text) why = {0};
        pretrained_config_explain(&m->config, m->config_path.chars, fail_text(), &why);
        status = fail(BAD_CHECKPOINT, "%s", why.chars);
    }
    return status;
}

static enum status write_all(struct import *m, const char *out, struct text *yaml)
{
    const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .etp = 1, .dp = 1, .pp = 1};
    struct mesh mesh;
    TRY(output_folder_begin(out, &m->output));
    TRY(model_files_write(&m->files, m->output.partial.chars));
    if (m->found.type != NULL)
        text_add(&m->tokenizer, "%s/%s", out, m->found.file);
    TRY(create_recipe(m));
    TRY(mesh_create(one_each, m->recipe->parallel.rank_order, &mesh));
    TRY(random_hex(m->identity.run, RUN_CHARS - 1));
    TRY(random_hex(m->identity.save, SAVE_CHARS - 1));
    manifest_begin_recipe(m->recipe, &mesh, &m->identity, &m->manifest);
    TRY(write_values(m));
    model_yaml(m, yaml);
    TRY(write_texts(m, yaml));
    return output_folder_finish(&m->output);
}

/* ---- all of it ---- */

/* Reads all but the values of the tensors. */
static enum status read_input(struct import *m, struct problems *warnings)
{
    TRY(output_folder_check(m->out)); // its base name becomes the recipe's name
    TRY(read_config(m, warnings));
    TRY(create_recipe(m));
    TRY(pretrained_tokenizer_find(m->folder, m->recipe->model.vocab_size, warnings, &m->found));
    TRY(model_files_read(m->folder, MODEL_TOKENIZER_JSON, MODEL_CONFIG, NULL, &m->files));
    TRY(open_model(m));
    list_shards(m);
    TRY(allocate(m));
    return check_head(m);
}

static enum status import(struct import *m, struct problems *warnings, struct text *yaml)
{
    TRY(status_of_input(read_input(m, warnings)));
    return write_all(m, m->out, yaml);
}

static void describe(const struct import *m, struct pretrained_import_result *out)
{
    out->architecture = m->config.architecture;
    out->tensors = m->tensors.count;
    out->files = m->weights.file_count;
    out->dtype = safetensors_dtype_name(m->dtype);
    out->tokenizer = m->found.type != NULL ? m->found.file : NULL;
    out->elements = 0;
    for (int i = 0; i < m->tensors.count; i++)
        out->elements += pretrained_tensor_elements(&m->tensors.list[i]);
}

enum status pretrained_import(const char *folder, const char *out, enum pretrained_head head,
                              struct problems *warnings, struct pretrained_import_result *result)
{
    struct import m = {.folder = folder, .out = out, .head = head};
    struct text yaml = {0};
    enum status status = import(&m, warnings, &yaml);
    output_folder_free(&m.output);
    describe(&m, result);
    status = output_folder_explain(status, out, result->elements * (int64_t)safetensors_dtype_bytes(m.dtype));
    if (status == OK) {
        result->model_yaml = yaml;
    } else {
        text_free(&yaml);
    }
    pretrained_tensors_free(&m.tensors);
    pretrained_weights_close(&m.weights);
    params_free(&m.params);
    manifest_free(&m.manifest);
    model_files_free(&m.files);
    recipe_destroy(m.recipe);
    text_free(&m.config_path);
    text_free(&m.tokenizer);
    free(m.shards);
    free(m.whole);
    free(m.band);
    free(m.wide);
    return status;
}
