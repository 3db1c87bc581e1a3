// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"
#include "tools/cli/checkpoint/cmd_checkpoint.h"
#include "tools/cli/options.h"
#include "trainer/files/problems.h"

#include <stdlib.h>
#include <string.h>

struct arguments {
    bool json, verify;
    const char **rest;
    int rest_count;
};

static enum status parse(int argc, char **argv, struct arguments *out)
{
    const struct option options[] = {
        {"--json", OPTION_FLAG, &out->json, 0, 0},
        {"--verify", OPTION_FLAG, &out->verify, 0, 0},
    };
    *out = (struct arguments){.rest = memory_zeroed((size_t)argc + 1, sizeof *out->rest, "the arguments")};
    TRY(options_parse(argc, argv, options, sizeof options / sizeof *options, out->rest, &out->rest_count));
    if (out->rest_count != 1)
        return fail(BAD_USAGE, "checkpoint inspect: %d arguments given; use cuboid checkpoint inspect CKPT",
                    out->rest_count);
    return OK;
}

/* Reads all files and verifies their checksums; names every file that is damaged. */
static enum status verify_files(struct checkpoint_reader *s, int64_t *bytes)
{
    struct problems problems = {0};
    enum status status = OK;
    for (int i = 0; i < s->manifest.file_count; i++) {
        const enum status of_file = checkpoint_reader_verify_file(s, i, bytes);
        if (of_file != OK)
            problems_add(&problems, "%s", fail_text());
        status = status == OK ? of_file : status;
    }
    if (problems.errors == 1)
        status = fail(status, "%s", problems.list[0].text);
    else if (problems.errors > 1) {
        problems_print(&problems, stderr);
        status = problems_fail(&problems, 0, status, s->folder);
    }
    problems_free(&problems);
    return status;
}

/* Verifies the checksums of all files, and that the shards contain each element exactly once. *bytes: the
 * number of bytes read. */
static enum status verify(struct checkpoint_reader *s, int64_t *bytes)
{
    *bytes = 0;
    TRY(verify_files(s, bytes));
    for (int i = 0; i < s->manifest.tensor_count; i++) {
        struct shard whole;
        const struct shard *shards;
        int count;
        CHECK(checkpoint_reader_tensor(s, s->manifest.tensors[i].name, &whole));
        TRY(checkpoint_reader_find(s, whole.name, &whole.slice, &shards, &count));
    }
    return OK;
}

static int64_t tensor_bytes_of(const struct manifest_tensor *tensor)
{
    return tensor->dim[0] * tensor->dim[1] * (int64_t)safetensors_dtype_bytes(tensor->dtype);
}

static int64_t total_bytes(const struct manifest *m)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->tensor_count; i++)
        bytes += tensor_bytes_of(&m->tensors[i]);
    return bytes;
}

static void add_shape(struct text *out, const struct manifest_tensor *tensor, const char *between)
{
    text_add(out, "%lld", (long long)tensor->dim[0]);
    if (tensor->ndim == 2)
        text_add(out, "%s%lld", between, (long long)tensor->dim[1]);
}

/* "0-3,8" */
static void add_ranks(struct text *out, const struct manifest *m, const struct manifest_tensor *tensor)
{
    for (int i = tensor->range; i < tensor->range + tensor->range_count; i++) {
        text_add(out, "%s%d", i > tensor->range ? "," : "", m->ranges[i].first);
        if (m->ranges[i].last > m->ranges[i].first)
            text_add(out, "-%d", m->ranges[i].last);
    }
}

static void print_text(const struct checkpoint_reader *s, const struct arguments *a, int64_t verified)
{
    const struct manifest *m = &s->manifest;
    char bytes[NUMBER_CHARS];
    struct text out = {0};
    if (m->has_valid_loss)
        text_add(&out, ", validation loss %.4f", m->valid_loss);
    print_line(stdout, "%s: step %lld, %lld samples%s, format version %d", s->folder,
               (long long)m->identity.step, (long long)m->consumed_samples, text_chars(&out),
               CHECKPOINT_VERSION);
    out.length = 0;
    text_add(&out, "layout     ");
    for (int i = 0; i < m->axis_count; i++)
        text_add(&out, "%s%s %d", i > 0 ? ", " : "", m->layout[i].name, m->layout[i].degree);
    text_add(&out, "; rank order %s\n", m->rank_order);
    text_add(&out, "run        %s, save %s, seed %llu\n", m->identity.run, m->identity.save,
             (unsigned long long)m->seed);
    text_add(&out, "files      %d; %d tensors of %s\n", m->file_count, m->tensor_count,
             bytes_text(total_bytes(m), bytes));
    if (a->verify)
        text_add(&out, "verified   all checksums of %s\n", bytes_text(verified, bytes));
    text_add(&out, "\n%-48s %-5s %-18s %10s  %s\n", "tensor", "dtype", "shape", "bytes", "ranks");
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *tensor = &m->tensors[i];
        struct text shape = {0}, ranks = {0};
        add_shape(&shape, tensor, " x ");
        add_ranks(&ranks, m, tensor);
        text_add(&out, "%-48s %-5s %-18s %10s  %s\n", tensor->name, safetensors_dtype_name(tensor->dtype),
                 shape.chars, bytes_text(tensor_bytes_of(tensor), bytes), text_chars(&ranks));
        text_free(&shape);
        text_free(&ranks);
    }
    fputs(text_chars(&out), stdout);
    text_free(&out);
}

static void print_json(const struct checkpoint_reader *s, const struct arguments *a)
{
    const struct manifest *m = &s->manifest;
    char number[NUMBER_CHARS];
    struct text out = {0};
    text_add(&out, "{\"path\": ");
    text_add_json(&out, s->folder);
    text_add(&out, ", \"version\": %d, \"run\": \"%s\", \"save\": \"%s\", \"step\": %lld,\n",
             CHECKPOINT_VERSION, m->identity.run, m->identity.save, (long long)m->identity.step);
    text_add(
        &out,
        "\"consumed_samples\": %lld, \"seed\": %llu, \"files\": %d, \"bytes\": %lld, \"verified\": %s,\n",
        (long long)m->consumed_samples, (unsigned long long)m->seed, m->file_count, (long long)total_bytes(m),
        a->verify ? "true" : "false");
    if (m->has_valid_loss)
        text_add(&out, "\"valid_loss\": %s,\n", number_text(m->valid_loss, number));
    if (m->data_order.length > 0)
        text_add(&out, "\"data_order\": %s,\n", m->data_order.chars);
    text_add(&out, "\"layout\": {");
    for (int i = 0; i < m->axis_count; i++)
        text_add(&out, "%s\"%s\": %d", i > 0 ? ", " : "", m->layout[i].name, m->layout[i].degree);
    text_add(&out, "}, \"rank_order\": \"%s\", \"model\": {", m->rank_order);
    for (int i = 0; i < m->model_count; i++) {
        text_add(&out, "%s\"%s\": ", i > 0 ? ", " : "", m->model[i].name);
        text_add_json(&out, m->model[i].value);
    }
    text_add(&out, "},\n\"tensors\": [");
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *tensor = &m->tensors[i];
        text_add(&out, "%s\n{\"name\": \"%s\", \"dtype\": \"%s\", \"shape\": [", i > 0 ? "," : "",
                 tensor->name, safetensors_dtype_name(tensor->dtype));
        add_shape(&out, tensor, ", ");
        text_add(&out, "], \"ranks\": [");
        for (int r = tensor->range; r < tensor->range + tensor->range_count; r++)
            text_add(&out, "%s[%d, %d]", r > tensor->range ? ", " : "", m->ranges[r].first,
                     m->ranges[r].last);
        text_add(&out, "]}");
    }
    text_add(&out, "]}\n");
    fputs(out.chars, stdout);
    text_free(&out);
}

int checkpoint_inspect(int argc, char **argv)
{
    struct arguments a;
    struct checkpoint_reader source = {.folder = NULL};
    char *folder = NULL;
    int64_t verified = 0;
    enum status status = parse(argc, argv, &a);
    if (status == OK)
        status = checkpoint_argument(a.rest[0], &folder, &source);
    if (status == OK && a.verify)
        status = verify(&source, &verified);
    if (status == OK && a.json)
        print_json(&source, &a);
    else if (status == OK)
        print_text(&source, &a, verified);
    checkpoint_reader_close(&source);
    free(folder);
    free(a.rest);
    return checkpoint_exit(status);
}
