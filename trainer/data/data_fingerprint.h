// SPDX-License-Identifier: Apache-2.0
/* What the datasets of a run are, as a small file in each checkpoint (data.json), so that a run that resumes
 * notices when a dataset was replaced under its old name.
 *
 *   {"format": "cuboid data", "version": 1,
 *    "train": [{"path": "data/books", "dtype": "uint16", "sequences": 3, "documents": 3, "tokens": 12,
 *               "index_bytes": 102, "index_xxh3": "<16 digits>", "bytes": 24,
 *               "blocks": [{"at": 0, "bytes": 24, "xxh3": "<16 digits>"}, ...]}],
 *    "valid": [...]}
 *
 * The index is summed in full when the dataset is opened; of the ids at most FINGERPRINT_BLOCKS blocks of
 * FINGERPRINT_BLOCK_BYTES are, evenly spaced, the first and the last among them: a few milliseconds for any
 * size, and all bytes of a small file. With more than 16 sources each has fewer blocks, at least 4. Sources
 * are compared by their position in the list: a dataset may be moved to another folder. */
#pragma once

#include "trainer/data/data.h"

enum { FINGERPRINT_BLOCKS = 64, FINGERPRINT_BLOCK_BYTES = 1 << 16 };

/* The text of data.json. It is made at the first call, and is the same from then on. */
MUST_USE enum status data_fingerprint(struct data *data, const struct text **out);

/* Compares with FOLDER/data.json. What differs is added to `changes`, one line for each source, without an
 * end of line before the first and after the last; nothing when nothing changed. A checkpoint without that
 * file is not compared; one that cannot be read is a line. */
MUST_USE enum status data_fingerprint_compare(struct data *data, const char *folder, struct text *changes);

/* The same, and reports it: a warning on standard error for each line, or, with data.strict,
 * BAD_DATA. */
MUST_USE enum status data_fingerprint_check(struct data *data, const char *folder, bool strict);
