// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/manifest.h"

#include "base/memory.h"
#include "trainer/data/order/data_resume.h"
#include "trainer/files/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

/* Keys of the recipe's section `model` that may differ on loading: they change no weight and no value of
 * the model. All others must agree, so that a new key of the model is compared unless it is listed here. */
static const char *const free_keys[] = {"make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout",
                                        "init_method_std", "attention_backend"};

static void model_value(const struct recipe *recipe, const char *dotted, struct manifest_key *out)
{
    AUTO(text) value = {0};
    recipe_key_text(recipe, dotted, &value);
    snprintf(out->name, sizeof out->name, "%s", strchr(dotted, '.') + 1);
    snprintf(out->value, sizeof out->value, "%s", text_chars(&value));
}

static bool must_agree(const struct recipe *recipe, const char *name)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++)
        if (strcmp(free_keys[i], name) == 0)
            return false;
    return strcmp(name, "seq_length") != 0 || recipe->model.position_embedding == LEARNED_ABSOLUTE;
}

static const struct manifest_key *find_key(const struct manifest *m, const char *name)
{
    for (int i = 0; i < m->model_count; i++)
        if (strcmp(m->model[i].name, name) == 0)
            return &m->model[i];
    return NULL;
}

/* A checkpoint that is older than a key was made with its default. */
static bool value_in_manifest(const struct manifest *m, const char *dotted, struct text *out)
{
    const struct manifest_key *found = find_key(m, strchr(dotted, '.') + 1);
    if (found == NULL)
        return recipe_default_text(NULL, dotted, out);
    text_add(out, "%s", found->value);
    return true;
}

/* The keys that differ: their names with the values of the checkpoint, the values of the recipe, and the
 * overrides that make them equal. */
struct differences {
    int count;
    struct text theirs, ours, fix;
};

static void add_difference(struct differences *found, const char *dotted, const char *theirs,
                           const char *ours)
{
    const char *between = found->count++ > 0 ? ", " : "";
    text_add(&found->theirs, "%s%s %s", between, dotted, theirs);
    text_add(&found->ours, "%s%s", between, ours);
    text_add(&found->fix, "%s%s=%s", found->count > 1 ? " " : "", dotted, theirs);
}

static enum status check_key(const struct manifest *m, const struct recipe *recipe, const char *dotted,
                             const char *path, struct differences *found)
{
    struct manifest_key ours;
    AUTO(text) theirs = {0};
    enum status status = OK;
    model_value(recipe, dotted, &ours);
    if (!must_agree(recipe, ours.name))
        return OK;
    if (!value_in_manifest(m, dotted, &theirs))
        status = fail(BAD_CHECKPOINT, "%s: its manifest has no %s", path, dotted);
    else if (strcmp(ours.value, text_chars(&theirs)) != 0)
        add_difference(found, dotted, text_chars(&theirs), ours.value);
    return status;
}

int64_t manifest_vocab_size(const struct manifest *manifest)
{
    int64_t size;
    const struct manifest_key *found = find_key(manifest, "vocab_size");
    return found != NULL && integer_parse(found->value, &size) ? size : 0;
}

enum status manifest_check_model(const struct manifest *manifest, const struct recipe *recipe,
                                 const char *path, const char *otherwise, bool may_grow)
{
    const char *key;
    const bool may_set = otherwise != NULL;
    struct differences found = {0};
    enum status status = OK;
    const bool grows = may_grow && recipe->model.vocab_size > manifest_vocab_size(manifest);
    for (int i = 0; status == OK && (key = recipe_model_key(i)) != NULL; i++)
        if (!grows || strcmp(key, "model.vocab_size") != 0)
            status = check_key(manifest, recipe, key, path, &found);
    if (status == OK && found.count > 0)
        status = fail(WRONG_CHECKPOINT, "%s: trained with %s, but the recipe has %s; %s%s%s", path,
                      found.theirs.chars, found.ours.chars,
                      may_set ? "set " : "restore recipe.yaml in this directory",
                      may_set ? found.fix.chars : "", may_set ? otherwise : "");
    text_free(&found.theirs);
    text_free(&found.ours);
    text_free(&found.fix);
    return status;
}

/* ---- creation ---- */

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

static void layout_of(const struct degrees *degrees, struct manifest *out)
{
    const struct {
        const char *name;
        int degree;
    } axes[] = {{"tp", degrees->tp},
                {"cp", degrees->cp},
                {"ep", degrees->ep},
                {"dp", degrees->dp},
                {"pp", degrees->pp}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        struct manifest_axis *axis = &out->layout[out->axis_count++];
        snprintf(axis->name, sizeof axis->name, "%s", axes[i].name);
        axis->degree = axes[i].degree;
    }
}

int manifest_degree(const struct manifest *manifest, const char *axis)
{
    for (int i = 0; i < manifest->axis_count; i++)
        if (strcmp(manifest->layout[i].name, axis) == 0)
            return manifest->layout[i].degree;
    return 0;
}

bool manifest_has_layout(const struct manifest *manifest, const struct mesh *mesh)
{
    struct manifest now = {0};
    order_text(mesh, now.rank_order);
    layout_of(&mesh->degrees, &now);
    bool same = manifest->axis_count == now.axis_count && strcmp(manifest->rank_order, now.rank_order) == 0;
    for (int i = 0; same && i < now.axis_count; i++)
        same = manifest_degree(manifest, now.layout[i].name) == now.layout[i].degree;
    return same;
}

static int model_keys(void)
{
    int count = 0;
    while (recipe_model_key(count) != NULL)
        count++;
    return count;
}

void manifest_begin_recipe(const struct recipe *recipe, const struct mesh *mesh,
                           const struct save_identity *identity, struct manifest *out)
{
    *out = (struct manifest){
        .identity = *identity,
        .seed = recipe->seed,
        .model = memory_zeroed((size_t)model_keys(), sizeof *out->model, "a manifest"),
    };
    layout_of(&mesh->degrees, out);
    order_text(mesh, out->rank_order);
    for (int key = 0; key < model_keys(); key++)
        model_value(recipe, recipe_model_key(key), &out->model[out->model_count++]);
}

enum status manifest_begin(const struct rank_state *state, const struct save_identity *identity,
                           struct manifest *out)
{
    manifest_begin_recipe(state->run->recipe, &state->mesh, identity, out);
    out->consumed_samples = rank_consumed_samples(state);
    out->skipped_steps = state->skipped;
    out->has_valid_loss = state->has_valid_loss;
    out->valid_loss = state->valid_loss;
    const struct text *order;
    if (state->run->data == NULL)
        return OK;
    const enum status status = data_order_record(state->run->data, &order);
    if (status == OK)
        text_add_bytes(&out->data_order, order->chars, order->length);
    else
        manifest_free(out);
    return status;
}

void manifest_begin_copy(const struct manifest *from, const struct mesh *mesh,
                         const struct save_identity *identity, struct manifest *out)
{
    *out = (struct manifest){
        .identity = *identity,
        .consumed_samples = from->consumed_samples,
        .skipped_steps = from->skipped_steps,
        .has_valid_loss = from->has_valid_loss,
        .valid_loss = from->valid_loss,
        .seed = from->seed,
        .recipe = from->recipe,
        .model = memory_zeroed((size_t)from->model_count + 1, sizeof *out->model, "a manifest"),
        .model_count = from->model_count,
    };
    memcpy(out->model, from->model, (size_t)from->model_count * sizeof *out->model);
    text_add_bytes(&out->data_order, text_chars(&from->data_order), from->data_order.length);
    layout_of(&mesh->degrees, out);
    order_text(mesh, out->rank_order);
}

void manifest_set_recipe(struct manifest *manifest, const char *name, const struct text *recipe)
{
    manifest->recipe.bytes = (int64_t)recipe->length;
    manifest->recipe.checksum = checksum_of(text_chars(recipe), recipe->length);
    snprintf(manifest->recipe.name, sizeof manifest->recipe.name, "%s", name);
}

void manifest_file_name(int rank, char out[MANIFEST_FILE_CHARS])
{
    snprintf(out, MANIFEST_FILE_CHARS, "rank-%05d.safetensors", rank);
}

/* Makes space for one more element of *list, whose capacity is a power of two. */
static void grow(void **list, int count, size_t each)
{
    if ((count & (count - 1)) == 0)
        *list = memory_resized(*list, count > 0 ? 2 * (size_t)count : 1, each, "a manifest");
}

void manifest_add_file(struct manifest *manifest, int rank, int64_t bytes, uint64_t checksum)
{
    CHECK(rank >= 0 && (manifest->file_count == 0 || manifest->files[manifest->file_count - 1].rank < rank));
    grow((void **)&manifest->files, manifest->file_count, sizeof *manifest->files);
    struct manifest_file *file = &manifest->files[manifest->file_count++];
    *file = (struct manifest_file){.rank = rank, .bytes = bytes, .checksum = checksum};
    manifest_file_name(rank, file->name);
}

void manifest_add_tensor(struct manifest *manifest, const struct shard *whole)
{
    grow((void **)&manifest->tensors, manifest->tensor_count, sizeof *manifest->tensors);
    struct manifest_tensor *tensor = &manifest->tensors[manifest->tensor_count++];
    *tensor = (struct manifest_tensor){
        .dtype = whole->dtype, .ndim = whole->slice.ndim, .range = manifest->range_count};
    memcpy(tensor->name, whole->name, sizeof tensor->name);
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        tensor->dim[d] = d < whole->slice.ndim ? whole->dim[d] : 1;
}

void manifest_add_rank(struct manifest *manifest, int rank)
{
    struct manifest_tensor *tensor = &manifest->tensors[manifest->tensor_count - 1];
    struct rank_range *last = tensor->range_count > 0 ? &manifest->ranges[manifest->range_count - 1] : NULL;
    CHECK(rank >= 0 && (last == NULL || rank > last->last));
    if (last != NULL && rank == last->last + 1) {
        last->last = rank;
        return;
    }
    grow((void **)&manifest->ranges, manifest->range_count, sizeof *manifest->ranges);
    manifest->ranges[manifest->range_count++] = (struct rank_range){rank, rank};
    tensor->range_count++;
}

void manifest_free(struct manifest *manifest)
{
    text_free(&manifest->data_order);
    free(manifest->model);
    free(manifest->files);
    free(manifest->tensors);
    free(manifest->ranges);
    *manifest = (struct manifest){0};
}

/* ---- checks ---- */

static int by_name(const void *a, const void *b)
{
    const struct manifest_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum status check_ranks(const struct manifest *m, const struct manifest_tensor *tensor,
                               const char *path)
{
    if (tensor->range_count == 0)
        return fail(BAD_CHECKPOINT, "%s: no rank wrote %s", path, tensor->name);
    for (int i = tensor->range; i < tensor->range + tensor->range_count; i++) {
        const struct rank_range *range = &m->ranges[i];
        int first = manifest_file_of(m, range->first), last = manifest_file_of(m, range->last);
        if (first < 0 || last < 0 || last - first != range->last - range->first ||
            (i > tensor->range && range[-1].last >= range->first))
            return fail(BAD_CHECKPOINT, "%s: ranks %d to %d of %s do not all have a file, or not in order",
                        path, range->first, range->last, tensor->name);
    }
    return OK;
}

enum status manifest_complete(struct manifest *manifest, const char *path)
{
    for (int i = 1; i < manifest->file_count; i++)
        if (manifest->files[i].rank <= manifest->files[i - 1].rank)
            return fail(BAD_CHECKPOINT, "%s: %s follows %s", path, manifest->files[i].name,
                        manifest->files[i - 1].name);
    if (manifest->tensor_count > 0)
        qsort(manifest->tensors, (size_t)manifest->tensor_count, sizeof *manifest->tensors, by_name);
    for (int i = 0; i < manifest->tensor_count; i++) {
        if (i > 0 && strcmp(manifest->tensors[i - 1].name, manifest->tensors[i].name) == 0)
            return fail(BAD_CHECKPOINT, "%s: %s is listed twice", path, manifest->tensors[i].name);
        TRY(check_ranks(manifest, &manifest->tensors[i], path));
    }
    return OK;
}

/* ---- finding ---- */

static int compare_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct manifest_tensor *)tensor)->name);
}

const struct manifest_tensor *manifest_tensor(const struct manifest *manifest, const char *name)
{
    return manifest->tensor_count == 0 ? NULL
                                       : bsearch(name, manifest->tensors, (size_t)manifest->tensor_count,
                                                 sizeof *manifest->tensors, compare_tensor);
}

static int compare_rank(const void *rank, const void *file)
{
    int other = ((const struct manifest_file *)file)->rank;
    return (*(const int *)rank > other) - (*(const int *)rank < other);
}

int manifest_file_of(const struct manifest *manifest, int rank)
{
    const struct manifest_file *found = manifest->file_count == 0
                                            ? NULL
                                            : bsearch(&rank, manifest->files, (size_t)manifest->file_count,
                                                      sizeof *manifest->files, compare_rank);
    return found != NULL ? (int)(found - manifest->files) : -1;
}

/* ---- as text ---- */

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
