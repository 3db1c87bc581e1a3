// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/metadata_files.h"

#include "base/memory.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/engine/agree.h"

#include <stdlib.h>
#include <sys/stat.h>

static const char recipe_name[] = "recipe.yaml", data_name[] = "data.json", manifest_name[] = "manifest.json";

void metadata_files_free(struct metadata_files *texts)
{
    text_free(&texts->recipe);
    text_free(&texts->data);
    text_free(&texts->manifest);
}

/* `notes`: those of all ranks, of `words` words each. */
static enum status complete(struct rank_writer *writer, const uint32_t *notes, int words, const char *path,
                            struct manifest *manifest, struct metadata_files *out)
{
    const struct rank_state *w = writer->rank_state;
    const struct text *fingerprint; // taken when the datasets were opened
    recipe_resolved_text(w->run->recipe, &out->recipe);
    if (w->run->data != NULL) {
        TRY(data_fingerprint(w->run->data, &fingerprint));
        text_add_bytes(&out->data, text_chars(fingerprint), fingerprint->length);
    }
    manifest_set_recipe(manifest, recipe_name, &out->recipe);
    TRY(notes_add(&writer->tensors, notes, w->world->size, words, path, manifest));
    manifest_text(manifest, &out->manifest);
    return OK;
}

enum status metadata_files_make(struct rank_writer *writer, const char *path, struct manifest *manifest,
                                struct metadata_files *out)
{
    struct rank_state *w = writer->rank_state;
    const int tensors = tensor_list_count(&writer->tensors), words = note_words(tensors);
    const size_t ranks = w->world->rank == 0 ? (size_t)w->world->size : 1;
    AUTO_FREE uint32_t *mine = memory_zeroed((size_t)words, sizeof *mine, "the note of a rank");
    AUTO_FREE uint32_t *all = memory_zeroed(ranks * (size_t)words, sizeof *all, "the notes of ranks");
    note_pack(&writer->note, writer->has, tensors, mine);
    TRY(rank_agree(w, notes_gather(w, mine, words, all)));
    return rank_agree(w, w->world->rank == 0 ? complete(writer, all, words, path, manifest, out) : OK);
}

static enum status write_text(const char *folder, const char *name, const struct text *text)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", folder, name);
    return file_write_atomic(path.chars, text_chars(text), text->length);
}

enum status metadata_files_write(const struct metadata_files *texts, const char *folder)
{
    TRY(write_text(folder, recipe_name, &texts->recipe));
    if (texts->data.length > 0)
        TRY(write_text(folder, data_name, &texts->data));
    return write_text(folder, manifest_name, &texts->manifest);
}

static enum status read_text(const char *folder, const char *name, bool optional, struct text *out)
{
    AUTO(text) path = {0};
    struct stat info;
    text_add(&path, "%s/%s", folder, name);
    return optional && stat(path.chars, &info) != 0 ? OK : file_read(path.chars, out);
}

enum status metadata_files_read(const char *folder, struct metadata_files *out)
{
    TRY(read_text(folder, recipe_name, false, &out->recipe));
    TRY(read_text(folder, data_name, true, &out->data));
    return read_text(folder, manifest_name, false, &out->manifest);
}
