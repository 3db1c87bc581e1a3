// SPDX-License-Identifier: Apache-2.0
/* The manifest describes a checkpoint and the file of each of its shards. It is written last and ends with a
 * checksum of itself: a folder without a whole manifest is not a checkpoint. Version 2:
 *
 *   {"format": "cuboid checkpoint", "version": 2,
 *    "run": "<32 digits>", "save": "<16 digits>", "step": 100,      as in the header of each file
 *    "consumed_samples": 1600, "seed": "1234",
 *    "skipped_steps": 3,                                      of these steps; omitted if 0
 *    "model": {"num_layers": "4", ...},                      as in the resolved recipe
 *    "layout": {"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}, "rank_order": "tp-cp-ep-dp-pp",
 *    "recipe": {"name": "recipe.yaml", "bytes": 1234, "xxh3": "<checksum>"},
 *    "files": [{"name": "rank-00000.safetensors", "bytes": 1234, "header": "<checksum>", "tensors": [
 *       {"name": "embedding.weight", "dtype": "F32", "shape": [257, 192], "begin": [0, 0],
 *        "count": [129, 192]}, ...]}],
 *    "checksum": "<of everything before this key>"}
 *
 * The layout maps each axis to its degree; it is informational and not used for loading. The manifest does
 * not depend on the format of the files (checkpoint_file.h). Version 1 is also read: it has the rank order
 * inside the layout, no run, no save and no recipe, one checksum for each tensor, and the loss scale, which
 * is a tensor in version 2. */
#pragma once

#include "trainer/checkpoint/format/checkpoint_file.h"

enum { MANIFEST_FILE_CHARS = 32, MANIFEST_ORDER_CHARS = 64, MANIFEST_TEXT_CHARS = 64 };
enum { MANIFEST_AXIS_CHARS = 16, MANIFEST_MOST_AXES = 16 };
#define MANIFEST_MOST_STEPS 1000000000000 // the maximum of the recipe

struct manifest_key { // of the model
    char name[MANIFEST_TEXT_CHARS], value[MANIFEST_TEXT_CHARS];
};

struct manifest_file {
    char name[MANIFEST_FILE_CHARS];
    int64_t bytes;
    uint64_t checksum; // of its header; of the recipe: of the whole file
};

struct manifest_axis {
    char name[MANIFEST_AXIS_CHARS];
    int degree;
};

struct manifest {
    int version;
    struct save_identity identity;
    int64_t consumed_samples, skipped_steps;
    uint64_t seed;
    struct {
        double scale; // 0: none saved
        int64_t good_steps, hysteresis;
    } loss_scale; // version 1 only
    struct manifest_axis layout[MANIFEST_MOST_AXES];
    char rank_order[MANIFEST_ORDER_CHARS];
    struct manifest_file recipe; // name "" in version 1
    struct manifest_key *model;
    struct manifest_file *files;
    struct shard *shards; // sorted by name, then by begin
    int axis_count, model_count, file_count, shard_count;
};

/* Fills in the step, the model and the layout; no recipe and no files yet. */
MUST_USE enum status manifest_begin(const struct rank_state *state, const struct save_identity *identity,
                                    struct manifest *out);
/* Sets the resolved recipe that is stored next to the manifest. */
void manifest_set_recipe(struct manifest *manifest, const char *name, const struct text *recipe);
/* Adds FOLDER/NAME with the shards listed in its header; BAD_CHECKPOINT if it is of another run or save. */
MUST_USE enum status manifest_add_file(struct manifest *manifest, const char *folder, const char *name);
/* Sorts the shards and checks that they tile each tensor exactly. `path` is for error messages. */
MUST_USE enum status manifest_complete(struct manifest *manifest, const char *path);
void manifest_text(const struct manifest *manifest, struct text *out);

/* Reads FOLDER/manifest.json; checks that it is complete, that every file exists with its size, and the
 * checksum of the recipe. Returns BAD_CHECKPOINT otherwise. */
MUST_USE enum status manifest_read(const char *folder, struct manifest *out);
void manifest_free(struct manifest *manifest); // accepts {0}

/* Returns the first of the *count consecutive shards of a tensor; NULL and 0 if there are none. */
const struct shard *manifest_find(const struct manifest *manifest, const char *name, int *count);

/* The degree of an axis of the layout; 0 if it is not listed. */
int manifest_degree(const struct manifest *manifest, const char *axis);

/* Compares the model with the recipe. BAD_CHECKPOINT names the first key that is missing or differs, with
 * both values. Keys that change neither a tensor nor a function of one (dropout, initialization, padding) may
 * differ. */
MUST_USE enum status manifest_check_model(const struct manifest *manifest, const struct recipe *recipe,
                                          const char *path);
