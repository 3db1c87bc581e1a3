// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint_manifest.h"

#include "trainer/checksum.h"
#include "trainer/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

enum must { FREE, MUST_AGREE, MUST_AGREE_IF_LEARNED };

/* What is written of the recipe's section `model`, and what of it decides over a checkpoint's use. */
static const struct {
    const char *key;
    enum must must;
} model_keys[] = {
    {"num_layers", MUST_AGREE},
    {"hidden_size", MUST_AGREE},
    {"num_attention_heads", MUST_AGREE},
    {"num_query_groups", MUST_AGREE},
    {"ffn_hidden_size", MUST_AGREE},
    {"kv_channels", MUST_AGREE},
    {"seq_length", MUST_AGREE_IF_LEARNED},
    {"vocab_size", MUST_AGREE},
    {"position_embedding_type", MUST_AGREE},
    {"rotary_base", MUST_AGREE},
    {"normalization", MUST_AGREE},
    {"norm_epsilon", MUST_AGREE},
    {"activation", MUST_AGREE},
    {"add_bias_linear", MUST_AGREE},
    {"tie_word_embeddings", MUST_AGREE},
    {"make_vocab_size_divisible_by", FREE},
    {"hidden_dropout", FREE},
    {"attention_dropout", FREE},
    {"init_method_std", FREE},
};
enum { MODEL_KEYS = sizeof model_keys / sizeof *model_keys };

static void model_value(const struct recipe *recipe, int key, struct manifest_key *out)
{
    char dotted[MANIFEST_TEXT_CHARS];
    struct text value = {0};
    snprintf(dotted, sizeof dotted, "model.%s", model_keys[key].key);
    recipe_key_text(recipe, dotted, &value);
    snprintf(out->name, sizeof out->name, "%s", model_keys[key].key);
    snprintf(out->value, sizeof out->value, "%s", text_chars(&value));
    text_free(&value);
}

static bool must_agree(const struct recipe *recipe, int key)
{
    switch (model_keys[key].must) {
    case FREE:
        return false;
    case MUST_AGREE:
        return true;
    case MUST_AGREE_IF_LEARNED:
        break;
    }
    return recipe->model.position_embedding == LEARNED_ABSOLUTE;
}

enum status manifest_check_model(const struct manifest *m, const struct recipe *recipe, const char *path)
{
    for (int key = 0; key < MODEL_KEYS; key++)
        for (int i = 0; i < m->model_count; i++) {
            const struct manifest_key *theirs = &m->model[i];
            struct manifest_key ours;
            model_value(recipe, key, &ours);
            if (strcmp(ours.name, theirs->name) == 0 && strcmp(ours.value, theirs->value) != 0 &&
                must_agree(recipe, key))
                return fail(BAD_CHECKPOINT,
                            "%s: made with model.%s %s, and the recipe says %s; model.%s %s works, or "
                            "another logging.run_dir or checkpoint.load",
                            path, ours.name, theirs->value, ours.value, ours.name, theirs->value);
        }
    return OK;
}

/* ---- making one ---- */

static void order_text(const struct mesh *mesh, char out[MANIFEST_ORDER_CHARS])
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < AXIS_COUNT; i++) {
        char axis[AXES_TEXT_CHARS];
        length += (size_t)snprintf(out + length, MANIFEST_ORDER_CHARS - length, "%s%s", i > 0 ? "-" : "",
                                   axes_text(1 << mesh->order[i], axis));
    }
}

enum status manifest_begin(const struct worker *worker, struct manifest *out)
{
    const struct recipe *recipe = worker->run->recipe;
    *out = (struct manifest){
        .step = worker->step,
        .consumed_samples = worker->step * recipe->train.global_batch_size,
        .skipped_steps = worker->skipped,
        .seed = recipe->seed,
        .degrees = worker->mesh.degrees,
        .model = calloc(MODEL_KEYS, sizeof *out->model),
    };
    if (out->model == NULL)
        return fail(NO_MEMORY, "no memory for the manifest of a checkpoint");
    if (!worker->loss_scale.fixed) {
        out->loss_scale.scale = worker->loss_scale.scale;
        out->loss_scale.good_steps = worker->loss_scale.good_steps;
        out->loss_scale.hysteresis = worker->loss_scale.hysteresis;
    }
    order_text(&worker->mesh, out->rank_order);
    for (int key = 0; key < MODEL_KEYS; key++)
        model_value(recipe, key, &out->model[out->model_count++]);
    return OK;
}

static enum status add_piece(struct manifest *m, const struct safetensors *file, const char *path,
                             const struct safetensors_tensor *tensor)
{
    struct piece *piece = &m->pieces[m->piece_count];
    *piece = (struct piece){.file = m->file_count, .ndim = tensor->ndim, .dim = {1, 1}, .count = {1, 1}};
    const char *text = safetensors_metadata(file, tensor->name);
    bool fits =
        tensor->ndim >= 1 && tensor->ndim <= SHARD_MAX_DIMS && strlen(tensor->name) < PIECE_NAME_CHARS;
    if (!fits || text == NULL || !piece_parse(text, tensor->ndim, piece))
        return fail(BAD_CHECKPOINT, "%s: tensor %s does not say what part of which whole it is", path,
                    tensor->name);
    snprintf(piece->name, sizeof piece->name, "%s", tensor->name);
    for (int d = 0; d < tensor->ndim; d++)
        piece->count[d] = tensor->dim[d];
    m->piece_count++;
    return OK;
}

static enum status add_open_file(struct manifest *m, const struct safetensors *file, const char *path,
                                 const char *name)
{
    size_t pieces = (size_t)m->piece_count + (size_t)safetensors_count(file) + 1;
    void *files = realloc(m->files, ((size_t)m->file_count + 1) * sizeof *m->files);
    m->files = files != NULL ? files : m->files;
    void *list = realloc(m->pieces, pieces * sizeof *m->pieces);
    m->pieces = list != NULL ? list : m->pieces;
    if (files == NULL || list == NULL)
        return fail(NO_MEMORY, "%s: no memory for the manifest of a checkpoint", path);
    struct manifest_file *entry = &m->files[m->file_count];
    *entry = (struct manifest_file){.bytes = safetensors_file_bytes(file),
                                    .header_checksum = safetensors_header_checksum(file)};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    for (int i = 0; i < safetensors_count(file); i++)
        TRY(add_piece(m, file, path, safetensors_at(file, i)));
    m->file_count++;
    return OK;
}

enum status manifest_add_file(struct manifest *m, const char *folder, const char *name)
{
    struct text path = {0};
    struct safetensors *file = NULL;
    text_add(&path, "%s/%s", folder, name);
    enum status status = safetensors_open(path.chars, &file);
    if (status == OK)
        status = add_open_file(m, file, path.chars, name);
    safetensors_close(file);
    text_free(&path);
    return status;
}

void manifest_free(struct manifest *m)
{
    free(m->model);
    free(m->files);
    free(m->pieces);
    *m = (struct manifest){0};
}

/* ---- pieces that make whole tensors ---- */

static int by_name_and_begin(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    for (int d = 0; order == 0 && d < SHARD_MAX_DIMS; d++)
        order = (x->begin[d] > y->begin[d]) - (x->begin[d] < y->begin[d]);
    return order;
}

static bool same_whole(const struct piece *a, const struct piece *b)
{
    return a->ndim == b->ndim && a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1];
}

/* Inside its tensor, not empty; *elements of the whole. */
static bool piece_is_sound(const struct piece *piece, int64_t *elements)
{
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        if (piece->begin[d] < 0 || piece->count[d] < 1 || piece->begin[d] > piece->dim[d] ||
            piece->count[d] > piece->dim[d] - piece->begin[d])
            return false;
    return !__builtin_mul_overflow(piece->dim[0], piece->dim[1], elements);
}

static struct slice slice_of(const struct piece *piece)
{
    struct slice slice = {.ndim = piece->ndim};
    memcpy(slice.begin, piece->begin, sizeof slice.begin);
    memcpy(slice.count, piece->count, sizeof slice.count);
    return slice;
}

/* Those of one name, sorted by begin: no two overlap, and together they have as many elements as the whole.
 */
static enum status check_cover(const struct piece *pieces, int count, const char *path)
{
    int64_t whole = 0, covered = 0;
    for (int i = 0; i < count; i++)
        if (!piece_is_sound(&pieces[i], &whole) || !same_whole(&pieces[i], &pieces[0]))
            return fail(BAD_CHECKPOINT, "%s: a piece of %s does not fit into it", path, pieces[i].name);
    for (int i = 0; i < count; i++) {
        struct slice mine = slice_of(&pieces[i]);
        for (int j = i + 1; j < count && pieces[j].begin[0] < pieces[i].begin[0] + pieces[i].count[0]; j++)
            if (piece_meets(&pieces[j], &mine))
                return fail(BAD_CHECKPOINT, "%s: two pieces of %s overlap", path, pieces[i].name);
        covered += piece_elements(&pieces[i]);
    }
    if (covered != whole)
        return fail(BAD_CHECKPOINT, "%s: the pieces of %s have %lld of its %lld elements", path,
                    pieces[0].name, (long long)covered, (long long)whole);
    return OK;
}

enum status manifest_complete(struct manifest *m, const char *path)
{
    if (m->piece_count > 0)
        qsort(m->pieces, (size_t)m->piece_count, sizeof *m->pieces, by_name_and_begin);
    for (int i = 0; i < m->piece_count;) {
        int count = 1;
        while (i + count < m->piece_count && strcmp(m->pieces[i].name, m->pieces[i + count].name) == 0)
            count++;
        TRY(check_cover(&m->pieces[i], count, path));
        i += count;
    }
    return OK;
}

static int compare_name(const void *name, const void *piece)
{
    return strcmp(name, ((const struct piece *)piece)->name);
}

const struct piece *manifest_find(const struct manifest *m, const char *name, int *count)
{
    *count = 0;
    if (m->piece_count == 0)
        return NULL;
    const struct piece *found =
        bsearch(name, m->pieces, (size_t)m->piece_count, sizeof *m->pieces, compare_name);
    if (found == NULL)
        return NULL;
    while (found > m->pieces && strcmp(found[-1].name, name) == 0)
        found--;
    while (found + *count < m->pieces + m->piece_count && strcmp(found[*count].name, name) == 0)
        (*count)++;
    return found;
}

/* ---- as text ---- */

static void add_numbers(struct text *out, const char *key, const int64_t *list, int count)
{
    text_add(out, ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)list[i]);
    text_add(out, "]");
}

static void add_file(struct text *out, const struct manifest *m, int file)
{
    char hex[HEX_CHARS];
    const char *comma = "";
    text_add(out, "{\"name\": \"%s\", \"bytes\": %lld, \"header\": \"%s\", \"tensors\": [",
             m->files[file].name, (long long)m->files[file].bytes,
             hex_text(m->files[file].header_checksum, hex));
    for (int i = 0; i < m->piece_count; i++) {
        const struct piece *piece = &m->pieces[i];
        if (piece->file != file)
            continue;
        text_add(out, "%s\n  {\"name\": \"%s\"", comma, piece->name);
        add_numbers(out, "shape", piece->dim, piece->ndim);
        add_numbers(out, "begin", piece->begin, piece->ndim);
        add_numbers(out, "count", piece->count, piece->ndim);
        text_add(out, ", \"checksum\": \"%s\"}", hex_text(piece->checksum, hex));
        comma = ",";
    }
    text_add(out, "]}");
}

static void add_loss_scale(struct text *out, const struct manifest *m)
{
    char scale[NUMBER_CHARS];
    if (m->skipped_steps > 0)
        text_add(out, "\"skipped_steps\": %lld,\n", (long long)m->skipped_steps);
    if (m->loss_scale.scale > 0.0)
        text_add(out, "\"loss_scale\": {\"scale\": %s, \"good_steps\": %lld, \"hysteresis\": %lld},\n",
                 number_text(m->loss_scale.scale, scale), (long long)m->loss_scale.good_steps,
                 (long long)m->loss_scale.hysteresis);
}

void manifest_text(const struct manifest *m, struct text *out)
{
    char hex[HEX_CHARS];
    text_add(out, "{\"format\": \"cuboid checkpoint\", \"version\": 1,\n");
    text_add(out, "\"step\": %lld, \"consumed_samples\": %lld, \"seed\": \"%llu\",\n", (long long)m->step,
             (long long)m->consumed_samples, (unsigned long long)m->seed);
    add_loss_scale(out, m);
    text_add(out, "\"model\": {");
    for (int i = 0; i < m->model_count; i++) {
        text_add(out, "%s\"%s\": ", i > 0 ? ", " : "", m->model[i].name);
        text_add_json(out, m->model[i].value);
    }
    text_add(out,
             "},\n\"layout\": {\"tp\": %d, \"cp\": %d, \"ep\": %d, \"dp\": %d, \"pp\": %d, \"rank_order\": "
             "\"%s\"},\n",
             m->degrees.tp, m->degrees.cp, m->degrees.ep, m->degrees.dp, m->degrees.pp, m->rank_order);
    text_add(out, "\"files\": [");
    for (int i = 0; i < m->file_count; i++) {
        text_add(out, i > 0 ? ",\n" : "\n");
        add_file(out, m, i);
    }
    text_add(out, "],\n");
    text_add(out, "\"checksum\": \"%s\"}\n", hex_text(checksum_of(out->chars, out->length), hex));
}
