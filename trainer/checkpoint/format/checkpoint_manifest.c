// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/checkpoint_manifest.h"

#include "trainer/checkpoint/format/checkpoint_cover.h"
#include "trainer/files/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

/* Keys of the recipe's section `model` that may differ on loading: they change no weight and no value of the
 * model. All others must agree, so that a new key of the model is compared unless it is listed here. */
static const char *const free_keys[] = {"make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout",
                                        "init_method_std", "attention_backend"};

static void model_value(const struct recipe *recipe, const char *dotted, struct manifest_key *out)
{
    struct text value = {0};
    recipe_key_text(recipe, dotted, &value);
    snprintf(out->name, sizeof out->name, "%s", strchr(dotted, '.') + 1);
    snprintf(out->value, sizeof out->value, "%s", text_chars(&value));
    text_free(&value);
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
        return recipe_default_text(dotted, out);
    text_add(out, "%s", found->value);
    return true;
}

static enum status check_key(const struct manifest *m, const struct recipe *recipe, const char *dotted,
                             const char *path)
{
    struct manifest_key ours;
    struct text theirs = {0};
    enum status status = OK;
    model_value(recipe, dotted, &ours);
    if (!must_agree(recipe, ours.name))
        return OK;
    if (!value_in_manifest(m, dotted, &theirs))
        status = fail(BAD_CHECKPOINT, "%s: its manifest has no %s", path, dotted);
    else if (strcmp(ours.value, text_chars(&theirs)) != 0)
        status =
            fail(BAD_CHECKPOINT,
                 "%s: trained with %s %s, but the recipe has %s; set %s=%s, or another logging.run_dir or "
                 "checkpoint.load",
                 path, dotted, theirs.chars, ours.value, dotted, theirs.chars);
    text_free(&theirs);
    return status;
}

enum status manifest_check_model(const struct manifest *m, const struct recipe *recipe, const char *path)
{
    const char *key;
    for (int i = 0; (key = recipe_model_key(i)) != NULL; i++)
        TRY(check_key(m, recipe, key, path));
    return OK;
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

int manifest_degree(const struct manifest *m, const char *axis)
{
    for (int i = 0; i < m->axis_count; i++)
        if (strcmp(m->layout[i].name, axis) == 0)
            return m->layout[i].degree;
    return 0;
}

static int model_keys(void)
{
    int count = 0;
    while (recipe_model_key(count) != NULL)
        count++;
    return count;
}

enum status manifest_begin(const struct rank_state *state, const struct save_identity *identity,
                           struct manifest *out)
{
    const struct recipe *recipe = state->run->recipe;
    *out = (struct manifest){
        .version = CHECKPOINT_VERSION,
        .identity = *identity,
        .consumed_samples = state->step * recipe->train.global_batch_size,
        .skipped_steps = state->skipped,
        .seed = recipe->seed,
        .model = calloc((size_t)model_keys(), sizeof *out->model),
    };
    if (out->model == NULL)
        return fail(NO_MEMORY, "no memory for the manifest of a checkpoint");
    layout_of(&state->mesh.degrees, out);
    order_text(&state->mesh, out->rank_order);
    for (int key = 0; key < model_keys(); key++)
        model_value(recipe, recipe_model_key(key), &out->model[out->model_count++]);
    return OK;
}

void manifest_set_recipe(struct manifest *m, const char *name, const struct text *recipe)
{
    m->recipe.bytes = (int64_t)recipe->length;
    m->recipe.checksum = checksum_of(text_chars(recipe), recipe->length);
    snprintf(m->recipe.name, sizeof m->recipe.name, "%s", name);
}

static enum status add_open_file(struct manifest *m, const struct checkpoint_file *file, const char *path,
                                 const char *name)
{
    const struct safetensors *tensors = checkpoint_file_tensors(file);
    if (!identity_equal(checkpoint_file_identity(file), &m->identity))
        return fail(BAD_CHECKPOINT,
                    "%s: another run wrote it at the same time; set a different checkpoint.save "
                    "for each run",
                    path);
    size_t shards = (size_t)m->shard_count + (size_t)safetensors_count(tensors) + 1;
    void *files = realloc(m->files, ((size_t)m->file_count + 1) * sizeof *m->files);
    m->files = files != NULL ? files : m->files;
    void *list = realloc(m->shards, shards * sizeof *m->shards);
    m->shards = list != NULL ? list : m->shards;
    if (files == NULL || list == NULL)
        return fail(NO_MEMORY, "%s: no memory for the manifest of a checkpoint", path);
    struct manifest_file *entry = &m->files[m->file_count];
    *entry = (struct manifest_file){.bytes = safetensors_file_bytes(tensors),
                                    .checksum = safetensors_header_checksum(tensors)};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    for (int i = 0; i < safetensors_count(tensors); i++) {
        struct shard *shard = &m->shards[m->shard_count];
        TRY(checkpoint_file_shard(file, safetensors_at(tensors, i), shard));
        shard->file = m->file_count;
        m->shard_count++;
    }
    m->file_count++;
    return OK;
}

enum status manifest_add_file(struct manifest *m, const char *folder, const char *name)
{
    struct text path = {0};
    struct checkpoint_file *file = NULL;
    text_add(&path, "%s/%s", folder, name);
    enum status status = checkpoint_file_open(path.chars, m->version, &file);
    if (status == OK)
        status = add_open_file(m, file, path.chars, name);
    checkpoint_file_close(file);
    text_free(&path);
    return status;
}

void manifest_free(struct manifest *m)
{
    free(m->model);
    free(m->files);
    free(m->shards);
    *m = (struct manifest){0};
}

/* ---- tiling ---- */

static int by_name_and_begin(const void *a, const void *b)
{
    const struct shard *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    for (int d = 0; order == 0 && d < SHARD_MAX_DIMS; d++)
        order = (x->begin[d] > y->begin[d]) - (x->begin[d] < y->begin[d]);
    return order;
}

enum status manifest_complete(struct manifest *m, const char *path)
{
    if (m->shard_count > 0)
        qsort(m->shards, (size_t)m->shard_count, sizeof *m->shards, by_name_and_begin);
    for (int i = 0; i < m->shard_count;) {
        int count = 1;
        while (i + count < m->shard_count && strcmp(m->shards[i].name, m->shards[i + count].name) == 0)
            count++;
        TRY(shards_tile(&m->shards[i], count, path));
        i += count;
    }
    return OK;
}

static int compare_name(const void *name, const void *shard)
{
    return strcmp(name, ((const struct shard *)shard)->name);
}

const struct shard *manifest_find(const struct manifest *m, const char *name, int *count)
{
    *count = 0;
    if (m->shard_count == 0)
        return NULL;
    const struct shard *found =
        bsearch(name, m->shards, (size_t)m->shard_count, sizeof *m->shards, compare_name);
    if (found == NULL)
        return NULL;
    while (found > m->shards && strcmp(found[-1].name, name) == 0)
        found--;
    while (found + *count < m->shards + m->shard_count && strcmp(found[*count].name, name) == 0)
        (*count)++;
    return found;
}
