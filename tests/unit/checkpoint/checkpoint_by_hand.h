// SPDX-License-Identifier: Apache-2.0
/* Hand-made checkpoints of two tensors, in a temporary folder. */
#pragma once

#include "tests/unit/recipe/recipe_case.h"
#include "trainer/checkpoint/format/manifest.h"
#include "trainer/checkpoint/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static inline void enter(char folder[32])
{
    snprintf(folder, 32, "/tmp/cuboid-saves-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static inline int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static inline void leave(const char *folder)
{
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* "step-00000001 step-00000002.partial" */
static inline const char *list(const char *save, struct text *out)
{
    struct dirent **names = NULL;
    int count = scandir(save, &names, NULL, alphasort);
    out->length = 0;
    text_add(out, "%s", "");
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.')
            text_add(out, "%s%s", out->length > 0 ? " " : "", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return out->chars;
}

/* ---- a hand-made checkpoint ---- */

static const struct shard hand_made[] = {
    {.name = "norm.weight", .dim = {4, 1}, .slice = {.ndim = 1, .count = {4, 1}}},
    {.name = "head.weight", .dtype = SAFETENSORS_F32, .dim = {2, 4}, .slice = {.ndim = 2, .count = {2, 4}}}};

/* Returns the size and the checksum of the header. */
static inline struct manifest_file write_tensors(const char *path, const struct save_identity *identity)
{
    float numbers[12] = {0};
    struct checkpoint_writer *writer = NULL;
    cr_assert_eq(checkpoint_writer_create(path, identity, hand_made, 2, &writer), OK, "%s", fail_text());
    cr_assert_eq(checkpoint_writer_append(writer, numbers, sizeof numbers), OK);
    cr_assert_eq(checkpoint_writer_finish(writer), OK, "%s", fail_text());
    struct manifest_file file = {.bytes = checkpoint_writer_bytes(writer),
                                 .checksum = checkpoint_writer_checksum(writer)};
    checkpoint_writer_destroy(writer);
    return file;
}

static inline void write_in(const char *folder, const char *name, const char *text, size_t length)
{
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    cr_assert_eq(file_write_atomic(path.chars, text, length), OK);
    text_free(&path);
}

static inline void write_manifest(const char *folder, const struct save_identity *identity,
                                  const struct manifest_file *file)
{
    struct loaded loaded = load(SMALL, NULL, 0);
    struct run run = {.recipe = loaded.recipe};
    struct rank_state state = {.run = &run, .step = identity->step};
    struct manifest manifest;
    struct text text = {0}, recipe = {0};
    text_add(&recipe, "%s", "name: by hand\n");
    write_in(folder, "recipe.yaml", recipe.chars, recipe.length);
    cr_assert_eq(
        mesh_create((struct degrees){.tp = 2, .cp = 1, .ep = 1, .dp = 1, .pp = 1}, NULL, &state.mesh), OK);
    cr_assert_eq(manifest_begin(&state, identity, &manifest), OK);
    manifest_set_recipe(&manifest, "recipe.yaml", &recipe);
    manifest_add_file(&manifest, 0, file->bytes, file->checksum);
    for (int i = 0; i < 2; i++) {
        manifest_add_tensor(&manifest, &hand_made[i]);
        manifest_add_rank(&manifest, 0);
    }
    cr_assert_eq(manifest_complete(&manifest, folder), OK, "%s", fail_text());
    manifest_text(&manifest, &text);
    write_in(folder, "manifest.json", text.chars, text.length);
    manifest_free(&manifest);
    text_free(&text);
    text_free(&recipe);
    loaded_free(&loaded);
}

/* Does what a save does before it renames the folder. */
static inline struct save_ticket begin(const char *save, int64_t step)
{
    struct save_ticket ticket;
    struct text folder = {0}, path = {0};
    cr_assert_eq(store_begin(save, step, &ticket), OK, "%s", fail_text());
    store_of_ticket(save, &ticket, &folder);
    text_add(&path, "%s/rank-00000.safetensors", folder.chars);
    struct manifest_file file = write_tensors(path.chars, &ticket.identity);
    write_manifest(folder.chars, &ticket.identity, &file);
    text_free(&folder);
    text_free(&path);
    return ticket;
}

/* keep 0: keeps all. */
static inline void save_and_keep(const char *save, int64_t step, int64_t keep)
{
    struct save_ticket ticket = begin(save, step);
    cr_assert_eq(store_publish(save, &ticket), OK, "%s", fail_text());
    store_prune(save, &ticket, keep, 0, -1);
}

static inline void save_one(const char *save, int64_t step)
{
    save_and_keep(save, step, 0);
}

static inline void silence(void)
{
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
}
