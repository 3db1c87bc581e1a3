// SPDX-License-Identifier: Apache-2.0
/* Reads the manifest of a checkpoint, of which any byte may be wrong. */
#pragma once

#include "trainer/checkpoint/format/manifest.h"

/* Reads FOLDER/manifest.json; checks that it is complete, that every file exists with its size (not in
 * memory), and the checksum of the recipe. Returns BAD_CHECKPOINT otherwise. */
MUST_USE enum status manifest_read(const char *folder, struct manifest *out);
