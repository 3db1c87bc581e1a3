// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/files/checksum.h"

static void add_numbers(struct text *out, const char *key, const int64_t *list, int count)
{
    text_add(out, ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)list[i]);
    text_add(out, "]");
}

static void add_files(struct text *out, const struct manifest *m)
{
    char hex[HEX_CHARS];
    text_add(out, "\"files\": [");
    for (int i = 0; i < m->file_count; i++)
        text_add(out, "%s\n{\"name\": \"%s\", \"bytes\": %lld, \"header\": \"%s\"}", i > 0 ? "," : "",
                 m->files[i].name, (long long)m->files[i].bytes, hex_text(m->files[i].checksum, hex));
    text_add(out, "],\n");
}

static void add_tensors(struct text *out, const struct manifest *m)
{
    text_add(out, "\"tensors\": [");
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *tensor = &m->tensors[i];
        const struct rank_range *ranges = m->ranges + tensor->range;
        text_add(out, "%s\n{\"name\": \"%s\", \"dtype\": \"%s\"", i > 0 ? "," : "", tensor->name,
                 safetensors_dtype_name(tensor->dtype));
        add_numbers(out, "shape", tensor->dim, tensor->ndim);
        text_add(out, ", \"ranks\": [");
        for (int r = 0; r < tensor->range_count; r++)
            text_add(out, "%s[%d, %d]", r > 0 ? ", " : "", ranges[r].first, ranges[r].last);
        text_add(out, "]}");
    }
    text_add(out, "],\n");
}

static void add_layout(struct text *out, const struct manifest *m)
{
    text_add(out, "\"layout\": {");
    for (int i = 0; i < m->axis_count; i++)
        text_add(out, "%s\"%s\": %d", i > 0 ? ", " : "", m->layout[i].name, m->layout[i].degree);
    text_add(out, "}, \"rank_order\": \"%s\",\n", m->rank_order);
}

void manifest_text(const struct manifest *manifest, struct text *out)
{
    char hex[HEX_CHARS], number[NUMBER_CHARS];
    text_add(out, "{\"format\": \"cuboid checkpoint\", \"version\": %d,\n", CHECKPOINT_VERSION);
    text_add(out, "\"run\": \"%s\", \"save\": \"%s\", \"step\": %lld,\n", manifest->identity.run,
             manifest->identity.save, (long long)manifest->identity.step);
    if (manifest->in_memory)
        text_add(out, "\"in_memory\": true,\n");
    text_add(out, "\"consumed_samples\": %lld, \"seed\": \"%llu\",\n", (long long)manifest->consumed_samples,
             (unsigned long long)manifest->seed);
    if (manifest->skipped_steps > 0)
        text_add(out, "\"skipped_steps\": %lld,\n", (long long)manifest->skipped_steps);
    if (manifest->has_valid_loss)
        text_add(out, "\"valid_loss\": %s,\n", number_text(manifest->valid_loss, number));
    if (manifest->data_order.length > 0)
        text_add(out, "\"data_order\": %s,\n", manifest->data_order.chars);
    text_add(out, "\"model\": {");
    for (int i = 0; i < manifest->model_count; i++) {
        text_add(out, "%s\"%s\": ", i > 0 ? ", " : "", manifest->model[i].name);
        text_add_json(out, manifest->model[i].value);
    }
    text_add(out, "},\n");
    add_layout(out, manifest);
    text_add(out, "\"recipe\": {\"name\": \"%s\", \"bytes\": %lld, \"xxh3\": \"%s\"},\n",
             manifest->recipe.name, (long long)manifest->recipe.bytes,
             hex_text(manifest->recipe.checksum, hex));
    add_files(out, manifest);
    add_tensors(out, manifest);
    text_add(out, "\"checksum\": \"%s\"}\n", hex_text(checksum_of(out->chars, out->length), hex));
}
