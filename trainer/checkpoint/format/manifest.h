// SPDX-License-Identifier: Apache-2.0
/* The manifest describes a checkpoint: its files, and the ranks whose files hold the pieces of each tensor.
 * It is written last and ends with a checksum of itself: a folder without a whole manifest is not a
 * checkpoint. Version 3:
 *
 *   {"format": "cuboid checkpoint", "version": 3,
 *    "run": "<32 digits>", "save": "<16 digits>", "step": 100,      as in the header of each file
 *    "consumed_samples": 1600, "seed": "1234",
 *    "skipped_steps": 3,                                      of these steps; omitted if 0
 *    "valid_loss": 2.8516,                                   omitted if the step was not evaluated
 *    "data_order": {...},                                    data_order.h; omitted without data
 *    "model": {"num_layers": "4", ...},                      as in the resolved recipe
 *    "layout": {"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}, "rank_order": "tp-cp-ep-dp-pp",
 *    "recipe": {"name": "recipe.yaml", "bytes": 1234, "xxh3": "<checksum>"},
 *    "files": [{"name": "rank-00000.safetensors", "bytes": 1234, "header": "<checksum>"}, ...],
 *    "tensors": [{"name": "embedding.weight", "dtype": "F32", "shape": [257, 192],
 *                 "ranks": [[0, 3], [8, 8]]}, ...],
 *    "checksum": "<of everything before this key>"}
 *
 * Ranges of ranks include both ends, and each rank in them has a file; where a piece lies is in the header
 * of that file (rank_file.h). So the manifest grows with the files and the tensors, not with their
 * product. The layout maps each axis to its degree; it is informational and not used for loading.
 *
 * The manifest of a checkpoint in the memory of the nodes (trainer/checkpoint/in_memory) has "in_memory":
 * true after the step: each node has the manifest, and only some of the files.
 */
#pragma once

#include "trainer/checkpoint/format/rank_file.h"

enum { MANIFEST_FILE_CHARS = 32, MANIFEST_ORDER_CHARS = 64, MANIFEST_TEXT_CHARS = 64 };
enum { MANIFEST_AXIS_CHARS = 16, MANIFEST_MAX_AXES = 16 };
#define MANIFEST_MAX_STEPS 1000000000000 // the maximum of the recipe

struct manifest_key { // of the model
    char name[MANIFEST_TEXT_CHARS], value[MANIFEST_TEXT_CHARS];
};

struct manifest_file {
    char name[MANIFEST_FILE_CHARS];
    int rank; // in its name; files are in the order of their ranks
    int64_t bytes;
    uint64_t checksum; // of its header; of the recipe: of the whole file
};

/* Ranks first .. last. */
struct rank_range {
    int first, last;
};

struct manifest_tensor {
    char name[SHARD_NAME_CHARS];
    enum safetensors_dtype dtype;
    int ndim;
    int64_t dim[SHARD_MAX_DIMS]; // 1 past ndim
    int range, range_count;      // in manifest.ranges, in ascending order
};

struct manifest_axis {
    char name[MANIFEST_AXIS_CHARS];
    int degree;
};

struct manifest {
    struct save_identity identity;
    bool in_memory;        // files may be missing here
    bool is_other_version; // of the format, which makes manifest_read() fail
    int64_t consumed_samples, skipped_steps;
    uint64_t seed;
    bool has_valid_loss;
    double valid_loss;      // finite
    struct text data_order; // JSON; empty: not recorded, or no data
    struct manifest_axis layout[MANIFEST_MAX_AXES];
    char rank_order[MANIFEST_ORDER_CHARS];
    struct manifest_file recipe;
    struct manifest_key *model;
    struct manifest_file *files;
    struct manifest_tensor *tensors; // sorted by name
    struct rank_range *ranges;
    int axis_count, model_count, file_count, tensor_count, range_count;
};

/* Fills in the step, the model and the layout; no recipe and no files yet. */
MUST_USE enum status manifest_begin(const struct rank_state *state, const struct save_identity *identity,
                                    struct manifest *out);
/* The same for step 0 of a recipe, without a rank. */
void manifest_begin_recipe(const struct recipe *recipe, const struct mesh *mesh,
                           const struct save_identity *identity, struct manifest *out);
/* The same for a copy of a checkpoint on another layout, without its files and tensors. */
void manifest_begin_copy(const struct manifest *from, const struct mesh *mesh,
                         const struct save_identity *identity, struct manifest *out);
/* Sets the resolved recipe that is stored next to the manifest. */
void manifest_set_recipe(struct manifest *manifest, const char *name, const struct text *recipe);
/* Formats the name of the file of a rank. */
void manifest_file_name(int rank, char out[MANIFEST_FILE_CHARS]);
/* Adds the file of a rank, in the order of the ranks: its size and the checksum of its header. */
void manifest_add_file(struct manifest *manifest, int rank, int64_t bytes, uint64_t checksum);
/* Adds a tensor: name, dtype and shape of `whole`; then the ranks that hold a piece of it, in ascending
 * order. */
void manifest_add_tensor(struct manifest *manifest, const struct shard *whole);
void manifest_add_rank(struct manifest *manifest, int rank);
/* Sorts the tensors. Checks that each is listed once, with ranks that have files. `path` is for error
 * messages. */
MUST_USE enum status manifest_complete(struct manifest *manifest, const char *path);
/* Formats a manifest. */
void manifest_text(const struct manifest *manifest, struct text *out);

void manifest_free(struct manifest *manifest); // accepts {0}

/* Returns NULL if the checkpoint has no such tensor. */
const struct manifest_tensor *manifest_tensor(const struct manifest *manifest, const char *name);
/* Returns the index of the file of a rank; -1 if there is none. */
int manifest_file_of(const struct manifest *manifest, int rank);

/* The degree of an axis of the layout; 0 if it is not listed. */
int manifest_degree(const struct manifest *manifest, const char *axis);

/* True if the checkpoint was written on these degrees, in this order of ranks. ZeRO is not compared. */
bool manifest_has_layout(const struct manifest *manifest, const struct mesh *mesh);

/* Compares the model with the recipe. WRONG_CHECKPOINT names all keys that differ, with both values;
 * BAD_CHECKPOINT one that is missing. Keys that change neither a tensor nor a function of one (dropout,
 * initialization, padding) may differ. otherwise: appended to "set KEY=VALUE ..." of the message, the other
 * possibilities; NULL: no key can be set, since the recipe is that of the checkpoint. may_grow: the recipe's
 * vocabulary may be larger. */
MUST_USE enum status manifest_check_model(const struct manifest *manifest, const struct recipe *recipe,
                                          const char *path, const char *otherwise, bool may_grow);
/* The vocabulary size of the checkpoint's model; 0 if it is missing. */
int64_t manifest_vocab_size(const struct manifest *manifest);
