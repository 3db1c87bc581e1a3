// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/checkpoint_manifest.h"
#include "trainer/files/checksum.h"

#include <stdlib.h>

static void add_numbers(struct text *out, const char *key, const int64_t *list, int count)
{
    text_add(out, ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)list[i]);
    text_add(out, "]");
}

static void add_shard(struct text *out, const struct shard *shard)
{
    text_add(out, "\n  {\"name\": \"%s\", \"dtype\": \"%s\"", shard->name,
             safetensors_dtype_name(shard->dtype));
    add_numbers(out, "shape", shard->dim, shard->ndim);
    add_numbers(out, "begin", shard->begin, shard->ndim);
    add_numbers(out, "count", shard->count, shard->ndim);
    text_add(out, "}");
}

/* Groups the shards by file, in their order otherwise. */
static int *by_file(const struct manifest *m)
{
    int *first = calloc((size_t)m->file_count + 1, sizeof *first);
    int *order = calloc((size_t)m->shard_count + 1, sizeof *order);
    CHECK(first != NULL && order != NULL); // out of memory: growing text also ends the program
    for (int i = 0; i < m->shard_count; i++)
        first[m->shards[i].file + 1]++;
    for (int file = 0; file < m->file_count; file++)
        first[file + 1] += first[file];
    for (int i = 0; i < m->shard_count; i++)
        order[first[m->shards[i].file]++] = i;
    free(first);
    return order;
}

static void add_files(struct text *out, const struct manifest *m)
{
    char hex[HEX_CHARS];
    int *order = by_file(m), next = 0;
    text_add(out, "\"files\": [");
    for (int file = 0; file < m->file_count; file++) {
        const struct manifest_file *f = &m->files[file];
        text_add(out, "%s\n{\"name\": \"%s\", \"bytes\": %lld, \"header\": \"%s\", \"tensors\": [",
                 file > 0 ? "," : "", f->name, (long long)f->bytes, hex_text(f->checksum, hex));
        for (int i = 0; next < m->shard_count && m->shards[order[next]].file == file; i++) {
            text_add(out, i > 0 ? "," : "");
            add_shard(out, &m->shards[order[next++]]);
        }
        text_add(out, "]}");
    }
    text_add(out, "],\n");
    free(order);
}

static void add_layout(struct text *out, const struct manifest *m)
{
    text_add(out, "\"layout\": {");
    for (int i = 0; i < m->axis_count; i++)
        text_add(out, "%s\"%s\": %d", i > 0 ? ", " : "", m->layout[i].name, m->layout[i].degree);
    text_add(out, "}, \"rank_order\": \"%s\",\n", m->rank_order);
}

void manifest_text(const struct manifest *m, struct text *out)
{
    char hex[HEX_CHARS];
    text_add(out, "{\"format\": \"cuboid checkpoint\", \"version\": %d,\n", m->version);
    text_add(out, "\"run\": \"%s\", \"save\": \"%s\", \"step\": %lld,\n", m->identity.run, m->identity.save,
             (long long)m->identity.step);
    text_add(out, "\"consumed_samples\": %lld, \"seed\": \"%llu\",\n", (long long)m->consumed_samples,
             (unsigned long long)m->seed);
    if (m->skipped_steps > 0)
        text_add(out, "\"skipped_steps\": %lld,\n", (long long)m->skipped_steps);
    text_add(out, "\"model\": {");
    for (int i = 0; i < m->model_count; i++) {
        text_add(out, "%s\"%s\": ", i > 0 ? ", " : "", m->model[i].name);
        text_add_json(out, m->model[i].value);
    }
    text_add(out, "},\n");
    add_layout(out, m);
    text_add(out, "\"recipe\": {\"name\": \"%s\", \"bytes\": %lld, \"xxh3\": \"%s\"},\n", m->recipe.name,
             (long long)m->recipe.bytes, hex_text(m->recipe.checksum, hex));
    add_files(out, m);
    text_add(out, "\"checksum\": \"%s\"}\n", hex_text(checksum_of(out->chars, out->length), hex));
}
