// SPDX-License-Identifier: Apache-2.0
/* Fingerprint of the datasets of a run, a small file in each checkpoint (data.json): a resumed run detects a
 * dataset that was replaced under its old name.
 *
 *   {"format": "cuboid data", "version": 1,
 *    "train": [{"path": "data/books", "dtype": "uint16", "sequences": 3, "documents": 3, "tokens": 12,
 *               "index_bytes": 102, "index_xxh3": "<16 digits>", "bytes": 24,
 *               "loss_mask_xxh3": "<16 digits>",      only with data.loss_mask: all its bits
 *               "blocks": [{"at": 0, "bytes": 24, "xxh3": "<16 digits>"}, ...]}],
 *    "valid": [...]}
 *
 * The checksum of the index covers the whole file and is computed when the dataset is opened; of the ids, it
 * covers at most DATASET_BLOCKS blocks (dataset_blocks.h): a few milliseconds for any size, and all bytes of
 * a small file. With more than 16 sources each has fewer blocks, at least 4. A
 * dataset may be moved to another folder. */
#pragma once

#include "trainer/data/data.h"

/* Returns the text of data.json; computed by the first call, and constant afterwards. */
MUST_USE enum status data_fingerprint(struct data *data, const struct text **out);

/* A checksum of one dataset, of its sizes, its index and at most 4 blocks: the same wherever it is stored and
 * with whatever other sources it is read; never 0. */
struct dataset;
MUST_USE enum status data_content(const struct dataset *source, uint64_t *out);

/* Compares the data with FOLDER/data.json. positions: of each source of data.train in the list recorded
 * there, -1: not in it; NULL: the lists have the same order. Appends one line per difference to `changes`,
 * separated by newlines, without one at the end; nothing if there is no difference. If this file is missing
 * or damaged, `is_recorded` is false, and `changes` says why. */
MUST_USE enum status data_fingerprint_compare(const struct data *data, const char *folder,
                                              const int *positions, bool *is_recorded, struct text *changes);

/* Compares, and reports the changes or that they cannot be detected: as warnings on standard error, or as
 * BAD_DATA with data.strict. */
MUST_USE enum status data_fingerprint_check(const struct data *data, const char *folder, const int *positions,
                                            bool strict);
