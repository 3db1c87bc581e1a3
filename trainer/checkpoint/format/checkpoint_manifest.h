// SPDX-License-Identifier: Apache-2.0
/* The manifest: what a checkpoint is, and in which file each piece of it lies. It is written last, and ends
 * with a checksum of itself: a folder without a whole manifest is not a checkpoint. Version 2:
 *
 *   {"format": "cuboid checkpoint", "version": 2,
 *    "run": "<32 digits>", "save": "<16 digits>", "step": 100,      as in the header of each file
 *    "consumed_samples": 1600, "seed": "1234",
 *    "skipped_steps": 3,                                      of these; left out where there are none
 *    "model": {"num_layers": "4", ...},                      as the resolved recipe writes them
 *    "layout": {"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}, "rank_order": "tp-cp-ep-dp-pp",
 *    "recipe": {"name": "recipe.yaml", "bytes": 1234, "xxh3": "<checksum>"},
 *    "files": [{"name": "rank-00000.safetensors", "bytes": 1234, "header": "<checksum>", "tensors": [
 *       {"name": "embedding.weight", "dtype": "F32", "shape": [257, 192], "begin": [0, 0],
 *        "count": [129, 192]}, ...]}],
 *    "checksum": "<of everything before this key>"}
 *
 * The layout maps each axis to its degree; it is informational: nothing is loaded by it. The manifest does
 * not depend on the layout of files (checkpoint_file.h). Version 1 is read, too: it has the rank order
 * inside the layout, no run, no save and no recipe, one checksum for each tensor, and the loss scale, which
 * is a tensor in version 2. */
#pragma once

#include "trainer/checkpoint/format/checkpoint_file.h"

enum { MANIFEST_FILE_CHARS = 32, MANIFEST_ORDER_CHARS = 64, MANIFEST_TEXT_CHARS = 64 };
enum { MANIFEST_AXIS_CHARS = 16, MANIFEST_MOST_AXES = 16 };
#define MANIFEST_MOST_STEPS 1000000000000 // as many as the recipe allows

struct manifest_key { // of the model
    char name[MANIFEST_TEXT_CHARS], value[MANIFEST_TEXT_CHARS];
};

struct manifest_file {
    char name[MANIFEST_FILE_CHARS];
    int64_t bytes;
    uint64_t checksum; // of its header; of the recipe, of all of it
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
        double scale; // 0: none is kept
        int64_t good_steps, hysteresis;
    } loss_scale; // of version 1
    struct manifest_axis layout[MANIFEST_MOST_AXES];
    char rank_order[MANIFEST_ORDER_CHARS];
    struct manifest_file recipe; // name "" in version 1
    struct manifest_key *model;
    struct manifest_file *files;
    struct piece *pieces; // by name, and in a name by begin
    int axis_count, model_count, file_count, piece_count;
};

/* The step, the model and the layout of a worker; no recipe and no files yet. */
MUST_USE enum status manifest_begin(const struct rank_state *state, const struct save_identity *identity,
                                    struct manifest *out);
/* The resolved recipe that lies next to the manifest. */
void manifest_set_recipe(struct manifest *manifest, const char *name, const struct text *recipe);
/* Adds FOLDER/NAME with the pieces that its own header lists; BAD_CHECKPOINT when another run or save wrote
 * it. */
MUST_USE enum status manifest_add_file(struct manifest *manifest, const char *folder, const char *name);
/* Sorts, and promises: the pieces of each tensor cover it, every element once. `path` is for the message. */
MUST_USE enum status manifest_complete(struct manifest *manifest, const char *path);
void manifest_text(const struct manifest *manifest, struct text *out);

/* FOLDER/manifest.json, complete, and every file there with its size; the recipe with its checksum.
 * BAD_CHECKPOINT. */
MUST_USE enum status manifest_read(const char *folder, struct manifest *out);
void manifest_free(struct manifest *manifest); // takes {0}

/* The pieces of a tensor: *count of them from the returned one on; NULL and 0 when there are none. */
const struct piece *manifest_find(const struct manifest *manifest, const char *name, int *count);

/* The degree of an axis of the layout; 0 when it is not listed. */
int manifest_degree(const struct manifest *manifest, const char *axis);

/* BAD_CHECKPOINT names the first key of the model that is missing, or in which the two differ, with both
 * values. What changes no tensor and no function of one (dropout, initialisation, padding) may differ. */
MUST_USE enum status manifest_check_model(const struct manifest *manifest, const struct recipe *recipe,
                                          const char *path);
