// SPDX-License-Identifier: Apache-2.0
/* The manifest: what a checkpoint is, and where each piece of it lies. It is written last, and ends with a
 * checksum of itself: a folder without a whole manifest is not a checkpoint.
 *
 *   {"format": "cuboid checkpoint", "version": 1,
 *    "step": 100, "consumed_samples": 1600, "seed": "1234",
 *    "skipped_steps": 3,                                      of these; left out where there are none
 *    "loss_scale": {"scale": 32768, "good_steps": 61, "hysteresis": 2},         with a dynamic one only
 *    "model": {"num_layers": "4", ...},                      as the resolved recipe writes them
 *    "layout": {"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2, "rank_order": "tp-cp-ep-dp-pp"},
 *    "files": [{"name": "rank-00000.safetensors", "bytes": 1234, "header": "<checksum>", "tensors": [
 *       {"name": "embedding.weight", "shape": [257, 192], "begin": [0, 0], "count": [129, 192],
 *        "checksum": "<checksum>"}, ...]}],
 *    "checksum": "<of everything before this key>"}
 *
 * The layout is for people: nothing is loaded by it. */
#pragma once

#include "trainer/checkpoint_piece.h"

enum { MANIFEST_FILE_CHARS = 32, MANIFEST_ORDER_CHARS = 32, MANIFEST_TEXT_CHARS = 64 };

struct manifest_key { // of the model
    char name[MANIFEST_TEXT_CHARS], value[MANIFEST_TEXT_CHARS];
};

struct manifest_file {
    char name[MANIFEST_FILE_CHARS];
    int64_t bytes;
    uint64_t header_checksum;
};

struct manifest {
    int64_t step, consumed_samples, skipped_steps;
    uint64_t seed;
    struct {
        double scale; // 0: none is kept
        int64_t good_steps, hysteresis;
    } loss_scale;
    struct degrees degrees;
    char rank_order[MANIFEST_ORDER_CHARS];
    struct manifest_key *model;
    struct manifest_file *files;
    struct piece *pieces; // by name, and in a name by begin
    int model_count, file_count, piece_count;
};

/* The step, the model and the layout of a worker; no files yet. */
MUST_USE enum status manifest_begin(const struct worker *worker, struct manifest *out);
/* Adds FOLDER/NAME with the pieces that its own header tells of. */
MUST_USE enum status manifest_add_file(struct manifest *manifest, const char *folder, const char *name);
/* Sorts, and promises: the pieces of each tensor cover it, every element once. `path` is for the message. */
MUST_USE enum status manifest_complete(struct manifest *manifest, const char *path);
void manifest_text(const struct manifest *manifest, struct text *out);

/* FOLDER/manifest.json, complete, and every file there with its size. BAD_CHECKPOINT. */
MUST_USE enum status manifest_read(const char *folder, struct manifest *out);
void manifest_free(struct manifest *manifest); // takes {0}

/* The pieces of a tensor: *count of them from the returned one on; NULL and 0 when there are none. */
const struct piece *manifest_find(const struct manifest *manifest, const char *name, int *count);

/* BAD_CHECKPOINT names the first key of the model in which the two differ, with both values. What changes
 * no tensor and no function of one (dropout, initialisation, padding) may differ. */
MUST_USE enum status manifest_check_model(const struct manifest *manifest, const struct recipe *recipe,
                                          const char *path);
