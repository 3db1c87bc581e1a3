// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_export.h"

#include "base/memory.h"
#include "kernels/numbers/narrow.h"
#include "layers/model.h"
#include "trainer/checkpoint/format/safetensors_writer.h"
#include "trainer/checkpoint/huggingface/pretrained_recipe.h"
#include "trainer/checkpoint/huggingface/pretrained_tensors.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/files/output_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAND_BYTES = 8 << 20 };

struct export
{
    const struct pretrained_export_options *options;
    struct checkpoint_reader source;
    struct params params;
    struct pretrained_tensors tensors;
    struct output_folder output;
    enum safetensors_dtype dtype; // of the exported tensors
    int *file;                    // [tensors.count] its file, counted from 0
    int file_count;
    char *whole, *band; // the largest tensor; rows of a part as in the checkpoint ...
    float *wide;        // ... in fp32 ...
    uint16_t *narrow;   // ... and in the exported type
    struct text config;
    const struct pretrained_architecture *architecture;
};

/* ---- the types ---- */

static const struct {
    const char *option, *torch;
    enum safetensors_dtype dtype;
} dtypes[] = {{"fp32", "float32", SAFETENSORS_F32},
              {"bf16", "bfloat16", SAFETENSORS_BF16},
              {"fp16", "float16", SAFETENSORS_F16}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static enum status choose_dtype(struct export *e)
{
    struct shard first;
    if (!checkpoint_reader_tensor(&e->source, e->params.list[0].name, &first))
        return fail(BAD_CHECKPOINT, "%s: holds no %s", e->source.folder, e->params.list[0].name);
    e->dtype = first.dtype;
    for (int i = 0; i < DTYPES && e->options->dtype != NULL; i++)
        if (strcmp(dtypes[i].option, e->options->dtype) == 0) {
            e->dtype = dtypes[i].dtype;
            return OK;
        }
    return e->options->dtype == NULL
               ? OK
               : fail(BAD_USAGE, "checkpoint export: --dtype %s; use fp32, bf16 or fp16", e->options->dtype);
}

static const char *torch_dtype(enum safetensors_dtype dtype)
{
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].torch;
    return "float32";
}

static enum dtype kernel_dtype(enum safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_BF16 ? BF16 : dtype == SAFETENSORS_F16 ? F16 : F32;
}

/* ---- the model ---- */

static enum status check_tensors(const struct export *e)
{
    for (int i = 0; i < e->params.count; i++) {
        const struct param *param = &e->params.list[i];
        struct shard whole;
        if (param->tie >= 0)
            continue;
        if (!checkpoint_reader_tensor(&e->source, param->name, &whole))
            return fail(BAD_CHECKPOINT, "%s: holds no %s", e->source.folder, param->name);
        if (whole.slice.ndim != param->ndim || whole.dim[0] != param->dim[0] ||
            whole.dim[1] != param->dim[1] ||
            (whole.dtype != SAFETENSORS_F32 && whole.dtype != SAFETENSORS_BF16))
            return fail(BAD_CHECKPOINT, "%s: %s has another shape or type than the recipe needs",
                        e->source.folder, param->name);
    }
    return OK;
}

static enum status open_model(struct export *e)
{
    const struct recipe *recipe = e->options->recipe;
    const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .etp = 1, .dp = 1, .pp = 1};
    TRY(checkpoint_reader_open(e->options->checkpoint, -1, &e->source));
    TRY(manifest_check_model(&e->source.manifest, recipe, e->source.folder, NULL, false));
    TRY(params_declare(&recipe->model, &one_each, false, &e->params));
    TRY(choose_dtype(e));
    const struct pretrained_details details = {.dtype = torch_dtype(e->dtype),
                                               .ids = e->options->ids,
                                               .preferred = e->options->imported_as,
                                               .context = e->options->context};
    TRY(pretrained_config_write(recipe, e->options->architecture, &details, &e->architecture, &e->config));
    TRY(pretrained_tensors_create(e->architecture, &e->params, recipe->model.kv_channels, true, &e->tensors));
    return check_tensors(e);
}

/* ---- files ---- */

static int64_t exported_bytes(const struct export *e, int index)
{
    return pretrained_tensor_elements(&e->tensors.list[index]) * (int64_t)safetensors_dtype_bytes(e->dtype);
}

static void divide_into_files(struct export *e)
{
    e->file = memory_zeroed((size_t)e->tensors.count + 1, sizeof *e->file, "the files of tensors");
    int64_t bytes = 0;
    for (int i = 0; i < e->tensors.count; i++) {
        const int64_t more = exported_bytes(e, i);
        if (i > 0 && bytes + more > e->options->max_file_bytes) {
            e->file_count++;
            bytes = 0;
        }
        bytes += more;
        e->file[i] = e->file_count;
    }
    e->file_count++;
}

enum { FILE_CHARS = 48 };
static const char *file_name(const struct export *e, int file, char out[FILE_CHARS])
{
    if (e->file_count == 1)
        snprintf(out, FILE_CHARS, "model.safetensors");
    else
        snprintf(out, FILE_CHARS, "model-%05d-of-%05d.safetensors", file + 1, e->file_count);
    return out;
}

static enum status write_index(const struct export *e)
{
    AUTO(text) text = {0};
    int64_t bytes = 0;
    for (int i = 0; i < e->tensors.count; i++)
        bytes += exported_bytes(e, i);
    text_add(&text, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)bytes);
    for (int i = 0; i < e->tensors.count; i++) {
        char name[FILE_CHARS];
        text_add(&text, "%s\n    \"%s\": \"%s\"", i > 0 ? "," : "", e->tensors.list[i].name,
                 file_name(e, e->file[i], name));
    }
    text_add(&text, "\n  }\n}\n");
    return output_folder_write(&e->output, "model.safetensors.index.json", &text);
}

/* ---- values ---- */

static enum status allocate(struct export *e)
{
    size_t whole = 1, band = BAND_BYTES;
    for (int i = 0; i < e->tensors.count; i++)
        whole = (size_t)exported_bytes(e, i) > whole ? (size_t)exported_bytes(e, i) : whole;
    for (int i = 0; i < e->params.count; i++) {
        const size_t row = (size_t)e->params.list[i].dim[1] * sizeof(float);
        band = row > band ? row : band;
    }
    e->whole = malloc(whole);
    e->band = malloc(band);
    e->wide = malloc(band);
    e->narrow = malloc(band / 2);
    return e->whole != NULL && e->band != NULL && e->wide != NULL && e->narrow != NULL
               ? OK
               : fail(NO_MEMORY, "no memory for a tensor of %zu bytes", whole);
}

/* Returns the band in the exported type. */
static enum status convert(const struct export *e, const struct param *param, enum safetensors_dtype from,
                           int64_t elements, char **out)
{
    *out = e->band;
    if (from == e->dtype)
        return OK;
    widen_floats(kernel_dtype(from), e->band, e->wide, elements);
    *out = (char *)e->wide;
    if (e->dtype == SAFETENSORS_F32)
        return OK;
    narrow_floats(kernel_dtype(e->dtype), e->wide, e->narrow, elements);
    *out = (char *)e->narrow;
    for (int64_t i = 0; e->dtype == SAFETENSORS_F16 && i < elements; i++)
        if (isfinite(e->wide[i]) && !isfinite(float_of_f16(e->narrow[i])))
            return fail(BAD_CHECKPOINT, "%s: %s contains %g, too large for fp16; use --dtype bf16",
                        e->source.folder, param->name, (double)e->wide[i]);
    return OK;
}

static enum status read_part(struct export *e, const struct pretrained_tensor *tensor, int part)
{
    const struct param *param = &e->params.list[tensor->part[part]];
    struct shard whole;
    CHECK(checkpoint_reader_tensor(&e->source, param->name, &whole));
    const int64_t limit = BAND_BYTES / (whole.dim[1] * (int64_t)sizeof(float)), rows = limit > 0 ? limit : 1;
    for (int64_t row = 0, count; row < whole.dim[0]; row += count) {
        count = whole.dim[0] - row < rows ? whole.dim[0] - row : rows;
        const struct slice band = {
            .ndim = whole.slice.ndim, .begin = {row, 0}, .count = {count, whole.dim[1]}};
        char *converted;
        TRY(stop_signals_check());
        TRY(checkpoint_reader_read_whole(&e->source, param->name, &band, e->band));
        TRY(convert(e, param, whole.dtype, count * whole.dim[1], &converted));
        pretrained_copy_rows(&e->tensors, tensor, part, row, count, safetensors_dtype_bytes(e->dtype),
                             PRETRAINED_TO_WHOLE, e->whole, converted);
    }
    return OK;
}

static enum status write_tensors(struct export *e, int file, struct safetensors_writer *writer)
{
    static const struct safetensors_pair format = {"format", "pt"};
    for (int i = 0; i < e->tensors.count; i++) {
        if (e->file[i] != file)
            continue;
        for (int part = 0; part < e->tensors.list[i].part_count; part++)
            TRY(read_part(e, &e->tensors.list[i], part));
        TRY(safetensors_append(writer, e->whole, (size_t)exported_bytes(e, i)));
    }
    return safetensors_finish(writer, &format, 1);
}

static enum status write_file(struct export *e, int file)
{
    enum { METADATA_BYTES = 64 };
    char name[FILE_CHARS];
    AUTO(text) path = {0};
    struct safetensors_writer *writer = NULL;
    AUTO_FREE struct safetensors_tensor *list =
        memory_zeroed((size_t)e->tensors.count + 1, sizeof *list, "the tensors of a file");
    int count = 0;
    for (int i = 0; i < e->tensors.count; i++)
        if (e->file[i] == file) {
            const struct pretrained_tensor *tensor = &e->tensors.list[i];
            list[count] =
                (struct safetensors_tensor){.name = tensor->name, .dtype = e->dtype, .ndim = tensor->ndim};
            memcpy(list[count++].dim, tensor->dim, sizeof tensor->dim);
        }
    text_add(&path, "%s/%s", e->output.partial.chars, file_name(e, file, name));
    enum status status = safetensors_create(path.chars, list, count, METADATA_BYTES, &writer);
    if (status == OK)
        status = write_tensors(e, file, writer);
    safetensors_writer_destroy(writer);
    return status;
}

/* ---- all of it ---- */

static enum status write_all(struct export *e)
{
    TRY(output_folder_begin(e->options->out, &e->output));
    TRY(output_folder_write(&e->output, "config.json", &e->config));
    TRY(model_files_write(e->options->files, e->output.partial.chars));
    for (int file = 0; file < e->file_count; file++)
        TRY(write_file(e, file));
    if (e->file_count > 1)
        TRY(write_index(e));
    return output_folder_finish(&e->output);
}

static enum status export(struct export *e) {
    TRY(status_of_input(open_model(e))); divide_into_files(e); TRY(allocate(e)); return write_all(e);
}

enum status pretrained_export(const struct pretrained_export_options *options,
                              struct pretrained_export_result *result)
{
    struct export e = {.options = options};
    *result = (struct pretrained_export_result){.architecture = NULL};
    enum status status = export(&e);
    result->has_tokenizer = model_files_has_tokenizer(options->files);
    output_folder_free(&e.output);
    result->architecture = e.architecture;
    result->tensors = e.tensors.count;
    result->files = e.file_count;
    result->dtype = safetensors_dtype_name(e.dtype);
    for (int i = 0; i < e.tensors.count; i++)
        result->bytes += exported_bytes(&e, i);
    status = output_folder_explain(status, options->out, result->bytes);
    pretrained_tensors_free(&e.tensors);
    params_free(&e.params);
    checkpoint_reader_close(&e.source);
    text_free(&e.config);
    free(e.file);
    free(e.whole);
    free(e.band);
    free(e.wide);
    free(e.narrow);
    return status;
}
