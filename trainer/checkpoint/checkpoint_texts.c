// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint_texts.h"

#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <sys/stat.h>

static const char recipe_name[] = "recipe.yaml", data_name[] = "data.json", manifest_name[] = "manifest.json";

void save_texts_free(struct save_texts *texts)
{
    text_free(&texts->recipe);
    text_free(&texts->data);
    text_free(&texts->manifest);
}

/* `notes`: those of all ranks, of `words` words each. */
static enum status complete(struct save_job *job, const uint32_t *notes, int words, const char *path,
                            struct manifest *manifest, struct save_texts *out)
{
    const struct rank_state *w = job->rank_state;
    const struct text *fingerprint; // taken when the datasets were opened
    recipe_resolved_text(w->run->recipe, &out->recipe);
    if (w->run->data != NULL) {
        TRY(data_fingerprint(w->run->data, &fingerprint));
        text_add_bytes(&out->data, text_chars(fingerprint), fingerprint->length);
    }
    manifest_set_recipe(manifest, recipe_name, &out->recipe);
    TRY(notes_add(&job->tensors, notes, w->world->size, words, path, manifest));
    manifest_text(manifest, &out->manifest);
    return OK;
}

enum status save_texts_make(struct save_job *job, const char *path, struct manifest *manifest,
                            struct save_texts *out)
{
    struct rank_state *w = job->rank_state;
    const int tensors = tensor_list_count(&job->tensors), words = note_words(tensors);
    const size_t ranks = w->world->rank == 0 ? (size_t)w->world->size : 1;
    uint32_t *mine = calloc((size_t)words, sizeof *mine), *all = calloc(ranks * (size_t)words, sizeof *all);
    enum status status = rank_agree(
        w, mine != NULL && all != NULL ? OK : fail(NO_MEMORY, "no memory for the notes of %zu ranks", ranks));
    if (status == OK) {
        note_pack(&job->note, job->has, tensors, mine);
        status = rank_agree(w, notes_gather(w, mine, words, all));
    }
    if (status == OK)
        status = rank_agree(w, w->world->rank == 0 ? complete(job, all, words, path, manifest, out) : OK);
    free(mine);
    free(all);
    return status;
}

static enum status write_text(const char *folder, const char *name, const struct text *text)
{
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    enum status status = file_write_atomic(path.chars, text_chars(text), text->length);
    text_free(&path);
    return status;
}

enum status save_texts_write(const struct save_texts *texts, const char *folder)
{
    TRY(write_text(folder, recipe_name, &texts->recipe));
    if (texts->data.length > 0)
        TRY(write_text(folder, data_name, &texts->data));
    return write_text(folder, manifest_name, &texts->manifest);
}

static enum status read_text(const char *folder, const char *name, bool optional, struct text *out)
{
    struct text path = {0};
    struct stat info;
    text_add(&path, "%s/%s", folder, name);
    enum status status = optional && stat(path.chars, &info) != 0 ? OK : file_read(path.chars, out);
    text_free(&path);
    return status;
}

enum status save_texts_read(const char *folder, struct save_texts *out)
{
    TRY(read_text(folder, recipe_name, false, &out->recipe));
    TRY(read_text(folder, data_name, true, &out->data));
    return read_text(folder, manifest_name, false, &out->manifest);
}
